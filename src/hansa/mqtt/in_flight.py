"""Exchanges of one connection that wait for a response from the other side.

    QoS 1   PUBLISH ->   PUBACK <-
    QoS 2   PUBLISH ->   PUBREC <-   PUBREL ->   PUBCOMP <-

`InFlightHandshakes` holds the next step of each packet id in one direction; `established` knows the
direction. A handshake of an earlier connection is unknown here until the side that remembers it
resumes it with a PUBREL.

`PendingRequests` holds SUBSCRIBE and UNSUBSCRIBE. They use the upper end of the packet id range and
publications use the rest, so neither has to ask the other for a free id.
"""

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.packets import (
    AnyHandshakePacket,
    PubAckPacket,
    PubCompPacket,
    PubRecPacket,
    PubRelPacket,
    SubAckPacket,
    SubscribePacket,
    UnsubAckPacket,
    UnsubscribePacket,
    packet_name,
)
from hansa.mqtt.types import PACKET_IDS_MAX, Reason

REQUEST_IDS_MIN = 65_000
"""The first packet id for requests; publications use the ids from 1 to the one before."""

REQUESTS_MAX = PACKET_IDS_MAX - REQUEST_IDS_MIN + 1
"""Requests that can be pending at the same time."""

Request = SubscribePacket | UnsubscribePacket

_RESPONSE_TYPES: dict[type[Request], type[SubAckPacket | UnsubAckPacket]] = {
    SubscribePacket: SubAckPacket,
    UnsubscribePacket: UnsubAckPacket,
}

HandshakePacketType = type[AnyHandshakePacket]

_FIRST_RESPONSE: dict[int, HandshakePacketType] = {1: PubAckPacket, 2: PubRecPacket}
_NEXT_STEP: dict[HandshakePacketType, HandshakePacketType] = {
    PubRecPacket: PubRelPacket,
    PubRelPacket: PubCompPacket,
}


class InFlightHandshakes:
    """The handshakes in flight in one direction; at most one per packet id."""

    __slots__ = ("_next", "_resumed")

    def __init__(self) -> None:
        self._next: dict[int, HandshakePacketType] = {}
        self._resumed: dict[int, None] = {}

    @property
    def count(self) -> int:
        """Handshakes that count against the receive maximum; resumed ones do not [4.9]."""
        return len(self._next) - len(self._resumed)

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._next

    def expected_packet(self, packet_id: int) -> HandshakePacketType | None:
        """Return the next packet of a handshake, or None if there is no such handshake."""
        return self._next.get(packet_id)

    def start(self, packet_id: int, qos: int) -> None:
        """Start the handshake of a PUBLISH."""
        self._next[packet_id] = _FIRST_RESPONSE[qos]

    def resume(self, packet_id: int) -> bool:
        """Start at PUBREL, for a PUBLISH of an earlier connection; return False if the id is in
        flight."""
        if packet_id in self._next:
            return False
        self._next[packet_id] = PubCompPacket
        self._resumed[packet_id] = None
        return True

    def advance(self, packet: AnyHandshakePacket) -> bool:
        """Advance by one packet; return False if it is not the expected one."""
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


class PendingRequests:
    """The requests of one connection that wait for their response."""

    __slots__ = ("_last_id", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, Request] = {}
        self._last_id = PACKET_IDS_MAX

    @property
    def remaining(self) -> int:
        """Requests that can still be sent."""
        return REQUESTS_MAX - len(self._waiting)

    def next_id(self) -> int:
        """Return the least recently used free id; raise ValueError if there is none."""
        if not self.remaining:
            raise ValueError(f"{REQUESTS_MAX} requests are pending, the limit is reached")
        candidate = self._last_id
        while True:
            candidate = REQUEST_IDS_MIN if candidate == PACKET_IDS_MAX else candidate + 1
            if candidate not in self._waiting:
                return candidate

    def add(self, request: Request) -> None:
        """Add a request that was sent with the id from `next_id`."""
        self._last_id = request.packet_id
        self._waiting[request.packet_id] = request

    def match_response(self, response: SubAckPacket | UnsubAckPacket) -> Request:
        """Remove and return the request of this response; raise BrokerMisbehaved if there is
        none."""
        name = packet_name(type(response))
        request = self._waiting.get(response.packet_id)
        if request is None or _RESPONSE_TYPES[type(request)] is not type(response):
            problem = f"no pending request has packet id {response.packet_id}"
            raise BrokerMisbehaved(f"{name}: {problem}", Reason.PROTOCOL_ERROR)
        requested = (
            request.subscriptions if isinstance(request, SubscribePacket) else request.filters
        )
        if response.reasons and len(response.reasons) != len(requested):  # [MQTT-3.8.4-6]
            problem = f"{len(response.reasons)} reason codes for {len(requested)} filters"
            raise BrokerMisbehaved(f"{name}: {problem}", Reason.PROTOCOL_ERROR)
        del self._waiting[response.packet_id]
        return request
