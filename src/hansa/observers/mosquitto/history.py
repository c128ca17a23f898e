"""Decides whether a Mosquitto log file, read from top to bottom, shows every subscription.

A log shows everything since the broker's start, or since an *anchor*: a line at which an earlier
connection of the observer was complete. It may still hide:

- sessions that the broker restored from disk at its start: it logs nothing about them. They are
  known if the log showed everything before that start and the broker had stopped in order;
- subscriptions from before a reload (SIGHUP) that switched the log of subscriptions on. Settings
  change at the start and at a reload only, so one line about a subscription shows that all since
  the start, or since the reload before it, were logged. The same holds for lines about connections
  and the ends of sessions.

The broker also retains a *sample*: the number of subscriptions at a known uptime. The reading
counts along, second by second. If the log showed at least as many at the time of the sample,
nothing was hidden then, and the table is confirmed without waiting for the next count. A sample may
lack a count that did not change for a minute. It is then enough only since an anchor, if the broker
was neither restarted nor reloaded since: the counts agreed then, and everything afterwards was
logged.
"""

import re
from dataclasses import dataclass

from hansa.observers.mosquitto import log as log
from hansa.observers.mosquitto.client_sessions import SessionTable, SubscriptionKind

RESTORED = (
    "the broker may have restored sessions from disk at its start, and does not log what these are"
    " subscribed to"
)
RELOADED = (
    "the log of subscriptions may have been switched on by a reload (SIGHUP): it does not show what"
    " was subscribed before"
)
WITHOUT_SUBSCRIPTIONS = "the log file has no lines about subscriptions: log_type subscribe is off"

_EPOCH = re.compile(r"(\d{9,}): ")


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts at some uptime of the broker."""

    uptime_s: int
    counts: dict[SubscriptionKind, int]


@dataclass(frozen=True, slots=True)
class Anchor:
    """A line at which the observer was complete, and the start time of the broker, if known."""

    line: str
    started_at: int | None


class Reading:
    """One reading of a log: `before` and `after` are called around each line's application."""

    def __init__(
        self, sessions: SessionTable, anchor: Anchor, first_line: str, sample: Sample | None
    ) -> None:
        """The sessions have a gap until the log closes it. The first line of the current
        connection is known: the broker has not restarted since."""
        self._sessions = sessions
        self._anchor = anchor
        self._first_line = first_line
        self._sample = sample
        self._shows_subscriptions = False
        self._shows_connections = False
        self._was_stopped = False
        self._is_at_anchor = False
        self._time: int | None = None
        """Seconds since 1970 of the current line; None if lines have no time."""
        self._reload_gap_at: int | None = None
        self._least: dict[SubscriptionKind, tuple[int, int]] = {}
        """Least numbers of certain and known subscriptions at the possible times of the sample."""
        self._is_anchored = False
        """Whether only lines about clients followed the anchor."""
        self._is_sampled_before = False
        """Whether the sample is older than the anchor: it agreed then."""
        self._has_started = False
        """Whether the log shows everything from some line on: the start, or the anchor."""
        self.is_certain = False
        """Whether subscriptions belong to the current run of the broker, not to an earlier one."""
        self.started_at: int | None = None

    def before(self, line: str, stamp: str) -> None:
        found = _EPOCH.fullmatch(stamp)
        time = int(found[1]) if found else None
        if time is None or (self._time is not None and time < self._time):
            self._sample = None  # times are not comparable, or the clock was set back
        self._time = time
        self._is_at_anchor = bool(self._anchor.line) and line == self._anchor.line
        self.is_certain |= bool(self._first_line) and line == self._first_line
        first = self._first_sample_time()
        if first is not None and self._time is not None and self._time >= first and not self._least:
            self._count()

    def after(self, event: log.LogEvent | None) -> None:
        match event:
            case log.BrokerStarted():
                self._note_start()
            case log.Reloaded():
                self._note_reload()
            case log.ClientConnected():
                self._shows_connections = True
            case log.Stopped():
                self._was_stopped = True
            case log.ClientSubscribed():
                self._shows_subscriptions = True
        if self._is_at_anchor:
            self._note_anchor()
        if self._is_sample_time():
            self._count()

    def end(self) -> None:
        """All lines were applied."""
        if not self._shows_subscriptions:
            self._sessions.mark_incomplete(WITHOUT_SUBSCRIPTIONS)
        if not self._least:
            self._count()  # nothing happened since the sample

    @property
    def is_confirmed(self) -> bool:
        """Whether the sample shows that nothing is hidden."""
        first = self._first_sample_time()
        if self._sample is None or first is None or not self._has_started:
            return False
        excused = {RESTORED}
        if self._reload_gap_at is not None and self._reload_gap_at < first:
            excused.add(RELOADED)
        if not excused.issuperset(self._sessions.gap_reasons):
            return False
        if self._is_sampled_before:
            return True
        counts = self._sample.counts
        needs_proof = self._sessions.has_gap or self._sessions.needs_proof
        return (self._is_anchored or len(counts) == len(SubscriptionKind)) and all(
            counted <= self._least[kind][0 if needs_proof else 1]
            for kind, counted in counts.items()
        )

    def _note_start(self) -> None:
        was_whole = self._has_started and self._was_stopped and not self._sessions.has_gap
        self._sessions.mark_complete()
        if not was_whole:
            self._sessions.mark_incomplete(RESTORED)
        self._has_started = self.is_certain = True
        self.started_at = self._time
        self._reload_gap_at = None
        self._shows_subscriptions = self._shows_connections = False
        self._was_stopped = self._is_sampled_before = self._is_anchored = False
        self._least.clear()

    def _note_reload(self) -> None:
        self._is_anchored = False
        if not self._shows_subscriptions:
            self._sessions.mark_incomplete(RELOADED)
            self._reload_gap_at = self._time
        if not self._shows_connections:
            self._sessions.doubt_all()

    def _note_anchor(self) -> None:
        self._sessions.mark_complete()
        if not self._has_started:
            self.started_at = self._anchor.started_at
        self._has_started = self.is_certain = True
        self._shows_subscriptions = self._shows_connections = self._is_anchored = True
        last = self._first_sample_time()
        self._is_sampled_before = last is not None and (self._time or 0) > last + 2
        self._least.clear()

    def _first_sample_time(self) -> int | None:
        """Return the earliest second of the sample: start times and uptimes are whole seconds."""
        if self._sample is None or self.started_at is None:
            return None
        return self.started_at + self._sample.uptime_s - 1

    def _is_sample_time(self) -> bool:
        first = self._first_sample_time()
        return first is not None and self._time is not None and first <= self._time <= first + 2

    def _count(self) -> None:
        for kind in SubscriptionKind:
            certain, doubtful = self._sessions.count_by_certainty(kind)
            known = certain + doubtful
            least = self._least.get(kind, (certain, known))
            self._least[kind] = min(least[0], certain), min(least[1], known)
