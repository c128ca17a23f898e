"""Learns interest from beacons and announcements of clients, as in Spohn 2021 and `mqtt-fed`.

For brokers that do not report subscriptions. Clients, or a helper beside them, publish:

| topic | payload | meaning |
|---|---|---|
| `federator/beacon/<topic>` | empty | interest in `<topic>`, for three beacon intervals |
| `NEW_REGULAR_TOPIC` | `subscribe <filter>` | interest in `<filter>` from now on |
| | `unsubscribe <filter>` | no more interest in it |
| | `publish <topic>` | a client is about to publish; says nothing about interest |
| | anything else | the same as `subscribe` with this text: the papers do not say which |

A beacon's topic is a topic name, because a client cannot publish to a wildcard; a filter in a
payload may have wildcards and `$share/<group>/`. Clients should not retain these: a retained beacon
arrives again at every reconnection, long after its client has gone.
"""

from itertools import islice
from math import inf

from hansa.errors import InvalidTopic, UsageError
from hansa.observers.base import (
    FilterCounts,
    FilterNotAnnounced,
    LineNotUnderstood,
    Observer,
    ObserverFinding,
    ObserverOutput,
    ObserverSnapshot,
)
from hansa.protocol.topics import check_filter, is_local_only

INTERVALS_VALID = 3
"""Beacon intervals for which a beacon is valid, as in `mqtt-fed`."""

FILTERS_MAX = 1 << 17
"""Filters from beacons and announcements together; more are refused, and the observer is
incomplete from then on: refused announcements are not repeated."""

_SNAPSHOT_FORMAT = 1
_SHOWN_BYTES_MAX = 120


class BeaconObserver(Observer):
    """Interest that clients announce."""

    def __init__(
        self,
        interval: float,
        prefix: str = "federator/beacon/",
        announcement_topic: str = "NEW_REGULAR_TOPIC",
    ) -> None:
        """Expect a beacon for each topic every `interval` seconds."""
        self._interval = interval
        self._prefix = prefix
        self._announcement_topic = announcement_topic
        self._filter_counts = FilterCounts()
        self._findings: list[ObserverFinding] = []
        self._beacon_deadlines: dict[str, float] = {}  # in the order of the deadlines
        self._announced_filters: dict[str, None] = {}
        self._complete_at: float | None = inf  # None once reached
        self._is_full = False
        self.refused_count = 0
        """Invalid filters, and filters beyond FILTERS_MAX."""

    @property
    def is_complete(self) -> bool:
        """Whether one beacon interval has passed since the connection."""
        return not self.incomplete_reason

    @property
    def incomplete_reason(self) -> str:
        """Why it is not complete; empty if it is."""
        if self._is_full:
            return f"there were more than {FILTERS_MAX} filters"
        return "" if self._complete_at is None else "a beacon interval has not passed yet"

    def topics_to_subscribe(self) -> tuple[str, ...]:
        """Return the topics of beacons and announcements."""
        return (f"{self._prefix}#", self._announcement_topic)

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the announced filters, sorted."""
        return self._filter_counts.subscribed_filters()

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Restart the time of every beacon: beacons sent meanwhile were missed."""
        self._beacon_deadlines = dict.fromkeys(
            self._beacon_deadlines, now + INTERVALS_VALID * self._interval
        )
        self._complete_at = now + self._interval
        return self._make_output()

    def receive_publication(self, topic: str, payload: bytes, now: float) -> ObserverOutput:
        """Process a beacon or an announcement."""
        if topic == self._announcement_topic:
            self._receive_announcement(payload)
        elif topic.startswith(self._prefix):
            self._receive_beacon(topic.removeprefix(self._prefix), now)
        return self._make_output()

    def handle_timer(self, now: float) -> ObserverOutput:
        """Expire beacons that were not repeated in time."""
        ended = [name for name, end in self._beacon_deadlines.items() if now >= end]
        for name in ended:
            del self._beacon_deadlines[name]
            self._filter_counts.remove(name)
        if self._complete_at is not None and now >= self._complete_at:
            self._complete_at = None
        return self._make_output()

    def next_deadline(self) -> float | None:
        """When the first beacon expires, or the first interval of the connection ends."""
        complete_at = inf if self._complete_at is None else self._complete_at
        first = min(*islice(self._beacon_deadlines.values(), 1), complete_at, inf)
        return first if first < inf else None

    def snapshot(self) -> ObserverSnapshot:
        """Return the beacons and the announced filters."""
        return {
            "format": _SNAPSHOT_FORMAT,
            "beacons": sorted(self._beacon_deadlines),
            "announced": sorted(self._announced_filters),
        }

    def restore(self, saved: ObserverSnapshot, now: float) -> ObserverOutput:
        """Restore filters; beacons are valid for another full time."""
        beacons, announced = saved.get("beacons"), saved.get("announced")
        is_ours = saved.get("format") == _SNAPSHOT_FORMAT
        if not (is_ours and isinstance(beacons, list) and isinstance(announced, list)):
            raise UsageError(f"not a snapshot of the beacon observer in format {_SNAPSHOT_FORMAT}")
        for name in beacons:
            self._receive_beacon(str(name), now)
        for name in announced:
            self._add_announced(str(name))
        return self._make_output()

    def _receive_beacon(self, name: str, now: float) -> None:
        if name not in self._beacon_deadlines and not self._add_filter(name):
            return
        self._beacon_deadlines.pop(name, None)  # to the end: the order is that of the deadlines
        self._beacon_deadlines[name] = now + INTERVALS_VALID * self._interval

    def _receive_announcement(self, payload: bytes) -> None:
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self.refused_count += 1
            self._findings.append(LineNotUnderstood(repr(payload[:_SHOWN_BYTES_MAX]), "not UTF-8"))
            return
        word, _, rest = text.partition(" ")
        if word == "publish" and rest:
            return
        if word == "unsubscribe" and rest:
            self._remove_announced(rest)
        else:
            self._add_announced(rest if word == "subscribe" and rest else text)

    def _add_announced(self, name: str) -> None:
        if name not in self._announced_filters and self._add_filter(name):
            self._announced_filters[name] = None

    def _remove_announced(self, name: str) -> None:
        if name in self._announced_filters:
            del self._announced_filters[name]
            self._filter_counts.remove(name)

    def _add_filter(self, name: str) -> bool:
        """Add a filter if it can be announced; return whether it can."""
        try:
            check_filter(name)
            reason = self._refusal_reason(name)
        except InvalidTopic as error:
            reason = str(error)
        if reason:
            self.refused_count += 1
            self._findings.append(FilterNotAnnounced(name, reason))
            return False
        self._filter_counts.add(name)
        return True

    def _refusal_reason(self, name: str) -> str:
        if is_local_only(name):
            return "topics that start with $ stay at their broker"
        if len(self._beacon_deadlines) + len(self._announced_filters) >= FILTERS_MAX:
            self._is_full = True
            return f"there are {FILTERS_MAX} already"
        return ""

    def _make_output(self) -> ObserverOutput:
        findings, self._findings = self._findings, []
        return self._filter_counts.drain_output(self, findings)
