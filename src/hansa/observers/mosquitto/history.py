"""Decides whether a Mosquitto log file, read from top to bottom, shows every subscription.

A log shows everything since the broker's start, or since an *anchor*: a line at which an earlier
connection of the observer was complete. It may still hide:

- sessions that the broker restored from disk at its start: it logs nothing about them. They are
  known if the log showed everything before that start and the broker had stopped in order, or from
  the persistence file (`database`);
- subscriptions from before a reload (SIGHUP) that switched the log of subscriptions on. Settings
  change at the start and at a reload only, so one line about a subscription shows that all since
  the start, or since the reload before it, were logged. The same holds for lines about connections
  and the ends of sessions. If nothing happened between two reloads, the settings are taken for
  unchanged: logrotate reloads the broker every day. If clients connected and nobody subscribed, the
  log of subscriptions may have been off.

The broker also retains a *sample*: the number of subscriptions at a known uptime. The reading
counts along. If the log showed at least as many at the time of the sample, nothing was hidden then,
and the table is confirmed without waiting for the next count. The clock may have been set forward
since the start, as on a machine without a battery: then the sample is later than start and uptime
say. So the least number from there to the connection of the observer decides. A sample may
lack a count that did not change for a minute. It is then enough only since an anchor, if the broker
was neither restarted nor reloaded since: the counts agreed then, and everything afterwards was
logged.

A file that contains no line of the current connection is not the log of this broker, or not any
more: the broker may log to another file.

A line is recognised as the anchor by its text. Without a timestamp, or with one that has no date,
the same line comes again and again: then there is no anchor.
"""

import re
from dataclasses import dataclass, field

from hansa.observers.mosquitto import log
from hansa.observers.mosquitto.client_sessions import SessionTable, SubscriptionKind

RESTORED = (
    "the broker may have restored sessions from disk at its start, and does not log what these are"
    " subscribed to"
)
RELOADED = (
    "the log of subscriptions may have been switched on by a reload (SIGHUP): it does not show what"
    " was subscribed before"
)
OTHER_LOG = (
    "the log file does not contain what the broker logged for the agent: it is not the file of this"
    " broker, or the broker does not write to it any more"
)
OTHER_FORMAT = "the log file has lines with another timestamp format"
WITHOUT_SUBSCRIPTIONS = "the log file has no lines about subscriptions: log_type subscribe is off"

_EPOCH = re.compile(r"(\d{9,}): ")

STAMP_DIGITS_MIN = 8
"""Digits of a timestamp with a date and a time; fewer do not distinguish equal lines."""


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


@dataclass(slots=True)
class _BrokerRun:
    """What the log shows of one run of the broker."""

    start_stamp: str | None = None
    """The timestamp of the line that says that the broker starts; None if the log has none."""
    shows_subscriptions: bool = False
    shows_connections: bool = False
    has_connected: bool = False
    """Whether a client connected since the start or the last reload."""
    has_subscribed: bool = False
    hides_connections: bool = False
    """Whether clients may have connected without a line, between a reload and the one before."""
    was_stopped: bool = False
    reload_gap_at: int | None = None
    least: dict[SubscriptionKind, tuple[int, int]] = field(default_factory=dict)
    """Least numbers of certain and known subscriptions at the possible times of the sample."""
    is_anchored: bool = False
    """Whether only lines about clients followed the anchor."""
    is_sampled_before: bool = False
    """Whether the sample is older than the anchor: it agreed then."""


