"""The broker client at a real Mosquitto under load while its subscriptions change."""

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tests.agent.broker.access_control import access_control
from tests.agent.delivery.live_delivery import LiveDelivery
from tests.agent.waiting import until

from hansa.agent.broker import connection as connection_module
from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.types import Version
from hansa.protocol.events import SubscriptionsDenied, SubscriptionsGranted
from hansa.protocol.model import NodeId, Publication
from hansa.testbed.mosquitto import Mosquitto, free_port
from hansa.testbed.relay import Relay

pytestmark = pytest.mark.pure  # its connection is a subclass

FILTERS = ("t/#", "t/+", "+/x", "t/x", "+/+", "+/#")
"""All match t/x, and no filter covers another."""

CHANGES = 100
PER_TICK = 20

CONNECTIONS_MAX = 2

REFUSALS = 3
"""Consecutive silent closes after which the client tries MQTT 3.1.1."""


class Counted(Connection):
    """Counts lost connections."""

    ends = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends += 1
        super().connection_lost(exc)


class Scene:
    """A broker, the agent's client and a publisher of numbers."""

    def __init__(
        self, mosquitto: Mosquitto, port: int, front: Relay, qos: int = 0, **options: Any
    ) -> None:
        """Port that the agent's client dials: the broker's or that of a proxy."""
        self.mosquitto = mosquitto
        self.front = front
        address = BrokerAddress("127.0.0.1", mosquitto.port)
        self.qos = qos
        self.delivery = LiveDelivery(
            mosquitto.directory / "state",
            port,
            ConnectOptions(client_id="agent", **options),
            Counted,
        )
        self.delivery.delay_acknowledgements(0.01)
        self.client = self.delivery.client
        self.events = self.delivery.events
        self.captured = self.delivery.captured
        self.publisher = Connection(
            address, ConnectOptions(client_id="publisher"), self._answered, random.Random(1)
        )
        self._ids = itertools.cycle(range(1, 60_000)) if qos else itertools.repeat(0)
        self._unpublished: deque[packets.PublishPacket] = deque()
        self.sent = 0

    def publish(self, topic: str, *payloads: bytes) -> None:
        # Acknowledgements are not awaited, so packet ids differ each time.
        numbered = [
            packets.PublishPacket(topic, p, self.qos, packet_id=next(self._ids)) for p in payloads
        ]
        self._unpublished.extend(numbered)
        self.push()

    def push(self) -> None:
        """Publish as many as the broker's quota allows."""
        connection = self.publisher.client_connection
        assert connection is not None
        room = connection.quota if self.qos else len(self._unpublished)
        batch = [self._unpublished.popleft() for _ in range(min(room, len(self._unpublished)))]
        if batch:
            self.publisher.submit(inputs.Publish(batch))

    def _answered(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.HandshakePacketsReceived):
            asyncio.get_running_loop().call_soon(self.push)

    def publish_numbers(self, count: int) -> None:
        self.publish("t/x", *(b"%d" % n for n in range(self.sent, self.sent + count)))
        self.sent += count

    async def granted(self, *names: str) -> None:
        await until(lambda: set(names) <= self.held, f"{names} granted")

    @property
    def held(self) -> set[str]:
        return {
            name for e in self.events if isinstance(e, SubscriptionsGranted) for name in e.filters
        }

    def forget(self, name: str) -> None:
        self.events[:] = [e for e in self.events if e != SubscriptionsGranted((name,))]


def run(
    directory: Path,
    work: Callable[[Scene], Awaitable[None]],
    extra: tuple[str, ...] = (),
    has_front: bool = False,
    **options: Any,
) -> None:
    async def inside() -> None:
        mosquitto = Mosquitto(directory, free_port(), extra)
        await mosquitto.start()
        front = Relay(mosquitto.port, 0.0)
        port = await front.start()
        scene = Scene(mosquitto, port if has_front else mosquitto.port, front, **options)
        connections = (scene.client.connection, scene.publisher)
        try:
            for each in connections:
                each.start()
            await until(lambda: not any(each.problem for each in connections), "connected")
            await work(scene)
        finally:
            await scene.delivery.stop()
            await scene.publisher.stop()
            await front.stop()
            await mosquitto.stop()

    asyncio.run(inside())


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_duplicated_or_lost_while_overlapping_filters_change(
    mosquitto, tmp_path, seed, qos
):
    """At least one filter is always subscribed; the reader pauses so that the broker has a queue
    when a subscription ends."""

    async def work(scene: Scene) -> None:
        chance = random.Random(seed)
        client = scene.client
        required = [chance.choice(FILTERS)]
        client.subscribe(required)
        await scene.granted(*required)
        for number in range(CHANGES):
            scene.publish_numbers(PER_TICK)
            new = chance.choice([name for name in FILTERS if name not in required])
            required.append(new)
            client.subscribe([new])
            scene.publish_numbers(PER_TICK)
            if number % 10 == 5:
                scene.publish_numbers(20 * PER_TICK)
                time.sleep(0.02)  # the broker continues to send, but nothing is read
            await scene.granted(new)
            while len(required) > 1 and chance.random() < 0.7:
                old = required.pop(chance.randrange(len(required) - 1))
                scene.forget(old)
                client.unsubscribe([old])
                scene.publish_numbers(PER_TICK)
            if len(required) == len(FILTERS):
                scene.forget(required[0])
                client.unsubscribe([required.pop(0)])
        scene.publish_numbers(1)
        last = ("t/x", b"%d" % (scene.sent - 1))
        await until(lambda: scene.captured and scene.captured[-1] == last, "the last number")
        assert scene.captured == [("t/x", b"%d" % n) for n in range(scene.sent)]
        assert scene.delivery.counters["overlap copies"] > scene.sent / 2

    run(tmp_path, work, qos=qos)


