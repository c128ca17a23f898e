"""The broker client between a fake connection and a real delivery core: subscribe, unsubscribe,
capture and inject."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.broker.instant_shell import Disk, InstantShell
from tests.agent.waiting import until

from hansa.agent.broker import client
from hansa.agent.broker.client import BUFFER_BYTES_MAX, BrokerClient
from hansa.delivery.core import BrokerTraits
from hansa.delivery.dedup import echo
from hansa.delivery.dedup.selection import OVERLAP_WAIT_S
from hansa.delivery.inputs import Deliver
from hansa.delivery.subscriptions import reconciler
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.fields import VARIABLE_INTEGER_MAX
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version
from hansa.protocol.events import SubscriptionsDenied, SubscriptionsGranted
from hansa.protocol.model import NodeId, PlainMessage, Publication

pytestmark = pytest.mark.pure  # it replaces the connection

ANY_BROKER = BrokerTraits()


class FakeConnection:
    """Records inputs; `on_effect` passes effects of the broker."""

    def __init__(self, on_effect: Any) -> None:
        self.on_effect = on_effect
        self.orders: list[inputs.Input] = []
        self.waiting_bytes = 0
        self.packet_bytes_max = 1_000
        self.connect_hooks: object = None
        self.is_trusted = False

    def mark_version_known(self, version: Version) -> None:
        self.is_trusted = True

    def submit(self, event: inputs.Input) -> None:
        self.orders.append(event)

    def take(self) -> list[inputs.Input]:
        taken, self.orders = self.orders, []
        return taken


class Scene:
    """One incarnation of a client between a fake broker and a fake node."""

    def __init__(
        self,
        connected: bool = True,
        session_present: bool = False,
        disk: Disk | None = None,
        broker: BrokerTraits = ANY_BROKER,
    ) -> None:
        self.captured: list[tuple[str, bytes]] = []
        """Publications of QoS 0."""
        self.statuses: list[str] = []
        self.shell = InstantShell(disk or Disk(), broker)
        self.client = BrokerClient(
            FakeConnection,  # type: ignore[arg-type]
            self.shell,
            on_captured=self._on_captured,
            on_status=self.statuses.append,
        )
        self.shell.client = self.client
        self.broker: Any = self.client.connection
        self._present = session_present
        if connected:
            self.connect()

    def _on_captured(self, batch: Iterable[packets.PublishPacket]) -> None:
        self.captured += [(p.topic, p.payload) for p in batch]

    def connect(
        self, identifiers: bool = True, version: Version = Version.V5, is_kept: bool = False
    ) -> None:
        """Connect; with `is_kept` the broker keeps the session for the next connection."""
        limits = BrokerLimits(
            version=version,
            client_id="x",
            keep_alive=30,
            session_expiry=0,
            subscription_ids_available=identifiers,
        )
        self.broker.on_effect(effects.Connected(self._present, limits))
        self._present = is_kept

    def disconnect(self) -> None:
        self.broker.on_effect(effects.Disconnected(None, "gone", by_broker=False))

    def grant(self, name: str, reason: int = 0) -> None:
        self.broker.on_effect(effects.Subscribed((packets.Subscription(name),), bytes((reason,))))

    def ended(self, *names: str) -> None:
        self.broker.on_effect(effects.Unsubscribed(names, bytes(len(names))))

    def receive(self, *copies: tuple[str, int]) -> None:
        batch = [packets.PublishPacket(topic, b"x", subscription_ids=(i,)) for topic, i in copies]
        self.broker.on_effect(effects.PublishReceived(batch))

    def receive_guaranteed(self, *copies: packets.PublishPacket) -> None:
        self.broker.on_effect(effects.PublishReceived(copies))

    @property
    def events(self) -> list[object]:
        """Granted and denied subscriptions."""
        kinds = SubscriptionsGranted | SubscriptionsDenied
        return [event for event in self.shell.events if isinstance(event, kinds)]

    @property
    def counters(self) -> Counter[str]:
        return self.client.counters + self.shell.core.counters

    @property
    def captured_ids(self) -> list[int]:
        """Packet ids of the captured publications of QoS 1 and 2."""
        return [publish.packet_id for publish in self.shell.captured]

    def take_wishes(self) -> list[tuple[str, int | None]]:
        """Return the requested filters with identifiers; None marks an unsubscription."""
        found: list[tuple[str, int | None]] = []
        for order in self.broker.take():
            if isinstance(order, inputs.Subscribe):
                found.append((order.subscriptions[0].topic_filter, order.identifier))
            elif isinstance(order, inputs.Unsubscribe):
                found += [(name, None) for name in order.filters]
        return found


def subscribed(*pairs: tuple[str, int | None]) -> list[inputs.Input]:
    return [
        inputs.Subscribe(
            (
                packets.Subscription(
                    name, qos=2, no_local=True, retain_as_published=True, retain_handling=2
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
    assert scene.counters["subscriptions denied"] == 1


def test_client_is_subscribed_from_suback_to_unsubscribe_or_disconnection():
    scene = Scene()
    found = []
    for step in (
        lambda: scene.client.subscribe(["a"]),
        lambda: scene.grant("a"),
        lambda: scene.client.unsubscribe(["a"]),
        lambda: scene.ended("a"),
        lambda: scene.client.subscribe(["b"]),
        lambda: scene.grant("b"),
        scene.disconnect,
    ):
        step()
        found.append(scene.client.is_subscribed)
    assert found == [False, True, False, False, False, True, False]


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


def test_filter_required_again_at_once_is_reported_again(monkeypatch):
    scene = Scene()
    scene.client.subscribe(["a", "b", "c"])
    monkeypatch.setattr(reconciler, "REQUESTS_MAX", 1)
    scene.client.unsubscribe(["a"])
    scene.grant("a")
    assert scene.events == []
    scene.client.subscribe(["a"])
    scene.broker.take()
    monkeypatch.setattr(reconciler, "REQUESTS_MAX", 3)
    scene.grant("b")
    assert scene.broker.take() == subscribed(("a", 1)) * 2
    scene.grant("a")
    assert scene.events == [SubscriptionsGranted(("b",)), SubscriptionsGranted(("a",))]


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
    scene.disconnect()
    scene.connect()
    assert scene.broker.take() == subscribed(("a", 1), ("b", 2))
    assert scene.statuses == ["", "gone", ""]


def test_copy_of_oldest_overlapping_filter_is_captured():
    scene = Scene()
    scene.client.subscribe(["t/#", "t/1"])
    scene.receive(("t/1", 1), ("t/1", 2), ("t/2", 1))
    assert scene.captured == [("t/1", b"x"), ("t/2", b"x")]
    assert scene.counters["overlap copies"] == 1


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
    scene.shell.core.subscriptions.restore_identifiers(VARIABLE_INTEGER_MAX - 1, {})
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


def test_requests_beyond_limit_wait(monkeypatch):
    monkeypatch.setattr(reconciler, "REQUESTS_MAX", 1)
    scene = Scene()
    scene.client.subscribe(["x", "a", "b"])
    scene.client.unsubscribe(["a"])
    assert scene.broker.take() == subscribed(("x", 1))
    scene.grant("x")
    assert scene.broker.take() == subscribed(("b", 2))


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
    assert scene.counters["echoes"] == 3


def test_echo_after_a_pause_is_not_captured(monkeypatch):
    """The time of the last input may be long ago."""
    now = 0.0
    monkeypatch.setattr(client, "monotonic", lambda: now)
    scene = Scene(connected=False)
    scene.connect(identifiers=False, version=Version.V311)
    scene.client.subscribe(["t"])
    now = 10 * echo.ECHO_EXPECTED_S
    scene.client.publish([publication("t")])
    scene.broker.on_effect(effects.PublishReceived([packets.PublishPacket("t", b"x")]))
    assert scene.captured == []
    assert scene.counters["echoes"] == 1


def test_publications_continue_when_echoes_are_overdue(monkeypatch):
    monkeypatch.setattr(echo, "ECHOES_MAX", 1)
    now = 0.0
    monkeypatch.setattr(client, "monotonic", lambda: now)
    scene = Scene(connected=False)
    scene.connect(identifiers=False, version=Version.V311)
    scene.client.subscribe(["a"])
    scene.client.publish([publication("a")])
    now = 2 * echo.ECHO_EXPECTED_S
    scene.client.publish([publication("a")])
    assert scene.counters["dropped: broker buffer full"] == 0


def test_retained_values_in_3_1_1_are_recognised_by_retain_flag():
    scene = Scene(connected=False)
    scene.connect(identifiers=False, version=Version.V311)
    scene.client.subscribe(["t"])
    wish = packets.Subscription("t", qos=2)  # 3.1.1 has no other options
    assert scene.broker.take() == [inputs.Subscribe((wish,), None)]
    arrivals = [packets.PublishPacket("t", b"old", retain=True), packets.PublishPacket("t", b"new")]
    scene.broker.on_effect(effects.PublishReceived(arrivals))
    assert scene.captured == [("t", b"new")]
    assert scene.counters["retained replays ignored"] == 1


def test_publication_is_dropped_if_too_many_echoes_are_expected(monkeypatch):
    monkeypatch.setattr(echo, "ECHOES_MAX", 1)
    scene = Scene(connected=False)
    scene.connect(identifiers=False, version=Version.V311)
    scene.client.subscribe(["a"])
    scene.client.publish([publication("a")])
    scene.client.publish([publication("a")])
    assert scene.counters["dropped: broker buffer full"] == 1


def test_publications_are_injected_in_one_batch():
    scene = Scene()
    scene.client.publish([publication("a"), publication("b")])
    expected = [packets.PublishPacket("a", b"x"), packets.PublishPacket("b", b"x")]
    assert scene.broker.take() == [inputs.Publish(expected)]
    assert scene.counters["injected"] == 2


def test_publications_to_local_topics_are_not_injected():
    scene = Scene(broker=BrokerTraits(("beacon/#",)))
    scene.client.publish([publication("beacon/a"), ("beacon/b", b"x"), publication("b")])
    assert scene.broker.take() == [inputs.Publish([packets.PublishPacket("b", b"x")])]
    assert scene.counters["dropped: local topic"] == 2


def value(topic: str, payload: bytes) -> Publication:
    return replace(publication(topic), payload=payload, retain=True)


def test_retained_values_wait_for_broker_up_to_limit():
    scene = Scene(connected=False)
    half = bytes(BUFFER_BYTES_MAX // 2 + 1)
    scene.client.publish([value("a", half), value("b", half), value("a", b"new")])
    scene.client.publish([value("c", half)])
    assert scene.counters == {"dropped: broker disconnected": 1}
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
    assert scene.counters == {
        "dropped: broker disconnected": 1,
        "dropped: broker buffer full": 1,
        "dropped: too large": 1,
        "dropped: larger than packet_bytes_max": 1,
    }


# ---------------------------------------------------------------- QoS 1 and 2, a persistent session


def test_resumed_session_is_subscribed_again_with_the_same_identifiers():
    scene = Scene(connected=False)
    scene.client.subscribe(["a/#", "a/b"])
    scene.connect(is_kept=True)
    assert scene.take_wishes() == [("a/#", 1), ("a/b", 2)]
    scene.grant("a/#")
    scene.grant("a/b")
    scene.disconnect()
    scene.client.unsubscribe(["a/#"])
    scene.client.subscribe(["c"])
    scene.connect()
    assert scene.take_wishes() == [("a/b", 2), ("c", 3), ("a/#", None)]
    assert scene.counters["broker sessions lost"] == 0


def test_unconfirmed_filter_is_subscribed_again_in_a_resumed_session():
    """Otherwise its publications would be mistaken for copies of earlier ones."""
    disk = Disk()
    scene = Scene(connected=False, disk=disk)
    scene.client.subscribe(["a/#", "a/b"])
    scene.connect(is_kept=True)
    assert scene.take_wishes() == [("a/#", 1), ("a/b", 2)]
    scene.grant("a/#")
    scene.disconnect()
    scene.connect()
    assert scene.take_wishes() == [("a/#", 1), ("a/b", 3)]
    again = Scene(connected=False, disk=disk)
    assert again.shell.core.saved_subscriptions.identifiers == {"a/#": 1, "a/b": 3}


def test_resumed_session_subscribes_new_filters_before_unsubscribing():
    """No publication in between is missed; the older filter decides until it is unsubscribed."""
    disk = Disk()
    scene = Scene(connected=False, disk=disk)
    scene.client.subscribe(["x", "a/b"])
    scene.connect()
    scene = Scene(connected=False, session_present=True, disk=disk)
    scene.client.subscribe(["a/#", "x"])
    scene.connect()
    assert scene.take_wishes() == [("x", 1), ("a/#", 3), ("a/b", None)]
    scene.grant("a/#")
    scene.receive_guaranteed(*copies_of(2, 3))
    scene.ended("a/b")
    scene.receive_guaranteed(
        packets.PublishPacket("a/b", b"y", 1, packet_id=4, subscription_ids=(3,))
    )
    assert scene.captured_ids == [2, 4]
    assert acknowledged(scene) == [2, 3, 4]


def copies_of(*identifiers: int) -> list[packets.PublishPacket]:
    """Return the copies of a publication that subscriptions with these identifiers cause."""
    return [
        packets.PublishPacket("a/b", b"x", 1, packet_id=n, subscription_ids=(n,))
        for n in identifiers
    ]


def acknowledged(scene: Scene) -> list[int]:
    """Return the packet ids of the acknowledgements, in the order in which they were sent."""
    answers = [
        order for order in scene.broker.take() if isinstance(order, inputs.SendHandshakePackets)
    ]
    return [step.packet_id for order in answers for step in order.batch]


def test_next_incarnation_distinguishes_queued_copies():
    disk = Disk()
    scene = Scene(connected=False, disk=disk)
    scene.client.subscribe(["x", "a/#", "a/b"])
    scene.connect()
    scene.client.unsubscribe(["x"])
    scene = Scene(connected=False, session_present=True, disk=disk)
    scene.client.subscribe(["a/b", "a/#"])  # in another order
    scene.connect()
    assert sorted(scene.take_wishes()) == [("a/#", 2), ("a/b", 3), ("x", None)]
    scene.receive_guaranteed(*copies_of(2, 3))
    assert scene.captured_ids == [2]
    assert acknowledged(scene) == [2, 3]


def test_single_copy_is_captured_after_timeout_unless_disconnected():
    (copy,) = copies_of(2)
    scene = Scene(connected=False)
    scene.client.subscribe(["a/#", "a/b"])
    scene.connect(is_kept=True)
    scene.grant("a/#")
    scene.grant("a/b")
    scene.receive_guaranteed(copy)
    scene.disconnect()
    scene.connect()
    scene.shell.pass_time(OVERLAP_WAIT_S)
    assert scene.captured_ids == []
    scene.receive_guaranteed(copy)
    scene.shell.pass_time(OVERLAP_WAIT_S / 2)
    assert scene.captured_ids == []
    scene.shell.pass_time(OVERLAP_WAIT_S / 2)
    assert scene.captured_ids == [2]


def test_only_subscriptions_wait_for_disk():
    """Requests keep their order; decisions for a lost connection are discarded."""
    scene = Scene(connected=False)
    scene.shell.holds_disk = True
    scene.client.subscribe(["a", "b"])
    scene.connect(is_kept=True)
    scene.client.unsubscribe(["a"])
    scene.client.publish([publication("x")])
    scene.receive(("b", 2))
    assert [type(order) for order in scene.broker.take()] == [inputs.Publish]
    assert scene.captured == [("b", b"x")]
    scene.shell.release_disk()
    assert scene.take_wishes() == [("a", 1), ("b", 2), ("a", None)]
    scene.grant("b")
    scene.shell.holds_disk = True
    scene.client.subscribe(["c"])
    scene.disconnect()
    scene.connect()
    scene.client.unsubscribe(["c"])
    assert scene.broker.take() == []
    scene.shell.release_disk()
    assert scene.take_wishes() == [("b", 2), ("c", None), ("a", None)]


def test_retained_qos_0_values_wait_for_pending_guaranteed_values():
    scene = Scene()
    batch: list[PlainMessage | Publication] = [value("a", b"1"), publication("a"), ("b", b"2")]
    scene.client.publish(batch)
    scene.shell.holds_disk = True
    pending = replace(value("a", b"0"), origin=NodeId(2), qos=1)
    scene.shell.handle(Deliver([pending]))
    scene.client.publish(batch)
    sizes = [len(order.batch) for order in scene.broker.take() if isinstance(order, inputs.Publish)]
    assert sizes == [3, 2]


def test_lost_session_is_subscribed_from_scratch():
    disk = Disk()
    scene = Scene(connected=False, disk=disk)
    scene.client.subscribe(["b", "a"])
    scene.connect()
    scene = Scene(connected=False, disk=disk)
    scene.client.subscribe(["a"])
    scene.connect()
    assert scene.counters["broker sessions lost"] == 1
    assert scene.take_wishes() == [("a", 1)]


def test_session_loss_is_reported_without_subscriptions():
    """Publications of other nodes may have been in flight to the broker."""
    disk = Disk()
    scene = Scene(disk=disk)
    assert scene.counters["broker sessions lost"] == 0
    scene.connect()
    assert scene.counters["broker sessions lost"] == 1
    assert Scene(disk=disk).counters["broker sessions lost"] == 1


def test_session_loss_is_reported_if_broker_falls_back_to_3_1_1():
    disk = Disk()
    Scene(disk=disk)
    scene = Scene(session_present=True, disk=disk)
    assert scene.broker.is_trusted  # handshakes may be in flight even without subscriptions
    scene.client.subscribe(["a"])
    scene = Scene(connected=False, disk=disk)
    scene.client.subscribe(["a"])
    scene.connect(version=Version.V311)
    assert scene.counters["broker sessions lost"] == 1
    assert scene.take_wishes() == [("a", 1)]
    scene = Scene(connected=False, disk=disk)
    assert not scene.broker.is_trusted  # otherwise a broker that ignores MQTT 5 is never connected
    scene.client.subscribe(["a"])
    scene.connect(version=Version.V311)
    assert scene.counters["broker sessions lost"] == 0


def test_guaranteed_copies_are_all_acknowledged_and_qos_0_is_not():
    scene = Scene(connected=False)
    scene.client.subscribe(["a", "+"])
    scene.connect()
    scene.grant("a")
    scene.grant("+")
    batch = [
        packets.PublishPacket("a", b"0", subscription_ids=(1,)),
        packets.PublishPacket("a", b"1", 1, packet_id=7, subscription_ids=(1,)),
        packets.PublishPacket("a", b"1", 1, packet_id=8, subscription_ids=(2,)),
    ]
    scene.broker.on_effect(effects.PublishReceived(batch))
    oversized = packets.OversizedPublish(topic="a", qos=1, dup=False, packet_id=9, packet_bytes=9)
    scene.broker.on_effect(effects.OversizedPublishReceived(oversized))
    scene.broker.on_effect(effects.HandshakePacketsReceived([packets.PubRelPacket(8)]))
    answers = [
        order.batch
        for order in scene.broker.take()
        if isinstance(order, inputs.SendHandshakePackets)
    ]
    assert [step for some in answers for step in some] == [
        *(packets.PubAckPacket(packet_id) for packet_id in (7, 8, 9)),
        packets.PubCompPacket(8),
    ]
    assert scene.captured == [("a", b"0")]
    assert scene.captured_ids == [7]
    assert scene.shell.dropped == ["larger than packet_bytes_max"]


def test_publication_that_cannot_be_sent_is_dropped_unless_the_connection_ended():
    scene = Scene()
    publications = [Publication(NodeId(2), 1, number, 1, "a", b"%d" % number) for number in (1, 2)]
    scene.shell.handle(Deliver(publications))
    (order,) = scene.broker.take()
    large, other = order.batch
    scene.broker.on_effect(effects.PublishNotSent([large], "too large"))
    ended = effects.PublishNotSent([other], "bye", connection_ended=True)
    scene.broker.on_effect(ended)  # like data after an answer sent with DISCONNECT
    assert scene.shell.dropped == ["too large"]
    assert len(scene.shell.core.inbox.entries) == 1


def test_broker_of_3_1_1_delivers_publications_of_other_nodes_once():
    scene = Scene(connected=False)
    scene.client.subscribe(["a"])
    scene.connect(version=Version.V311)
    (order,) = scene.broker.take()
    assert order.subscriptions[0].qos == 2
    scene.shell.core.selection.expect_echo("a", b"own", 1)
    echo_copy = packets.PublishPacket("a", b"own", 1, packet_id=1)
    new_packet = packets.PublishPacket("a", b"news", 1, packet_id=2)
    stored = packets.PublishPacket("a", b"old", 1, retain=True, packet_id=3)
    scene.receive_guaranteed(echo_copy, new_packet, stored)
    assert scene.captured_ids == [2]
    assert acknowledged(scene) == [1, 2, 3]
    assert scene.counters["echoes"] == 1
    assert scene.counters["retained replays ignored"] == 1


@pytest.mark.parametrize(("sends_overlap_copies", "count"), [(True, 2), (False, 1)])
def test_one_copy_counts_with_3_1_1_broker(sends_overlap_copies, count):
    broker = BrokerTraits(sends_overlap_copies=sends_overlap_copies)
    scene = Scene(connected=False, broker=broker)
    scene.client.subscribe(["a/#", "+/b"])
    scene.connect(version=Version.V311)
    for number in range(3):
        copies = range(number * count, (number + 1) * count)
        batch = [packets.PublishPacket("a/b", b"x", 1, packet_id=1 + each) for each in copies]
        scene.receive_guaranteed(*batch)
    assert scene.counters["captured"] == 3
