"""Real agents that join through a manager, lose neighbours, and lose the manager."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Client, Live, assert_each_once, eventually, wait_until_reachable
from tests.agent.process import Process

from hansa.testbed.certificates import certify_state
from hansa.testbed.managed_federation import ManagedFederation
from hansa.testbed.mosquitto import Mosquitto, free_port

TOPIC = "federated/data"
INTERVAL_S = 1.0
"""Seconds between health reports, shorter than the default of 5."""


class Managed(Live):
    """A running federation with its manager."""

    federation: ManagedFederation

    def __init__(self, count: int, directory: Path | None = None) -> None:
        manager = {"HANSA_MANAGER_HEALTH_INTERVAL": str(INTERVAL_S), "TOP_MAX_REDUNDANCY": "3"}
        super().__init__(ManagedFederation(count, {}, manager, directory=directory))
        self.dead: set[int] = set()

    def ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        return self.federation.request_manager(path, method, body)

    def status(self, number: int) -> Any:
        return self.nodes[number].status()

    def neighbours(self, number: int) -> list[int]:
        """The neighbours of a node in its own view, by number."""
        status = self.status(number)
        by_id = {self.status(n)["node"]: n for n in range(len(self.nodes)) if n not in self.dead}
        return sorted(by_id[each] for each in status["neighbours"] if each in by_id)

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            agent = self.nodes[number].agent
            assert agent is not None
            agent.kill()
        self.dead |= set(numbers)

    def restore(self) -> None:
        if self.federation.manager is None:
            self.run(self.federation.start_manager())
        for node in self.ask("/nodes"):
            if node["draining"]:
                self.ask(f"/nodes/{node['id']}/drain", "POST", {"draining": False})
        self.revive()

    def revive(self) -> None:
        for number in sorted(self.dead):
            self.run(self.federation.start_agent(number))
        self.dead.clear()
        self.wait_converged()

    def wait(self, holds: Callable[[], object], what: str) -> Any:
        """Wait until a condition holds; on timeout show the views of all nodes."""
        try:
            return eventually(holds, what, 60)
        except AssertionError as error:
            views = [f"{n}: {self.status(n)['topology']}\n{self.log(n)}" for n in self.alive()]
            views += [f"unsettled: {self.run(self.federation.pending_reasons())}"]
            if self.federation.manager is not None:
                views += [f"{path}: {self.ask(path)}" for path in ("/nodes", "/links", "/plan")]
                views += map(str, self.ask("/history?limit=1000")[-40:])
            raise AssertionError("\n".join([str(error), *views])) from error

    def wait_converged(self) -> None:
        self.wait(lambda: not self.run(self.federation.pending_reasons()), "converged")

    def wait_reachable(self, count: int) -> None:
        self.wait(
            lambda: all(len(self.status(n)["reachable_nodes"]) == count for n in self.alive()),
            f"{count} nodes reachable everywhere",
        )

    def wait_settled(self) -> None:
        """Wait until the manager plans no changes and the actual topology is the planned one."""

        def holds() -> bool:
            numbers = {node["node"]: node["id"] for node in self.ask("/nodes")}
            pages = [self.status(n) for n in self.alive()]
            there = {
                frozenset((numbers[page["node"]], numbers[other]))
                for page in pages
                for other in page["neighbours"]
            }
            links = self.ask("/links")
            planned = {frozenset((link["a"], link["b"])) for link in links}
            stands = all(link["established"] for link in links)
            return stands and there == planned and not self.ask("/plan")

        self.wait(holds, "what the manager wants is what there is")

    def alive(self) -> list[int]:
        return [number for number in range(len(self.nodes)) if number not in self.dead]

    def wait_apart(self, last: int) -> list[int]:
        """Wait until some nodes are no neighbours of the last one; return these."""
        return self.wait(  # type: ignore[no-any-return]
            lambda: sorted(set(range(last)) - set(self.neighbours(last))),
            f"a node that is no neighbour of {last}",
        )

    def wait_whole(self) -> None:
        """Wait until all running nodes know exactly each other, each with a second path."""

        def holds() -> bool:
            pages = [self.status(number) for number in self.alive()]
            least = min(2, len(pages) - 1)
            return all(
                len(page["reachable_nodes"]) == len(pages) and len(page["neighbours"]) >= least
                for page in pages
            )

        self.wait(holds, "one federation of all that live")


@pytest.fixture(scope="module")
def running_five(mosquitto: str) -> Iterator[Managed]:
    yield from running(5)


@pytest.fixture
def five(running_five: Managed) -> Iterator[Managed]:
    """The shared five nodes, restored after each test."""
    running_five.restore()
    yield running_five
    running_five.hang_up()


@pytest.fixture
def nine(mosquitto: str) -> Iterator[Managed]:
    yield from running(9)


@pytest.fixture
def four(mosquitto: str, tmp_path: Path) -> Iterator[Managed]:
    yield from running(4, tmp_path / "kept")


def running(count: int, directory: Path | None = None) -> Iterator[Managed]:
    live = Managed(count, directory)
    try:
        live.start()
        yield live
    finally:
        live.close()


def lose_its_neighbours(live: Managed, subscriber: Client, last: int) -> None:
    """The paper's availability test: all neighbours of one node stop, and it is linked again."""
    away = live.wait_apart(last)
    near = sorted(set(range(last)) - set(away))
    publisher = live.client(away[0])
    wait_until_reachable(publisher, [subscriber], TOPIC)
    live.kill(*near)
    live.wait_whole()
    wait_until_reachable(publisher, [subscriber], TOPIC)


