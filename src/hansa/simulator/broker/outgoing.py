"""Publications to one client: packet ids, the window in flight, the queue, and handshakes.

A publication gets its packet id when it is published, also if it must wait or is dropped.
Mosquitto counts a quota instead of the publications in flight; the comments say where the two
differ.
"""

from collections import deque
from enum import Enum

from hansa.mqtt import packets
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import Property, encode_properties
from hansa.mqtt.types import PACKET_IDS_MAX
from hansa.simulator.broker.message import Message


class ProtocolError(Exception):
    """The client's packet does not fit the state of its handshake."""


class State(Enum):
    """The state of a publication to a client. Mosquitto saves it."""

    QUEUED = "queued"
    TO_SEND = "to send"
    SENT = "sent"
    """PUBACK or PUBREC is expected."""
    RELEASED = "released"
    """PUBREC arrived and PUBREL was sent; PUBCOMP is expected."""
    ENDED = "ended"


class Added(Enum):
    """What became of a publication to a client."""

    TO_SEND = "to send"
    QUEUED = "queued"
    DROPPED = "dropped"
    """The queue is full."""
    SKIPPED = "skipped"
    """The client is absent, and the publication has QoS 0."""


class Outgoing:
    """A publication to one client."""

    __slots__ = ("expires_at", "packet", "state", "was_sent")

    def __init__(self, packet: PublishPacket, expires_at: int, state: State) -> None:
        """`packet` is as sent first: without DUP and message expiry interval."""
        self.packet = packet
        self.expires_at = expires_at
        self.state = state
        self.was_sent = False
        """Whether the next PUBLISH is a duplicate."""

    def copy(self) -> "Outgoing":
        copied = Outgoing(self.packet, self.expires_at, self.state)
        copied.was_sent = self.was_sent
        return copied