def test_client_publications_are_captured_without_no_local(mosquitto, tmp_path):
    """A client publishes the same content as the agent; no broker can distinguish them."""

    async def work(scene: Scene) -> None:
        scene.client.subscribe(["t/#", "u"])
        await scene.granted("t/#", "u")
        for _ in range(50):
            scene.client.publish([publication("t/x", b"same"), publication("other", b"same")])
            scene.publish("t/x", b"same")
        scene.client.publish([publication("t/x", b"ours")])
        await until(lambda: scene.delivery.counters["echoes"] == 51, "all echoes")
        scene.publish("t/x", b"end")
        await until(lambda: scene.captured[-1:] == [("t/x", b"end")], "the end")
        assert scene.captured == [("t/x", b"same")] * 50 + [("t/x", b"end")]

    run(tmp_path, work, version=Version.V311)


def test_in_3_1_1_retained_replays_are_not_captured(mosquitto, tmp_path):
    async def work(scene: Scene) -> None:
        stored = packets.PublishPacket("t/x", b"stored", retain=True)
        scene.publisher.submit(inputs.Publish([stored]))
        scene.client.subscribe(["u"])
        await scene.granted("u")
        scene.publish("u", b"stored by now")
        await until(lambda: scene.captured, "stored")
        scene.client.subscribe(["t/#"])
        await scene.granted("t/#")
        scene.publish("t/x", b"end")
        await until(lambda: scene.captured[-1:] == [("t/x", b"end")], "the end")
        assert scene.captured == [("u", b"stored by now"), ("t/x", b"end")]
        assert scene.delivery.counters["retained replays ignored"] == 1

    run(tmp_path, work, version=Version.V311)


def publication(topic: str, payload: bytes) -> Publication:
    return Publication(NodeId(1), 1, 1, 0, topic, payload)


# ---------------------------------------------------------------- refused subscriptions


def test_refused_filter_is_reported_and_others_work(mosquitto, tmp_path):
    async def work(scene: Scene) -> None:
        scene.client.subscribe(["+/x", "secret/x", "t/#"])
        await scene.granted("+/x", "t/#")
        await until(lambda: scene.delivery.counters["subscriptions denied"] == 1, "refused")
        (denied,) = [event for event in scene.events if isinstance(event, SubscriptionsDenied)]
        assert denied == SubscriptionsDenied(
            ("secret/x",), "the broker refuses 'secret/x' (code 0x87)"
        )
        scene.publish("secret/x", b"1")  # the broker's rules allow it through another filter
        scene.publish("t/x", b"end")
        await until(lambda: scene.captured[-1:] == [("t/x", b"end")], "the end")
        assert scene.captured == [("secret/x", b"1"), ("t/x", b"end")]
        assert scene.client.connection.problem == ""

    run(tmp_path, work, access_control(tmp_path))


# ---------------------------------------------------------------- refused connections


@asynccontextmanager
async def closed_front(scene: Scene) -> AsyncIterator[None]:
    """A proxy accepts connections while the broker is away, and closes them."""
    scene.front.cut()
    yield
    scene.front.restore()


@asynccontextmanager
async def full_broker(scene: Scene) -> AsyncIterator[None]:
    """The broker is at its client limit."""
    address = BrokerAddress("127.0.0.1", scene.mosquitto.port)
    effects_seen: list[effects.Effect] = []
    others = [
        Connection(
            address, ConnectOptions(client_id=f"other-{n}"), effects_seen.append, random.Random(n)
        )
        for n in range(CONNECTIONS_MAX + 1)
    ]
    for other in others:
        other.start()
    refused = effects.ConnectRefused
    await until(
        lambda: any(isinstance(each, refused) for each in effects_seen), "the broker is full"
    )
    yield
    for other in others:
        await other.stop()


@pytest.mark.parametrize("hindrance", [closed_front, full_broker])
def test_silent_closes_do_not_lose_session(mosquitto, tmp_path, monkeypatch, hindrance):
    """The next attempt would use MQTT 3.1.1 and end the session with its queue."""
    monkeypatch.setattr(connection_module, "SILENT_REFUSALS_MAX", REFUSALS)
    monkeypatch.setattr(connection_module, "RETRY_MIN_S", 0.02)

    async def work(scene: Scene) -> None:
        agent = cast(Counted, scene.client.connection)
        scene.client.subscribe(["t/#"])
        await scene.granted("t/#")
        await agent.stop()
        async with hindrance(scene):
            scene.publish("t/x", b"meanwhile")
            agent.ends = 0
            agent.start()
            await until(lambda: agent.ends >= REFUSALS, "refused")
        await until(lambda: len(scene.delivery.sessions) == 2, "connected again")
        assert scene.delivery.sessions == [False, True]
        await until(lambda: scene.captured == [("t/x", b"meanwhile")], "what was queued")

    options = {"clean_start": False, "session_expiry": 60}
    run(tmp_path, work, (f"max_connections {CONNECTIONS_MAX}",), qos=1, has_front=True, **options)
