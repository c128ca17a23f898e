"""Random schedules of injection against a model of the broker: reconnects, crashes, refusals, lost
sessions. Nothing is lost, and nothing of QoS 2 is delivered twice.

The model delivers a QoS 1 publication when it arrives and one of QoS 2 at PUBREL, once per packet
id. The node sends everything again that the inbox has not accepted durably.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest
from tests.delivery.injecting import InjectingIncarnation
from tests.delivery.shell import YOU

from hansa.delivery.inbox import REDELIVERED_PROPERTY
from hansa.delivery.poison_quarantine import DISCONNECTS_MAX, QUARANTINE_S
from hansa.delivery.settings import DeliverySettings
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.mqtt.types import Reason
from hansa.protocol.model import Publication
from hansa.simulator.world.memory_log import MemoryLog

STEPS = 150
SEEDS = 30
TOPICS = ("a", "b")
LONG, SHORT = 1 << 20, 1
"""Records per segment: one segment for everything, or for one record."""
USUAL = ("deliver", "receive", "answer", "commit", "connect")


@dataclass
class Broker:
    """The agent's session at the broker, and what clients get."""

    has_session: bool = False
    is_connected: bool = False
    refused: int = 0
    """Publications that are refused next, because of a quota."""
    delivered: list[PublishPacket] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    """Retained values by topic."""
    unreleased: dict[int, PublishPacket] = field(default_factory=dict)
    """QoS 2 publications without PUBREL, by packet id."""
    to_agent: deque[Any] = field(default_factory=deque)
    to_broker: deque[Any] = field(default_factory=deque)

    def disconnect(self) -> None:
        self.is_connected = False
        self.to_agent.clear()
        self.to_broker.clear()

    def lose_session(self) -> None:
        self.disconnect()
        self.has_session = False
        self.unreleased.clear()

    def read(self) -> None:
        match self.to_broker.popleft():
            case PublishPacket(qos=1) as publish:
                self._receive_qos1(publish)
            case PublishPacket() as publish:
                self._receive_qos2(publish)
            case PubRelPacket(packet_id):
                if packet_id in self.unreleased:
                    self._deliver(self.unreleased.pop(packet_id))
                self.to_agent.append(PubCompPacket(packet_id))

    def _receive_qos1(self, publish: PublishPacket) -> None:
        if self._refuses():
            self.to_agent.append(PubAckPacket(publish.packet_id, Reason.QUOTA_EXCEEDED))
        else:
            self._deliver(publish)
            self.to_agent.append(PubAckPacket(publish.packet_id))

    def _receive_qos2(self, publish: PublishPacket) -> None:
        known = self.unreleased.get(publish.packet_id)
        if known is None and self._refuses():
            self.to_agent.append(PubRecPacket(publish.packet_id, Reason.QUOTA_EXCEEDED))
            return
        assert known is None or (publish.dup and known.payload == publish.payload)
        self.unreleased.setdefault(publish.packet_id, publish)
        self.to_agent.append(PubRecPacket(publish.packet_id))

    def _refuses(self) -> bool:
        is_refused = self.refused > 0
        self.refused -= is_refused
        return is_refused

    def _deliver(self, publish: PublishPacket) -> None:
        self.delivered.append(publish)
        if publish.retain:
            self.stored[publish.topic] = publish.payload


