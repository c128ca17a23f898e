"""Learns what the clients of a Mosquitto want from what it logs to topics.

The broker needs `log_dest topic` and the log types subscribe, unsubscribe, notice and error. What
a line says is in `mosquitto_log`, what follows from it in `mosquitto_sessions`; here is what comes
when: lines, the broker's counts, and the two sources that tell what happened before:

- the text of `log_dest file`, if it has the types above, and `information` besides: only the line
  that says that the broker starts shows that nothing is missing, and which sessions ended then;
- what the broker prints on its standard output at `kill -USR2` (`mosquitto_tree`).

The counts come in bursts, uptime first and then each count that changed. So a count holds for the
moment of the uptime before it, and one that is not there has not changed. Counts before the second
uptime are the values that the broker had retained, of a moment that nobody knows.
"""

import re

from hansa.agent.brokers import mosquitto_log as log
from hansa.agent.brokers import mosquitto_tree
from hansa.agent.brokers.mosquitto_log import Channel
from hansa.agent.brokers.mosquitto_sessions import Kind, Sessions
from hansa.agent.brokers.observer import (
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
from hansa.errors import UsageError

REMEMBERED_LINES_MAX = 1 << 18
"""Lines that may arrive while a resync is under way; with more it has to be started again."""

BRIDGES_MAX = 1_024
"""Bridges that are reported once each; of further ones every sign is."""

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
_DROPPED = "$SYS/broker/publish/messages/dropped"
_VERSION = "$SYS/broker/version"
_UPTIME = "$SYS/broker/uptime"
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
        self._remembered: list[tuple[Channel, bytes]] | None = None
        self._repeated: set[str] | None = None
        """While lines are applied once more, whose connections they have told of."""
        self._unlearn_connection()
        self.version = ""
        """What the broker says of itself, such as `mosquitto version 2.0.11`."""
        self._dropped = 0
        self.unread_count = 0
        """Lines that could not be understood, wholly or in part."""

    def _unlearn_connection(self) -> None:
        self._counts: dict[Kind, int] = {}
        self._has_uptime = False
        self._is_in_burst = False
        self._stamp: re.Pattern[str] | None = None
        self._remembered = None

    @property
    def complete(self) -> bool:
        """Whether every filter that is wanted at the broker is known."""
        return not self._sessions.gap

    @property
    def reason(self) -> str:
        """Why it is not complete; empty if it is."""
        return self._sessions.gap

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
        return (*_CHANNELS, *_COUNTS, _DROPPED, _VERSION, _BRIDGES, _UPTIME)

    def wanted(self) -> tuple[str, ...]:
        """Return, sorted, the filters that clients want now."""
        return self._sessions.interest.wanted()

    # ------------------------------------------------------------ inputs

    def reconnected(self, session_lost: bool, now: float) -> Change:
        """Keep what was known, in doubt, whatever became of sessions: lines went by unseen."""
        self._unlearn_connection()
        self._sessions.distrust("what was subscribed before the observer came is unknown")
        return self._change()

    def take(self, topic: str, payload: bytes, now: float) -> Change:
        """Learn from a line, a count, or a sign of a bridge."""
        kind = _COUNTS.get(topic)
        if kind is not None:
            self._take_count(kind, payload)
            return self._change()
        if topic == _DROPPED:  # in the same burst as the counts
            self._take_dropped(payload)
            return self._change()
        self._end_burst()
        channel = _CHANNELS.get(topic)
        if channel is not None:
            self._take_line(channel, payload)
        elif topic == _UPTIME:
            self._is_in_burst = self._has_uptime
            self._has_uptime = True
        elif topic == _VERSION:
            self.version = payload.decode(errors="replace")
        elif found := _BRIDGE.fullmatch(topic):
            self._notice_bridge(found[1], payload == b"1")
        return self._change()

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
        tree = mosquitto_tree.find(text)
        if tree is not None and not tree.is_whole:
            return self._fail("the end of the tree of subscriptions is missing")
        if tree is not None:
            self._sessions.adopt(tree)
        elif text.strip():
            self._read_history(text)
        else:
            return self._fail("the text is empty")
        self._repeated = set()
        for channel, payload in remembered:
            self._take_line(channel, payload)
        self._repeated = None
        return self._change()

    def snapshot(self) -> Snapshot:
        """Return what each session holds."""
        return {"format": _FORMAT, "sessions": self._sessions.held()}

    def restore(self, saved: Snapshot, now: float) -> Change:
        """Want again, in doubt, what was wanted when the snapshot was made."""
        sessions = saved.get("sessions")
        if saved.get("format") != _FORMAT or not isinstance(sessions, dict):
            raise UsageError(f"not a snapshot of the mosquitto observer in format {_FORMAT}")
        for client, filters in sessions.items():
            if not isinstance(filters, list):
                raise UsageError(f"snapshot of the mosquitto observer: no list for {client!r}")
            for topic_filter in filters:
                self._sessions.subscribe(str(client), str(topic_filter), is_certain=False)
        return self._change()

    # ------------------------------------------------------------ lines

    def _take_line(self, channel: Channel, payload: bytes) -> None:
        if self._remembered is not None:
            self._remember(channel, payload)
        text = payload.decode(errors="replace")
        if self._stamp is None:
            self._stamp = self._learn_stamp(text)
        stamp = self._stamp.match(text)
        if stamp is None:
            event: log.Event | None = log.Unread("it does not begin with a timestamp as before")
        else:
            cut = log.is_cut(len(payload))
            event = log.read(channel, text[stamp.end() :], cut, self._sessions)
        if isinstance(event, log.Unread):
            self._leave_unread(text, event.reason)
        elif event is not None:
            self._apply(event)

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
            case log.Started():
                self._sessions.restart()
            case log.Starved(client):
                if self._sessions.is_own(client):
                    self._sessions.lose("the agent read too slowly, and the broker dropped lines")
            case log.Withheld(client, size):
                if self._sessions.is_own(client):
                    self._findings.append(PublicationWithheld(size))
            case log.Connected() | log.Ended() | log.TakenOver() | log.Expired():
                self._apply_life(event)

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

    def _read_history(self, text: str) -> None:
        """Apply the lines of a file.

        Before the line that the broker starts, a session that ended with a former life of the
        broker looks as if it were there: nothing is certain yet.
        """
        self._sessions.distrust("the log does not reach back to the start of the broker")
        stamp = self._stamp or log.DEFAULT_STAMP
        has_started = False
        for line in text.split("\n"):
            found = stamp.match(line)
            if found is None:
                continue
            cut = log.is_cut(len(line.encode()))
            event = log.read(Channel.HISTORY, line[found.end() :], cut, self._sessions)
            if isinstance(event, log.Started):
                has_started = True
                self._sessions.trust()
            if isinstance(event, log.Unread):
                self._leave_unread(line, event.reason)
            elif event is not None and not isinstance(event, log.Withheld):  # told when it happened
                self._apply(event, has_started)

    def _fail(self, reason: str) -> Change:
        self._findings.append(ResyncFailed(reason))
        return self._change()

    # ------------------------------------------------------------ counts

    def _take_count(self, kind: Kind, payload: bytes) -> None:
        if not payload.isdigit():
            self._leave_unread(payload.decode(errors="replace"), "not a count")
            return
        self._counts[kind] = int(payload)
        if self._is_in_burst:
            self._sessions.settle(kind, self._counts[kind])

    def _take_dropped(self, payload: bytes) -> None:
        """It counts from the broker's start, and we may not have been here since."""
        total = int(payload) if payload.isdigit() else 0
        before = self._dropped if total >= self._dropped else 0
        self._dropped = total
        if total > before:
            self._findings.append(PublicationsDropped(total - before, total))

    def _end_burst(self) -> None:
        """The first message after a burst: a count that was not in it holds for it all the same."""
        if self._is_in_burst:
            self._is_in_burst = False
            for kind, counted in self._counts.items():
                self._sessions.settle(kind, counted)

    # ------------------------------------------------------------ the answer

    def _change(self) -> Change:
        findings = [*self._findings, *self._sessions.findings]
        self._findings.clear()
        self._sessions.findings.clear()
        if self.complete != self._was_complete:
            self._was_complete = self.complete
            findings.append(Completed() if self.complete else Incomplete(self.reason))
        return self._sessions.interest.change(findings)
