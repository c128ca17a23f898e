"""Third-party clients across brokers in rings, grids and random graphs."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.kinds import Kind, Subscriber, all_kinds, wait_for
from tests.agent.live import Live, LoopThread, eventually
from tests.agent.strategies import DEFAULT, OTHERS, SETTING

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

# Each federation starts once: two workers would start each twice.

TOPIC = "plant/line1/temp"
FILTERS = (TOPIC, "plant/+/temp", "plant/#", "+/line1/#")
"""All match the topic, so all subscribers overlap."""


FEDERATIONS = [
    *((word, DEFAULT) for word in ("ring:3", "grid:3x3", "random:10,3")),
    *(pytest.param(("grid:3x3", name), marks=pytest.mark.long) for name in OTHERS),
]


@pytest.fixture(scope="module", params=FEDERATIONS, ids=str)
def live(request: pytest.FixtureRequest, mosquitto: str) -> Iterator[Live]:
    word, strategy = request.param
    with Live(LocalFederation(parse_topology(word, seed=1), {SETTING: strategy})) as running:
        yield running


@pytest.fixture(scope="module")
def kinds() -> Iterator[list[Kind]]:
    thread = LoopThread()
    yield all_kinds(thread)
    thread.close()


@pytest.fixture
def subscribers() -> Iterator[list[Subscriber]]:
    found: list[Subscriber] = []
    yield found
    for each in found:
        each.close()


def _port(live: Live, number: int) -> int:
    return live.nodes[number].broker.port


def _link_bytes(live: Live) -> int:
    """Return the bytes that all agents have written to links."""
    total = 0
    for node in live.nodes:
        neighbours: Any = node.status()["neighbours"]
        total += sum(link["bytes_out"] for link in neighbours.values())
    return total


def test_every_subscriber_gets_each_publication_of_every_broker_once(live, kinds, subscribers):
    count = len(live.nodes)
    for number in range(count):
        for turn in range(2):
            kind = kinds[(number + turn) % len(kinds)]
            name = FILTERS[(number + turn) % len(FILTERS)]
            subscribers.append(kind.subscribe(_port(live, number), name))
            live.wait_installed(number, name)
    expected: list[bytes] = []
    for number in range(count):
        payloads = [b"%d-%d" % (number, each) for each in range(10)]
        kinds[(number + 2) % len(kinds)].publish(_port(live, number), TOPIC, payloads)
        wait_for(subscribers, payloads[-1])
        expected += payloads
    for each in subscribers:  # in order: each broker publishes after the previous one's arrived
        assert each.seen == [(TOPIC, payload) for payload in expected]


def test_unsubscribing_stops_the_traffic_on_all_links(live, kinds, subscribers):
    last = len(live.nodes) - 1
    node = str(live.nodes[last].status()["node"])
    for turn, kind in enumerate(kinds):
        topic = f"loud/{turn}"
        staying, leaving = (kind.subscribe(_port(live, number), topic) for number in (0, last))
        subscribers += [staying, leaving]
        live.wait_installed(0, topic)
        live.wait_installed(last, topic)
        before = _link_bytes(live)
        kind.publish(_port(live, 0), topic, [b"x" * 1_000] * 100 + [b"crosses"])
        wait_for([leaving], b"crosses")
        assert Counter(leaving.seen) == {(topic, b"x" * 1_000): 100, (topic, b"crosses"): 1}
        assert _link_bytes(live) - before > 100_000
        leaving.unsubscribe(topic)
        _wait_withdrawn(live, node, topic)
        live.wait_converged()
        before = _link_bytes(live)
        kind.publish(_port(live, 0), topic, [b"y" * 1_000] * 100 + [b"stays"])
        wait_for([staying], b"stays")
        assert _link_bytes(live) - before < 100_000  # control frames only, which grow with time


def _wait_withdrawn(live: Live, node: str, name: str) -> None:
    """Wait until no agent has a node's interest in a filter."""

    def withdrawn() -> bool:
        views: list[Any] = [each.status()["interest"] for each in live.nodes]
        return all(name not in view["remote"].get(node, []) for view in views)

    eventually(withdrawn, f"{name} withdrawn everywhere")


def test_disconnected_client_ends_interest_everywhere(live, kinds):
    # Only the broker's counts show the end of an MQTT 5 session, after some seconds:
    # one such case is enough.
    kinds = kinds if live.federation.topology.name == "ring:3" else kinds[:1]
    node = str(live.nodes[1].status()["node"])
    names = [f"gone/{turn}/#" for turn in range(len(kinds))]
    clients = [
        kind.subscribe(_port(live, 1), name) for kind, name in zip(kinds, names, strict=True)
    ]
    live.wait_installed(1, *names)
    for client in clients:
        client.vanish()
    for name in names:
        _wait_withdrawn(live, node, name)


def test_dollar_topics_stay_local(live, kinds, subscribers):
    # All subscribe to the same, so each has one more filter that shows when it is installed.
    signs = [f"sign/{turn}" for turn in range(len(kinds))]
    for kind, sign in zip(kinds, signs, strict=True):
        subscribers.append(kind.subscribe(_port(live, 0), "#", "$own/#", "$SYS/#", sign))
    live.wait_installed(0, "#", *signs)
    for kind in kinds:
        kind.publish(_port(live, 1), "$own/secret", [b"no"])
    kinds[0].publish(_port(live, 1), "fence", [b"end"])
    wait_for(subscribers, b"end")
    assert not [seen for each in subscribers for seen in each.seen if seen[1] == b"no"]


@pytest.mark.parametrize("live", [("grid:3x3", DEFAULT)], indirect=True)
def test_paper_grid_forms_paper_mesh(live, kinds, subscribers):
    """Spohn 2021: subscribers at 2 and 7, core 2, publisher at 6 outside the mesh."""
    topic = "papers/grid"
    for number in (2, 7):
        subscribers.append(kinds[1].subscribe(_port(live, number), topic))
        live.wait_installed(number, topic)
    nodes = {node.status()["node"]: number for number, node in enumerate(live.nodes)}

    def mesh() -> tuple[set[int], set[int]]:
        groups: list[Any] = [node.status()["groups"] for node in live.nodes]
        views = {number: each[topic] for number, each in enumerate(groups) if topic in each}
        members = {number for number, view in views.items() if view["member"]}
        return members, {nodes[view["core"]] for view in views.values()}

    eventually(lambda: mesh() == ({1, 2, 4, 5, 7, 8}, {2}), "members 1, 2, 4, 5, 7, 8 and core 2")
    payloads = [b"%064d" % number for number in range(100)]
    kinds[1].publish(_port(live, 6), topic, payloads)
    wait_for(subscribers, payloads[-1])
    assert [each.seen for each in subscribers] == [[(topic, each) for each in payloads]] * 2
