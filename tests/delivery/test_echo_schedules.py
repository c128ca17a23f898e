"""Random schedules of publications, injections, reconnects, restarts and crashes against a model of
a lasting session at a broker of MQTT 3.1.1, which sends the agent's own publications back.

No publication of a client is lost. Without a crash, none is duplicated if the agent injects at
QoS 2; at QoS 1 the broker takes a repeated PUBLISH for a new publication. The model sends QoS 2
publications to subscribers when it gets PUBLISH, or when it gets PUBREL: MQTT allows both.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any

import pytest
from tests.delivery.core_shell import V311_LASTING, CoreIncarnation, Disk
from tests.delivery.shell import YOU
from tests.delivery.test_overlap_schedules import TOPIC, Broker, Copy

from hansa.delivery import effects, inputs
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.protocol.model import Publication

FILTERS = ("a/b", "a/#")
PAYLOADS = (b"on", b"off")
"""Few, so that publications of clients and of other nodes are often equal."""
STEPS = 120
SEEDS = (*range(30), 267)
"""267 once failed with an echo expected again after a crash."""
USUAL = ("publish", "inject", "receive", "answer", "commit", "connect")


@dataclass
class OldBroker(Broker):
    """A broker without No Local and without subscription identifiers."""

    delivers_at_pubrel: bool = False
    repeated_qos1: int = 0
    """Injections of QoS 1 that arrived more than once."""
    _unreleased: dict[int, bytes] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def publish(self, payload: bytes, qos: int) -> bool:
        for _ in self.filters:
            self.queue.append(Copy(PublishPacket(TOPIC, payload, qos)))
        self._send_queued()
        return bool(self.filters)

    def read(self) -> None:
        match self.to_broker[0]:
            case effects.Subscribe(wish, None):
                self.filters[wish.topic_filter] = 1
                self.to_agent.append(inputs.SubscribeAnswered((wish,), b"\2"))
            case PublishPacket(_, payload, qos, packet_id=packet_id):
                is_new = packet_id not in self._unreleased
                if is_new and not (qos == 2 and self.delivers_at_pubrel):
                    self.publish(payload, qos)
                self.repeated_qos1 += qos == 1 and packet_id in self._seen
                self._seen.add(packet_id)
                if qos == 2:
                    self._unreleased[packet_id] = payload
                self.to_agent.append((PubRecPacket if qos == 2 else PubAckPacket)(packet_id))
            case PubRelPacket(packet_id):
                released = self._unreleased.pop(packet_id, None)
                if released is not None and self.delivers_at_pubrel:
                    self.publish(released, 2)
                self.to_agent.append(PubCompPacket(packet_id))
            case _:
                super().read()
                return
        self.to_broker.popleft()


class OldIncarnation(CoreIncarnation):
    """Sends what the core wants sent to the model of the broker, in that order, and saves at
    once."""

    def __init__(self, disk: Disk, broker: OldBroker, filters: Sequence[str]) -> None:
        self._broker = broker
        super().__init__(disk)
        self.require(*filters)

    def handle(self, happened: inputs.Input) -> list[effects.Effect]:
        caused = super().handle(happened)
        for effect in caused if self._broker.is_connected else ():
            match effect:
                case effects.Publish(batch) | effects.SendHandshakePackets(batch):
                    self._broker.to_broker.extend(batch)
                case effects.Subscribe() | effects.Unsubscribe():
                    self._broker.to_broker.append(effect)
        self.sent.clear()
        self.requests.clear()
        self.save()
        return caused


class Play:
    """Incarnations of one agent at one broker, subscribed to these filters from the beginning."""

    def __init__(
        self,
        seed: int,
        injected_qos: Sequence[int],
        filters: Sequence[str] = FILTERS,
        delivers_at_pubrel: bool = False,
    ) -> None:
        self._dice = random.Random(seed)
        self._injected_qos = injected_qos
        self.filters = filters
        self.broker = OldBroker(1 + seed % 5, 0, delivers_at_pubrel=delivers_at_pubrel)
        self.published: Counter[bytes] = Counter()
        self._sequences = count(1)
        self._disk = Disk()
        self._incarnation = self._begin_incarnation()
        self._has_session = False
        self.drain()  # subscribe

    def _begin_incarnation(self) -> OldIncarnation:
        return OldIncarnation(self._disk, self.broker, self.filters)

    def publish(self) -> None:
        payload = self._dice.choice(PAYLOADS)
        if self.broker.publish(payload, self._dice.choice((1, 2))):
            self.published[payload] += 1

    def inject(self) -> None:
        payload, qos = self._dice.choice(PAYLOADS), self._dice.choice(self._injected_qos)
        self._incarnation.deliver(Publication(YOU, 1, next(self._sequences), qos, TOPIC, payload))

    def receive(self) -> None:
        """Let the agent read some of its packets, grouped by kind."""
        to_agent = self.broker.to_agent
        some = [to_agent.popleft() for _ in range(min(self._dice.randint(1, 6), len(to_agent)))]
        for kind, each in groupby(some, type):
            batch: list[Any] = list(each)
            if kind is PublishPacket:
                self._incarnation.handle(inputs.PublicationsReceived(batch))
            elif kind in (inputs.SubscribeAnswered, inputs.UnsubscribeAnswered):
                for answer in batch:
                    self._incarnation.handle(answer)
            else:
                self._incarnation.handle(inputs.HandshakePacketsReceived(batch))

    def answer(self) -> None:
        """Let the broker read some of its packets."""
        for _ in range(min(self._dice.randint(1, 6), len(self.broker.to_broker))):
            self.broker.read()

    def commit(self) -> None:
        self._incarnation.commit()

    def connect(self) -> None:
        if not self.broker.is_connected:
            self.broker.connect()
            self._incarnation.connect(self._has_session, V311_LASTING)
            self._has_session = True

    def subscribe(self) -> None:
        self.filters = ("a/#",)
        self._incarnation.require(*self.filters)

    def toggle(self) -> None:
        """Require a filter, or release it."""
        name = self._dice.choice(("a/#", "a/b", "+/b"))
        if name in self.filters:
            self.filters = [each for each in self.filters if each != name]
            self._incarnation.release(name)
        else:
            self.filters = [*self.filters, name]
            self._incarnation.require(name)

    def expected_echoes(self) -> Counter[bytes]:
        """Return the echoes that are still expected."""
        saved = self._incarnation.core.selection.save_echoes()
        return Counter(dict(saved.expected) if saved else ())

    def part(self) -> None:
        self.broker.disconnect()
        self._incarnation.disconnect()

    def stop(self) -> None:
        self.broker.disconnect()
        self._disk = self._incarnation.stopped()
        self._incarnation = self._begin_incarnation()

    def crash(self) -> None:
        self.broker.disconnect()
        self._disk = self._incarnation.crashed()
        self._incarnation = self._begin_incarnation()

    def drain(self) -> Counter[bytes]:
        """Continue until nothing is in flight; return the captured publications."""
        self.connect()
        broker = self.broker
        for _ in range(5_000):
            for step in (self.receive, self.commit, self.answer):
                step()
            if not (broker.queue or broker.in_flight or broker.to_agent or broker.to_broker):
                log = self._disk.outbox
                return Counter(
                    each.payload for each in log.captured_records(1, log.next_sequence - 1)
                )
        raise AssertionError("it does not end")

    def has_pending(self) -> bool:
        """Whether an injected publication is not completed."""
        return bool(self._incarnation.core.inbox.entries)

    def quarantined(self) -> Counter[bytes]:
        """Return injected publications that met several broken connections: they are sent again
        later. Until then an equal publication of a client may take the place of their echo."""
        pending = self._incarnation.core.inbox.entries.values()
        return Counter(each.record.payload for each in pending if self.broker.delivers_at_pubrel)


def play(
    seed: int, rare: Sequence[str], injected_qos: Sequence[int], **options: Any
) -> tuple[Play, Counter[bytes]]:
    dice = random.Random(seed)
    scene = Play(seed, injected_qos, **options)
    for _ in range(STEPS):
        getattr(scene, dice.choice(rare if dice.random() < 0.1 else USUAL))()
    return scene, scene.drain()


@pytest.mark.parametrize("delivers_at_pubrel", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_crash_each_publication_is_captured_once(seed, delivers_at_pubrel):
    options = {"delivers_at_pubrel": delivers_at_pubrel}
    scene, captured = play(seed, ("part", "stop"), injected_qos=(2,), **options)
    copies = Counter({each: len(FILTERS) * n for each, n in scene.quarantined().items()})
    assert scene.published - copies <= captured <= scene.published


@pytest.mark.parametrize("delivers_at_pubrel", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_echoes_are_recognised_if_the_agent_subscribes_during_handshakes(seed, delivers_at_pubrel):
    options = {"filters": (), "delivers_at_pubrel": delivers_at_pubrel}
    scene, captured = play(seed, ("part", "stop", "subscribe"), injected_qos=(2,), **options)
    assert scene.published - scene.quarantined() <= captured <= scene.published


@pytest.mark.parametrize("delivers_at_pubrel", [False, True])
@pytest.mark.parametrize("rare", [("toggle",), ("toggle", "part"), ("toggle", "part", "stop")])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_echo_is_captured_or_missed_while_subscriptions_change(seed, rare, delivers_at_pubrel):
    """Clients publish nothing. An echo that is expected and does not come would hide an equal
    publication of a client."""
    scene = Play(seed, (2,), ("a/#",), delivers_at_pubrel)
    dice = random.Random(seed)
    usual = [each for each in USUAL if each != "publish"]
    for _ in range(STEPS):
        getattr(scene, dice.choice(rare if dice.random() < 0.1 else usual))()
    assert scene.drain() == Counter()
    if not scene.has_pending():  # a quarantined publication is sent again later
        assert scene.expected_echoes() == Counter()
        assert set(scene.broker.filters) == set(scene.filters)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_repeated_injections_of_qos_1_are_duplicated(seed):
    scene, captured = play(seed, ("part", "stop"), injected_qos=(1, 2))
    assert captured >= scene.published, "lost"
    copies = len(FILTERS)
    assert (captured - scene.published).total() <= scene.broker.repeated_qos1 * copies


@pytest.mark.parametrize("seed", SEEDS)
def test_no_publication_is_lost_by_a_crash(seed):
    scene, captured = play(seed, ("part", "stop", "crash"), injected_qos=(1, 2))
    assert captured >= scene.published, "lost"
