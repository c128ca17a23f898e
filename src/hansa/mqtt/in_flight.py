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
"""The first id for requests: publications have the ids from 1 to the one before it."""

REQUESTS_MAX = PACKET_IDS_MAX - REQUEST_IDS_MIN + 1
"""Requests that can wait at the same time."""

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


class PendingRequests:
    """The requests of one connection."""

    __slots__ = ("_last_id", "_waiting")

    def __init__(self) -> None:
        """Start with none."""
        self._waiting: dict[int, Request] = {}
        self._last_id = PACKET_IDS_MAX

    @property
    def remaining(self) -> int:
        """How many more may wait."""
        return REQUESTS_MAX - len(self._waiting)

    def next_id(self) -> int:
        """Return a free id, a long unused one before others; raise ValueError if there is none."""
        if not self.remaining:
            raise ValueError(f"{REQUESTS_MAX} requests wait for answers, no more can be made")
        candidate = self._last_id
        while True:
            candidate = REQUEST_IDS_MIN if candidate == PACKET_IDS_MAX else candidate + 1
            if candidate not in self._waiting:
                return candidate

    def add(self, request: Request) -> None:
        """A request was sent under the id that `next_id` gave."""
        self._last_id = request.packet_id
        self._waiting[request.packet_id] = request

    def match_response(self, response: SubAckPacket | UnsubAckPacket) -> Request:
        """Return the request that this answers; raise BrokerMisbehaved if it answers none."""
        name = packet_name(type(response))
        request = self._waiting.get(response.packet_id)
        if request is None or _RESPONSE_TYPES[type(request)] is not type(response):
            problem = f"an answer to request {response.packet_id}, which was not made"
            raise BrokerMisbehaved(f"{name}: {problem}", Reason.PROTOCOL_ERROR)
        requested = (
            request.subscriptions if isinstance(request, SubscribePacket) else request.filters
        )
        if response.reasons and len(response.reasons) != len(requested):  # [MQTT-3.8.4-6]
            problem = f"{len(response.reasons)} reason codes for {len(requested)} filters"
            raise BrokerMisbehaved(f"{name}: {problem}", Reason.PROTOCOL_ERROR)
        del self._waiting[response.packet_id]
        return request
