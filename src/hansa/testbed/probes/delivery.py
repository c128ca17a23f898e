"""Probes how a broker delivers QoS 1 and 2 when clients disconnect in the middle of a handshake.

The probes have unique client ids and a topic of their own, retain nothing, and end their sessions
in any case. `hansa.agent.broker.delivery_class` draws the conclusions. MQTT allows resending only
on a new connection, so every attempt uses a `ProbeConnection` that does not reconnect.
"""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.broker.delivery_class import DeliveryProbeResult
from hansa.agent.broker.mosquitto_conf import QUEUED_BY_DEFAULT
from hansa.errors import UsageError
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import Version
from hansa.testbed.clients import READY_TIMEOUT_S, wait_until

ANSWER_TIMEOUT_S = 5.0
"""Seconds until an acknowledgement or a publication must arrive: a Java broker that has just
started may need more than one."""

REDELIVERY_TIMEOUT_S = 2.0
"""Seconds until a redelivery must arrive. Some brokers redeliver after 30 s, others never."""

IN_FLIGHT_COUNT = 4
"""Publications in flight at the disconnection: fewer than any broker's limit."""

QUEUE_TRIED = QUEUED_BY_DEFAULT + 200
"""Publications for a disconnected client: more than Mosquitto queues by default."""

QUEUE_TRIED_BRIEFLY = 20
"""Publications that fit into any queue: drops would raise an alarm at agents of this broker."""

QUEUE_TIMEOUT_S = 2.0
"""Seconds for filling and for draining the queue; a distant broker is tried with fewer."""

MARK_INTERVAL_S = 0.05
QUIET_S = 0.3
"""Seconds without a queued publication after which the queue counts as drained."""

CONNECT_ATTEMPTS = 2
"""NATS holds for a second, and then closes, a connection of a client that has just replaced an open
one. The probe makes that happen: a busy broker learns late that it aborted a connection."""

SESSION_EXPIRY_S = 60
"""Ends the sessions if the doctor is killed."""

QUEUED_PREFIX = b"queued"
END_MARK = b"mark"


