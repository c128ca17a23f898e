"""The QoS 1 and 2 handshakes of one direction: which step of which packet id comes next.

    QoS 1   PUBLISH ->   PUBACK <-
    QoS 2   PUBLISH ->   PUBREC <-   PUBREL ->   PUBCOMP <-

Who takes a step, and who must be told, is for `online` to know. Handshakes of an earlier connection
are unknown until whichever side remembers them *resumes* their end with a PUBREL.
"""

from hansa.mqtt.packets import (
    AnyHandshakePacket,
    PubAckPacket,
    PubCompPacket,
    PubRecPacket,
    PubRelPacket,
)

HandshakePacketType = type[AnyHandshakePacket]

_FIRST_RESPONSE: dict[int, HandshakePacketType] = {1: PubAckPacket, 2: PubRecPacket}
_NEXT_STEP: dict[HandshakePacketType, HandshakePacketType] = {
    PubRecPacket: PubRelPacket,
    PubRelPacket: PubCompPacket,
}


class InFlightHandshakes:
    """All that are under way in one direction; never more than there are packet ids."""

    __slots__ = ("_next", "_resumed")

    def __init__(self) -> None:
        """Start a connection: none are under way."""
        self._next: dict[int, HandshakePacketType] = {}
        self._resumed: dict[int, None] = {}

    @property
    def count(self) -> int:
        """How many count against the receive maximum: not those that were resumed [4.9]."""
        return len(self._next) - len(self._resumed)

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._next

    def expected_packet(self, packet_id: int) -> HandshakePacketType | None:
        """Return the next step of a handshake, or None if there is no such handshake."""
        return self._next.get(packet_id)

    def start(self, packet_id: int, qos: int) -> None:
        """A PUBLISH was sent."""
        self._next[packet_id] = _FIRST_RESPONSE[qos]

    def resume(self, packet_id: int) -> bool:
        """A PUBREL was sent for a PUBLISH of an earlier connection; False if it is of this one."""
        if packet_id in self._next:
            return False
        self._next[packet_id] = PubCompPacket
        self._resumed[packet_id] = None
        return True

    def advance(self, packet: AnyHandshakePacket) -> bool:
        """Take the next step; return False if this is not it."""
        packet_id, kind = packet.packet_id, type(packet)
        if self._next.get(packet_id) is not kind:
            return False
        next_type = _NEXT_STEP.get(kind)
        if next_type is None or (kind is PubRecPacket and packet.is_refused):  # [MQTT-4.3.3-4]
            del self._next[packet_id]
            self._resumed.pop(packet_id, None)
        else:
            self._next[packet_id] = next_type
        return True
