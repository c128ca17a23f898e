"""Learns what is wanted from those who say so: the way of Spohn 2021 and of `mqtt-fed`.

For brokers that tell nothing about subscriptions. Clients, or a helper beside them, publish:

| topic | payload | meaning |
|---|---|---|
| `federator/beacon/<topic>` | empty | somebody here wants `<topic>`, for three beacon intervals |
| `NEW_REGULAR_TOPIC` | `subscribe <filter>` | somebody here wants `<filter>`, until further notice |
| | `unsubscribe <filter>` | nobody here wants it any more |
| | `publish <topic>` | somebody here is about to publish; it says nothing about who wants it |
| | anything else | the same as `subscribe` and this text: the papers do not say which it was |

A beacon's topic is a topic name, because one cannot publish to a wildcard; a filter in a payload
may have wildcards and `$share/<group>/`. Retained beacons work too, but never end: do not.
"""

from hansa.agent.brokers.observer import (
    UNCHANGED,
    Change,
    FilterRefused,
    Finding,
    Interest,
    LineUnread,
    Observer,
    Snapshot,
)
from hansa.errors import InvalidTopic, UsageError
from hansa.protocol.topics import check_filter, is_local_only

INTERVALS_VALID = 3
"""Beacon intervals after which a beacon is no longer valid, as in `mqtt-fed`."""

FILTERS_MAX = 1 << 17
"""Filters from beacons and announcements together; more are refused."""

_FORMAT = 1


class BeaconObserver(Observer):
    """What clients say that they want."""

    def __init__(
        self,
        interval: float,
        prefix: str = "federator/beacon/",
        announcements: str = "NEW_REGULAR_TOPIC",
    ) -> None:
        """Expect a beacon for each wanted topic every `interval` seconds."""
        self._interval = interval
        self._prefix = prefix
        self._announcements = announcements
        self._interest = Interest()
        self._findings: list[Finding] = []
        self._beacons: dict[str, float] = {}  # in the order in which they end
        self._announced: dict[str, None] = {}
        self._heard_all_at: float | None = None
        self.complete = False

    @property
    def reason(self) -> str:
        """Why it is not complete; empty if it is."""
        return "" if self.complete else "a beacon interval has not passed yet"

    def subscriptions(self) -> tuple[str, ...]:
        """Return the topics of beacons and of announcements."""
        return (f"{self._prefix}#", self._announcements)

    def wanted(self) -> tuple[str, ...]:
        """Return, sorted, what somebody said to want."""
        return self._interest.wanted()

    def reconnected(self, session_lost: bool, now: float) -> Change:
        """Give every beacon its full time again: those that were sent meanwhile are lost."""
        self._beacons = dict.fromkeys(self._beacons, now + INTERVALS_VALID * self._interval)
        self._heard_all_at = now + self._interval
        self.complete = False
        return self._change()

    def take(self, topic: str, payload: bytes, now: float) -> Change:
        """Learn from a beacon or from an announcement."""
        if topic == self._announcements:
            self._take_announcement(payload)
        elif topic.startswith(self._prefix):
            self._take_beacon(topic.removeprefix(self._prefix), now)
        return self._change()

    def expire(self, now: float) -> Change:
        """Forget beacons that were not repeated in time."""
        ended = [name for name, end in self._beacons.items() if now >= end]
        for name in ended:
            del self._beacons[name]
            self._interest.release(name)
        if self._heard_all_at is not None and now >= self._heard_all_at:
            self._heard_all_at = None
            self.complete = True
        return self._change()