class Play:
    """Incarnations of one agent at one broker."""

    def __init__(self, seed: int, segment_records: int, retained: float, policy: str) -> None:
        dice = random.Random(seed)
        self.broker = Broker()
        self.published: list[Publication] = []
        self._kinds = lambda: (dice.choice((1, 2)), dice.choice(TOPICS), dice.random() < retained)
        settings = DeliverySettings(
            in_flight_max=1 + seed % 5, inbox_bytes=2_000, session_loss_policy=policy
        )
        self.agent = InjectingIncarnation(MemoryLog(5, segment_records=segment_records), settings)
        self._loss_end = 0
        """End of the log with the last session loss."""

    # ------------------------------------------------------------ steps

    def deliver(self, count: int) -> None:
        first = len(self.published) + 1
        batch = [
            Publication(YOU, 8, number, qos, topic, b"%d" % number, retain, version=number)
            for number in range(first, first + count)
            for qos, topic, retain in [self._kinds()]
        ]
        self.published += batch
        self.agent.add(*batch)
        self._send()

    def receive(self, count: int) -> None:
        """Let the agent read its packets, grouped by kind."""
        to_agent = self.broker.to_agent
        some = [to_agent.popleft() for _ in range(min(count, len(to_agent)))]
        for _, batch in groupby(some, type):
            self.agent.receive(*batch)
            self._send()

    def answer(self, count: int) -> None:
        """Let the broker read its packets."""
        with suppress(IndexError):
            for _ in range(count):
                self.broker.read()

    def commit(self) -> None:
        self.agent.commit()
        self._send()

    def connect(self) -> None:
        if not self.broker.is_connected:
            self.broker.is_connected = True
            self.agent.connect(session_present=self.broker.has_session)
            if not self.broker.has_session:
                self._loss_end = self.agent.log.end
            self.broker.has_session = True
            self._send()

    def part(self) -> None:
        """End the connection, but not so often that a publication is quarantined and overtaken."""
        if self.broker.is_connected and not self.agent.injection.quarantine.must_isolate:
            self.broker.disconnect()
            self.agent.disconnect()

    def flap(self, answers: Sequence[int]) -> None:
        """End connections until a publication may be quarantined, each after some answers of the
        broker."""
        for count in answers:
            self.connect()
            self.commit()
            self.answer(count)
            self.receive(count // 2)
            self.commit()
            self.answer(count % 2)
            self.broker.disconnect()
            self.agent.disconnect()

    def lose_session(self) -> None:
        self.part()
        if not self.broker.is_connected:
            self.broker.lose_session()

    def refuse(self, count: int) -> None:
        self.broker.refused = count

    def wait(self, seconds: float) -> None:
        self.agent.advance(seconds)
        self._send()

    def end_quarantine(self) -> None:
        self.wait(QUARANTINE_S)

    def crash(self) -> None:
        """Restart the agent: the node delivers again what was not accepted. If a session loss is
        not durable, the next session is uncertain (`connect_attempts`): not here."""
        if self.agent.log.durable < self._loss_end:
            return
        self.broker.disconnect()
        self.agent = self.agent.crash()
        _, accepted = self.agent.inbox.origin_progress.get(YOU, (0, 0))
        self.agent.add(*self.published[accepted:])

    def _send(self) -> None:
        if self.broker.is_connected:
            self.broker.to_broker.extend(self.agent.sent)
        self.agent.sent.clear()

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """Continue until the inbox is empty."""
        self.broker.refused = 0
        for _ in range(10 * len(self.published) + 20):
            self.connect()
            self.commit()
            self.answer(len(self.broker.to_broker))
            self.receive(len(self.broker.to_agent))
            self.wait(QUARANTINE_S)
            if not (self.agent.inbox.entries or self.agent.injection.waiting_count):
                return
        raise AssertionError("it does not end")

    def delivered(self, qos: int, *, marked: bool = True) -> list[bytes]:
        """Return the payloads that clients got, with those marked as redelivered or without."""
        return [
            each.payload
            for each in self.broker.delivered
            if each.qos == qos and (marked or each.properties != REDELIVERED_PROPERTY)
        ]

    def expected(self, qos: int) -> list[bytes]:
        return [each.payload for each in self.published if each.qos == qos]


Step = tuple[Any, ...]


def schedule(seed: int, rare: Sequence[str]) -> list[Step]:
    """Return a random schedule: mostly usual steps, some rare ones."""
    dice = random.Random(seed)
    share = dice.choice((0.05, 0.2))
    details: dict[str, Callable[[], Step]] = {
        "deliver": lambda: (dice.randint(1, 3),),
        "receive": lambda: (dice.randint(1, 4),),
        "answer": lambda: (dice.randint(1, 4),),
        "refuse": lambda: (dice.randint(1, 3),),
        "wait": lambda: (dice.choice((0.5, 2.0, 100.0)),),
        "flap": lambda: ([dice.choice((0, 1, 1, 1, 2)) for _ in range(DISCONNECTS_MAX)],),
    }
    words = [dice.choice(rare if dice.random() < share else USUAL) for _ in range(STEPS)]
    return [(word, *details.get(word, tuple)()) for word in words]


def play(
    seed: int,
    rare: Sequence[str],
    segment_records: int,
    retained: float = 0.3,
    policy: str = "no-loss",
) -> Play:
    scene = Play(seed, segment_records, retained, policy)
    for word, *rest in schedule(seed, rare):
        getattr(scene, word)(*rest)
    scene.drain()
    return scene


def seeds(*found: int) -> pytest.MarkDecorator:
    """The first SEEDS seeds, and those that once failed."""
    return pytest.mark.parametrize("seed", (*range(SEEDS), *found))


SEGMENTS = pytest.mark.parametrize("segment_records", [LONG, SHORT])


@SEGMENTS
@seeds()
def test_any_crash_or_reconnect_injects_once_and_in_order(seed, segment_records):
    scene = play(seed, ("part", "crash"), segment_records, retained=0.0)
    assert scene.delivered(2) == scene.expected(2)
    assert list(dict.fromkeys(scene.delivered(1))) == scene.expected(1)


@SEGMENTS
@seeds()
def test_broker_stores_the_last_retained_value(seed, segment_records):
    """A value that waits for an earlier one lets others pass: the order is that of each topic's
    retained values only."""
    scene = play(seed, ("part", "crash"), segment_records)
    assert Counter(scene.delivered(2)) == Counter(scene.expected(2))
    assert set(scene.delivered(1)) == set(scene.expected(1))
    last = {each.topic: each.payload for each in scene.published if each.retain}
    assert scene.broker.stored == last


@SEGMENTS
@seeds()
def test_refused_publications_are_injected_once(seed, segment_records):
    scene = play(seed, ("part", "crash", "refuse", "wait"), segment_records)
    assert Counter(scene.delivered(2)) == Counter(scene.expected(2))
    assert set(scene.delivered(1)) == set(scene.expected(1))


@SEGMENTS
@seeds()
def test_quarantined_publications_are_injected_once(seed, segment_records):
    """The model broker also refuses a PUBLISH without DUP of a publication that it has."""
    scene = play(seed, ("flap", "end_quarantine", "crash", "refuse"), segment_records)
    assert Counter(scene.delivered(2)) == Counter(scene.expected(2))
    assert set(scene.delivered(1)) == set(scene.expected(1))
    assert scene.agent.injection.retained_order.is_empty


@SEGMENTS
@seeds()
def test_lost_session_loses_nothing_and_marks_duplicates(seed, segment_records):
    scene = play(seed, ("part", "crash", "lose_session"), segment_records)
    assert set(scene.delivered(2)) == set(scene.expected(2))
    assert set(scene.delivered(1)) == set(scene.expected(1))
    unmarked = Counter(scene.delivered(2, marked=False))
    retained = {each.payload for each in scene.published if each.retain}
    assert all(count == 1 for payload, count in unmarked.items() if payload not in retained)


@seeds(199, 329)
def test_policy_no_dup_never_duplicates_and_counts_what_may_be_lost(seed):
    scene = play(seed, ("part", "lose_session"), LONG, policy="no-dup")
    delivered = scene.delivered(2)
    assert len(set(delivered)) == len(delivered)
    lost = set(scene.expected(1) + scene.expected(2)) - set(delivered + scene.delivered(1))
    assert len(lost) <= scene.agent.counters["injections uncertain"]
