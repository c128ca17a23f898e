"""Links through brokers against other clients of those brokers (finding 16)."""

import asyncio
import json
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.hostile.raw_peer import assert_delivers, counted, unharmed, wait_counted
from tests.agent.links.listener import RecordingListener
from tests.agent.live import Live, eventually
from tests.agent.process import Scene
from tests.agent.waiting import until

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.links.link import Address, Link
from hansa.agent.links.mqtt import MqttLinkAccess, MqttLinks
from hansa.agent.links.mqtt_stream import CLOSE, FORGED_PUBLICATION, OPEN, close_payload
from hansa.agent.storage.state_directory import StateDirectory
from hansa.protocol.model import NodeId, node_id
from hansa.protocol.wire.codec import decode, encode
from hansa.protocol.wire.frames import Hello
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation

PREFIX = "$hansa/link"
KEY = bytes(range(32))
NODE = node_id(KEY)


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    profile = LinkProfile(transport="mqtt", is_secure=False)
    with Live(LocalFederation(parse_topology("line:2", 1), {}, link_profile=profile)) as live:
        yield live


def links(live: Live) -> list[tuple[int, int]]:
    """Neighbours of each node, and the bytes their links have carried."""
    found: list[Any] = [node.status()["neighbours"] for node in live.nodes]
    return [(len(each), sum(link["bytes_in"] for link in each.values())) for each in found]


def test_client_can_neither_open_a_link_nor_end_one_by_publishing(live: Live):
    listening = live.nodes[0]  # the other one dials its broker
    before = links(live)
    with unharmed(live):
        stranger = live.client(0)
        for payload in (
            bytes((OPEN,)),
            bytes((CLOSE,)),
            close_payload(bytes(16), "gone"),
            b"nonsense",
        ):
            for name in ("x", f"{NODE:016x}/x", f"{NODE:016x}/" + "x" * 100, "a/b/c"):
                stranger.publish(f"{PREFIX}/up/{name}", payload)
            stranger.publish(f"{PREFIX}/gone", payload)
        for number in range(500):
            stranger.publish(f"{PREFIX}/up/{NODE:016x}/{number}", bytes((OPEN,)))
        wait_counted(live.nodes[1], FORGED_PUBLICATION, 3)
        wait_counted(listening, FORGED_PUBLICATION)
        after = links(live)
        assert [count for count, _ in after] == [1, 1]
        assert all(now >= then for (_, now), (_, then) in zip(after, before, strict=True))
        assert_delivers(live, 0, 1, "forged")
        assert "neighbour down" not in live.log(0) + live.log(1)
        assert counted(listening, "refused: ") == 0  # no stream was opened


def test_acl_of_the_broker_decides_which_node_a_user_can_be(scene: Scene, tmp_path: Path):
    """Configured as in docs/links.md."""
    states = [tmp_path / name for name in ("neighbour", "stranger")]
    nodes = []
    for path in states:
        state = StateDirectory(path)
        nodes.append(state.start_incarnation("", (), 1.0).node)
        state.close()
    acl = tmp_path / "acl"
    acl.write_text(
        "user agent\n"
        "topic readwrite #\n"
        "topic read $SYS/#\n"
        f"topic read {PREFIX}/up/+/+\n"
        f"topic write {PREFIX}/down/+/+\n"
        f"topic write {PREFIX}/gone\n"
        "user plant-2\n"
        f"topic write {PREFIX}/up/{nodes[0]:016x}/+\n"
        f"topic read {PREFIX}/down/{nodes[0]:016x}/+\n"
        f"topic read {PREFIX}/gone\n"
    )
    acl.chmod(0o644)
    strict, other, third = scene.broker(f"acl_file {acl}"), scene.broker(), scene.broker()
    first = scene.agent(
        broker_port=strict.port,
        broker_username="agent",
        link_transport="mqtt",
        link_mqtt_accepted_nodes=f"{nodes[0]:016x}",
    )
    agents = [
        scene.agent(
            broker_port=broker.port,
            state=path,
            link_transport="mqtt",
            link_neighbours=f"127.0.0.1:{strict.port}",
            link_mqtt_username="plant-2",
        )
        for broker, path in zip((other, third), states, strict=True)
    ]

    def neighbours() -> set[str]:
        code, text = first.page("/status")
        return set(json.loads(text)["neighbours"]) if code == 200 else set()

    eventually(lambda: neighbours() == {f"{nodes[0]:016x}"}, "the neighbour is linked")
    agents[1].says("no agent takes links there, or")
    assert neighbours() == {f"{nodes[0]:016x}"}


class Impostor(RecordingListener):
    """Sends the hello of another node than its topics name."""

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        for frame in map(decode, frames):
            if isinstance(frame, Hello):
                link.send([encode(replace(frame, node=NODE, key=KEY, name="impostor"))])
        super().frames_received(link, frames)


@pytest.mark.parametrize("is_honest", [False, True])
def test_hello_must_name_the_node_of_the_topic(live: Live, is_honest: bool):
    node = live.nodes[0]
    named = NODE if is_honest else NodeId(NODE ^ 1)

    def linked() -> bool:
        found: Any = node.status()["neighbours"]
        return f"{NODE:016x}" in found

    async def scene() -> None:
        place = Address("127.0.0.1", node.broker.port)
        access = MqttLinkAccess(
            PREFIX, BrokerAddress(place.host, place.port), "impostor-", node=f"{named:016x}"
        )
        listener = Impostor()
        dialler = MqttLinks(listener, random.Random(1), count(1), access)
        dialler.dialler.dial_once(place, lambda *_: None)
        await until(lambda: listener.opened, "the link stands")
        if is_honest:
            await asyncio.to_thread(eventually, linked, "linked")
        else:
            await until(lambda: listener.closed, "the agent closes the link")
            assert not await asyncio.to_thread(linked)
        listener.opened[0].close("test over")
        await dialler.stop()
        await until(lambda: listener.closed, "closed")

    with unharmed(live):
        asyncio.run(scene())
    if not is_honest:
        wait_counted(node, "closed before hello accepted")
        eventually(
            lambda: f"its certificate or topic {named:016x}" in live.log(0), "the log says why"
        )
