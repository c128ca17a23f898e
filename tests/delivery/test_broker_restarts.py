"""Random schedules of the whole core, in both directions, against the model of Mosquitto that is
compared with the real one (`hansa.simulator.broker`): broken connections, crashes of the agent, and
orderly restarts of a broker that keeps its sessions. The worlds of the simulator restart a broker
without its sessions only.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby, permutations
from typing import Any

import pytest
from tests.delivery.core_shell import CoreIncarnation, Disk
from tests.delivery.shell import YOU, limits

from hansa.delivery import effects, inputs
from hansa.delivery.connect_attempts import UNCERTAIN_ALARM
from hansa.delivery.dedup.selection import OVERLAP_WAIT_S
from hansa.delivery.settings import DeliverySettings
from hansa.mqtt import packets
from hansa.mqtt.packets import AnyPacket, ConnectPacket, PublishPacket
from hansa.mqtt.properties import Property, find_property
from hansa.protocol.model import Publication
from hansa.simulator.broker import (
    CloseConnection,
    Effect,
    MosquittoModel,
    MosquittoSettings,
    MosquittoVersion,
    Restart,
    SendToClient,
)
from hansa.simulator.broker.message import Message as BrokerMessage

pytestmark = pytest.mark.pure
"""`Broker` is a subclass of the core."""

AGENT, CLIENT = "agent", "client"
FILTERS = ("a/b", "a/#", "+/b")
STEPS = 150
SEEDS = 40
USUAL = ("publish", "deliver", "receive", "answer", "commit", "connect")
HANDSHAKES = (
    packets.PubAckPacket,
    packets.PubRecPacket,
    packets.PubRelPacket,
    packets.PubCompPacket,
)

Message = tuple[bytes, int]
"""Payload and QoS."""


class Broker(MosquittoModel):
    """The model, and what the agent published to its clients."""

    __slots__ = ("injected",)

    def __init__(self, settings: MosquittoSettings) -> None:
        super().__init__(settings)
        self.injected: list[Message] = []

    def _publish(self, source_id: str, message: BrokerMessage, second: int) -> bool:
        if source_id == AGENT:
            self.injected.append((message.payload, message.qos))
        return super()._publish(source_id, message, second)


class Play:
    """Incarnations of one agent at one broker, with one connection at a time."""

    def __init__(
        self, settings: MosquittoSettings, in_flight_max: int, filters: Sequence[str]
    ) -> None:
        """Start with a session, whose subscriptions are confirmed."""
        self.broker = Broker(settings)
        self.published: list[Message] = []
        self.sent: list[Message] = []
        """First copies on their way to the agent, in the order of the broker."""
        self.delivered: list[Publication] = []
        self._settings = DeliverySettings(in_flight_max=in_flight_max)
        self._filters = filters
        self._disk = Disk()
        self._agent = self._begin_incarnation()
        self._connection_count = 0
        self._connection: int | None = None
        self._client = 0
        self._packet_id = 0
        self._requests: dict[int, Any] = {}
        self._to_agent: deque[AnyPacket] = deque()
        self._to_broker: deque[AnyPacket] = deque()
        self.drain()

    def _begin_incarnation(self) -> CoreIncarnation:
        begun = CoreIncarnation(self._disk, self._settings)
        begun.require(*self._filters)
        accepted = begun.core.restored_state().accepted.get(YOU, (0, 0))[1]
        begun.deliver(*self.delivered[accepted:])
        return begun

    # ------------------------------------------------------------ steps

    def publish(self, qos: int, is_twin: bool) -> None:
        """Publish as a client; a twin is identical to the previous publication."""
        if not self._client:
            self._client = self._new_connection()
            self._perform(self.broker.receive(self._client, ConnectPacket(CLIENT), 0.0))
        payload = b"%d" % len(self.published)
        if is_twin and self.published and self.published[-1][1] == qos:
            payload = self.published[-1][0]
        self._packet_id = self._packet_id % 60_000 + 1
        packet = PublishPacket("a/b", payload, qos, packet_id=self._packet_id)
        self.published.append((payload, qos))
        self._perform(self.broker.receive(self._client, packet, 0.0))
        if qos == 2:
            release = packets.PubRelPacket(self._packet_id)
            self._perform(self.broker.receive(self._client, release, 0.0))

    def deliver(self, qos: int) -> None:
        """Another node delivers a publication."""
        number = len(self.delivered) + 1
        self.delivered.append(Publication(YOU, 8, number, qos, "in", b"%d" % number))
        self._agent.deliver(self.delivered[-1])
        self._collect()

    def receive(self, count: int) -> None:
        """Let the agent read its packets, grouped by kind."""
        some: list[Any] = [self._to_agent.popleft() for _ in range(min(count, len(self._to_agent)))]
        for kind, each in groupby(some, type):
            batch = list(each)
            if kind is PublishPacket:
                self._agent.handle(inputs.PublicationsReceived(batch))
            elif kind in HANDSHAKES:
                self._agent.handle(inputs.HandshakePacketsReceived(batch))
            else:
                for packet in batch:
                    self._receive_answer(packet)
            self._collect()

    def _receive_answer(self, packet: AnyPacket) -> None:
        match packet:
            case packets.ConnAckPacket(session_present, _, properties):
                maximum = find_property(properties, Property.RECEIVE_MAXIMUM, 65_535)
                assert isinstance(maximum, int)
                self._agent.handle(inputs.Connected(session_present, limits(maximum)))
            case packets.SubAckPacket(packet_id, reasons):
                self._agent.handle(
                    inputs.SubscribeAnswered((self._requests.pop(packet_id),), reasons)
                )
            case _:
                raise AssertionError(packet)

    def answer(self, count: int) -> None:
        """Let the broker read its packets."""
        with suppress(IndexError):
            for _ in range(count):
                packet = self._to_broker.popleft()
                assert self._connection is not None
                self._perform(self.broker.receive(self._connection, packet, 0.0))

    def commit(self) -> None:
        self._agent.commit()
        self._collect()

    def settle(self) -> None:
        """End the wait for the copy that decides."""
        self._agent.advance(OVERLAP_WAIT_S)
        self._collect()

    def connect(self) -> None:
        if self._connection is None:
            self._connection = self._new_connection()
            self._disk.has_marker = True
            self._agent.handle(inputs.ConnectStarted())
            properties = (
                (Property.SESSION_EXPIRY_INTERVAL, 0xFFFFFFFF),
                (Property.RECEIVE_MAXIMUM, self._settings.in_flight_max),
            )
            packet = ConnectPacket(AGENT, clean_start=False, properties=properties)
            self._perform(self.broker.receive(self._connection, packet, 0.0))

    def part(self) -> None:
        """End the connection, but not so often that a publication is quarantined and overtaken."""
        if self._connection is not None and self._may_end:
            self.broker.disconnected(self._connection, 0.0)
            self._end_connection()

    def restart(self) -> None:
        """Restart the broker, which saves its state."""
        if self._may_end:
            self.broker.restart(Restart.STOPPED, 0.0)
            self._client = 0
            self._end_connection()

    def crash(self) -> None:
        if self._connection is not None:
            self.broker.disconnected(self._connection, 0.0)
        self._disk = self._agent.crashed()
        self._end_connection()
        self._agent = self._begin_incarnation()
        self._collect()

    @property
    def _may_end(self) -> bool:
        return not self._agent.core.injection.quarantine.must_isolate

    def _end_connection(self) -> None:
        if self._connection is not None:
            self._agent.disconnect()
        self._connection = None
        self._to_agent.clear()
        self._to_broker.clear()
        self._requests.clear()
        self._collect()

    def _new_connection(self) -> int:
        self._connection_count += 1
        return self._connection_count

    def _collect(self) -> None:
        """Send what the agent wants sent, and save its subscriptions at once."""
        agent = self._agent
        agent.save()
        if self._connection is not None:
            self._to_broker.extend(agent.sent)
            for request in agent.requests:
                assert isinstance(request, effects.Subscribe) and request.identifier
                packet_id = 65_000 + len(self._requests)
                self._requests[packet_id] = request.subscription
                properties = ((Property.SUBSCRIPTION_IDENTIFIER, request.identifier),)
                self._to_broker.append(
                    packets.SubscribePacket(packet_id, (request.subscription,), properties)
                )
        agent.sent.clear()
        agent.requests.clear()
        assert agent.alarms.keys() <= {UNCERTAIN_ALARM}, agent.alarms
        assert not agent.dropped

    def _perform(self, caused: Sequence[Effect]) -> None:
        for each in caused:
            if isinstance(each, SendToClient) and each.connection_id == self._connection:
                self._to_agent.append(each.packet)
                if isinstance(each.packet, PublishPacket) and not each.packet.dup:
                    self.sent.append((each.packet.payload, each.packet.qos))
            assert not isinstance(each, CloseConnection), each

    # ------------------------------------------------------------ the end

    def drain(self) -> list[Message]:
        """Continue until nothing is in flight; return the captured publications."""
        for _ in range(10 * (len(self.published) + len(self.delivered)) + 20):
            self.connect()
            self.receive(len(self._to_agent))
            self.settle()
            self.commit()
            self.answer(len(self._to_broker))
            is_idle = not (self._to_agent or self._to_broker or self._agent.core.inbox.entries)
            session = self.broker._sessions[AGENT].outgoing  # noqa: SLF001
            if is_idle and not (session.in_flight or session.queue):
                log = self._disk.outbox
                captured = log.captured_records(1, log.next_sequence - 1)
                return [(each.payload, each.qos) for each in captured]
        raise AssertionError("it does not end")


def judge(expected: Sequence[Message], order: Sequence[Message], found: Sequence[Message]) -> None:
    """Nothing is lost; QoS 2 arrives once; the first arrivals of each QoS are in order."""
    for each, count in Counter(expected).items():
        assert found.count(each) >= count, f"{each} is lost"
        assert each[1] == 1 or found.count(each) == count, f"{each} came {found.count(each)} times"
    for qos in (1, 2):
        first = dict.fromkeys(each for each in found if each[1] == qos)
        assert list(first) == list(dict.fromkeys(each for each in order if each[1] == qos))


def schedule(seed: int, twins: float, rare: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return a random schedule: mostly usual steps, some rare ones."""
    dice = random.Random(seed)
    share = dice.choice((0.05, 0.2))
    details: dict[str, Callable[[], tuple[Any, ...]]] = {
        "publish": lambda: (dice.choice((1, 2)), dice.random() < twins),
        "deliver": lambda: (dice.choice((1, 2)),),
        "receive": lambda: (dice.randint(1, 4),),
        "answer": lambda: (dice.randint(1, 4),),
    }
    words = [dice.choice(rare if dice.random() < share else USUAL) for _ in range(STEPS)]
    return [(word, *details.get(word, tuple)()) for word in words]


