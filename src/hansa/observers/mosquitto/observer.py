"""Learns the subscriptions at a Mosquitto from its log topics.

The broker needs `log_dest topic` and the log types subscribe, unsubscribe, notice and error. `log`
parses lines and `client_sessions` holds the subscriptions; this module handles the order of events:
lines, the broker's counts, and the two sources for what happened before:

- the text of `log_dest file`, with the types above and `information`: only the line that says that
  the broker starts shows that nothing is missing, and which sessions ended then (`history` decides
  what such a text proves);
- the output of the broker at `kill -USR2` (`subscription_tree`).

The counts arrive in bursts: uptime first, then each count that changed, then the bytes sent. So a
count holds for the time of the uptime before it, and a missing one has not changed. Counts before
the second uptime are retained values, of the time of the retained uptime.

Mosquitto publishes a count only when it has changed, and retains it for 60 s only. So a count may
be missing on a new connection while no client subscribes: then the observer subscribes to a topic
without publishers, which changes the count. If another subscription ends before the next burst, the
count is as before and still not published: then it subscribes to one more topic.

A broker may publish no counts (`sys_interval 0`, or an access list hides them). Then the log alone
decides, and only if it has no gap: the log since the start is not enough, because the broker may
have restored sessions.
"""

import re
from dataclasses import asdict

from hansa.errors import UsageError
from hansa.observers.base import (
    BridgeDetected,
    BrokerDroppedPublications,
    LineNotUnderstood,
    Observer,
    ObserverFinding,
    ObserverOutput,
    ObserverSnapshot,
    OversizedPublicationSkipped,
    ResyncFailed,
)
from hansa.observers.mosquitto import database, subscription_tree
from hansa.observers.mosquitto import log as log
from hansa.observers.mosquitto.client_sessions import (
    UNCONFIRMED,
    UNKNOWN_CLIENT,
    SessionTable,
    SubscriptionKind,
)
from hansa.observers.mosquitto.drops import DroppedMessageCounter
from hansa.observers.mosquitto.history import OTHER_LOG, Anchor, Reading, Sample
from hansa.observers.mosquitto.log import LogChannel

BUFFERED_LINES_MAX = 1 << 18
"""Lines that may arrive during a resync; with more the resync starts again."""

BRIDGES_MAX = 1_024
"""Bridges that are reported once each; further ones are reported every time."""

COUNTS_WAIT_S = 3.0
"""Seconds after the connection within which retained counts arrive, if the broker has any."""

LINES_DROPPED = "the agent read too slowly, and the broker may have dropped lines of its log"
NO_COUNTS = "the broker publishes no counters ($SYS/broker/subscriptions/count) to check it with"

_SHOWN_CHARS_MAX = 120
_SNAPSHOT_FORMAT = 1

_LOG_CHANNELS = {
    "$SYS/broker/log/M/subscribe": LogChannel.SUBSCRIBE,
    "$SYS/broker/log/M/unsubscribe": LogChannel.UNSUBSCRIBE,
    "$SYS/broker/log/N": LogChannel.NOTICE,
    "$SYS/broker/log/E": LogChannel.NOTICE,
}
_COUNT_TOPICS = {
    "$SYS/broker/subscriptions/count": SubscriptionKind.PLAIN,
    "$SYS/broker/shared_subscriptions/count": SubscriptionKind.SHARED,
}
_PROMPTS = {
    SubscriptionKind.PLAIN: "$SYS/hansa/count",
    SubscriptionKind.SHARED: "$share/hansa/$SYS/hansa/count",
}
"""Topics to subscribe to so that a count changes; they have no publishers."""
PROMPTS_MAX = 8
"""Such subscriptions per count; a broker that still publishes no count hides it."""
_DROPPED_TOPIC = "$SYS/broker/publish/messages/dropped"
_VERSION_TOPIC = "$SYS/broker/version"
_UPTIME_TOPIC = "$SYS/broker/uptime"
_VERSION_PREFIX = "mosquitto version "
_VERSION = re.compile(_VERSION_PREFIX + r"(\d+)\.(\d+)\.(\d+)")
_SECONDS = re.compile(rb"(\d+) seconds")
_BURST_END = "$SYS/broker/bytes/sent"
"""Changes with every burst, and arrives after the counts."""
_BRIDGE_FILTER = "$SYS/broker/connection/+/state"
_BRIDGE_TOPIC = re.compile(r"\$SYS/broker/connection/(.+)/state")


