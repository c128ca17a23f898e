"""The broker client: subscribe, unsubscribe, capture and inject, with fake connections."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.waiting import PATIENCE, until

from hansa.agent.broker import client, echo_filter, subscription_log
from hansa.agent.broker.client import BUFFER_BYTES_MAX, BrokerClient
from hansa.agent.broker.subscription_log import SubscriptionLog
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.fields import VARIABLE_INTEGER_MAX
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version
from hansa.protocol.events import SubscriptionsDenied, SubscriptionsGranted
from hansa.protocol.model import NodeId, PlainMessage, Publication


class FakeConnection:
    """Records inputs; `on_effect` passes effects of the broker. It is also its own session."""

    def __init__(self, on_effect: Any) -> None:
        self.on_effect = on_effect
        self.orders: list[inputs.Input] = []
        self.waiting_bytes = 0
        self.packet_bytes_max = 1_000
        self.request_quota = 500
        self.is_trusted = False

    @property
    def session(self) -> "FakeConnection":
        return self

    def mark_mqtt5_known(self) -> None:
        self.is_trusted = True

    def submit(self, event: inputs.Input) -> None:
        self.orders.append(event)

    def take(self) -> list[inputs.Input]:
        taken, self.orders = self.orders, []
        return taken


class Scene:
    """A client between a fake broker and a fake node."""

    def __init__(self, connected: bool = True, local_topics: Sequence[str] = ()) -> None:
        self.events: list[object] = []
        self.captured: list[tuple[str, bytes]] = []
        self.statuses: list[str] = []
        self.client = BrokerClient(
            FakeConnection,  # type: ignore[arg-type]
            feed=self.events.append,
            on_captured=lambda batch: self.captured.extend((p.topic, p.payload) for p in batch),
            on_status=self.statuses.append,
            local_topics=local_topics,
        )
        self.broker: Any = self.client.connection
        if connected:
            self.connect()

    def connect(self, identifiers: bool = True, version: Version = Version.V5) -> None:
        limits = BrokerLimits(
            version=version,
            client_id="x",
            keep_alive=30,
            session_expiry=0,
            subscription_ids_available=identifiers,
        )
        self.broker.on_effect(effects.Connected(False, limits))

    def grant(self, name: str, reason: int = 0) -> None:
        self.broker.on_effect(effects.Subscribed((packets.Subscription(name),), bytes((reason,))))

    def ended(self, *names: str) -> None:
        self.broker.on_effect(effects.Unsubscribed(names, bytes(len(names))))

    def receive(self, *copies: tuple[str, int]) -> None:
        batch = [packets.PublishPacket(topic, b"x", subscription_ids=(i,)) for topic, i in copies]
        self.broker.on_effect(effects.PublishReceived(batch))


def subscribed(*pairs: tuple[str, int | None]) -> list[inputs.Input]:
    return [
        inputs.Subscribe(
            (
                packets.Subscription(
                    name, qos=0, no_local=True, retain_as_published=True, retain_handling=2
                ),
            ),
            identifier,
        )
        for name, identifier in pairs
    ]


def publication(topic: str) -> Publication:
    return Publication(NodeId(1), 1, 1, 0, topic, b"x")


def test_filters_get_increasing_identifiers_and_grants_are_reported():
    scene = Scene()
    scene.client.subscribe(["a/#", "b"])
    assert scene.broker.take() == subscribed(("a/#", 1), ("b", 2))
    scene.grant("a/#")
    scene.grant("b", 0x87)
    assert scene.events == [
        SubscriptionsGranted(("a/#",)),
        SubscriptionsDenied(("b",), "the broker refuses 'b' (code 0x87)"),
    ]
    assert scene.client.counters["subscriptions denied"] == 1


def test_suback_during_unsubscribe_is_not_reported():
    scene = Scene()
    scene.client.subscribe(["a"])
    scene.client.unsubscribe(["a"])
    scene.client.subscribe(["a"])
    scene.grant("a")
    assert scene.events == []  # the broker reads UNSUBSCRIBE after this
    scene.ended("a")
    assert scene.broker.take()[-1:] == subscribed(("a", 2))
    scene.grant("a")
    assert scene.events == [SubscriptionsGranted(("a",))]


def test_filter_required_again_at_once_is_reported_again():
    scene = Scene()
    scene.client.subscribe(["a"])
    scene.broker.request_quota = 0
    scene.client.unsubscribe(["a"])
    scene.grant("a")
    assert scene.events == []
    scene.client.subscribe(["a"])
    scene.broker.take()
    scene.broker.request_quota = 2
    scene.grant("other")
    assert scene.broker.take() == subscribed(("a", 1)) * 2
    scene.grant("a")
    assert scene.events == [SubscriptionsGranted(("a",))]


def test_filters_wait_for_connection():
    scene = Scene(connected=False)
    scene.client.subscribe(["a", "b"])
    scene.client.unsubscribe(["a"])
    assert scene.broker.take() == []
    scene.connect()
    assert scene.broker.take() == subscribed(("b", 1))


def test_reconnection_subscribes_all_filters_again():
    scene = Scene()
    scene.client.subscribe(["a", "b"])
    scene.broker.take()
    scene.broker.on_effect(effects.Disconnected(None, "gone", by_broker=False))
    scene.connect()
    assert scene.broker.take() == subscribed(("a", 1), ("b", 2))
    assert scene.statuses == ["", "gone", ""]


def test_copy_of_oldest_overlapping_filter_is_captured():
    scene = Scene()
    scene.client.subscribe(["t/#", "t/1"])
    scene.receive(("t/1", 1), ("t/1", 2), ("t/2", 1))
    assert scene.captured == [("t/1", b"x"), ("t/2", b"x")]
    assert scene.client.counters["overlap copies"] == 1


def test_nothing_is_duplicated_or_lost_during_unsubscribe():
    scene = Scene()
    scene.client.subscribe(["t/#", "t/1"])
    scene.client.unsubscribe(["t/#"])
    assert scene.broker.take()[-1] == inputs.Unsubscribe(("t/#",))
    scene.receive(("t/1", 1), ("t/1", 2))  # both copies were sent before the unsubscription
    assert len(scene.captured) == 1
    scene.ended("t/#")
    scene.receive(("t/1", 2))
    assert len(scene.captured) == 2


def test_filter_required_again_waits_for_unsuback():
    scene = Scene()
    scene.client.subscribe(["a"])
    scene.client.unsubscribe(["a"])
    scene.broker.take()
    scene.client.subscribe(["a"])
    scene.client.unsubscribe(["a"])
    scene.client.subscribe(["a"])
    assert scene.broker.take() == []
    scene.ended("a")
    assert scene.broker.take() == subscribed(("a", 2))


def test_filter_with_risky_characters_is_denied_locally():
    scene = Scene()
    scene.client.subscribe(["line\nbreak", "a"])
    assert scene.events == [
        SubscriptionsDenied(
            ("line\nbreak",), "a broker may refuse the characters of 'line\\nbreak'"
        )
    ]
    (order,) = scene.broker.take()
    assert [each.topic_filter for each in order.subscriptions] == ["a"]


def test_filter_is_denied_if_identifiers_are_exhausted():
    scene = Scene()
    scene.client.subscriptions.restore_identifiers(VARIABLE_INTEGER_MAX - 1, {})
    scene.client.subscribe(["a", "b"])
    reason = "all subscription identifiers were given; only a new session at the broker helps"
    assert scene.events == [SubscriptionsDenied(("b",), reason)]
    assert scene.broker.take() == subscribed(("a", VARIABLE_INTEGER_MAX))
    scene.connect()
    assert scene.broker.take() == subscribed(("a", 1), ("b", 2))


def test_refused_filter_does_not_hide_copies_of_others():
    scene = Scene()
    scene.client.subscribe(["t/#", "t/1"])
    scene.grant("t/#", 0x87)
    scene.receive(("t/1", 2))
    assert scene.captured == [("t/1", b"x")]


def test_answer_for_an_unsubscribed_filter_is_ignored():
    scene = Scene()
    scene.client.subscribe(["a"])
    scene.client.unsubscribe(["a"])
    scene.grant("a")
    assert scene.events == []


def test_requests_beyond_session_limit_wait():
    scene = Scene()
    scene.broker.request_quota = 0
    scene.client.subscribe(["a", "b"])
    scene.client.unsubscribe(["a"])
    assert scene.broker.take() == []
    scene.broker.request_quota = 5
    scene.ended()
    assert scene.broker.take() == subscribed(("b", 1))


def test_every_copy_is_captured_without_identifiers():
    scene = Scene(connected=False)
    scene.connect(identifiers=False)
    scene.client.subscribe(["a"])
    assert scene.broker.take() == subscribed(("a", None))
    scene.broker.on_effect(effects.PublishReceived([packets.PublishPacket("a", b"x")]))
    assert scene.captured == [("a", b"x")]


def test_copy_with_all_identifiers_is_captured_once():
    """Some brokers do not send a copy for each subscription."""
    scene = Scene()
    scene.client.subscribe(["t/#", "t/1"])
    copy = packets.PublishPacket("t/1", b"x", subscription_ids=(2, 1))
    scene.broker.on_effect(effects.PublishReceived([copy]))
    assert scene.captured == [("t/1", b"x")]


def test_echoes_are_not_captured():
    scene = Scene(connected=False)
    scene.connect(identifiers=False, version=Version.V311)
    scene.client.subscribe(["t/#", "t/1", "gone/#"])
    scene.client.unsubscribe(["gone/#"])  # published before; the following ones are no echoes
    scene.client.publish([publication("t/1"), publication("t/2"), publication("gone/1")])
    arrivals = ["t/1", "t/1", "t/2", "t/2", "gone/1"]
    scene.broker.on_effect(
        effects.PublishReceived([packets.PublishPacket(t, b"x") for t in arrivals])
    )
    assert scene.captured == [("t/2", b"x"), ("gone/1", b"x")]
    assert scene.client.counters["echoes"] == 3


def test_retained_values_in_3_1_1_are_recognised_by_retain_flag():
    scene = Scene(connected=False)
    scene.connect(identifiers=False, version=Version.V311)
    scene.client.subscribe(["t"])
    wish = packets.Subscription("t", qos=0)  # 3.1.1 has no other options
    assert scene.broker.take() == [inputs.Subscribe((wish,), None)]
    arrivals = [packets.PublishPacket("t", b"old", retain=True), packets.PublishPacket("t", b"new")]
    scene.broker.on_effect(effects.PublishReceived(arrivals))
    assert scene.captured == [("t", b"new")]
    assert scene.client.counters["retained replays ignored"] == 1


def test_publication_is_dropped_if_too_many_echoes_are_expected(monkeypatch):
    monkeypatch.setattr(echo_filter, "ECHOES_MAX", 1)
    scene = Scene(connected=False)
    scene.connect(identifiers=False, version=Version.V311)
    scene.client.subscribe(["a"])
    scene.client.publish([publication("a")])
    scene.client.publish([publication("a")])
    assert scene.client.counters["dropped: broker buffer full"] == 1


def test_publications_are_injected_in_one_batch():
    scene = Scene()
    scene.client.publish([publication("a"), publication("b")])
    expected = [packets.PublishPacket("a", b"x"), packets.PublishPacket("b", b"x")]
    assert scene.broker.take() == [inputs.Publish(expected)]
    assert scene.client.counters["injected"] == 2


def test_publications_to_local_topics_are_not_injected():
    scene = Scene(local_topics=["beacon/#"])
    scene.client.publish([publication("beacon/a"), ("beacon/b", b"x"), publication("b")])
    assert scene.broker.take() == [inputs.Publish([packets.PublishPacket("b", b"x")])]
    assert scene.client.counters["dropped: local topic"] == 2


def value(topic: str, payload: bytes) -> Publication:
    return replace(publication(topic), payload=payload, retain=True)


def test_retained_values_wait_for_broker_up_to_limit():
    scene = Scene(connected=False)
    half = bytes(BUFFER_BYTES_MAX // 2 + 1)
    scene.client.publish([value("a", half), value("b", half), value("a", b"new")])
    scene.client.publish([value("c", half)])
    assert scene.client.counters == {"dropped: broker disconnected": 1}
    scene.connect()
    (order,) = scene.broker.take()
    assert [(each.topic, len(each.payload)) for each in order.batch] == [("a", 3), ("c", len(half))]


def test_delayed_value_is_discarded_when_a_newer_one_arrives_at_another_qos():
    scene = Scene(connected=False)
    large = bytes(BUFFER_BYTES_MAX)
    scene.client.publish([value("a", large)])
    scene.client.discard_delayed(["a", "b"])
    scene.client.publish([value("b", large)])  # there is room again
    scene.connect()
    (order,) = scene.broker.take()
    assert [each.topic for each in order.batch] == ["b"]


def test_waiting_value_is_sent_when_broker_is_ready(monkeypatch):
    monkeypatch.setattr(client, "RETAINED_RETRY_S", 0.01)

    async def work() -> None:
        scene = Scene()
        scene.broker.waiting_bytes = BUFFER_BYTES_MAX + scene.broker.packet_bytes_max + 1
        scene.client.publish([value("a", b"1")])
        first = scene.client._retry_timer  # noqa: SLF001
        await until(lambda: scene.client._retry_timer is not first, "offered in vain")  # noqa: SLF001
        scene.client.publish([value("a", b"2")])
        assert scene.broker.take() == []
        scene.broker.waiting_bytes = 0
        await until(lambda: scene.broker.orders, "sent")
        assert scene.broker.take() == [
            inputs.Publish([packets.PublishPacket("a", b"2", retain=True)])
        ]

    asyncio.run(work())


def test_publication_that_cannot_be_injected_is_counted_with_the_reason():
    scene = Scene(connected=False)
    scene.client.publish([publication("a")])
    scene.connect()
    scene.broker.waiting_bytes = BUFFER_BYTES_MAX + scene.broker.packet_bytes_max + 1
    scene.client.publish([publication("a")])
    scene.broker.on_effect(effects.PublishNotSent([packets.PublishPacket("a", b"")], "too large"))
    oversized = packets.OversizedPublish(topic="a", qos=0, dup=False, packet_id=0, packet_bytes=9)
    scene.broker.on_effect(effects.OversizedPublishReceived(oversized))
    assert scene.client.counters == {
        "dropped: broker disconnected": 1,
        "dropped: broker buffer full": 1,
        "dropped: too large": 1,
        "dropped: larger than packet_bytes_max": 1,
    }


# ---------------------------------------------------------------- QoS 1 and 2, a persistent session


class FakeDelivery:
    """Records calls in place of guaranteed delivery."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def on_connected(
        self, session_present: bool, session_expected: bool, limits: BrokerLimits
    ) -> None:
        self.calls.append((session_present, session_expected))

    def on_disconnected(self) -> None:
        self.calls.append("gone")

    def on_publications(self, batch: Sequence[tuple[packets.PublishPacket, bool]]) -> None:
        self.calls += [(publish.packet_id, is_taken) for publish, is_taken in batch]

    def on_handshake_steps(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        self.calls += batch

    def report_dropped(self, reason: str, topic: str = "", qos: int = 0) -> None:
        self.calls.append(reason)

    def on_not_sent(self, batch: Sequence[packets.PublishPacket], reason: str) -> None:
        self.calls += [(publish.packet_id, reason) for publish in batch]

    has_pending_retained = False
    """Whether it delays retained QoS 0 publications."""

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        return [p for p in publications if isinstance(p, tuple) or not p.retain]

    def captured_subscription(self, publish: packets.PublishPacket) -> int:
        return 0


class GuaranteedScene(Scene):
    """One incarnation of a client with guaranteed delivery."""

    def __init__(self, path: Path, session_present: bool = False) -> None:
        super().__init__(connected=False)
        self.delivery = FakeDelivery()
        self.log = SubscriptionLog(path, lambda problem: None)
        self.client = BrokerClient(
            FakeConnection,  # type: ignore[arg-type]
            feed=self.events.append,
            on_captured=lambda batch: self.captured.extend((p.topic, p.payload) for p in batch),
            on_status=self.statuses.append,
            delivery=(self.delivery, self.log),
        )
        self.broker = self.client.connection
        self._present = session_present

    def connect(self, identifiers: bool = True, version: Version = Version.V5) -> None:
        limits = BrokerLimits(version=version, client_id="x", keep_alive=30, session_expiry=0)
        self.broker.on_effect(effects.Connected(self._present, limits))
        self._present = True

    async def written(self) -> None:
        """Wait until the subscription log is written."""
        await until(lambda: self.client._subscriber._write_task is None, "written")  # noqa: SLF001

    async def wishes(self) -> list[tuple[str, int | None]]:
        """Return the requested filters with identifiers; None marks an unsubscription."""
        await self.written()
        found: list[tuple[str, int | None]] = []
        for order in self.broker.take():
            if isinstance(order, inputs.Subscribe):
                assert order.subscriptions[0].qos == 2
                found.append((order.subscriptions[0].topic_filter, order.identifier))
            elif isinstance(order, inputs.Unsubscribe):
                found += [(name, None) for name in order.filters]
        return found


@pytest.fixture
def start_incarnation(tmp_path: Path) -> Iterator[Callable[..., Awaitable[GuaranteedScene]]]:
    """Starts successive incarnations with the same file."""
    scenes: list[GuaranteedScene] = []

    async def start(**options: bool) -> GuaranteedScene:
        if scenes:
            await scenes[-1].written()
        scenes.append(GuaranteedScene(tmp_path / "log", **options))
        return scenes[-1]

    yield start
    for scene in scenes:
        asyncio.run(scene.log.stop())


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test inside an event loop."""

    @wraps(test)
    def play(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))  # type: ignore[arg-type]

    return play


@in_loop
async def test_resumed_session_is_subscribed_again_with_the_same_identifiers(start_incarnation):
    scene = await start_incarnation()
    scene.client.subscribe(["a/#", "a/b"])
    scene.connect()
    assert await scene.wishes() == [("a/#", 1), ("a/b", 2)]
    scene.grant("a/#")
    scene.grant("a/b")
    scene.broker.on_effect(effects.Disconnected(None, "gone", by_broker=False))
    scene.client.unsubscribe(["a/#"])
    scene.client.subscribe(["c"])
    scene.connect()
    assert await scene.wishes() == [("a/b", 2), ("c", 3), ("a/#", None)]
    assert scene.delivery.calls == [(False, False), "gone", (True, True)]


@in_loop
async def test_unconfirmed_filter_is_subscribed_again_in_a_resumed_session(start_incarnation):
    """Otherwise its publications would be mistaken for copies of earlier ones."""
    scene = await start_incarnation()
    scene.client.subscribe(["a/#", "a/b"])
    scene.connect()
    assert await scene.wishes() == [("a/#", 1), ("a/b", 2)]
    scene.grant("a/#")
    scene.broker.on_effect(effects.Disconnected(None, "gone", by_broker=False))
    scene.connect()
    assert await scene.wishes() == [("a/#", 1), ("a/b", 3)]
    again = await start_incarnation(session_present=True)
    assert again.log.identifiers == {"a/#": 1, "a/b": 3}


@in_loop
async def test_resumed_session_subscribes_new_filters_before_unsubscribing(
    start_incarnation,
):
    """No publication in between is missed; the older filter decides until it is unsubscribed."""
    scene = await start_incarnation()
    scene.client.subscribe(["x", "a/b"])
    scene.connect()
    scene = await start_incarnation(session_present=True)
    scene.client.subscribe(["a/#", "x"])
    scene.connect()
    assert await scene.wishes() == [("x", 1), ("a/#", 3), ("a/b", None)]
    scene.grant("a/#")
    copies = [
        packets.PublishPacket("a/b", b"x", 1, packet_id=n, subscription_ids=(n,)) for n in (2, 3)
    ]
    scene.broker.on_effect(effects.PublishReceived(copies))
    scene.ended("a/b")
    news = packets.PublishPacket("a/b", b"y", 1, packet_id=4, subscription_ids=(3,))
    scene.broker.on_effect(effects.PublishReceived([news]))
    assert scene.delivery.calls == [(True, True), (2, True), (3, False), (4, True)]


@in_loop
async def test_next_incarnation_distinguishes_queued_copies(start_incarnation):
    scene = await start_incarnation()
    scene.client.subscribe(["x", "a/#", "a/b"])
    scene.connect()
    scene.client.unsubscribe(["x"])
    scene = await start_incarnation(session_present=True)
    scene.client.subscribe(["a/b", "a/#"])  # in another order
    scene.connect()
    copies = [
        packets.PublishPacket("a/b", b"x", 1, packet_id=n, subscription_ids=(n,)) for n in (2, 3)
    ]
    scene.broker.on_effect(effects.PublishReceived(copies))
    assert scene.delivery.calls == [(True, True), (2, True), (3, False)]
    assert sorted(await scene.wishes()) == [("a/#", 2), ("a/b", 3), ("x", None)]


@in_loop
async def test_single_copy_is_captured_after_timeout_unless_disconnected(
    start_incarnation, monkeypatch
):
    monkeypatch.setattr(client, "OVERLAP_WAIT_S", 0.0)
    copy = packets.PublishPacket("a/b", b"x", 1, packet_id=5, subscription_ids=(2,))

    scene = await start_incarnation()
    scene.client.subscribe(["a/#", "a/b"])
    scene.connect()
    scene.broker.on_effect(effects.PublishReceived([copy]))
    scene.broker.on_effect(effects.Disconnected(None, "gone", by_broker=False))
    scene.connect()
    calls = [(False, False), "gone", (True, True)]
    await asyncio.sleep(0.01)
    assert scene.delivery.calls == calls
    scene.broker.on_effect(effects.PublishReceived([copy]))
    await until(lambda: scene.delivery.calls == [*calls, (5, True)], "it is taken")


@in_loop
async def test_only_subscriptions_wait_for_disk(start_incarnation, monkeypatch):
    """Requests keep their order; decisions for a lost connection are discarded."""
    may_sync = threading.Event()
    monkeypatch.setattr(subscription_log, "sync_file", lambda file: may_sync.wait(PATIENCE))
    scene = await start_incarnation()
    scene.client.subscribe(["a", "b"])
    scene.connect()
    scene.client.unsubscribe(["a"])
    scene.client.publish([publication("x")])
    scene.broker.on_effect(
        effects.PublishReceived([packets.PublishPacket("b", b"0", subscription_ids=(2,))])
    )
    assert [type(order) for order in scene.broker.take()] == [inputs.Publish]
    assert scene.captured == [("b", b"0")]
    may_sync.set()
    assert await scene.wishes() == [("a", 1), ("b", 2), ("a", None)]
    scene.grant("b")
    may_sync.clear()
    scene.client.subscribe(["c"])
    scene.broker.on_effect(effects.Disconnected(None, "gone", by_broker=False))
    scene.connect()
    scene.client.unsubscribe(["c"])
    assert scene.broker.take() == []
    may_sync.set()
    assert await scene.wishes() == [("b", 2), ("c", None), ("a", None)]


@in_loop
async def test_retained_qos_0_values_wait_for_pending_guaranteed_values(start_incarnation):
    scene = await start_incarnation()
    scene.connect()
    scene.broker.take()
    batch = [value("a", b"1"), publication("a"), ("b", b"2")]
    scene.client.publish(batch)
    scene.delivery.has_pending_retained = True
    scene.client.publish(batch)
    sizes = [len(order.batch) for order in scene.broker.take() if isinstance(order, inputs.Publish)]
    assert sizes == [3, 2]


@in_loop
async def test_lost_session_is_subscribed_from_scratch(start_incarnation):
    scene = await start_incarnation()
    scene.client.subscribe(["b", "a"])
    scene.connect()
    scene = await start_incarnation()
    scene.client.subscribe(["a"])
    scene.connect()
    assert scene.delivery.calls == [(False, True)]
    assert await scene.wishes() == [("a", 1)]


@in_loop
async def test_session_loss_is_reported_without_subscriptions(start_incarnation):
    """Publications of other nodes may have been in flight to the broker."""
    scene = await start_incarnation()
    scene.connect()
    scene._present = False  # noqa: SLF001
    scene.connect()
    assert scene.delivery.calls == [(False, False), (False, True)]
    scene = await start_incarnation()
    scene.connect()
    assert scene.delivery.calls == [(False, True)]


@in_loop
async def test_session_loss_is_reported_if_broker_falls_back_to_3_1_1(start_incarnation):
    scene = await start_incarnation()
    scene.connect()
    scene = await start_incarnation(session_present=True)
    assert scene.broker.is_trusted  # handshakes may be in flight even without subscriptions
    scene.client.subscribe(["a"])
    scene.connect()
    scene = await start_incarnation()
    scene.client.subscribe(["a"])
    scene.connect(version=Version.V311)
    assert scene.delivery.calls == [(False, True)]
    assert await scene.wishes() == [("a", 1)]
    scene = await start_incarnation()
    assert not scene.broker.is_trusted  # otherwise a broker that ignores MQTT 5 is never connected
    scene.client.subscribe(["a"])
    scene.connect(version=Version.V311)
    assert scene.delivery.calls == [(False, False)]


@in_loop
async def test_guaranteed_copies_are_all_acknowledged_and_qos_0_is_not(start_incarnation):
    scene = await start_incarnation()
    scene.client.subscribe(["a", "+"])
    scene.connect()
    await scene.written()
    scene.grant("a")
    scene.grant("+")
    batch = [
        packets.PublishPacket("a", b"0", subscription_ids=(1,)),
        packets.PublishPacket("a", b"1", 1, packet_id=7, subscription_ids=(1,)),
        packets.PublishPacket("a", b"1", 1, packet_id=8, subscription_ids=(2,)),
    ]
    scene.delivery.calls.clear()
    scene.broker.on_effect(effects.PublishReceived(batch))
    oversized = packets.OversizedPublish(topic="a", qos=1, dup=False, packet_id=9, packet_bytes=9)
    scene.broker.on_effect(effects.OversizedPublishReceived(oversized))
    scene.broker.on_effect(effects.HandshakePacketsReceived([packets.PubRelPacket(8)]))
    scene.broker.on_effect(
        effects.PublishNotSent([packets.PublishPacket("a", b"", 1, packet_id=5)], "too large")
    )
    assert scene.captured == [("a", b"0")]
    assert scene.delivery.calls == [
        (7, True),
        (8, False),
        "larger than packet_bytes_max",
        (9, False),
        packets.PubRelPacket(8),
        (5, "too large"),
    ]
    over = effects.PublishNotSent(
        [packets.PublishPacket("a", b"", 2, packet_id=6)], "bye", connection_ended=True
    )
    scene.broker.on_effect(over)  # like data after an answer sent with DISCONNECT
    assert len(scene.delivery.calls) == 6


@in_loop
async def test_broker_of_3_1_1_delivers_publications_of_other_nodes_once(start_incarnation):
    scene = await start_incarnation()
    scene.client.subscribe(["a"])
    scene.connect(version=Version.V311)
    (order,) = scene.broker.take()
    assert order.subscriptions[0].qos == 2
    scene.client.inject([packets.PublishPacket("a", b"own", 1, packet_id=7)])
    echo = packets.PublishPacket("a", b"own", 1, packet_id=1)
    news = packets.PublishPacket("a", b"news", 1, packet_id=2)
    stored = packets.PublishPacket("a", b"old", 1, retain=True, packet_id=3)
    scene.broker.on_effect(effects.PublishReceived([echo, news, stored]))
    assert scene.delivery.calls[1:] == [(1, False), (2, True), (3, False)]
    assert scene.client.counters["echoes"] == 1
    assert scene.client.counters["retained replays ignored"] == 1


@pytest.mark.parametrize(("sends_overlap_copies", "copies"), [(True, 2), (False, 1)])
@in_loop
async def test_one_copy_counts_with_3_1_1_broker(start_incarnation, sends_overlap_copies, copies):
    scene = await start_incarnation()
    scene.client.sends_overlap_copies = sends_overlap_copies
    scene.client.subscribe(["a/#", "+/b"])
    scene.connect(version=Version.V311)
    copy = packets.PublishPacket("a/b", b"x", 1)
    for _ in range(3):
        scene.broker.on_effect(effects.PublishReceived([copy] * copies))
    assert scene.client.counters["captured"] == 3
