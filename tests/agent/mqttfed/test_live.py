"""A Hansa agent among mqtt-fed nodes on real brokers, in each of its four roles.

The other nodes are `peer`, an independent implementation. Intervals are short.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.mqttfed.peer import Peer
from tests.agent.process import Process, Scene

from hansa.cli.main import main

INTERVAL = 1.0


class Fed:
    """Brokers in a given graph: one with Hansa's agent, the others with peers."""

    def __init__(self, scene: Scene, links: list[tuple[int, int]], hansa: int, **more: Any) -> None:
        self.scene = scene
        ids = sorted({id_ for link in links for id_ in link})
        self.brokers = {id_: scene.broker() for id_ in ids}
        self.hansa = hansa
        near = {id_: [a + b - id_ for a, b in links if id_ in (a, b)] for id_ in ids}
        places = ",".join(f"{n}@127.0.0.1:{self.brokers[n].port}" for n in near[hansa])
        settings = {"broker_observer": "beacon", **more}
        self.agent: Process = scene.agent(
            mode="mqtt-fed",
            mqtt_fed_id=hansa,
            mqtt_fed_neighbours=places,
            mqtt_fed_announce_interval=INTERVAL,
            broker_beacon_interval=INTERVAL,
            broker_port=self.brokers[hansa].port,
            broker_log_file=self.brokers[hansa].log_file,
            **settings,
        )
        self.peers = {
            id_: Peer(
                id_, self.brokers[id_].port, {n: self.brokers[n].port for n in near[id_]}, INTERVAL
            )
            for id_ in ids
            if id_ != hansa
        }
        self.clients: list[GuaranteedClient] = []
        self.wanting: list[GuaranteedClient] = []

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        for peer in self.peers.values():
            peer.close()

    def client(self, id_: int) -> GuaranteedClient:
        made = GuaranteedClient(self.brokers[id_].port)
        self.clients.append(made)
        return made

    def subscriber(self, id_: int) -> GuaranteedClient:
        """Return a client that subscribes to the topic and sends beacons."""
        made = self.client(id_).subscribe_qos2("federated/t")
        self.wanting.append(made)
        return made

    def wait(self, holds: Callable[[], Any], what: str) -> None:
        """Wait while all subscribers send beacons, like those of mqtt-fed."""

        def look() -> Any:
            for each in self.wanting:
                each.publish("federator/beacon/t", b"")
            return holds()

        eventually(look, what)

    def assert_arrives_once(
        self, publisher: GuaranteedClient, subscriber: GuaranteedClient
    ) -> None:
        payloads = [b"%d" % number for number in range(20)]

        def has_come() -> bool:
            subscriber.read_for(0.05)
            return len(subscriber.received) >= len(payloads)

        publisher.publish_guaranteed(2, "federated/t", *payloads)
        self.wait(has_come, "all of it")  # without beacons the interest would expire
        assert subscriber.read_until(len(payloads)) == payloads
        subscriber.forget()

    def status(self) -> dict[str, Any]:
        code, page = self.agent.page("/status")
        found: dict[str, Any] = json.loads(page) if code == 200 else {}
        return found

    def topic(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status().get("topics", {}).get("t", {})
        return found


@pytest.fixture
def fed(scene: Scene) -> Iterator[Any]:
    made: list[Fed] = []

    def make(links: list[tuple[int, int]], hansa: int, **settings: Any) -> Fed:
        made.append(Fed(scene, links, hansa, **settings))
        return made[0]

    yield make
    for each in made:
        each.close()


def test_agent_as_core_and_publisher_in_mesh(fed):
    world = fed([(1, 2), (2, 3)], hansa=1)
    one, three = world.subscriber(1), world.subscriber(3)
    world.wait(lambda: world.topic().get("core") == 1, "Hansa is core")
    world.wait(lambda: world.topic().get("children") == [2], "it has a child")
    world.wait(lambda: world.peers[2].children_of("t") == [3], "and that one, too")
    world.assert_arrives_once(one, three)
    assert one.read_until(20)[-1] == b"19"  # copies of its own broker
    one.forget()
    world.assert_arrives_once(three, one)


def test_agent_as_member_with_two_parents(fed):
    world = fed([(1, 2), (1, 3), (2, 4), (3, 4)], hansa=4)
    one, four = world.subscriber(1), world.subscriber(4)
    world.wait(lambda: world.topic().get("parents") == [2, 3], "both ways are as long")
    world.wait(lambda: all(4 in world.peers[n].children_of("t") for n in (2, 3)), "a child of both")
    world.wait(lambda: world.peers[1].children_of("t") == [2, 3], "the mesh stands")
    world.assert_arrives_once(one, four)


def test_agent_as_publisher_outside_mesh(fed):
    world = fed([(1, 2), (2, 3)], hansa=3)
    one, three = world.subscriber(1), world.client(3)
    world.wait(lambda: world.topic().get("parents") == [2], "a way to the core")
    assert world.topic()["has_interest"] is False
    world.assert_arrives_once(three, one)


def test_agent_as_interconnecting_node(fed):
    world = fed([(1, 2), (2, 3)], hansa=2)
    one, three = world.subscriber(1), world.subscriber(3)
    world.wait(lambda: world.peers[3].core_of("t") == 1, "announced through Hansa")
    world.wait(lambda: world.topic().get("children") == [3], "Hansa has a child")
    world.wait(lambda: world.peers[1].children_of("t") == [2], "and is one")
    assert world.topic()["has_interest"] is False
    world.assert_arrives_once(three, one)
    assert three.read_until(20)[-1] == b"19"  # copies of its own broker
    three.forget()
    world.assert_arrives_once(one, three)


def test_observer_replaces_beacons_and_reports_wildcards(fed):
    world = fed([(1, 2)], hansa=1, broker_observer="mosquitto")
    subscriber = world.client(1).subscribe_qos2("federated/t", "federated/+", "other/t")
    eventually(lambda: world.topic().get("core") == 1, "wanted without a beacon")
    world.agent.says("filter not announced filter='federated/+' reason='mqtt-fed has no wildcards'")
    assert [*world.status()["topics"]] == ["t"]
    assert world.status()["unsupported_filters"] == ["federated/+"]
    eventually(lambda: world.peers[2].core_of("t") == 1, "announced")
    world.client(2).publish_guaranteed(2, "federated/t", b"x")
    subscriber.read_until(1)
    assert {each.payload for each in subscriber.received} == {b"x"}
    subscriber.kill()
    eventually(lambda: world.status()["topics"] == {}, "no core any more")


def test_restarted_agent_is_distinguished_from_its_earlier_incarnation(fed, scene):
    world = fed([(1, 2)], hansa=2)
    one, two = world.subscriber(1), world.client(2)
    world.wait(lambda: world.topic().get("core") == 1, "a core is known")
    world.assert_arrives_once(two, one)
    world.agent.close()
    again = scene.agent(
        mode="mqtt-fed",
        mqtt_fed_id=2,
        mqtt_fed_neighbours=f"1@127.0.0.1:{world.brokers[1].port}",
        mqtt_fed_announce_interval=INTERVAL,
        broker_beacon_interval=INTERVAL,
        broker_observer="beacon",
        broker_port=world.brokers[2].port,
    )
    world.agent = again
    world.wait(lambda: world.topic().get("core") == 1, "a core is known")
    world.assert_arrives_once(two, one)  # sequence numbers from 0 would be duplicates


def test_unreachable_neighbour_is_reported_and_delays_nothing(scene, capsys):
    agent = scene.agent(
        mode="mqtt-fed",
        mqtt_fed_id=1,
        mqtt_fed_neighbours="2@127.0.0.1:1",
        broker_observer="static",
        broker_filters="federated/t",
        broker_port=scene.broker().port,
    )
    agent.says("broker lost, still trying address=127.0.0.1:1 reason='Connection refused'")
    agent.says("core changed topic='t' core=1")
    assert 'neighbour="2"} 0' in agent.page("/metrics")[1]
    assert main(["status", f"127.0.0.1:{agent.admin_port}"]) == 2
    assert "or in the mode mqtt-fed, which only has /status" in capsys.readouterr().err
    agent.process.terminate()
    assert agent.wait() == 0
    assert "Traceback" not in agent.log
