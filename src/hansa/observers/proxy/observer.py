"""The sessions of all clients of the proxy, and the filters that they are subscribed to.

A session belongs to a client id. It ends with its connection, or its subscriptions outlive it for
the session expiry interval. The broker decides whether a session goes on (Session Present); the
filters of one that does are those that the proxy noted before, so the shell saves them to disk.

The observer is complete unless it has a reason to doubt:

- the proxy runs for the first time and clients may have left sessions at the broker before;
- a client resumed a session that the proxy has never seen;
- the packets of a connection could not be followed;
- the filters of all sessions need more memory than allowed.

The second and third doubt end when that client's session does, also after a restart.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hansa.errors import InvalidTopic
from hansa.observers.base import (
    FilterCounts,
    FilterNotAnnounced,
    ObservationComplete,
    ObservationIncomplete,
    Observer,
    ObserverFinding,
    ObserverOutput,
)
from hansa.protocol.topics import check_filter, is_local_only

NEVER = 0xFFFF_FFFF
"""The session expiry interval of a session that does not expire [MQTT 5, 3.1.2.11.2]."""

FILTER_BYTES_MAX = 64 << 20
"""Characters of all filters that are held; later ones are not, and the observer is incomplete."""

OPENED, ADDED, REMOVED, DOUBTED, ENDED = "open", "add", "remove", "doubt", "end"
SessionChange = tuple[str, str, list[str]]
"""What the shell must save of a persistent session: client id, one of the words above, and the
filters or the reason of the doubt."""

EARLIER_SESSIONS = (
    "clients may have left sessions at the broker before the proxy first ran; if none have,"
    " set [proxy] no_earlier_sessions = true"
)


@dataclass(slots=True)
class ProxySession:
    """The subscriptions of one client id, connected or not."""

    filters: dict[str, None] = field(default_factory=dict)
    is_persistent: bool = True
    """Whether it outlives its connection."""
    connection: int | None = None
    expires_at: float | None = None
    """When the session ends if the client does not return; None while connected, or never."""
    doubt: str = ""
    """Why it may have subscriptions that are not in `filters`; empty if it has none."""


class ProxyObserver(Observer):
    """Which filters the clients of the proxy are subscribed to."""

    def __init__(self, may_have_earlier_sessions: bool) -> None:
        self._may_have_earlier_sessions = may_have_earlier_sessions
        self._sessions: dict[str, ProxySession] = {}
        self._filters = FilterCounts()
        self._findings: list[ObserverFinding] = []
        self._was_complete = not may_have_earlier_sessions
        self._doubts: dict[str, None] = {}
        self._filter_bytes = 0
        self._has_overflowed = False
        self.changes: list[SessionChange] = []
        """What the shell has to save, in order; it clears the list."""

    # ------------------------------------------------------------ state

    @property
    def is_complete(self) -> bool:
        """Whether every subscription of the proxy's clients is known."""
        return not (self._may_have_earlier_sessions or self._has_overflowed or self._doubts)

    @property
    def incomplete_reason(self) -> str:
        """Why it is not complete; empty if it is."""
        if self._may_have_earlier_sessions:
            return EARLIER_SESSIONS
        if self._has_overflowed:
            return (
                f"the filters of the proxy's clients have more than {FILTER_BYTES_MAX} characters"
            )
        for client_id in self._doubts:
            return f"client {client_id!r}: {self._sessions[client_id].doubt}"
        return ""

    @property
    def connected_count(self) -> int:
        """Number of clients that are connected."""
        return sum(session.connection is not None for session in self._sessions.values())

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return, sorted, the filters that clients are subscribed to."""
        return self._filters.subscribed_filters()

    # ------------------------------------------------------------ inputs

    def load_session(self, client_id: str, filters: Iterable[str], doubt: str = "") -> None:
        """Take up a session that an earlier run saved; the client is not connected."""
        session = self._sessions[client_id] = ProxySession()
        self._add(session, filters)
        if doubt:
            self._set_doubt(client_id, doubt)
        self.changes.clear()

    def on_opened(
        self, client_id: str, connection: int, *, is_present: bool, is_persistent: bool
    ) -> None:
        """The broker accepted a connection; `is_present`: it continued an earlier session."""
        session = self._sessions.get(client_id)
        if session is not None and not is_present:
            self._end(client_id)
            session = None
        if session is None:
            session = self._sessions[client_id] = ProxySession(is_persistent=is_persistent)
            if is_persistent:
                self.changes.append((client_id, OPENED, []))
            if is_present:
                self._set_doubt(client_id, "resumed a session that the proxy has never seen")
        elif session.is_persistent and not is_persistent:  # it ends with this connection
            self.changes.append((client_id, ENDED, []))
        session.connection, session.expires_at = connection, None
        session.is_persistent = is_persistent

    def on_subscribed(self, client_id: str, filters: Iterable[str]) -> None:
        """The broker granted these filters."""
        if (session := self._sessions.get(client_id)) is not None:
            added = self._add(session, filters)
            if added and session.is_persistent:
                self.changes.append((client_id, ADDED, added))

    def on_unsubscribed(self, client_id: str, filters: Iterable[str]) -> None:
        """The broker ended these subscriptions."""
        if (session := self._sessions.get(client_id)) is not None:
            removed = self._remove(session, filters)
            if removed and session.is_persistent:
                self.changes.append((client_id, REMOVED, removed))

    def on_closed(
        self, client_id: str, connection: int, expiry_s: int, now: float
    ) -> ObserverOutput:
        """A connection ended. If another one has taken the session over, nothing changes."""
        session = self._sessions.get(client_id)
        if session is not None and session.connection == connection:
            if not expiry_s:
                self._end(client_id)
            else:
                session.connection = None
                session.expires_at = None if expiry_s == NEVER else now + expiry_s
        return self.drain(now)

    def on_lost_track(self, client_id: str, reason: str) -> None:
        """The packets of a connection cannot be followed any more."""
        if client_id in self._sessions:
            self._set_doubt(client_id, reason)

    def handle_timer(self, now: float) -> ObserverOutput:
        """End the sessions that have expired."""
        ended = [
            client_id
            for client_id, session in self._sessions.items()
            if session.expires_at is not None and session.expires_at <= now
        ]
        for client_id in ended:
            self._end(client_id)
        return self.drain(now)

    def next_deadline(self) -> float | None:
        """When the next session expires."""
        return min(
            (s.expires_at for s in self._sessions.values() if s.expires_at is not None),
            default=None,
        )

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Report what earlier runs saved."""
        return self.drain(now)

    def drain(self, now: float) -> ObserverOutput:
        """Return what has changed since the last call."""
        findings, self._findings = self._findings, []
        if self.is_complete != self._was_complete:
            self._was_complete = self.is_complete
            findings.append(
                ObservationComplete()
                if self.is_complete
                else ObservationIncomplete(self.incomplete_reason)
            )
        return self._filters.drain_changes(findings)

    # ------------------------------------------------------------ sessions

    def _add(self, session: ProxySession, filters: Iterable[str]) -> list[str]:
        added = [each for each in dict.fromkeys(filters) if each not in session.filters]
        for topic_filter in added:
            if self._filter_bytes + len(topic_filter) > FILTER_BYTES_MAX:
                self._has_overflowed = True
                break
            self._filter_bytes += len(topic_filter)
            session.filters[topic_filter] = None
            if self._is_announced(topic_filter):
                self._filters.add(topic_filter)
        return added

    def _remove(self, session: ProxySession, filters: Iterable[str]) -> list[str]:
        removed = [each for each in dict.fromkeys(filters) if each in session.filters]
        for topic_filter in removed:
            self._filter_bytes -= len(topic_filter)
            del session.filters[topic_filter]
            if self._is_announced(topic_filter, is_reported=False):
                self._filters.remove(topic_filter)
        return removed

    def _end(self, client_id: str) -> None:
        session = self._sessions.pop(client_id)
        self._remove(session, list(session.filters))
        self._doubts.pop(client_id, None)
        if session.is_persistent:
            self.changes.append((client_id, ENDED, []))

    def _set_doubt(self, client_id: str, reason: str) -> None:
        session = self._sessions[client_id]
        session.doubt = reason
        self._doubts[client_id] = None
        if session.is_persistent:
            self.changes.append((client_id, DOUBTED, [reason]))

    def _is_announced(self, topic_filter: str, is_reported: bool = True) -> bool:
        if is_local_only(topic_filter):
            return False
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            if is_reported:
                self._findings.append(FilterNotAnnounced(topic_filter, str(error)))
            return False
        return True
