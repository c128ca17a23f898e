"""SUBSCRIBE and UNSUBSCRIBE that wait for their answer, with packet ids of their own.

The ids are the upper end of the range and publications use the rest, so that neither needs to ask
the other.
"""

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.packets import SubAck, Subscribe, UnsubAck, Unsubscribe
from hansa.mqtt.types import PACKET_IDS_MAX, Reason

REQUEST_IDS_MIN = 65_000
"""The first id for requests: publications have the ids from 1 to the one before it."""

REQUESTS_MAX = PACKET_IDS_MAX - REQUEST_IDS_MIN + 1
"""Requests that can wait at the same time."""

Request = Subscribe | Unsubscribe

_ANSWERED_BY: dict[type[Request], type[SubAck | UnsubAck]] = {
    Subscribe: SubAck,
    Unsubscribe: UnsubAck,
}


class Requests:
    """The requests of one connection."""

    __slots__ = ("_newest", "_waiting")

    def __init__(self) -> None:
        """Start with none."""
        self._waiting: dict[int, Request] = {}
        self._newest = PACKET_IDS_MAX

    @property
    def left(self) -> int:
        """How many more may wait."""
        return REQUESTS_MAX - len(self._waiting)

    def next_id(self) -> int:
        """Return a free id, a long unused one before others; raise ValueError if there is none."""
        if not self.left:
            raise ValueError(f"{REQUESTS_MAX} requests wait for answers, no more can be made")
        candidate = self._newest
        while True:
            candidate = REQUEST_IDS_MIN if candidate == PACKET_IDS_MAX else candidate + 1
            if candidate not in self._waiting:
                return candidate

    def add(self, request: Request) -> None:
        """A request was sent under the id that `next_id` gave."""
        self._newest = request.packet_id
        self._waiting[request.packet_id] = request

    def settle(self, answer: SubAck | UnsubAck) -> Request:
        """Return the request that this answers; raise BrokerMisbehaved if it answers none."""
        request = self._waiting.get(answer.packet_id)
        if request is None or _ANSWERED_BY[type(request)] is not type(answer):
            problem = f"an answer to request {answer.packet_id}, which was not made"
            raise BrokerMisbehaved(f"{type(answer).__name__}: {problem}", Reason.PROTOCOL_ERROR)
        asked = request.subscriptions if isinstance(request, Subscribe) else request.filters
        if answer.reasons and len(answer.reasons) != len(asked):  # [MQTT-3.8.4-6]
            problem = f"{len(answer.reasons)} reason codes for {len(asked)} filters"
            raise BrokerMisbehaved(f"{type(answer).__name__}: {problem}", Reason.PROTOCOL_ERROR)
        del self._waiting[answer.packet_id]
        return request