def play(
    steps: Sequence[tuple[Any, ...]],
    filters: Sequence[str],
    version: MosquittoVersion,
    broker_window: int = 4,
    agent_window: int = 4,
) -> None:
    settings = MosquittoSettings(
        version, max_inflight_messages=broker_window, max_queued_messages=0, autosave_interval=0
    )
    scene = Play(settings, agent_window, filters)
    for word, *rest in steps:
        getattr(scene, word)(*rest)
    captured = scene.drain()
    judge(scene.published, scene.sent, captured)
    delivered = [(each.payload, each.qos) for each in scene.delivered]
    judge(delivered, delivered, scene.broker.injected)


SEED = pytest.mark.parametrize("seed", range(SEEDS))
ORDER = pytest.mark.parametrize("filters", list(permutations(FILTERS)), ids=" ".join)
VERSION = pytest.mark.parametrize("version", MosquittoVersion)


@VERSION
@SEED
def test_nothing_is_lost_or_doubled_over_restarts_of_broker_and_agent(seed, version):
    steps = schedule(seed, 0.3, ("part", "crash", "restart"))
    play(steps, FILTERS[:1], version, agent_window=1 + seed % 4)


@VERSION
@SEED
def test_broker_that_sends_completed_publications_again_after_its_restart(seed, version):
    """The window of the agent is larger than `max_inflight_messages`. An agent that was not
    restarted knows which publications are complete."""
    steps = schedule(seed, 0.3, ("part", "restart"))
    play(steps, FILTERS[:1], version, broker_window=2, agent_window=6)


