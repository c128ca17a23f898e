"""Learns what is wanted from those who say so: the way of Spohn 2021 and of `mqtt-fed`.

For brokers that tell nothing about subscriptions. Clients, or a helper beside them, publish:

| topic | payload | meaning |
|---|---|---|
| `federator/beacon/<topic>` | empty | somebody here wants `<topic>`, for three beacon intervals |
| `NEW_REGULAR_TOPIC` | `subscribe <filter>` | somebody here wants `<filter>` from now on |
| | `unsubscribe <filter>` | nobody here wants it any more |
| | `publish <topic>` | somebody here is about to publish; it says nothing about who wants it |
| | anything else | the same as `subscribe` and this text: the papers do not say which it was |

A beacon's topic is a topic name, because one cannot publish to a wildcard; a filter in a payload
may have wildcards and `$share/<group>/`. Nothing of this should be retained: a retained beacon is
heard again at every reconnection, long after its client has gone.
"""

from itertools import islice
from math import inf

from hansa.errors import InvalidTopic, UsageError
from hansa.observers.contract import (
    Change,
    Completed,
    FilterRefused,
    Finding,
    Incomplete,
    Interest,
    LineUnread,
    Observer,
    Snapshot,
)
from hansa.protocol.topics import check_filter, is_local_only

INTERVALS_VALID = 3
"""Beacon intervals after which a beacon is no longer valid, as in `mqtt-fed`."""

FILTERS_MAX = 1 << 17
"""Filters from beacons and announcements together; more are refused."""

_FORMAT = 1
_SHOWN_BYTES_MAX = 120


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
        self._heard_all_at: float | None = inf  # None once it has come
        self._was_complete = False
        self.refused_count = 0
        """How often something could not be taken for a filter, or was one too many."""

    @property
    def complete(self) -> bool:
        """Whether every topic has had the time for a beacon."""
        return self._heard_all_at is None

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
        return self._change()

    def next_deadline(self) -> float | None:
        """When the first beacon ends, or the first interval of the connection."""
        heard_all_at = inf if self._heard_all_at is None else self._heard_all_at
        first = min(*islice(self._beacons.values(), 1), heard_all_at, inf)
        return first if first < inf else None

    def snapshot(self) -> Snapshot:
        """Return what was announced, for a time or for good."""
        return {
            "format": _FORMAT,
            "beacons": sorted(self._beacons),
            "announced": sorted(self._announced),
        }

    def restore(self, saved: Snapshot, now: float) -> Change:
        """Want again what was wanted, beacons for another full time."""
        beacons, announced = saved.get("beacons"), saved.get("announced")
        is_ours = saved.get("format") == _FORMAT
        if not (is_ours and isinstance(beacons, list) and isinstance(announced, list)):
            raise UsageError(f"not a snapshot of the beacon observer in format {_FORMAT}")
        for name in beacons:
            self._take_beacon(str(name), now)
        for name in announced:
            self._announce(str(name))
        return self._change()

    def _take_beacon(self, name: str, now: float) -> None:
        if name not in self._beacons and not self._hold(name):
            return
        self._beacons.pop(name, None)  # to the end: the order is that of the deadlines
        self._beacons[name] = now + INTERVALS_VALID * self._interval

    def _take_announcement(self, payload: bytes) -> None:
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self.refused_count += 1
            self._findings.append(LineUnread(repr(payload[:_SHOWN_BYTES_MAX]), "not UTF-8"))
            return
        word, _, rest = text.partition(" ")
        if word == "publish" and rest:
            return
        if word == "unsubscribe" and rest:
            self._withdraw(rest)
        else:
            self._announce(rest if word == "subscribe" and rest else text)

    def _announce(self, name: str) -> None:
        if name not in self._announced and self._hold(name):
            self._announced[name] = None

    def _withdraw(self, name: str) -> None:
        if name in self._announced:
            del self._announced[name]
            self._interest.release(name)

    def _hold(self, name: str) -> bool:
        """Want a filter, if it can be announced; say whether it can."""
        try:
            check_filter(name)
            reason = self._objection(name)
        except InvalidTopic as error:
            reason = str(error)
        if reason:
            self.refused_count += 1
            self._findings.append(FilterRefused(name, reason))
            return False
        self._interest.hold(name)
        return True

    def _objection(self, name: str) -> str:
        if is_local_only(name):
            return "topics that start with $ stay at their broker"
        if len(self._beacons) + len(self._announced) >= FILTERS_MAX:
            return f"there are {FILTERS_MAX} already"
        return ""

    def _change(self) -> Change:
        findings, self._findings = self._findings, []
        if self.complete != self._was_complete:
            self._was_complete = self.complete
            findings.append(Completed() if self.complete else Incomplete(self.reason))
        return self._interest.change(findings)
