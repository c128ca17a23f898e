"""The sessions of all clients of the proxy, and the filters that they are subscribed to.

A session belongs to a client id. It ends with its connection, or its subscriptions outlive it for
the session expiry interval. The broker decides whether a session continues (Session Present); the
filters of such a session are those that the proxy noted before, so the shell saves them to disk. A
filter counts from the moment a client asks for it, and until the broker refuses or ends it.

The observer is complete unless it has a reason to doubt:

- the proxy runs for the first time and clients may have left sessions at the broker before;
- clients were served while the agent could not start, or changed sessions while they could not be
  saved and the agent ended then: the file says so;
- sessions cannot be saved now;
- a client resumed a session that the proxy has never seen;
- the packets of a connection could not be followed;
- sessions and filters need more memory than allowed.

Doubts about a client end when its session does, also after a restart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hansa.errors import InvalidTopic
from hansa.observers.base import (
    FilterCounts,
    FilterNotAnnounced,
    Observer,
    ObserverFinding,
    ObserverOutput,
)
from hansa.protocol.topics import check_filter, is_local_only

NEVER = 0xFFFF_FFFF
"""The session expiry interval of a session that does not expire [MQTT 5, 3.1.2.11.2]."""

MEMORY_MAX = 256 << 20
"""Estimated bytes of all sessions and filters; what exceeds it is not held, and the observer is
incomplete until the agent is restarted."""

SESSION_BYTES, FILTER_BYTES = 512, 256
"""Estimated bytes of a session and of a filter, besides their text."""

UNKNOWN_CLIENT = ""
"""Stands for clients whose CONNECT the proxy cannot read."""

_SHOWN_CHARS_MAX, _REASON_CHARS_MAX = 64, 160

OPENED, ADDED, REMOVED, DOUBTED, ENDED = "open", "add", "remove", "doubt", "end"
SessionChange = tuple[str, str, list[str]]
"""What the shell must save of a persistent session: client id, one of the words above, and the
filters, the reason of the doubt, or the session expiry interval."""

EARLIER_SESSIONS = (
    "clients may have left sessions at the broker before the proxy first ran; if none have,"
    " set [proxy] no_earlier_sessions = true"
)

MISSED_CHANGES = (
    "clients were served while their sessions could not be observed or saved; when the persistent"
    " sessions of that time have ended or subscribed again, set [proxy] no_earlier_sessions = false"
    " and then true again, each with a reload"
)

NOT_SAVED = "sessions of proxy clients cannot be saved: a restart would lose their filters"

OPAQUE_CLIENTS = (
    "the proxy cannot read what clients with passthrough_names subscribe to; declare it in"
    " [proxy] passthrough_filters"
)


@dataclass(slots=True)
class ProxySession:
    """The subscriptions of one client id, connected or not."""

    filters: dict[str, None] = field(default_factory=dict)
    expiry_s: int = 0
    """Seconds for which it outlives its last connection."""
    connections: dict[int, None] = field(default_factory=dict)
    """Open connections; while one takes over from another there are two."""
    newest: int = 0
    """The connection that the broker accepted last; older ones change nothing any more."""
    doubt: str = ""
    """Why it may have subscriptions that are not in `filters`; empty if it has none."""


class ProxyObserver(Observer):
    """Which filters the clients of the proxy are subscribed to."""

    def __init__(
        self, may_have_earlier_sessions: bool, opaque_filters: Sequence[str] | None = None
    ) -> None:
        """`opaque_filters`: the filters of clients that the proxy cannot read; empty if they are
        not known, None if there are no such clients."""
        self._file_problem = EARLIER_SESSIONS if may_have_earlier_sessions else ""
        self._sessions: dict[str, ProxySession] = {}
        self._expiring: dict[str, float] = {}
        """When the sessions of disconnected clients end, if they end."""
        self._doubts: dict[str, None] = {}
        self._memory = 0
        self._has_overflowed = False
        self._opaque_filters: tuple[str, ...] = ()
        self._has_unknown_opaque = opaque_filters is not None and not opaque_filters
        self._filters = FilterCounts(was_complete=self.is_complete)
        self.set_opaque_filters(opaque_filters)
        self._findings: list[ObserverFinding] = []
        self.changes: list[SessionChange] = []
        """What the shell has to save, in order; it clears the list."""

    # ------------------------------------------------------------ state

    @property
    def is_complete(self) -> bool:
        """Whether every subscription of the proxy's clients is known."""
        return not (
            self._file_problem or self._has_unknown_opaque or self._has_overflowed or self._doubts
        )

    @property
    def incomplete_reason(self) -> str:
        """Why it is not complete; empty if it is."""
        if self._file_problem:
            return self._file_problem
        if self._has_unknown_opaque:
            return OPAQUE_CLIENTS
        if self._has_overflowed:
            return "sessions of the proxy's clients need too much memory"
        for client_id in self._doubts:
            shown, doubt = client_id[:_SHOWN_CHARS_MAX], self._sessions[client_id].doubt
            return f"client {shown!r}: {doubt}" if client_id else f"unknown client: {doubt}"
        return ""

    @property
    def connected_count(self) -> int:
        """Number of clients that are connected."""
        return sum(bool(session.connections) for session in self._sessions.values())

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return, sorted, the filters that clients are subscribed to."""
        return self._filters.subscribed_filters()

    # ------------------------------------------------------------ inputs

    def load_session(
        self, client_id: str, filters: Iterable[str], expiry_s: int, doubt: str = ""
    ) -> None:
        """Take up a session that an earlier run saved; the client is not connected."""
        session = self._new_session(client_id, expiry_s)
        if session is not None:
            self._add(session, filters)
            if doubt:
                self._set_doubt(client_id, doubt)
        self.changes.clear()

    def set_file_problem(self, reason: str) -> None:
        """Note why sessions may be unknown that the file should hold; empty if none are."""
        self._file_problem = reason

    def set_opaque_filters(self, filters: Sequence[str] | None) -> None:
        """Replace the filters of clients that the proxy cannot read."""
        for topic_filter in self._opaque_filters:
            self._filters.remove(topic_filter)
        self._has_unknown_opaque = filters is not None and not filters
        self._opaque_filters = tuple(filters or ())
        for topic_filter in self._opaque_filters:
            self._filters.add(topic_filter)

    def has_session(self, client_id: str) -> bool:
        """Whether a session of this client is known, connected or not."""
        return client_id in self._sessions

    def on_opened(self, client_id: str, connection: int, is_present: bool, expiry_s: int) -> None:
        """The broker accepted a connection; `is_present`: it continued an earlier session.

        While another connection of the client is open, nothing is dropped: the proxy does not know
        in which order the broker accepted them.
        """
        session = self._sessions.get(client_id)
        if session is not None and not is_present and not session.connections:
            self._end(client_id)
            session = None
        if session is None:
            session = self._new_session(client_id, expiry_s)
            if session is None:
                return
            if is_present:
                self._set_doubt(client_id, "resumed a session that the proxy has never seen")
        self._set_expiry(client_id, session, expiry_s)
        session.connections[connection] = None
        session.newest = connection
        self._expiring.pop(client_id, None)

    def on_subscribed(self, client_id: str, filters: Iterable[str]) -> list[str]:
        """A client asks for these filters; return those that are new."""
        session = self._sessions.get(client_id)
        if session is None:
            return []
        added = self._add(session, filters)
        if added and session.expiry_s:
            self.changes.append((client_id, ADDED, added))
        return added

    def on_unsubscribed(self, client_id: str, connection: int, filters: Iterable[str]) -> None:
        """The broker refused or ended these subscriptions, unless the connection is an old one."""
        session = self._sessions.get(client_id)
        if session is None or connection != session.newest:
            return
        removed = self._remove(session, filters)
        if removed and session.expiry_s:
            self.changes.append((client_id, REMOVED, removed))

    def on_disconnecting(self, client_id: str, connection: int, expiry_s: int) -> None:
        """A client asks for another session expiry interval. A longer one is saved before the
        broker knows it."""
        session = self._sessions.get(client_id)
        if session is not None and connection == session.newest and expiry_s > session.expiry_s:
            self._set_expiry(client_id, session, expiry_s)

    def on_closed(
        self, client_id: str, connection: int, expiry_s: int, now: float
    ) -> ObserverOutput:
        """A connection ended; the session does, too, if it was the last one and has no expiry."""
        session = self._sessions.get(client_id)
        if session is not None and connection in session.connections:
            del session.connections[connection]
            if connection == session.newest:
                self._set_expiry(client_id, session, expiry_s)
            if not session.connections and not session.expiry_s:
                self._end(client_id)
            elif not session.connections and session.expiry_s != NEVER:
                self._expiring[client_id] = now + session.expiry_s
        return self.drain(now)

    def on_lost_track(self, client_id: str, reason: str) -> None:
        """The packets of a connection cannot be followed any more."""
        if client_id in self._sessions:
            self._set_doubt(client_id, reason)

    def on_unknown_client(self, reason: str) -> None:
        """The broker accepted a client whose CONNECT cannot be read: what it subscribes to stays
        unknown, in a session that may never end."""
        if UNKNOWN_CLIENT in self._sessions or self._new_session(UNKNOWN_CLIENT, NEVER):
            self._set_doubt(UNKNOWN_CLIENT, reason)

    def handle_timer(self, now: float) -> ObserverOutput:
        """End the sessions that have expired."""
        for client_id in [each for each, at in self._expiring.items() if at <= now]:
            self._end(client_id)
        return self.drain(now)

    def next_deadline(self) -> float | None:
        """When the next session expires."""
        return min(self._expiring.values(), default=None)

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Report what earlier runs saved. The broker counts their expiry from an earlier moment."""
        for client_id, session in self._sessions.items():
            if not session.connections and session.expiry_s != NEVER:
                self._expiring[client_id] = now + session.expiry_s
        return self.drain(now)

    def drain(self, now: float) -> ObserverOutput:
        """Return what has changed since the last call."""
        findings, self._findings = self._findings, []
        return self._filters.drain_output(self, findings)

    # ------------------------------------------------------------ sessions

    def _new_session(self, client_id: str, expiry_s: int) -> ProxySession | None:
        if not self._reserve(SESSION_BYTES + len(client_id)):
            return None
        session = self._sessions[client_id] = ProxySession(expiry_s=expiry_s)
        if expiry_s:
            self.changes.append((client_id, OPENED, [str(expiry_s)]))
        return session

    def _reserve(self, size: int) -> bool:
        if self._memory + size > MEMORY_MAX:
            self._has_overflowed = True
            return False
        self._memory += size
        return True

    def _add(self, session: ProxySession, filters: Iterable[str]) -> list[str]:
        added: list[str] = []
        for topic_filter in filters:
            if topic_filter in session.filters:
                continue
            if not self._reserve(FILTER_BYTES + len(topic_filter)):
                break
            session.filters[topic_filter] = None
            added.append(topic_filter)
            if self._is_announced(topic_filter):
                self._filters.add(topic_filter)
        return added

    def _remove(self, session: ProxySession, filters: Iterable[str]) -> list[str]:
        removed = [each for each in dict.fromkeys(filters) if each in session.filters]
        for topic_filter in removed:
            self._memory -= FILTER_BYTES + len(topic_filter)
            del session.filters[topic_filter]
            if self._is_announced(topic_filter, is_reported=False):
                self._filters.remove(topic_filter)
        return removed

    def _end(self, client_id: str) -> None:
        session = self._sessions.pop(client_id)
        self._expiring.pop(client_id, None)
        self._remove(session, list(session.filters))
        self._memory -= SESSION_BYTES + len(client_id)
        self._doubts.pop(client_id, None)
        if session.expiry_s:
            self.changes.append((client_id, ENDED, []))

    def _set_expiry(self, client_id: str, session: ProxySession, expiry_s: int) -> None:
        """Save a session whose expiry has changed, or do not save it any longer."""
        if session.expiry_s == expiry_s:
            return
        session.expiry_s = expiry_s
        if not expiry_s:
            self.changes.append((client_id, ENDED, []))
            return
        self.changes.append((client_id, OPENED, [str(expiry_s)]))
        if session.filters:
            self.changes.append((client_id, ADDED, list(session.filters)))
        if session.doubt:
            self.changes.append((client_id, DOUBTED, [session.doubt]))

    def _set_doubt(self, client_id: str, reason: str) -> None:
        session = self._sessions[client_id]
        session.doubt = reason
        self._doubts[client_id] = None
        if session.expiry_s:
            self.changes.append((client_id, DOUBTED, [reason]))

    def _is_announced(self, topic_filter: str, is_reported: bool = True) -> bool:
        if is_local_only(topic_filter):
            return False
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            if is_reported:
                shown = topic_filter[:_SHOWN_CHARS_MAX]
                self._findings.append(FilterNotAnnounced(shown, str(error)[:_REASON_CHARS_MAX]))
            return False
        return True