@VERSION
@SEED
@ORDER
def test_overlapping_filters_over_restarts_of_the_broker(seed, version, filters):
    steps = schedule(seed, 0.0, ("part", "settle", "restart"))
    play(steps, filters, version, agent_window=1 + seed % 4)


@VERSION
@SEED
@ORDER
def test_identical_publications_with_overlapping_filters_over_restarts(seed, version, filters):
    """A restarted broker queues one copy of what is published before the agent reconnects."""
    steps = schedule(seed, 0.4, ("part", "settle", "restart"))
    play(steps, filters, version, agent_window=1 + seed % 4)


@VERSION
@SEED
@ORDER
def test_overlapping_filters_with_a_backlog_over_broken_connections(seed, version, filters):
    steps = schedule(seed, 0.0, ("commit", "part"))
    play(steps, filters, version, 20, agent_window=1 + seed % 4)


@VERSION
@SEED
@ORDER
def test_overlapping_filters_with_a_backlog(seed, version, filters):
    """2.0 does not send the copies of a publication in a row. The oldest filter decides, and its
    copy may be the first, the second or the last."""
    play(schedule(seed, 0.4, ("commit",)), filters, version, 20, agent_window=1 + seed % 4)


@SEED
def test_overlapping_filters_over_a_crash_of_the_agent(seed):
    """One crash: a second fault in the same handshake may duplicate a publication."""
    steps = schedule(seed, 0.0, ("settle",))
    steps.insert(seed * 7 % STEPS, ("crash",))
    play(steps, FILTERS, MosquittoVersion.V2_1)