def availability(live: Managed) -> None:
    last = len(live.nodes) - 1
    subscriber = live.subscriber(last, TOPIC)
    lose_its_neighbours(live, subscriber, last)
    live.revive()
    live.wait_apart(last)  # returning nodes may link to all: only the manager removes links
    live.run(live.federation.kill_manager())
    lose_its_neighbours(live, subscriber, last)


def test_isolated_node_is_relinked_with_and_without_manager(five):
    availability(five)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_paper_availability_test_with_nine_nodes(nine):
    availability(nine)


def test_agents_start_from_saved_topology_without_the_manager(five):
    eventually(
        lambda: all((node.directory / "agent" / "topology.json").exists() for node in five.nodes),
        "what is known is on disk",
    )
    five.run(five.federation.kill_manager())
    five.kill(1, 2)
    five.revive()
    five.wait_whole()
    five.wait(lambda: five.status(1)["topology"]["problem"], "the manager missed")


def test_drained_node_can_stop_without_loss(five):
    number = five.ask("/nodes")[2]["id"]
    name = five.ask("/nodes")[2]["name"]
    five.ask(f"/nodes/{number}/drain", "POST", {"draining": True})
    place = int(name)
    five.wait(lambda: len(five.neighbours(place)) == 1, "one link left")
    five.wait(lambda: five.ask("/health")["up"] == 5, "none is missed")


LINK_EVENTS = ("neighbour up", "neighbour down", "link refused", "link closed")
QUIET_S = 3.0
"""Seconds without link changes; before the fix a link was replaced every second."""


def link_events(live: Managed) -> int:
    """Count link events in the logs of all agents: opened, closed, refused."""
    logs = [live.log(number) for number in live.alive()]
    return sum(log.count(event) for log in logs for event in LINK_EVENTS)


def test_reinstalled_agent_replaces_the_old_node_at_its_address(four):
    old = four.status(1)["node"]
    four.kill(1)
    agent = four.nodes[1].agent
    assert agent is not None
    four.run(agent.wait())
    shutil.rmtree(four.nodes[1].directory / "agent")
    four.revive()
    new = four.status(1)["node"]
    assert new != old

    def states() -> dict[str, str]:
        return {node["node"]: node["state"] for node in four.ask("/nodes")}

    four.wait(lambda: (states()[old], states()[new]) == ("left", "up"), "the old node has left")
    four.wait_settled()
    before = link_events(four)
    deadline = time.monotonic() + QUIET_S
    while time.monotonic() < deadline:
        assert link_events(four) == before
        time.sleep(0.2)
    subscriber = four.subscriber(1, TOPIC)
    assert_each_once(four.client(3), [subscriber], TOPIC, [b"to the new node"])
    subscriber = four.subscriber(2, "back")
    assert_each_once(four.client(1), [subscriber], "back", [b"from the new node"])


class Publisher:
    """Publishes at a constant rate at QoS 1 while it runs."""

    def __init__(self, client: GuaranteedClient, rate: float) -> None:
        self.count = 0
        self._client = client
        self._rate = rate
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._ending.is_set():
            due = int((time.monotonic() - began) * self._rate) - self.count
            if due > 0:
                batch = [str(self.count + n).encode() for n in range(min(due, 100))]
                self._client.publish_guaranteed(1, TOPIC, *batch)
                self.count += len(batch)
            else:
                self._ending.wait(0.005)

    def stop(self) -> int:
        self._ending.set()
        self._thread.join(60)
        return self.count


def test_joins_and_new_links_under_load_lose_and_duplicate_nothing(five, tmp_path):
    subscriber = five.client_of(GuaranteedClient, 4).subscribe_qos2(TOPIC)
    five.wait_installed(4, TOPIC)
    publisher = Publisher(five.client_of(GuaranteedClient, 0), rate=500.0)
    broker = Mosquitto(tmp_path / "broker", free_port())
    five.run(broker.start())
    state = tmp_path / "newcomer"
    certify_state(five.federation.directory / "ca", state, "newcomer")
    newcomer = Process(
        tmp_path, state=state, topology_manager=five.federation.node_url,
        broker_port=broker.port, broker_log_file=broker.log_file, link_port=free_port(),
    )  # fmt: skip
    try:
        five.wait_reachable(6)
        five.wait_settled()
        five.wait(lambda: publisher.count > 1000, "publications")
        # The links that carry the stream are removed once another path exists.
        near = five.neighbours(4)
        numbers = {int(n["name"]): n["id"] for n in five.ask("/nodes") if n["name"].isdigit()}
        for other in near[:2]:
            five.ask(f"/links/{numbers[4]}/{numbers[other]}", "DELETE")
        five.wait(lambda: not set(near[:2]) & set(five.neighbours(4)), "those links are gone")
        five.wait_reachable(6)
    finally:
        count = publisher.stop()
        newcomer.process.terminate()
        newcomer.process.wait(60)
        five.run(broker.stop())
    received = subscriber.wait_for(str(count - 1).encode(), 60, pause=0.5)
    seen = Counter(int(payload) for _, payload in received)
    assert (len(seen), max(seen.values()), count > 1000) == (count, 1, True)