class MosquittoObserver(Observer):
    """Subscriptions of the clients of a Mosquitto."""

    def __init__(self, own_prefix: str) -> None:
        """Clients whose id starts with the prefix are the agent's own."""
        if not own_prefix:
            raise ValueError("an empty prefix would make every client the agent's own")
        self._own_prefix = own_prefix
        self._sessions = SessionTable(own_prefix)
        self._findings: list[ObserverFinding] = []
        self._bridges: dict[str, bool] = {}
        self._anchor = Anchor("", None)
        """The last line that arrived while the observer was complete. A log that contains it
        contains everything since."""
        self._started_at: int | None = None
        self._buffered_lines: list[tuple[LogChannel, bytes]] | None = None
        self._replayed_clients: set[str] | None = None
        """While lines are applied again: clients whose connections they have shown."""
        self._reset_connection()
        self.version = ""
        """Version line of the broker, such as `mosquitto version 2.0.11`."""
        self._drops = DroppedMessageCounter()
        self.sample_count = 0
        """How often all counts were compared."""
        self.unparsed_count = 0
        """Lines that could not be parsed, wholly or in part."""

    def _reset_connection(self) -> None:
        self._counts: dict[SubscriptionKind, int] = {}
        self._settled: dict[SubscriptionKind, None] = {}
        """Counts of the current burst that were already compared."""
        self._prompts: dict[SubscriptionKind, int] = {}
        """Number of subscriptions made to have a count published."""
        self._uptime_s: int | None = None
        """The retained uptime; None before it arrived, or if it is invalid."""
        self._has_uptime = False
        self._has_burst = False
        """Whether counts are current, not retained."""
        self._is_in_count_burst = False
        self._counts_due: float | None = None
        """When the absence of counts means that the broker publishes none."""
        self.lacks_counts = False
        """Whether the broker publishes no counters."""
        self.has_persistence = False
        """Whether the log shows that the broker saves its sessions to disk."""
        self._timestamp: re.Pattern[str] | None = None
        self._first_line = self._last_line = self._own_id = ""
        self._received_lines: tuple[str, ...] = ()
        """The first and the last line of this connection before a resync; the log file of this
        broker contains them."""
        self._buffered_lines = None

    @property
    def is_complete(self) -> bool:
        """Whether every subscribed filter is known."""
        return not self._sessions.incomplete_reason

    @property
    def incomplete_reason(self) -> str:
        """Why it is not complete; empty if it is."""
        gap = self._sessions.incomplete_reason
        return f"{gap}; {NO_COUNTS}" if gap and self.lacks_counts else gap

    @property
    def is_confirmation_pending(self) -> bool:
        """Whether it is incomplete only because the next counters have to confirm it."""
        return self.incomplete_reason == UNCONFIRMED

    @property
    def counted(self) -> int:
        """The last counts of the broker."""
        return sum(self._counts.values())

    @property
    def certain_count(self) -> int:
        """Certain subscriptions, including those of the agent's own clients and of `$` topics."""
        return sum(self._sessions.count_by_certainty(kind)[0] for kind in SubscriptionKind)

    @property
    def uncertain_count(self) -> int:
        """Subscriptions that may be gone; they count until that is proven."""
        return sum(self._sessions.count_by_certainty(kind)[1] for kind in SubscriptionKind)

    def topics_to_subscribe(self) -> tuple[str, ...]:
        """Return the topics to observe.

        Lines come first, so that the very first line is about this subscription and shows the
        format of timestamps. Uptime comes last, so that retained counts arrive before it. `log/I`
        is excluded: if the broker saves on every change, each such line causes the next.
        """
        return (
            *_LOG_CHANNELS,
            *_COUNT_TOPICS,
            _DROPPED_TOPIC,
            _VERSION_TOPIC,
            _BRIDGE_FILTER,
            _BURST_END,
            _UPTIME_TOPIC,
        )

    def extra_subscriptions(self) -> tuple[str, ...]:
        """Return topics that make the broker publish counts that it did not retain."""
        return tuple(
            f"{_PROMPTS[kind]}/{number}"
            for kind in self._prompts
            for number in range(self._prompts[kind])
        )

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the subscribed filters, sorted."""
        return self._sessions.filter_counts.subscribed_filters()

    # ------------------------------------------------------------ inputs

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Keep everything known as uncertain: lines were missed."""
        self._reset_connection()
        self._counts_due = now + COUNTS_WAIT_S
        self._sessions.mark_all_uncertain("what was subscribed before the observer came is unknown")
        return self._make_output()

    def receive_publication(self, topic: str, payload: bytes, now: float) -> ObserverOutput:
        """Process a line, a count, or a sign of a bridge."""
        self._drops.on_publication(now)
        kind = _COUNT_TOPICS.get(topic)
        if kind is not None:
            self._receive_count(kind, payload)
            return self._make_output()
        if topic == _BURST_END:
            self._finish_count_burst()
            return self._make_output()
        if topic == _DROPPED_TOPIC:  # in the same burst as the counts
            self._receive_dropped_count(payload)
            return self._make_output()
        self._finish_count_burst()
        channel = _LOG_CHANNELS.get(topic)
        if channel is not None:
            self._receive_line(channel, payload)
        elif topic == _UPTIME_TOPIC:
            self._take_uptime(payload)
            self._drops.on_sample()
        elif topic == _VERSION_TOPIC:
            self.version = payload.decode(errors="replace")
        elif found := _BRIDGE_TOPIC.fullmatch(topic):
            self._report_bridge(found[1], payload == b"1")
        return self._make_output()

    def handle_timer(self, now: float) -> ObserverOutput:
        """Do without counts if the broker publishes none."""
        if self._counts_due is not None and now >= self._counts_due:
            self._counts_due = None
            self.lacks_counts = not (self._counts or self._has_uptime)
            self._confirm_without_counts()
        return self._make_output()

    def next_deadline(self) -> float | None:
        """When the absence of counts is certain."""
        return self._counts_due

    def declare(self, client_id: str, filters: tuple[str, ...]) -> ObserverOutput:
        """Note the filters of a persistent session of the agent's own.

        The broker counts them, and logs nothing when a session resumes.
        """
        self._sessions.set_plain_filters(client_id, filters)
        return self._make_output()

    def begin_resync(self, now: float) -> None:
        """Buffer the lines that arrive from now on."""
        self._buffered_lines = []
        self._received_lines = (self._first_line, self._last_line)

    def resync(self, text: str, now: float) -> ObserverOutput:
        """Correct everything from a printed tree or from the log since the broker's start.

        Lines since `begin_resync` are applied again on top. They may be in the text as well: of
        each filter only the last line counts, so applying a line twice does no harm. The connection
        of a client before its first buffered line is not what is known after its last.
        """
        buffered, self._buffered_lines = self._buffered_lines, None
        if buffered is None:
            return self._fail_resync(
                "it was not begun on this connection, or too much happened since"
            )
        tree = subscription_tree.find_last_tree(text)
        if tree is not None and not tree.is_complete:
            return self._fail_resync("the end of the tree of subscriptions is missing")
        reading = None
        if tree is not None:
            self._sessions.apply_tree(tree)
        elif text.strip():
            reading = self._apply_history(text)
        else:
            return self._fail_resync("the text is empty")
        self._replayed_clients = set()
        for channel, payload in buffered:
            self._receive_line(channel, payload)
        self._replayed_clients = None
        if reading is not None and reading.is_confirmed:
            self._sessions.confirm()
        self._sessions.note_reread()
        self._confirm_without_counts()
        return self._make_output()

    def snapshot(self) -> ObserverSnapshot:
        """Return the filters of each session, and the last line at which that was complete."""
        return {
            "format": _SNAPSHOT_FORMAT,
            "sessions": self._sessions.filters_by_client(),
            "anchor": asdict(self._anchor),
            "dropped": self._drops.total,
        }

    def restore(self, saved: ObserverSnapshot, now: float) -> ObserverOutput:
        """Restore the filters of a snapshot, as uncertain."""
        sessions = saved.get("sessions")
        if saved.get("format") != _SNAPSHOT_FORMAT or not isinstance(sessions, dict):
            raise UsageError(
                f"not a snapshot of the mosquitto observer in format {_SNAPSHOT_FORMAT}"
            )
        self._anchor = _anchor(saved.get("anchor"))
        for client, filters in sessions.items():
            if not isinstance(filters, list):
                raise UsageError(f"snapshot of the mosquitto observer: no list for {client!r}")
            for topic_filter in filters:
                self._sessions.on_subscribed(str(client), str(topic_filter), is_certain=False)
        self._drops.restore(saved.get("dropped"))
        return self._make_output()

    def on_snapshot_missing(self) -> None:
        """Treat all dropped messages as a possible loss of the earlier incarnation."""
        self._drops.restore(0)

    # ------------------------------------------------------------ lines

    def _receive_line(self, channel: LogChannel, payload: bytes) -> None:
        if self._buffered_lines is not None:
            self._buffer_line(channel, payload)
        text = payload.decode(errors="replace")
        if self._timestamp is None:
            self._timestamp = self._detect_timestamp(text)
            self._first_line = text
        timestamp = self._timestamp.match(text)
        if timestamp is None:
            event: log.LogEvent | None = log.UnparsedLine(
                "it does not begin with a timestamp as before"
            )
        else:
            is_truncated = log.may_be_truncated(len(payload))
            event = log.parse_line(channel, text[timestamp.end() :], is_truncated, self._sessions)
        if isinstance(event, log.UnparsedLine):
            self._report_unparsed(text, event.reason)
        elif event is not None:
            if isinstance(event, log.ClientMessagesDropped):
                self._drops.on_client_named(event.client)
            self._apply_event(event)
        self._last_line = text

    def _buffer_line(self, channel: LogChannel, payload: bytes) -> None:
        assert self._buffered_lines is not None
        self._buffered_lines.append((channel, payload))
        if len(self._buffered_lines) > BUFFERED_LINES_MAX:
            self._buffered_lines = None

    def _detect_timestamp(self, text: str) -> re.Pattern[str]:
        """Learn the timestamp format: the first line of a connection is about its own first
        subscription, `<stamp><id> …`."""
        at = text.find(self._own_prefix)
        stamp = text[: max(at, 0)]
        end = f" 0 {self.topics_to_subscribe()[0]}"
        if at >= 0 and text.endswith(end):
            self._own_id = text[at:].removesuffix(end)
            if not stamp or stamp.endswith(": "):
                return log.timestamp_pattern(stamp)
        return log.DEFAULT_TIMESTAMP

    def _report_unparsed(self, text: str, reason: str) -> None:
        self.unparsed_count += 1
        self._findings.append(LineNotUnderstood(text[:_SHOWN_CHARS_MAX], reason))
        self._sessions.mark_incomplete(f"a line of the log could not be read: {reason}")
        self._sessions.knows_all_clients = False

    def _apply_event(self, event: log.LogEvent, is_certain: bool = True) -> None:
        """Apply an event to the sessions; a grant with an ambiguous reading is not certain."""
        match event:
            case log.ClientSubscribed(readings):
                readings = self._possible_readings(readings)
                self._apply_grant(readings, is_certain, is_ambiguous=len(readings) > 1)
            case log.ClientUnsubscribed(readings, is_only_reading):
                is_only = len(readings) == 1 and self._is_id_known(readings[0][0])
                self._sessions.on_unsubscribed(readings, is_only_reading or is_only)
            case log.AmbiguousLine(events):
                self._apply_ambiguous(events)
            case log.ClientPossiblyConnected(clients):
                for client in clients:
                    self._sessions.on_possibly_connected(client)
            case log.ClientMessagesDropped(client) if client == self._own_id:
                self._sessions.mark_all_uncertain(LINES_DROPPED)
            case log.OversizedPublishDropped(client, size) if self._sessions.is_own(client):
                self._findings.append(OversizedPublicationSkipped(size))
            case (
                log.ClientConnected()
                | log.ClientDisconnected()
                | log.ClientTakenOver()
                | log.SessionExpired()
            ):
                self._apply_connection_event(event)
            case _:
                self._apply_to_all(event)

    def _apply_ambiguous(self, events: tuple[log.LogEvent, ...]) -> None:
        for event in events:
            match event:
                case log.ClientSubscribed(readings):
                    readings = self._possible_readings(readings)
                    self._apply_grant(readings, is_certain=False, is_ambiguous=True)
                case log.ClientUnsubscribed(readings):
                    self._sessions.on_unsubscribed(readings, is_certain=False)
                case _:
                    self._apply_event(event)  # it says itself that it is not certain

    def _apply_grant(
        self, readings: tuple[tuple[str, str], ...], is_certain: bool, is_ambiguous: bool
    ) -> None:
        for client, topic_filter in readings:
            holder = client
            if is_ambiguous and client not in self._sessions:
                holder = UNKNOWN_CLIENT  # a guessed id must not decide how lines are parsed
            self._sessions.on_subscribed(holder, topic_filter, is_certain and not is_ambiguous)

    def _possible_readings(
        self, readings: tuple[tuple[str, str], ...]
    ) -> tuple[tuple[str, str], ...]:
        """Return the readings whose client may exist."""
        known = tuple(reading for reading in readings if reading[0] in self._sessions)
        return known if known and self._is_id_known(known[0][0]) else readings

    def _is_id_known(self, client: str) -> bool:
        """Whether a line that begins with this id cannot be about a client that is not known."""
        return self._sessions.knows_all_clients or self._sessions.is_own(client)

    def _apply_to_all(self, event: log.LogEvent) -> None:
        """Apply an event of the broker itself."""
        match event:
            case log.BrokerStarted(version):
                self.version = _VERSION_PREFIX + version
                self._sessions.on_broker_started()
            case log.Persisted():
                self.has_persistence = True
            case log.BridgeConnecting():
                self._sessions.needs_proof = True

    def _apply_connection_event(self, event: log.ConnectionEvent) -> None:
        if self._replayed_clients is not None and event.client not in self._replayed_clients:
            self._replayed_clients.add(event.client)
            self._sessions.reset_connection(event.client)
        match event:
            case log.ClientConnected(client, mode, is_clean, address, is_bridge):
                self._sessions.on_connected(client, mode, is_clean, address)
                if is_bridge and not self._sessions.is_own(client):
                    self._report_bridge(client, True)
            case log.ClientDisconnected(client, address, is_certain):
                # Before 2.1.1 what looks like an address is the end of a longer id.
                is_certain = is_certain and (address is None or self._logs_addresses())
                self._sessions.on_disconnected(client, address, is_certain)
            case log.ClientTakenOver(client):
                self._sessions.on_taken_over(client)
            case log.SessionExpired(client, is_certain):
                self._sessions.on_session_expired(client, is_certain)

    def _logs_addresses(self) -> bool:
        found = _VERSION.match(self.version)
        return found is not None and tuple(map(int, found.groups())) >= (2, 1, 1)

    def _report_bridge(self, name: str, is_up: bool) -> None:
        if self._bridges.get(name) != is_up:
            self._findings.append(BridgeDetected(name, is_up))
            if name in self._bridges or len(self._bridges) < BRIDGES_MAX:
                self._bridges[name] = is_up
            self._sessions.needs_proof = True

    def _apply_history(self, text: str) -> Reading:
        """Apply the lines of a file, and decide what it proves.

        Before the line that the broker starts, a session that ended with an earlier run of the
        broker looks as if it existed: nothing is certain yet.
        """
        self._sessions.mark_all_uncertain("the log does not reach back to the start of the broker")
        timestamp = self._timestamp or log.DEFAULT_TIMESTAMP
        sample = self._retained_sample()
        reading = Reading(self._sessions, self._anchor, self._received_lines, sample)
        for line in text.split("\n"):
            if line.startswith(database.RESTORED_MARK):
                self._apply_restored(line, reading)
                continue
            found = timestamp.match(line)
            if found is None:
                reading.skip(line)
                continue
            is_truncated = log.may_be_truncated(len(line.encode()))
            event = log.parse_line(
                LogChannel.HISTORY, line[found.end() :], is_truncated, self._sessions
            )
            reading.before(line, found[0])
            if isinstance(event, log.UnparsedLine):
                self._report_unparsed(line, event.reason)
            elif event is not None and not isinstance(
                event, log.OversizedPublishDropped | log.ClientMessagesDropped
            ):  # reported when it happened
                self._apply_event(event, reading.is_certain)
            reading.after(event)
        if any(self._received_lines) and not reading.has_received_line:
            self._sessions.mark_incomplete(OTHER_LOG)
        reading.end()
        self._started_at = reading.started_at
        return reading

    def _apply_restored(self, line: str, reading: Reading) -> None:
        """Add the sessions that the broker may have restored at its start. They may have ended."""
        restored = database.parse_restored(line)
        if isinstance(restored, str):
            self._report_unparsed(restored, "the persistence file is not readable")
            return
        for client, filters in restored.items():
            for topic_filter in filters:
                self._sessions.on_subscribed(client, topic_filter, is_certain=False)
        reading.note_restored()

    def _retained_sample(self) -> Sample | None:
        """Return the retained counts, if their uptime is known."""
        return None if self._uptime_s is None else Sample(self._uptime_s, dict(self._counts))

    def _fail_resync(self, reason: str) -> ObserverOutput:
        self._findings.append(ResyncFailed(reason))
        return self._make_output()

    # ------------------------------------------------------------ counts

    def _receive_count(self, kind: SubscriptionKind, payload: bytes) -> None:
        if not payload.isdigit():
            self._report_unparsed(payload.decode(errors="replace"), "not a count")
            return
        self._counts[kind] = int(payload)
        self.lacks_counts = False
        if self._has_burst:
            self._settled[kind] = None
            self._sessions.reconcile_count(kind, self._counts[kind])

    def _take_uptime(self, payload: bytes) -> None:
        self._is_in_count_burst = self._has_burst = self._has_uptime
        self._settled.clear()
        found = _SECONDS.fullmatch(payload)
        self._uptime_s = int(found[1]) if found and not self._has_uptime else None
        if not self._has_uptime:
            self._prompts = {kind: 1 for kind in SubscriptionKind if kind not in self._counts}
        self._has_uptime = True

    def _confirm_without_counts(self) -> None:
        """Trust a log that shows everything."""
        can_hide = self._sessions.has_gap or self._sessions.needs_proof
        if self.lacks_counts and not can_hide:
            self._sessions.confirm()

    def _receive_dropped_count(self, payload: bytes) -> None:
        total = int(payload) if payload.isdigit() else 0
        if count := self._drops.update_total(total):
            self._findings.append(BrokerDroppedPublications(count, total))
            if self._drops.had_backlog:
                self._sessions.mark_all_uncertain(LINES_DROPPED)

    def _finish_count_burst(self) -> None:
        """The first message after a burst: a count that was not in it still holds."""
        if self._is_in_count_burst:
            self._is_in_count_burst = False
            for kind, counted in self._counts.items():
                if kind not in self._settled:
                    self._sessions.reconcile_count(kind, counted)
            self.sample_count += len(self._counts) == len(SubscriptionKind)
            for kind, number in self._prompts.items():
                if kind not in self._counts:
                    self._prompts[kind] = min(number + 1, PROMPTS_MAX)

    # ------------------------------------------------------------ the answer

    def _make_output(self) -> ObserverOutput:
        if self.is_complete and self._last_line:
            self._anchor = Anchor(self._last_line, self._started_at)
        findings = [*self._findings, *self._sessions.findings]
        self._findings.clear()
        self._sessions.findings.clear()
        return self._sessions.filter_counts.drain_output(self, findings)


def _anchor(saved: object) -> Anchor:
    """Return the anchor of a snapshot; None if it is invalid."""
    if isinstance(saved, dict):
        line, started_at = saved.get("line"), saved.get("started_at")
        if isinstance(line, str) and (started_at is None or isinstance(started_at, int)):
            return Anchor(line, started_at)
    return Anchor("", None)
