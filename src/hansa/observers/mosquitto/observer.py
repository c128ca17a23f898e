"""Learns what the clients of a Mosquitto want from what it logs to topics.

The broker needs `log_dest topic` and the log types subscribe, unsubscribe, notice and error. What
a line says is in `mosquitto_log`, what follows from it in `mosquitto_sessions`; here is what comes
when: lines, the broker's counts, and the two sources that tell what happened before:

- the text of `log_dest file`, if it has the types above, and `information` besides: only the line
  that says that the broker starts shows that nothing is missing, and which sessions ended then
  (`mosquitto_history` says what such a text proves);
- what the broker prints on its standard output at `kill -USR2` (`mosquitto_tree`).

The counts come in bursts, uptime first, then each count that changed, then the bytes sent. So a
count holds for the moment of the uptime before it, and one that is not there has not changed.
Counts before the second uptime are the values that the broker had retained, of the moment that the
retained uptime tells.

Mosquitto publishes a count only when it has changed, and retains it for 60 s only. So a count may
be missing on a new connection for as long as nobody subscribes: then the observer subscribes to a
topic that nobody publishes to, which changes the count.

A broker may publish no counts (`sys_interval 0`, or an access list hides them). Then the log alone
decides, and only if it has no gap.
"""

import re
from dataclasses import asdict

from hansa.errors import UsageError
from hansa.observers.contract import (
    BridgeNoticed,
    Change,
    Completed,
    Finding,
    Incomplete,
    LineUnread,
    Observer,
    PublicationsDropped,
    PublicationWithheld,
    ResyncFailed,
    Snapshot,
)
from hansa.observers.mosquitto import log as log
from hansa.observers.mosquitto import subscription_tree
from hansa.observers.mosquitto.client_sessions import Kind, Sessions
from hansa.observers.mosquitto.drops import DroppedMessages
from hansa.observers.mosquitto.history import RESTORED, Anchor, Reading, Sample
from hansa.observers.mosquitto.log import Channel

REMEMBERED_LINES_MAX = 1 << 18
"""Lines that may arrive while a resync is under way; with more it has to be started again."""

BRIDGES_MAX = 1_024
"""Bridges that are reported once each; of further ones every sign is."""

COUNTS_WAIT_S = 3.0
"""Seconds after the connection within which retained counts arrive if the broker has any."""

NO_COUNTS = "the broker publishes no counters ($SYS/broker/subscriptions/count) to check it with"

_SHOWN_CHARS_MAX = 120
_FORMAT = 1

_CHANNELS = {
    "$SYS/broker/log/M/subscribe": Channel.SUBSCRIBE,
    "$SYS/broker/log/M/unsubscribe": Channel.UNSUBSCRIBE,
    "$SYS/broker/log/N": Channel.NOTICE,
    "$SYS/broker/log/E": Channel.NOTICE,
}
_COUNTS = {
    "$SYS/broker/subscriptions/count": Kind.PLAIN,
    "$SYS/broker/shared_subscriptions/count": Kind.SHARED,
}
_PROMPTS = {
    Kind.PLAIN: "$SYS/hansa/count",
    Kind.SHARED: "$share/hansa/$SYS/hansa/count",
}
"""What to subscribe to so that a count changes; nobody publishes to it."""
_DROPPED = "$SYS/broker/publish/messages/dropped"
_VERSION = "$SYS/broker/version"
_UPTIME = "$SYS/broker/uptime"
_SECONDS = re.compile(rb"(\d+) seconds")
_BURST_END = "$SYS/broker/bytes/sent"
"""Changes with every burst, and comes after the counts."""
_BRIDGES = "$SYS/broker/connection/+/state"
_BRIDGE = re.compile(r"\$SYS/broker/connection/(.+)/state")