class ProbeConnection:
    """One connection that does not reconnect."""

    def __init__(self, address: BrokerAddress, options: ConnectOptions, sends_acks: bool) -> None:
        self.received: list[packets.PublishPacket] = []
        self.answers: list[packets.AnyHandshakePacket] = []
        self.limits: BrokerLimits | None = None
        self.session_present = False
        self.granted_qos: int | None = None
        self.problem = ""
        """Why the connection was closed."""
        self._address = address
        self._sends_acks = sends_acks
        self._connection = Connection(address, options, self._on_effect, random.Random())
        self._run_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect; raise UsageError if the broker refuses."""
        self._run_task = asyncio.create_task(self._connection.run())
        await wait_until(lambda: self.limits is not None or bool(self.problem), READY_TIMEOUT_S)
        if self.limits is None:
            raise UsageError(f"broker {self._address}: {self.problem or 'no answer'}")

    async def subscribe(self, topic: str) -> bool:
        """Subscribe at QoS 2; return whether the broker grants any QoS."""
        self.send(inputs.Subscribe((packets.Subscription(topic, qos=2),)))
        await self.wait_for(lambda: self.granted_qos is not None)
        return self.granted_qos in (0, 1, 2)

    async def publish(self, publish: packets.PublishPacket) -> bool:
        """Publish at QoS 1 or 2; return whether the broker sends PUBACK or PUBREC."""
        self.send(inputs.Publish([publish]))
        kind = packets.PubRecPacket if publish.qos == 2 else packets.PubAckPacket
        await self.wait_for(lambda: bool(self._answers_to(kind, publish.packet_id)))
        return self.has_answer(kind, publish.packet_id)

    async def release(self, packet_id: int) -> bool:
        """Send a PUBREL; return whether the broker sends PUBCOMP."""
        self.send(inputs.SendHandshakePackets([packets.PubRelPacket(packet_id)]))
        return await self.wait_for(lambda: self.has_answer(packets.PubCompPacket, packet_id))

    async def wait_for(
        self, condition: Callable[[], bool], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> bool:
        """Wait for a condition while the connection is open; return whether it holds."""
        await wait_until(lambda: condition() or bool(self.problem), timeout_s)
        return condition()

    def _answers_to(
        self, kind: type[packets.AnyHandshakePacket], packet_id: int
    ) -> list[packets.AnyHandshakePacket]:
        return [each for each in self.answers if type(each) is kind and each.packet_id == packet_id]

    def has_answer(self, kind: type[packets.AnyHandshakePacket], packet_id: int) -> bool:
        """Whether a handshake packet arrived; a PUBCOMP counts also with "id not found"."""
        return any(
            kind is packets.PubCompPacket or not each.is_refused
            for each in self._answers_to(kind, packet_id)
        )

    def is_all_released(self) -> bool:
        """Whether all received publications of QoS 2 have been released by the broker."""
        return all(
            self.has_answer(packets.PubRelPacket, publish.packet_id)
            for publish in self.received
            if publish.qos == 2
        )

    def count_copies(self, payload: bytes) -> int:
        """Number of received publications with this payload."""
        return sum(publish.payload == payload for publish in self.received)

    def count_queued(self, tried: int) -> int:
        """Number of received ones of the `tried` publications made while disconnected."""
        payloads = self.ids_by_payload()
        return sum(b"%b %d" % (QUEUED_PREFIX, number) in payloads for number in range(1, tried + 1))

    def ids_by_payload(self) -> dict[bytes, int]:
        """Packet ids of the received publications, by payload."""
        return {publish.payload: publish.packet_id for publish in self.received}

    @property
    def quota(self) -> int:
        """Number of publications that may be sent now."""
        connection = self._connection.client_connection
        return connection.quota if connection else 0

    def send(self, event: inputs.Command) -> None:
        """Submit a command; ignored after the connection was closed."""
        if not self.problem:
            self._connection.submit(event)

    async def abort(self) -> None:
        """Close the connection without a DISCONNECT."""
        if self._run_task is not None:
            self._connection.abort()
            self._run_task.cancel()
            await asyncio.gather(self._run_task, return_exceptions=True)
            await wait_until(lambda: self._connection.client_connection is None, ANSWER_TIMEOUT_S)

    async def disconnect(self) -> None:
        await self._connection.disconnect()
        await self.abort()

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(session_present=present, broker_limits=limits):
                self.session_present, self.limits = present, limits
            case effects.PublishReceived(batch):
                self.received += batch
                if self._sends_acks:
                    self.send(
                        inputs.SendHandshakePackets([_make_ack(each) for each in batch if each.qos])
                    )
            case effects.HandshakePacketsReceived(batch):
                self.answers += batch
                releases = [each for each in batch if isinstance(each, packets.PubRelPacket)]
                if releases:
                    done = [packets.PubCompPacket(each.packet_id) for each in releases]
                    self.send(inputs.SendHandshakePackets(done))
            case effects.Subscribed(reasons=reasons):
                self.granted_qos = reasons[0]
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self.problem = effect.text
                if self._run_task is not None:
                    self._run_task.cancel()  # it would reconnect


def _make_ack(publish: packets.PublishPacket) -> packets.AnyHandshakePacket:
    kind = packets.PubRecPacket if publish.qos == 2 else packets.PubAckPacket
    return kind(publish.packet_id)


async def probe_delivery(
    address: BrokerAddress,
    on_progress: Callable[[str], None],
    version: Version = Version.V5,
    queue_tried: int = QUEUE_TRIED,
) -> DeliveryProbeResult:
    """Run all delivery probes and clean up; raise UsageError if the broker refuses the client.

    A broker that does not answer a CONNECT of MQTT 5 needs `version` 3.1.1; one that refuses it is
    tried with 3.1.1 anyway. `queue_tried`: publications for a disconnected client.
    """
    probe = _DeliveryProbe(address, version, queue_tried)
    try:
        return await probe.run(on_progress)
    finally:
        await probe.clean_up()


def judge_redelivery(
    delivery: DeliveryProbeResult, in_flight: Mapping[bytes, int], received: list[PublishPacket]
) -> DeliveryProbeResult:
    """Compare what was received before an aborted connection, by payload with packet id, with what
    was received after it. Publications that arrive for the first time say nothing."""
    again = [each for each in received if each.payload in in_flight]
    redelivers = {each.payload for each in again} == in_flight.keys()
    if not in_flight or not redelivers:
        return replace(delivery, redelivers_unacknowledged=False if in_flight else None)
    return replace(
        delivery,
        redelivers_unacknowledged=True,
        keeps_packet_ids=all(in_flight[each.payload] == each.packet_id for each in again),
        marks_dup=all(each.dup for each in again),
    )


class _DeliveryProbe:
    def __init__(self, address: BrokerAddress, version: Version, queue_tried: int) -> None:
        self._address = address
        self._queue_tried = queue_tried
        self._name = f"hansa-doctor-{secrets.token_hex(4)}"
        self._topic = f"hansa/doctor/{self._name}"
        self._version = version
        self._connections: list[ProbeConnection] = []
        self._roles: set[str] = set()

    async def run(self, on_progress: Callable[[str], None]) -> DeliveryProbeResult:
        on_progress("resent QoS 2")
        listener = await self._connect("listener", is_persistent=False)
        sender = await self._connect("sender")
        if not (
            await listener.subscribe(self._topic)
            and await sender.publish(self._publication(b"first", 1, packet_id=1))
            and await listener.wait_for(lambda: bool(listener.count_copies(b"first")))
        ):
            return DeliveryProbeResult()
        await sender.abort()
        delivery = await self._try_repeated_publish(listener)
        await listener.abort()
        on_progress("an aborted connection")
        delivery = await self._try_aborted_connection(delivery)
        if delivery.resumes_session:
            on_progress(f"{self._queue_tried} publications for a disconnected client")
            delivery = await self._try_queue(delivery)
        return delivery

    async def clean_up(self) -> None:
        """Close all connections and end all sessions by a clean start.

        The clients also unsubscribe. Otherwise an agent at this broker would keep the interest for
        a while, because Mosquitto's log does not contain the session expiry.
        """
        await asyncio.gather(*(each.abort() for each in self._connections))
        for role in sorted(self._roles):
            connection = await self._connect(role, is_persistent=False)
            connection.send(inputs.Unsubscribe((self._topic,)))
            await connection.disconnect()

    # ------------------------------------------------------------ probes

    async def _try_repeated_publish(self, listener: ProbeConnection) -> DeliveryProbeResult:
        """Resend a PUBLISH before its PUBREL, and the PUBREL after its PUBCOMP."""
        sender = await self._connect("sender")
        once = self._publication(b"once", 2, packet_id=1)
        takes_qos_2 = listener.granted_qos == 2 and await sender.publish(once)
        await sender.abort()
        if not takes_qos_2:
            return DeliveryProbeResult(accepts_qos2=False)
        sender = await self._connect("sender")
        completes = (
            await sender.publish(self._publication(b"once", 2, packet_id=1, dup=True))
            and await sender.release(1)
            and await self._all_arrived(sender, listener, b"after PUBLISH")
        )
        copies = listener.count_copies(b"once")
        await sender.abort()
        sender = await self._connect("sender")
        completes_again = (
            await sender.release(1)
            and await self._all_arrived(sender, listener, b"after PUBREL")
            and listener.count_copies(b"once") == copies
        )
        await sender.abort()
        return DeliveryProbeResult(
            accepts_qos2=True,
            deduplicates_publish=completes and copies == 1,
            repeats_pubcomp=completes_again,
        )

    async def _all_arrived(
        self, sender: ProbeConnection, listener: ProbeConnection, fence: bytes
    ) -> bool:
        """Publish a fence, and wait until it has arrived after everything sent before."""
        return (
            await sender.publish(self._publication(fence, 2, packet_id=2))
            and await sender.release(2)
            and await listener.wait_for(lambda: bool(listener.count_copies(fence)))
        )

    async def _try_aborted_connection(self, delivery: DeliveryProbeResult) -> DeliveryProbeResult:
        """Abort a connection with unacknowledged publications, and reconnect."""
        keeper = await self._connect("keeper", acknowledges=False)
        in_flight = await self._put_in_flight(keeper, qos_max=2 if delivery.accepts_qos2 else 1)
        await keeper.abort()
        keeper = await self._connect("keeper")
        if not keeper.session_present:
            return replace(delivery, resumes_session=False)
        await keeper.wait_for(
            lambda: keeper.ids_by_payload().keys() >= in_flight.keys(), REDELIVERY_TIMEOUT_S
        )
        await keeper.wait_for(keeper.is_all_released)  # else they stay in the queue
        await keeper.abort()
        return judge_redelivery(replace(delivery, resumes_session=True), in_flight, keeper.received)

    async def _put_in_flight(self, keeper: ProbeConnection, qos_max: int) -> dict[bytes, int]:
        """Publish to the keeper, which does not acknowledge; return packet ids by payload."""
        await keeper.subscribe(self._topic)
        sender = await self._connect("sender")
        for packet_id in range(1, IN_FLIGHT_COUNT + 1):
            qos = min(qos_max, 1 + packet_id % 2)
            payload = b"in flight %d" % packet_id
            await sender.publish(self._publication(payload, qos, packet_id))
            if qos == 2:
                await sender.release(packet_id)
        await keeper.wait_for(lambda: len(keeper.received) == IN_FLIGHT_COUNT)
        await sender.abort()
        return keeper.ids_by_payload()

    async def _try_queue(self, delivery: DeliveryProbeResult) -> DeliveryProbeResult:
        """Publish for the disconnected keeper, and count what it receives; unknown if it still
        receives some at the timeout."""
        sender = await self._connect("sender")
        tried = await self._fill_queue(sender)
        keeper = await self._connect("keeper")
        is_whole = await self._send_end_marks(sender, keeper)
        while is_whole and await self._receives_more(keeper, tried):
            pass
        queued = keeper.count_queued(tried)
        is_known = is_whole or not queued
        return replace(
            delivery, queued_count=queued if is_known else None, queue_offered_count=tried
        )

    async def _receives_more(self, keeper: ProbeConnection, tried: int) -> bool:
        """Whether queued publications still arrive after the mark: some brokers interleave queued
        and new ones."""
        before = keeper.count_queued(tried)
        return before < tried and await wait_until(
            lambda: keeper.count_queued(tried) > before, QUIET_S
        )

    async def _send_end_marks(self, sender: ProbeConnection, keeper: ProbeConnection) -> bool:
        """Publish marks behind the queue until one arrives, as a full queue may drop them. Return
        whether one arrived."""
        began = asyncio.get_running_loop().time()
        for packet_id in count(self._queue_tried + 1):
            if sender.quota:
                sender.send(inputs.Publish([self._publication(END_MARK, 1, packet_id)]))
            if await wait_until(lambda: bool(keeper.count_copies(END_MARK)), MARK_INTERVAL_S):
                return True
            timeout_s = QUEUE_TIMEOUT_S if keeper.received else ANSWER_TIMEOUT_S
            if asyncio.get_running_loop().time() - began > timeout_s:
                break
        return False

    async def _fill_queue(self, sender: ProbeConnection) -> int:
        """Publish as fast as the broker accepts; return the number of acknowledgements."""
        sent = 0
        deadline = asyncio.get_running_loop().time() + QUEUE_TIMEOUT_S
        while len(sender.answers) < self._queue_tried and not sender.problem:
            if asyncio.get_running_loop().time() > deadline:
                break
            ids = range(sent + 1, min(sent + sender.quota, self._queue_tried) + 1)
            batch = [self._publication(b"%b %d" % (QUEUED_PREFIX, each), 1, each) for each in ids]
            if batch:
                sender.send(inputs.Publish(batch))
            sent += len(batch)
            answered = len(sender.answers)
            await wait_until(lambda: len(sender.answers) > answered, ANSWER_TIMEOUT_S)  # noqa: B023
        return len(sender.answers)

    # ------------------------------------------------------------ connections

    async def _connect(
        self, role: str, *, is_persistent: bool = True, acknowledges: bool = True
    ) -> ProbeConnection:
        options = ConnectOptions(
            client_id=f"{self._name}-{role}",
            version=self._version,
            clean_start=not is_persistent,
            session_expiry=SESSION_EXPIRY_S if is_persistent else 0,
        )
        connection = await self._start(options, acknowledges, attempts_left=CONNECT_ATTEMPTS)
        self._roles.add(role)
        assert connection.limits is not None
        self._version = connection.limits.version
        return connection

    async def _start(
        self, options: ConnectOptions, acknowledges: bool, attempts_left: int
    ) -> ProbeConnection:
        connection = ProbeConnection(self._address, options, acknowledges)
        self._connections.append(connection)
        try:
            await connection.start()
        except UsageError:
            if attempts_left == 1:
                raise
            return await self._start(options, acknowledges, attempts_left - 1)
        return connection

    def _publication(
        self, payload: bytes, qos: int, packet_id: int, *, dup: bool = False
    ) -> packets.PublishPacket:
        return packets.PublishPacket(self._topic, payload, qos, dup=dup, packet_id=packet_id)