class Reading:
    """One reading of a log: `before` and `after` are called around each line's application."""

    def __init__(
        self,
        sessions: SessionTable,
        anchor: Anchor,
        received_lines: tuple[str, ...],
        sample: Sample | None,
    ) -> None:
        """The sessions have a gap until the log closes it. The first line of the current connection
        and a later one were received: the broker has not restarted since the first."""
        self._sessions = sessions
        self._anchor = anchor
        self._received_lines = received_lines
        self.has_received_line = False
        """Whether the log contains a line of the current connection."""
        self._sample = sample
        self._is_at_anchor = False
        self._is_connected = False
        """Whether the first line of the current connection was read: the sample is older."""
        self._time: int | None = None
        """Seconds since 1970 of the current line; None if lines have no time."""
        self._stamp = ""
        """The timestamp of the current line, as it is written."""
        self._run = _BrokerRun()
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
        self._stamp = stamp
        is_unique = sum(map(str.isdigit, stamp)) >= STAMP_DIGITS_MIN
        # A broker that restarts within a second may log the anchor again, with the same timestamp.
        self._is_at_anchor = (
            is_unique and line == self._anchor.line and stamp != self._run.start_stamp
        )
        if self._is_sample_time():
            self._count()
        self.has_received_line |= line in self._received_lines
        if is_unique and line in self._received_lines[:1]:
            if not self._run.least:
                self._sample = None  # it would be later than this connection: the clock was set
            self._is_connected = self.is_certain = True

    def after(self, event: log.LogEvent | None) -> None:
        match event:
            case log.BrokerStarted():
                self._note_start()
            case log.Reloaded():
                self._note_reload()
            case log.ClientConnected():
                self._run.shows_connections = self._run.has_connected = True
                self._sessions.knows_all_clients = (
                    self._run.start_stamp is not None and not self._run.hides_connections
                )
            case log.Stopped():
                self._run.was_stopped = True
            case log.ClientSubscribed():
                self._run.shows_subscriptions = self._run.has_subscribed = True
        if self._is_at_anchor:
            self._note_anchor()
        if self._is_sample_time():
            self._count()

    def skip(self, line: str) -> None:
        """A line does not begin with a timestamp as the lines of the current connection do."""
        if line and self._has_started:
            self._sessions.mark_incomplete(OTHER_FORMAT)

    def note_restored(self) -> None:
        """The sessions that the broker restored at its start, the line before, are known."""
        self._sessions.close_gap(RESTORED)

    def end(self) -> None:
        """All lines were applied."""
        if not self._run.shows_subscriptions:
            self._sessions.mark_incomplete(WITHOUT_SUBSCRIPTIONS)
        if not self._run.least:
            self._count()  # nothing happened since the sample

    @property
    def is_confirmed(self) -> bool:
        """Whether the sample shows that nothing is hidden."""
        first = self._first_sample_time()
        if self._sample is None or first is None or not self._has_started:
            return False
        excused = {RESTORED}
        if self._run.reload_gap_at is not None and self._run.reload_gap_at < first:
            excused.add(RELOADED)
        if not excused.issuperset(self._sessions.gap_reasons):
            return False
        if self._run.is_sampled_before:
            return True
        counts = self._sample.counts
        needs_proof = self._sessions.has_gap or self._sessions.needs_proof
        return (self._run.is_anchored or len(counts) == len(SubscriptionKind)) and all(
            counted <= self._run.least[kind][0 if needs_proof else 1]
            for kind, counted in counts.items()
        )

    def _note_start(self) -> None:
        was_whole = self._has_started and self._run.was_stopped and not self._sessions.has_gap
        self._sessions.mark_complete()
        self._sessions.shows_connections = False
        if not was_whole:
            self._sessions.mark_incomplete(RESTORED)
        self._has_started = self.is_certain = True
        self.started_at = self._time
        self._run = _BrokerRun(self._stamp)

    def _note_reload(self) -> None:
        run = self._run
        run.is_anchored = self._sessions.shows_connections = False
        if not run.shows_subscriptions or (run.has_connected and not run.has_subscribed):
            self._sessions.mark_incomplete(RELOADED)
            run.reload_gap_at = self._time
        if not run.shows_connections:
            self._sessions.doubt_all()
        run.has_connected = run.has_subscribed = False
        run.hides_connections |= not self._sessions.knows_all_clients
        self._sessions.knows_all_clients = False

    def _note_anchor(self) -> None:
        self._sessions.mark_complete()
        if not self._has_started:
            self.started_at = self._anchor.started_at
        self._has_started = self.is_certain = True
        run, last = self._run, self._first_sample_time()
        run.shows_subscriptions = run.shows_connections = run.is_anchored = True
        self._sessions.shows_connections = True
        run.is_sampled_before = last is not None and (self._time or 0) > last + 2
        run.least.clear()

    def _first_sample_time(self) -> int | None:
        """Return the earliest second of the sample: start times and uptimes are whole seconds."""
        if self._sample is None or self.started_at is None:
            return None
        return self.started_at + self._sample.uptime_s - 1

    def _is_sample_time(self) -> bool:
        """Whether the sample may be of this moment or of a later one."""
        first = self._first_sample_time()
        return first is not None and (self._time or 0) >= first and not self._is_connected

    def _count(self) -> None:
        for kind in SubscriptionKind:
            certain, doubtful = self._sessions.count_by_certainty(kind)
            known = certain + doubtful
            least = self._run.least.get(kind, (certain, known))
            self._run.least[kind] = min(least[0], certain), min(least[1], known)