class MosquittoObserver(Observer):
    """What a Mosquitto's clients want."""

    def __init__(self, own_prefix: str) -> None:
        """Start with nothing known; clients whose id starts with the prefix are the agent's own."""
        if not own_prefix:
            raise ValueError("an empty prefix would make every client the agent's own")
        self._own_prefix = own_prefix
        self._sessions = Sessions(own_prefix)
        self._findings: list[Finding] = []
        self._was_complete = False
        self._bridges: dict[str, bool] = {}
        self._anchor = Anchor("", None)
        """The last line that arrived while the picture was complete. A log that holds it holds all
        that happened since."""
        self._started_at: int | None = None
        self._remembered: list[tuple[Channel, bytes]] | None = None
        self._repeated: set[str] | None = None
        """While lines are applied once more, whose connections they have told of."""
        self._unlearn_connection()
        self.version = ""
        """What the broker says of itself, such as `mosquitto version 2.0.11`."""
        self._drops = DroppedMessages()
        self.sample_count = 0
        """How often all counts were compared."""
        self.unread_count = 0
        """Lines that could not be understood, wholly or in part."""

    def _unlearn_connection(self) -> None:
        self._counts: dict[Kind, int] = {}
        self._settled: dict[Kind, None] = {}
        """Counts of the present burst that were compared already."""
        self._prompted: dict[Kind, None] = {}
        self._uptime_s: int | None = None
        """What the retained uptime said; None before it came, or if it cannot be read."""
        self._has_uptime = False
        self._has_burst = False
        """Whether counts are of this moment, not retained."""
        self._is_in_burst = False
        self._counts_due: float | None = None
        """When the broker publishes no counts if none has come."""
        self.lacks_counts = False
        """Whether the broker publishes no counters."""
        self.has_persistence = False
        """Whether the log shows that the broker saves its sessions to disk."""
        self._stamp: re.Pattern[str] | None = None
        self._first_line = self._last_line = ""
        self._remembered = None

    @property
    def complete(self) -> bool:
        """Whether every filter that is wanted at the broker is known."""
        return not self._sessions.gap

    @property
    def reason(self) -> str:
        """Why it is not complete; empty if it is."""
        gap = self._sessions.gap
        return f"{gap}; {NO_COUNTS}" if gap and self.lacks_counts else gap

    @property
    def counted(self) -> int:
        """Subscriptions that the broker counted last."""
        return sum(self._counts.values())

    @property
    def certain_count(self) -> int:
        """Subscriptions that exist, those of the agent's own clients and of `$` topics too."""
        return sum(self._sessions.tally(kind)[0] for kind in Kind)

    @property
    def refused_count(self) -> int:
        """How often a filter could not be announced."""
        return self._sessions.refused_count

    @property
    def doubtful_count(self) -> int:
        """Subscriptions that may be gone: wanted until something proves it."""
        return sum(self._sessions.tally(kind)[1] for kind in Kind)

    def subscriptions(self) -> tuple[str, ...]:
        """Return the topics to observe.

        Lines come first, so that the first line of all is about this very subscription and shows
        how lines begin. Uptime comes last, so that retained counts arrive before it. Never
        `log/I`: where the broker saves on every change, each line of it brings the next.
        """
        return (*_CHANNELS, *_COUNTS, _DROPPED, _VERSION, _BRIDGES, _BURST_END, _UPTIME)

    def extra_subscriptions(self) -> tuple[str, ...]:
        """Return what makes the broker publish counts that it did not retain."""
        return tuple(_PROMPTS[kind] for kind in self._prompted)

    def wanted(self) -> tuple[str, ...]:
        """Return, sorted, the filters that clients want now."""
        return self._sessions.interest.wanted()

    # ------------------------------------------------------------ inputs

    def reconnected(self, session_lost: bool, now: float) -> Change:
        """Keep what was known, in doubt, whatever became of sessions: lines went by unseen."""
        self._unlearn_connection()
        self._counts_due = now + COUNTS_WAIT_S
        self._sessions.distrust("what was subscribed before the observer came is unknown")
        return self._change()

    def take(self, topic: str, payload: bytes, now: float) -> Change:
        """Learn from a line, a count, or a sign of a bridge."""
        self._drops.now = now
        kind = _COUNTS.get(topic)
        if kind is not None:
            self._take_count(kind, payload)
            return self._change()
        if topic == _BURST_END:
            self._end_burst()
            return self._change()
        if topic == _DROPPED:  # in the same burst as the counts
            self._take_dropped(payload)
            return self._change()
        self._end_burst()
        channel = _CHANNELS.get(topic)
        if channel is not None:
            self._take_line(channel, payload)
        elif topic == _UPTIME:
            self._take_uptime(payload)
            self._drops.connected()
        elif topic == _VERSION:
            self.version = payload.decode(errors="replace")
        elif found := _BRIDGE.fullmatch(topic):
            self._notice_bridge(found[1], payload == b"1")
        return self._change()

    def expire(self, now: float) -> Change:
        """Do without counts if the broker publishes none."""
        if self._counts_due is not None and now >= self._counts_due:
            self._counts_due = None
            self.lacks_counts = not (self._counts or self._has_uptime)
            self._confirm_without_counts()
        return self._change()

    def next_deadline(self) -> float | None:
        """When the absence of counts is certain."""
        return self._counts_due

    def declare(self, client_id: str, filters: tuple[str, ...]) -> Change:
        """Note what a lasting session of the agent's own holds.

        The broker counts it, and logs nothing when a session resumes.
        """
        self._sessions.declare(client_id, filters)
        return self._change()

    def begin_resync(self, now: float) -> None:
        """Remember the lines that arrive from now on."""
        self._remembered = []

    def resync(self, text: str, now: float) -> Change:
        """Correct everything from a tree of subscriptions or from the log since the broker's start.

        What arrived since `begin_resync` is applied once more on top. It may be in the text as
        well: of each filter only the last line counts, so to apply a line twice does no harm. How
        a client was connected before its first line is not what is known of it after its last.
        """
        remembered, self._remembered = self._remembered, None
        if remembered is None:
            return self._fail("it was not begun on this connection, or too much happened since")
        tree = subscription_tree.find(text)
        if tree is not None and not tree.is_whole:
            return self._fail("the end of the tree of subscriptions is missing")
        reading = None
        if tree is not None:
            self._sessions.adopt(tree)
        elif text.strip():
            reading = self._read_history(text)
        else:
            return self._fail("the text is empty")
        self._repeated = set()
        for channel, payload in remembered:
            self._take_line(channel, payload)
        self._repeated = None
        if reading is not None and reading.is_confirmed:
            self._sessions.confirm()
        self._sessions.note_reread()
        self._confirm_without_counts()
        return self._change()

    def snapshot(self) -> Snapshot:
        """Return what each session holds, and up to which line of the log that was all."""
        return {
            "format": _FORMAT,
            "sessions": self._sessions.held(),
            "anchor": asdict(self._anchor),
            "dropped": self._drops.total,
        }

    def restore(self, saved: Snapshot, now: float) -> Change:
        """Want again, in doubt, what was wanted when the snapshot was made."""
        sessions = saved.get("sessions")
        if saved.get("format") != _FORMAT or not isinstance(sessions, dict):
            raise UsageError(f"not a snapshot of the mosquitto observer in format {_FORMAT}")
        self._anchor = _anchor(saved.get("anchor"))
        for client, filters in sessions.items():
            if not isinstance(filters, list):
                raise UsageError(f"snapshot of the mosquitto observer: no list for {client!r}")
            for topic_filter in filters:
                self._sessions.subscribe(str(client), str(topic_filter), is_certain=False)
        self._drops.restore(saved.get("dropped"))
        return self._change()

    # ------------------------------------------------------------ lines

    def _take_line(self, channel: Channel, payload: bytes) -> None:
        if self._remembered is not None:
            self._remember(channel, payload)
        text = payload.decode(errors="replace")
        if self._stamp is None:
            self._stamp = self._learn_stamp(text)
            self._first_line = text
        stamp = self._stamp.match(text)
        if stamp is None:
            event: log.Event | None = log.Unread("it does not begin with a timestamp as before")
        else:
            cut = log.is_cut(len(payload))
            event = log.read(channel, text[stamp.end() :], cut, self._sessions)
        if isinstance(event, log.Unread):
            self._leave_unread(text, event.reason)
        elif event is not None:
            if isinstance(event, log.Starved):
                self._drops.name(event.client)
            self._apply(event)
        self._last_line = text

    def _remember(self, channel: Channel, payload: bytes) -> None:
        assert self._remembered is not None
        self._remembered.append((channel, payload))
        if len(self._remembered) > REMEMBERED_LINES_MAX:
            self._remembered = None

    def _learn_stamp(self, text: str) -> re.Pattern[str]:
        """The first line of a connection is about its own first subscription: `<stamp><id> …`."""
        at = text.find(self._own_prefix)
        stamp = text[:at]
        if at > 0 and stamp.endswith(": ") and text.endswith(f" 0 {self.subscriptions()[0]}"):
            return log.stamp_like(stamp)
        return log.DEFAULT_STAMP

    def _leave_unread(self, text: str, reason: str) -> None:
        self.unread_count += 1
        self._findings.append(LineUnread(text[:_SHOWN_CHARS_MAX], reason))
        self._sessions.lose(f"a line of the log could not be read: {reason}")

    def _apply(self, event: log.Event, is_certain: bool = True) -> None:
        """Enter what happened in the books; a grant that a reading only guesses is not certain."""
        match event:
            case log.Subscribed(readings):
                for client, topic_filter in readings:
                    self._sessions.subscribe(
                        client, topic_filter, is_certain and len(readings) == 1
                    )
            case log.Unsubscribed(readings):
                self._sessions.unsubscribe(readings)
            case log.Starved(client):
                if self._sessions.is_own(client):
                    self._sessions.lose("the agent read too slowly, and the broker dropped lines")
            case log.Withheld(client, size):
                if self._sessions.is_own(client):
                    self._findings.append(PublicationWithheld(size))
            case log.Connected() | log.Ended() | log.TakenOver() | log.Expired():
                self._apply_life(event)
            case _:
                self._apply_to_all(event)

    def _apply_to_all(self, event: log.Event) -> None:
        """Enter what happened to the broker."""
        match event:
            case log.Started():
                self._sessions.restart()
            case log.Persisted():
                self.has_persistence = True

    def _apply_life(self, event: log.Life) -> None:
        if self._repeated is not None and event.client not in self._repeated:
            self._repeated.add(event.client)
            self._sessions.unlearn(event.client)
        match event:
            case log.Connected(client, mode, is_clean, address, is_bridge):
                self._sessions.connect(client, mode, is_clean, address)
                if is_bridge and not self._sessions.is_own(client):
                    self._notice_bridge(client, True)
            case log.Ended(client, address, is_sure):
                self._sessions.end(client, address, is_sure)
            case log.TakenOver(client):
                self._sessions.take_over(client)
            case log.Expired(client):
                self._sessions.expire(client)

    def _notice_bridge(self, name: str, is_up: bool) -> None:
        if self._bridges.get(name) != is_up:
            self._findings.append(BridgeNoticed(name, is_up))
            if name in self._bridges or len(self._bridges) < BRIDGES_MAX:
                self._bridges[name] = is_up
            self._sessions.needs_proof = True

    def _read_history(self, text: str) -> Reading:
        """Apply the lines of a file, and judge what it proves.

        Before the line that the broker starts, a session that ended with a former life of the
        broker looks as if it were there: nothing is certain yet.
        """
        self._sessions.distrust("the log does not reach back to the start of the broker")
        stamp = self._stamp or log.DEFAULT_STAMP
        sample = self._retained_sample()
        reading = Reading(self._sessions, self._anchor, self._first_line, sample)
        for line in text.split("\n"):
            found = stamp.match(line)
            if found is None:
                continue
            cut = log.is_cut(len(line.encode()))
            event = log.read(Channel.HISTORY, line[found.end() :], cut, self._sessions)
            reading.before(line, found[0])
            if isinstance(event, log.Unread):
                self._leave_unread(line, event.reason)
            elif event is not None and not isinstance(event, log.Withheld):  # told when it happened
                self._apply(event, reading.is_certain)
            reading.after(event)
        reading.end()
        self._started_at = reading.started_at
        return reading

    def _retained_sample(self) -> Sample | None:
        """Return the counts that the broker had retained, if their uptime is known."""
        return None if self._uptime_s is None else Sample(self._uptime_s, dict(self._counts))

    def _fail(self, reason: str) -> Change:
        self._findings.append(ResyncFailed(reason))
        return self._change()

    # ------------------------------------------------------------ counts

    def _take_count(self, kind: Kind, payload: bytes) -> None:
        if not payload.isdigit():
            self._leave_unread(payload.decode(errors="replace"), "not a count")
            return
        self._counts[kind] = int(payload)
        self.lacks_counts = False
        if self._has_burst:
            self._settled[kind] = None
            self._sessions.settle(kind, self._counts[kind])

    def _take_uptime(self, payload: bytes) -> None:
        self._is_in_burst = self._has_burst = self._has_uptime
        self._settled.clear()
        found = _SECONDS.fullmatch(payload)
        self._uptime_s = int(found[1]) if found and not self._has_uptime else None
        if not self._has_uptime:
            self._prompted = {kind: None for kind in Kind if kind not in self._counts}
        self._has_uptime = True

    def _confirm_without_counts(self) -> None:
        """Trust a log that shows everything since the start of a broker that saves no sessions."""
        excused = set() if self.has_persistence else {RESTORED}
        hides_none = excused.issuperset(self._sessions.gap_reasons)
        if self.lacks_counts and hides_none and not self._sessions.needs_proof:
            self._sessions.confirm()

    def _take_dropped(self, payload: bytes) -> None:
        total = int(payload) if payload.isdigit() else 0
        if count := self._drops.take(total):
            self._findings.append(PublicationsDropped(count, total))

    def _end_burst(self) -> None:
        """The first message after a burst: a count that was not in it holds for it all the same."""
        if self._is_in_burst:
            self._is_in_burst = False
            for kind, counted in self._counts.items():
                if kind not in self._settled:
                    self._sessions.settle(kind, counted)
            self.sample_count += len(self._counts) == len(Kind)

    # ------------------------------------------------------------ the answer

    def _change(self) -> Change:
        if self.complete and self._last_line:
            self._anchor = Anchor(self._last_line, self._started_at)
        findings = [*self._findings, *self._sessions.findings]
        self._findings.clear()
        self._sessions.findings.clear()
        if self.complete != self._was_complete:
            self._was_complete = self.complete
            findings.append(Completed() if self.complete else Incomplete(self.reason))
        return self._sessions.interest.change(findings)


def _anchor(saved: object) -> Anchor:
    """Return what a snapshot says; nothing if it says something else."""
    if isinstance(saved, dict):
        line, started_at = saved.get("line"), saved.get("started_at")
        if isinstance(line, str) and (started_at is None or isinstance(started_at, int)):
            return Anchor(line, started_at)
    return Anchor("", None)
