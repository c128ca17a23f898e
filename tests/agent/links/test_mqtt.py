"""Links through a real broker."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.agent.broker.access_control import access_control
from tests.agent.links.listener import End
from tests.agent.waiting import until

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.links import dialler, mqtt
from hansa.agent.links.admission import NO_ROOM
from hansa.agent.links.link import Address
from hansa.agent.links.mqtt import MqttLinkAccess, MqttLinks
from hansa.agent.links.mqtt_stream import (
    CHALLENGE,
    CLOSE,
    CONFIRM,
    FORGED_PUBLICATION,
    OPEN,
    close_payload,
)
from hansa.agent.links.stream import WINDOW_ACK_BYTES, LinkLimits
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.options import ConnectOptions
from hansa.protocol.wire import codec
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX, PUBLICATION
from hansa.testbed.mosquitto import Mosquitto, free_port

CONTROL = bytes((codec.CONTROL,))
WINDOW = 16 * WINDOW_ACK_BYTES
PREFIX = "$hansa/link"
NODE = "00000000000000aa"


class Side(End[MqttLinks]):
    """One end of MQTT links; others dial its broker."""

    def __init__(self, port: int, name: str, prefix: str = PREFIX, **access_: Any) -> None:
        access = MqttLinkAccess(prefix, BrokerAddress("127.0.0.1", port), f"{name}-", **access_)
        super().__init__(
            lambda listener: MqttLinks(
                listener, random.Random(1), count(1), access, LinkLimits(WINDOW)
            )
        )
        self.address = Address("127.0.0.1", port)


class Stage:
    """A broker and two sides linked through it."""

    def __init__(self, broker: Mosquitto) -> None:
        self.broker = broker
        self.server = Side(broker.port, "server")
        self.client = Side(broker.port, "client")

    async def join(self) -> None:
        await self.server.listen()
        self.client.dial(self.server.address)
        await until(lambda: self.server.listener.opened and self.client.listener.opened, "link up")

    async def stop(self) -> None:
        await asyncio.gather(self.client.stop(), self.server.stop())


@pytest.fixture
def run(mosquitto: str, tmp_path: Path) -> Callable[..., Stage]:
    """Run a function on a stage with a separate broker."""

    def play(work: Callable[[Stage], Coroutine[Any, Any, None]], *extra: str) -> Stage:
        async def whole() -> Stage:
            broker = Mosquitto(tmp_path / "broker", free_port(), extra)
            await broker.start()
            stage = Stage(broker)
            try:
                await work(stage)
                await stage.stop()
            finally:
                await broker.stop()
            return stage

        return asyncio.run(whole())

    return play


def test_frames_of_any_size_arrive_whole_and_in_order_both_ways(run):
    frames = [b"a", CONTROL * 300_000, b"c", CONTROL * CONTROL_BYTES_MAX, *[b"e"] * 1_000]

    async def work(stage: Stage) -> None:
        await stage.join()
        for frame in frames:
            stage.client.listener.opened[0].send([frame])
            stage.server.listener.opened[0].send([frame])
        arrived = [stage.server.listener.frames, stage.client.listener.frames]
        await until(lambda: [*map(len, arrived)] == [len(frames)] * 2, "all frames, both ways")
        assert arrived == [frames, frames]

    stage = run(work)
    assert stage.client.listener.opened[0].remote == str(stage.client.address)


def test_broker_with_small_packet_limit_gets_small_publications(run):
    async def work(stage: Stage) -> None:
        await stage.join()
        stage.client.listener.opened[0].send([CONTROL * 100_000])
        await until(lambda: stage.server.listener.frames, "arrived")

    run(work, "max_packet_size 2000")


def test_window_limits_slow_neighbour(run):
    publication = bytes((PUBLICATION,)) * 10_000

    async def work(stage: Stage) -> None:
        await stage.join()
        (link,) = stage.client.listener.opened
        for _ in range(1_000):  # before the other side can read
            link.send([publication])
        assert link.outstanding_bytes < WINDOW + 2 * len(publication)
        sent = 1_000 - link.drop_reasons.total()
        await until(lambda: len(stage.server.listener.frames) == sent, "all that was not dropped")
        await until(
            lambda: link.outstanding_bytes < 2 * WINDOW_ACK_BYTES, "acks for nearly everything"
        )

    stage = run(work)
    assert {reason for _, reason in stage.client.listener.dropped} == {
        "the neighbour's window is full"
    }


def test_lost_link_is_redialled(run):
    async def work(stage: Stage) -> None:
        await stage.join()
        stage.server.listener.opened[0].close("cut")
        await until(lambda: len(stage.client.listener.opened) == 2, "second link")

    stage = run(work)
    assert stage.server.listener.closed[0] == "cut"
    assert stage.client.listener.closed[0] == "closed by the other side"


def test_missing_agent_is_reported(run, monkeypatch):
    monkeypatch.setattr(mqtt, "OPEN_RETRY_S", 0.01)

    async def work(stage: Stage) -> None:
        stage.client.dial(stage.client.address)
        await until(lambda: stage.client.failures, "a reason")

    stage = run(work)
    assert stage.client.failures[0].startswith(f"no agent takes links there, or {PREFIX}/up/")


def test_unreachable_broker_is_dialled_until_available(run, monkeypatch):
    monkeypatch.setattr(dialler, "DIAL_MAX_S", 0.1)

    async def work(stage: Stage) -> None:
        await stage.broker.stop()
        stage.client.dial(stage.client.address)
        await until(lambda: len(stage.client.failures) >= 3, "three failures")
        await stage.broker.start()
        await stage.server.listen()
        await until(lambda: stage.client.listener.opened, "link up")

    stage = run(work)
    place = f"broker 127.0.0.1:{stage.broker.port}"
    assert stage.client.failures[:3] == [f"{place}: Connection refused"] * 3


def test_link_is_restored_after_a_broker_restart(run):
    async def work(stage: Stage) -> None:
        await stage.join()
        await stage.broker.stop()
        await until(
            lambda: stage.client.listener.closed and stage.server.listener.closed, "both reported"
        )
        await stage.broker.start()
        await until(lambda: len(stage.client.listener.opened) == 2, "second link")

    run(work)


async def kick(port: int, client_id: str) -> None:
    """Take over a client id: the broker closes the old connection and publishes its will."""
    ousted = asyncio.Event()

    def on_effect(effect: effects.Effect) -> None:
        if isinstance(effect, effects.Connected):
            ousted.set()

    options = ConnectOptions(client_id=client_id, clean_start=True)
    thief = Connection(BrokerAddress("127.0.0.1", port), options, on_effect, random.Random(1))
    thief.start()
    await ousted.wait()
    await thief.stop()


def test_death_of_listening_agent_is_detected_at_once(run):
    async def work(stage: Stage) -> None:
        await stage.join()
        await kick(stage.broker.port, "server-links")
        await until(lambda: stage.client.listener.closed, "reported")

    assert run(work).client.listener.closed[0] == "the neighbour's agent has gone"


def publish(
    port: int, topic: str, *payloads: bytes
) -> Coroutine[Any, Any, list[packets.PublishPacket]]:
    """Publish as an unrelated client and return the replies below the prefix."""

    async def work() -> list[packets.PublishPacket]:
        seen: list[packets.PublishPacket] = []

        def on_effect(effect: effects.Effect) -> None:
            match effect:
                case effects.Connected():
                    wish = packets.Subscription(topic.replace("/up/", "/down/"))
                    stranger.submit(inputs.Subscribe((wish,)))
                case effects.Subscribed():
                    stranger.submit(inputs.Publish([(topic, each) for each in payloads]))
                case effects.PublishReceived(batch):
                    seen.extend(batch)

        options = ConnectOptions(client_id="stranger", clean_start=True)
        address = BrokerAddress("127.0.0.1", port)
        stranger = Connection(address, options, on_effect, random.Random(1))
        stranger.start()
        await until(lambda: seen, "an answer")
        await stranger.stop()
        return seen

    return work()


def test_unknown_links_are_rejected_without_side_effects(run):
    async def work(stage: Stage) -> None:
        await stage.join()
        topic = f"{PREFIX}/up/{NODE}/x"
        (answer,) = await publish(stage.broker.port, topic, b"\x02\x00\x00\x00\x00hey")
        assert answer.payload == close_payload(
            mqtt.UNKNOWN_STREAM_TOKEN, "this link is not known here"
        )
        stage.client.listener.opened[0].send([b"end"])
        await until(lambda: stage.server.listener.frames == [b"end"], "still there")

    assert len(run(work).server.listener.opened) == 1


def test_single_publication_opens_no_link(run):
    async def work(stage: Stage) -> None:
        await stage.server.listen()
        topic = f"{PREFIX}/up/{NODE}/x"
        port = stage.broker.port
        (challenge,) = await answer_to_open(port, topic)
        assert challenge.payload[0] == CHALLENGE
        wrong = bytes((CONFIRM,)) + bytes(16 + 32)
        (again,) = await publish(port, topic, wrong, bytes((OPEN,)))
        assert again.payload == challenge.payload
        assert stage.server.links.counters[FORGED_PUBLICATION] == 1

    assert not run(work).server.listener.opened


async def answer_to_open(port: int, topic: str) -> list[packets.PublishPacket]:
    """Repeat until the agent, which may still be subscribing, answers."""
    while True:
        try:
            return await asyncio.wait_for(publish(port, topic, bytes((OPEN,))), 1)
        except TimeoutError:
            continue


def test_forged_close_does_not_end_link(run):
    async def work(stage: Stage) -> None:
        await stage.join()
        name = stage.server.listener.opened[0].remote.removeprefix("mqtt:")
        forged = [bytes((CLOSE,)), close_payload(bytes(16), "gone")]
        port = stage.broker.port
        for topic in ("gone", f"up/{name}", f"down/{name}"):
            await shout(port, f"{PREFIX}/{topic}", *forged)
        stage.client.listener.opened[0].send([b"end"])
        await until(lambda: stage.server.listener.frames == [b"end"], "still there")
        await until(
            lambda: (
                [end.links.counters[FORGED_PUBLICATION] for end in (stage.server, stage.client)]
                == [2, 4]
            ),
            "each forged end is counted",
        )

    stage = run(work)
    assert [len(stage.server.listener.opened), len(stage.client.listener.opened)] == [1, 1]


async def shout(port: int, topic: str, *payloads: bytes) -> None:
    """Publish at QoS 1 as an unrelated client; wait for all acknowledgements."""
    taken: list[object] = []

    def on_effect(effect: effects.Effect) -> None:
        if isinstance(effect, effects.Connected):
            batch = [
                packets.PublishPacket(topic, p, 1, packet_id=n) for n, p in enumerate(payloads, 1)
            ]
            stranger.submit(inputs.Publish(batch))
        elif isinstance(effect, effects.HandshakePacketsReceived):
            taken.extend(effect.batch)

    options = ConnectOptions(client_id="shouter", clean_start=True)
    address = BrokerAddress("127.0.0.1", port)
    stranger = Connection(address, options, on_effect, random.Random(1))
    stranger.start()
    await until(lambda: len(taken) == len(payloads), "taken by the broker")
    await stranger.stop()


def test_node_that_is_not_accepted_gets_the_reason(run):
    async def work(stage: Stage) -> None:
        stage.server = Side(stage.broker.port, "server", accepted_nodes=frozenset({"0" * 16}))
        await stage.server.listen()
        other = Side(stage.broker.port, "other", node=NODE)
        other.dial(stage.client.address)
        await until(lambda: other.failures, "refused")
        await other.stop()
        assert other.failures[0] == f"closed by the other side: {mqtt.NODE_NOT_ACCEPTED}"
        stage.client.dial(stage.client.address)
        await until(lambda: stage.server.listener.opened, "the accepted node is linked")

    stage = run(work)
    assert stage.server.links.admission.counters == {f"refused: {mqtt.NODE_NOT_ACCEPTED}": 1}


def test_links_beyond_limit_are_rejected(run, monkeypatch):
    monkeypatch.setattr(mqtt, "LINKS_MAX", 1)

    async def work(stage: Stage) -> None:
        await stage.join()
        other = Side(stage.broker.port, "other")
        other.dial(stage.client.address)
        await until(lambda: other.failures, "a refusal")
        await other.stop()
        assert other.failures[0] == f"closed by the other side: {NO_ROOM}"

    assert len(run(work).server.listener.opened) == 1


def test_agent_that_cannot_accept_links_at_its_broker_reports_why(run):
    async def work(stage: Stage) -> None:
        nowhere = Side(free_port(), "s")
        await nowhere.listen()
        await until(lambda: nowhere.failures, "reported")
        await nowhere.stop()
        assert nowhere.failures[0] == "no links are taken at our broker: Connection refused"
        refused = len(nowhere.failures)
        await stage.join()
        await stage.broker.stop()
        await until(lambda: stage.server.failures, "the loss is reported, too")
        assert len(nowhere.failures) == refused  # a stopped side reports nothing more

    said = run(work).server.failures[0]
    assert said.startswith("no links are taken at our broker: ")


def test_broker_that_refuses_subscription_is_reported(run, tmp_path):
    async def work(stage: Stage) -> None:
        port = stage.broker.port
        server, client = Side(port, "s", "secret/link"), Side(port, "c", "secret/link")
        await server.listen()
        client.dial(client.address)
        await until(lambda: server.failures and client.failures, "both reported")
        await asyncio.gather(server.stop(), client.stop())
        said = "the broker does not let us subscribe to secret/link"
        assert server.failures[0] == f"{said}/up/+/+"
        assert client.failures[0].startswith(f"{said}/down/")

    run(work, *access_control(tmp_path))