class OutgoingWindow:
    __slots__ = (
        "_is_v2_1",
        "_to_send",
        "in_flight",
        "in_flight_max",
        "last_packet_id",
        "queue",
        "quota",
    )

    def __init__(self, in_flight_max: int, is_v2_1: bool = False) -> None:
        """`in_flight_max` is the client's Receive Maximum, or the broker's own limit; 0 is no
        limit."""
        self.in_flight: dict[int, Outgoing] = {}
        """By packet id, in order."""
        self.queue: deque[Outgoing] = deque()
        self.in_flight_max = in_flight_max
        self.quota = in_flight_max
        self.last_packet_id = 0
        self._is_v2_1 = is_v2_1
        self._to_send: list[Outgoing] = []  # QoS 0, or at the end of `in_flight`

    # ------------------------------------------------------------ new publications

    def make_packet(
        self, message: Message, qos: int, retain: bool, identifier: int
    ) -> PublishPacket:
        """Return the PUBLISH of a message, with the next packet id."""
        return PublishPacket(
            message.topic,
            message.payload,
            qos,
            retain,
            False,
            self.next_packet_id(qos),
            (identifier,) if identifier else (),
            message.properties,
        )

    def next_packet_id(self, qos: int) -> int:
        """Return the next packet id, 0 at QoS 0. Mosquitto does not check that it is free."""
        if not qos:
            return 0
        self.last_packet_id = self.last_packet_id % PACKET_IDS_MAX + 1
        return self.last_packet_id

    def add(
        self, packet: PublishPacket, expires_at: int, is_connected: bool, queue_max: int
    ) -> Added:
        """Add a publication; `take_packets` returns it if it is to be sent."""
        waiting = len(self.queue) if self._is_v2_1 else len(self.in_flight) + len(self.queue)
        if not packet.qos:
            if not is_connected:
                return Added.SKIPPED
            self._to_send.append(Outgoing(packet, expires_at, State.TO_SEND))
            return Added.TO_SEND
        if is_connected:
            if self._can_send():
                self._put_in_flight(Outgoing(packet, expires_at, State.TO_SEND))
                return Added.TO_SEND
            waiting -= self.in_flight_max
        if queue_max and waiting >= queue_max:
            return Added.DROPPED
        self.queue.append(Outgoing(packet, expires_at, State.QUEUED))
        if not self._is_v2_1:
            self.quota = max(0, self.quota - 1)  # an absent client may have some
        return Added.QUEUED

    def _can_send(self) -> bool:
        return not self.in_flight_max or self.quota > 0

    def _put_in_flight(self, outgoing: Outgoing) -> None:
        packet_id = outgoing.packet.packet_id
        if packet_id in self.in_flight:
            raise NotImplementedError(f"packet id {packet_id} is in flight twice")
        outgoing.state = State.TO_SEND
        self.in_flight[packet_id] = outgoing
        self._to_send.append(outgoing)
        self.quota = max(0, self.quota - 1)

    def fill(self) -> None:
        """Move publications from the queue to the window."""
        while self.queue and self._can_send():
            self._put_in_flight(self.queue.popleft())

    def take_packets(self, second: int) -> list[PublishPacket]:
        """Return the publications to send now."""
        if not self._to_send:
            return []
        pending, self._to_send = self._to_send, []
        return [
            packet
            for outgoing in pending
            if outgoing.state is State.TO_SEND
            and (packet := self._send(outgoing, second)) is not None
        ]

    def _send(self, outgoing: Outgoing, second: int) -> PublishPacket | None:
        """Return a PUBLISH and remember that it was sent; None if the message has expired."""
        packet = outgoing.packet
        properties = packet.properties
        if outgoing.expires_at:
            left = outgoing.expires_at - second
            if left < 0:
                if packet.qos:
                    self.quota = min(self.in_flight_max, self.quota + 1)
                    del self.in_flight[packet.packet_id]
                return None
            if left:
                properties += encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, left),))
        is_duplicate = outgoing.was_sent
        outgoing.state = State.SENT
        outgoing.was_sent = True
        if not is_duplicate and properties is packet.properties:
            return packet
        return PublishPacket(
            packet.topic,
            packet.payload,
            packet.qos,
            packet.retain,
            is_duplicate,
            packet.packet_id,
            packet.subscription_ids,
            properties,
        )

    # ------------------------------------------------------------ handshakes

    def handle_puback(self, packet_id: int) -> None:
        """End a QoS 1 handshake. An unknown packet id also returns a quota."""
        self.quota = min(self.in_flight_max, self.quota + 1)
        self._end(packet_id, 1, None)

    def handle_pubcomp(self, packet_id: int) -> None:
        """End a QoS 2 handshake. An unknown packet id also returns a quota."""
        self.quota = min(self.in_flight_max, self.quota + 1)
        self._end(packet_id, 2, State.RELEASED)

    def handle_pubrec(self, packet: packets.PubRecPacket) -> packets.PubRelPacket | None:
        """Return the PUBREL, also for an unknown packet id. A refusal ends the handshake, and its
        quota is lost until the client reconnects."""
        if packet.is_refused:
            self._end(packet.packet_id, 2, State.SENT)
            return None
        outgoing = self.in_flight.get(packet.packet_id)
        if outgoing is not None:
            if outgoing.packet.qos != 2:
                raise ProtocolError("PUBREC for a QoS 1 publication")
            outgoing.state = State.RELEASED
        return packets.PubRelPacket(packet.packet_id)

    def _end(self, packet_id: int, qos: int, expected: State | None) -> None:
        """End a handshake and refill the window from the queue.

        Version 2.0 compares the limit with the position of the publication, not with the number in
        flight. So after the acknowledgement of the oldest one it sends as many as the whole limit,
        which is more than the client's Receive Maximum allows. Version 2.1 counts, but also ends
        handshakes of publications that it has not sent yet.
        """
        outgoing = self.in_flight.get(packet_id)
        if outgoing is None and self._is_v2_1:
            outgoing = next(
                (each for each in self.queue if each.packet.packet_id == packet_id), None
            )
        position = len(self.in_flight)
        if outgoing is not None:
            if outgoing.packet.qos != qos:
                raise ProtocolError(f"QoS {qos} acknowledgement for another QoS")
            if expected is not None and outgoing.state is not expected:
                raise ProtocolError(f"publication {packet_id} is {outgoing.state.value}")
            position = self._remove(outgoing)
        if self._is_v2_1:
            self.fill()
            return
        while self.queue and (not self.in_flight_max or position < self.in_flight_max):
            position += 1
            self._put_in_flight(self.queue.popleft())

    def _remove(self, outgoing: Outgoing) -> int:
        """Remove a publication; return its position in flight."""
        packet_id = outgoing.packet.packet_id
        outgoing.state = State.ENDED
        if self.in_flight.get(packet_id) is not outgoing:
            self.queue.remove(outgoing)
            return len(self.in_flight)
        position = next(index for index, each in enumerate(self.in_flight) if each == packet_id)
        del self.in_flight[packet_id]
        return position

    # ------------------------------------------------------------ connections

    def reconnect(self, in_flight_max: int) -> None:
        """Prepare to resend everything in flight, even above the new limit."""
        self._to_send.clear()
        self.in_flight_max = in_flight_max
        self.quota = max(0, in_flight_max - len(self.in_flight))
        for outgoing in self.in_flight.values():
            if outgoing.state is not State.RELEASED:
                outgoing.state = State.TO_SEND
        self.fill()
        self._to_send.clear()

    def resend(self, second: int) -> list[PublishPacket | packets.PubRelPacket]:
        """Return the packets that follow CONNACK, in the order of the publications."""
        resent: list[PublishPacket | packets.PubRelPacket] = []
        for packet_id, outgoing in list(self.in_flight.items()):
            if outgoing.state is State.RELEASED:
                resent.append(packets.PubRelPacket(packet_id))
            elif (packet := self._send(outgoing, second)) is not None:
                resent.append(packet)
        return resent

    def saved(self) -> list[Outgoing]:
        """Return copies of all publications in order."""
        return [each.copy() for each in (*self.in_flight.values(), *self.queue)]

    def restore(self, saved: list[Outgoing]) -> None:
        """Take over saved publications.

        The limit is the broker's own, because the client's is not saved: publications above it are
        queued, also if they were in flight, and lose the state of their handshake.
        """
        for each in saved:
            outgoing = each.copy()
            if outgoing.state is State.QUEUED or not self.quota:
                self.queue.append(outgoing)
            else:
                self.in_flight[outgoing.packet.packet_id] = outgoing
                self.quota -= 1
