"""SUBSCRIBE and UNSUBSCRIBE that wait for their answer, with packet ids of their own.

The ids are the upper end of the range and publications use the rest, so that neither needs to ask
the other.
"""

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.packets import SubAckPacket, SubscribePacket, UnsubAckPacket, UnsubscribePacket
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
        request = self._waiting.get(response.packet_id)
        if request is None or _RESPONSE_TYPES[type(request)] is not type(response):
            problem = f"an answer to request {response.packet_id}, which was not made"
            raise BrokerMisbehaved(f"{type(response).__name__}: {problem}", Reason.PROTOCOL_ERROR)
        requested = (
            request.subscriptions if isinstance(request, SubscribePacket) else request.filters
        )
        if response.reasons and len(response.reasons) != len(requested):  # [MQTT-3.8.4-6]
            problem = f"{len(response.reasons)} reason codes for {len(requested)} filters"
            raise BrokerMisbehaved(f"{type(response).__name__}: {problem}", Reason.PROTOCOL_ERROR)
        del self._waiting[response.packet_id]
        return request
