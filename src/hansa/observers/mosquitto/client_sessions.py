"""Subscriptions by session at a Mosquitto, as far as the log shows them.

Each filter of each session is *certain* (the broker has it) or *uncertain* (it had it; it may be
gone). Both count as subscribed. This module parses nothing; `observer` applies events to it.

The broker also publishes the number of its subscriptions, which resolves uncertainty. If there are
as many as are certain, there are no others: the table is complete and uncertain ones are gone. If
the table was complete before and the uncertain ones are needed to make up the number, they
all still exist. A number below the certain ones contradicts the log: then nothing is certain.

The table is complete when no gap is known *and* the broker's counts agree with it:

| state | complete when |
|---|---|
| gap: subscriptions may exist that were not logged | a count equals the certain ones |
| unconfirmed: the log seems to show everything | a count is not above the known ones |
| contradicted: a count was above the known or below the certain ones | two counts agree |
| unexplained: contradicted again after the log was read again | two counts equal the certain ones |

Certain subscriptions exist only if the broker logs the ends of sessions. Until a line about a
connection arrives (`log_type notice` or `connection_messages` may be off), clients may have left
without a line, and a count equal to the certain ones proves nothing.
"""

import re
from collections.abc import Iterable
from enum import Enum

from hansa.errors import InvalidTopic
from hansa.observers.base import (
    FilterCounts,
    FilterNotAnnounced,
    ObserverFinding,
    SubscriptionCountMismatch,
)
from hansa.observers.mosquitto.log import CUT_MARK, SessionMode
from hansa.observers.mosquitto.subscription_tree import SubscriptionTree
from hansa.protocol.topics import check_filter, is_local_only, split_share

SUBSCRIPTIONS_MAX = 1 << 20
"""Filters of all sessions together; more are ignored, and the table is incomplete."""

SESSIONS_MAX = 1 << 18
"""Sessions without filters that are known by id; this only matters for ids that contain spaces."""

UNKNOWN_CLIENT = ""
"""The session of subscriptions whose client is unknown; no client has this id."""

_UNKNOWN_GROUP = "$share//"
"""Prefix of a filter shared by an unknown group."""

COUNTS_AFTER_CONTRADICTION = 2
"""Consecutive counts that must agree after a contradiction."""

UNCONFIRMED = "the broker's counters have not confirmed yet that every subscription is known"

_AGENT_SESSION = re.compile(r"hansa-[0-9a-f]{16}-agent")
"""Client id of an agent: of this one, or of one that it replaces, whose session still exists."""

_BROKEN_CHARACTER = "\ufffd"


class SubscriptionKind(Enum):
    """Kinds that the broker counts separately."""

    PLAIN = "subscriptions"
    SHARED = "shared subscriptions"


class TakeoverState(Enum):
    """Whether the end of a connection that was taken over may still be logged."""

    NONE = "no"
    END_PENDING = "yes"
    END_LOGGED = "one end was logged, the other's or its own"
    END_PENDING_AFTER_RECONNECT = (
        "yes: the one that was logged was its own, for it has connected again"
    )


class _ClientSession:
    __slots__ = ("address", "filters", "is_online", "is_own", "mode", "takeover")

    def __init__(self, is_own: bool) -> None:
        self.is_own = is_own
        self.filters: dict[str, bool] = {}
        """Filters, each with whether it is certain."""
        self.takeover = TakeoverState.NONE
        self.reset_connection()

    def reset_connection(self) -> None:
        """Forget the connection."""
        self.mode = SessionMode.UNKNOWN
        self.address: str | None = None
        self.is_online = False


class SessionTable:
    """All sessions of a broker."""

    def __init__(self, own_prefix: str) -> None:
        """Clients whose id starts with the prefix are the agent's own."""
        self._own_prefix = own_prefix
        self._sessions: dict[str, _ClientSession] = {}
        self._certain = dict.fromkeys(SubscriptionKind, 0)
        self._uncertain = dict.fromkeys(SubscriptionKind, 0)
        self._gap_reasons: dict[SubscriptionKind, dict[str, None]] = {}
        """Why subscriptions may exist that were not logged, in the order of the reasons."""
        self._unconfirmed: dict[SubscriptionKind, int] = {}
        """Counts that still have to agree."""
        self._missing: dict[SubscriptionKind, int] = {}
        """After a contradiction: by how many the last count was above the known subscriptions."""
        self._unexplained: dict[SubscriptionKind, None] = {}
        self._is_reread: dict[SubscriptionKind, None] = {}
        """Kinds whose contradiction caused the log to be read again."""
        self.needs_proof = False
        """Whether the broker has subscriptions that it never logs, such as those of its own
        bridges. Uncertain ones then do not explain a count above the certain ones."""
        self.shows_connections = False
        """Whether a line about a connection arrived: then the ends of sessions are logged."""
        self.knows_all_clients = False
        """Whether every connected client is in the table. Otherwise a line with spaces may be about
        a client that connected before the log began."""
        self._has_truncated_filters = False
        self.filter_counts = FilterCounts()
        self.findings: list[ObserverFinding] = []
        self.truncated_count = 0
        """Subscribed filters of which only the beginning is known."""
        self.mark_all_uncertain("what was subscribed before the observer came is unknown")

    def __contains__(self, client: object) -> bool:
        return client in self._sessions

    @property
    def incomplete_reason(self) -> str:
        """Why filters may be missing; empty if none can be."""
        for kind, missing in self._missing.items():
            if missing:
                return f"the broker counts {missing} {kind.value} that the agent does not know"
        for reasons in self._gap_reasons.values():
            return [*reasons][-1]
        if self.truncated_count:
            return "filters that are too long for a line of the log"
        return UNCONFIRMED if self._unconfirmed else ""

    @property
    def has_gap(self) -> bool:
        """Whether subscriptions may exist that were not logged, apart from counts."""
        return bool(self._gap_reasons)

    @property
    def gap_reasons(self) -> frozenset[str]:
        return frozenset(reason for reasons in self._gap_reasons.values() for reason in reasons)

    def count_by_certainty(self, kind: SubscriptionKind) -> tuple[int, int]:
        """Return the numbers of certain and uncertain subscriptions."""
        return self._certain[kind], self._uncertain[kind]

    def filters_by_client(self) -> dict[str, list[str]]:
        """Return the filters of each session, sorted."""
        return {
            client: sorted(session.filters)
            for client, session in sorted(self._sessions.items())
            if session.filters
        }

    def is_own(self, client: str) -> bool:
        """Whether a client is one of the agent's own."""
        return client.startswith(self._own_prefix)

    # ------------------------------------------------------------ events of a session

    def on_connected(self, client: str, mode: SessionMode, is_clean: bool, address: str) -> None:
        """A client connected: its previous subscriptions are gone, kept, or uncertain."""
        self.shows_connections = True
        session = self._sessions.get(client)
        if session is None:
            if len(self._sessions) >= SESSIONS_MAX:
                self.knows_all_clients = False
                return
            session = self._add_session(client)
        elif is_clean or session.mode is SessionMode.CLEAN:
            self._remove_filters(session)
        elif session.mode is not SessionMode.PERSISTENT:
            self._mark_uncertain(session)
        if session.takeover is TakeoverState.END_LOGGED:
            session.takeover = TakeoverState.END_PENDING_AFTER_RECONNECT
        if session.is_own and is_clean:
            mode = SessionMode.CLEAN  # the agent requests no session expiry with a clean start
        elif not is_clean and _AGENT_SESSION.fullmatch(client):
            mode = SessionMode.PERSISTENT  # agents always request an expiry, and its end is logged
        session.mode, session.address, session.is_online = mode, address, True

    def on_possibly_connected(self, client: str) -> None:
        """This client, or another one, connected: nothing is known about its session any more."""
        session = self._sessions.get(client)
        if session is None:
            if len(self._sessions) >= SESSIONS_MAX:
                self.knows_all_clients = False
                return
            session = self._add_session(client)
        self._mark_uncertain(session)
        session.reset_connection()
        session.takeover = TakeoverState.END_PENDING
        session.is_online = True

    def on_subscribed(self, client: str, topic_filter: str, is_certain: bool = True) -> None:
        """The broker granted a subscription."""
        session = self._sessions.get(client) or self._add_session(client)
        kind = subscription_kind(topic_filter)
        before = session.filters.get(topic_filter)
        if before is None:
            if sum(self._certain.values()) + sum(self._uncertain.values()) >= SUBSCRIPTIONS_MAX:
                self.mark_incomplete(f"there are more than {SUBSCRIPTIONS_MAX} subscriptions")
                return
            self._add_interest(session, topic_filter)
        else:
            self._count(kind, before, -1)
            is_certain = is_certain or before
        session.filters[topic_filter] = is_certain
        self._count(kind, is_certain, 1)

    def on_unsubscribed(self, readings: Iterable[tuple[str, str]], is_certain: bool = True) -> None:
        """A client unsubscribed from a filter. If two filters may be meant, or another client, it
        becomes uncertain."""
        candidates = [
            (client, name)
            for client, text in readings
            for name in self._matching_filters(client, text)
        ]
        for client, name in candidates:
            session = self._sessions[client]
            if len(candidates) > 1 or not is_certain:
                self._set_certainty(session, name, False)
            else:
                self._remove_filter(session, name)
                self._remove_if_idle(client)

    def on_taken_over(self, client: str) -> None:
        """A connected client connects again; its next line shows how.

        This also reports the end of the old connection, but for websockets the end is logged again
        when the old socket closes, which is after the new connection.
        """
        if client in self._sessions:
            self._sessions[client].takeover = TakeoverState.END_PENDING

    def on_disconnected(self, client: str, address: str | None, is_certain: bool) -> None:
        """A connection ended. Its filters end with it only if both facts are certain."""
        self.shows_connections = True
        session = self._sessions.get(client)
        if session is None or (address and session.address and address != session.address):
            return  # of a refused client, or of an earlier connection
        if address is None and session.takeover in (
            TakeoverState.END_PENDING,
            TakeoverState.END_PENDING_AFTER_RECONNECT,
        ):
            is_certain = False
        session.takeover = (
            TakeoverState.END_LOGGED
            if session.takeover is TakeoverState.END_PENDING
            else TakeoverState.NONE
        )
        session.is_online = session.is_online and not is_certain
        if session.mode is SessionMode.CLEAN and is_certain:
            self._remove_filters(session)
        elif session.mode is not SessionMode.PERSISTENT:
            self._mark_uncertain(session)
        self._remove_if_idle(client)

    def on_session_expired(self, client: str, is_certain: bool = True) -> None:
        session = self._sessions.get(client)
        if session is not None and not is_certain:
            self._mark_uncertain(session)
        elif session is not None:
            del self._sessions[client]
            self._remove_filters(session)

    def reset_connection(self, client: str) -> None:
        """Forget the connection of a client."""
        if client in self._sessions:
            self._sessions[client].reset_connection()

    def set_plain_filters(self, client: str, filters: Iterable[str]) -> None:
        """Set the plain filters of a session; they are certain."""
        names = dict.fromkeys(filters)
        session = self._sessions.get(client) or self._add_session(client)
        for name in [name for name in _plain_filters(session) if name not in names]:
            self._remove_filter(session, name)
        for name in names:
            self.on_subscribed(client, name)
        self._remove_if_idle(client)

    # ------------------------------------------------------------ what is known of all

    def mark_all_uncertain(self, reason: str) -> None:
        """Lines were missed: everything known is uncertain, and more may exist."""
        for session in self._sessions.values():
            self._mark_uncertain(session)
            session.reset_connection()
        self.shows_connections = False
        self.knows_all_clients = False
        self._gap_reasons = {kind: {reason: None} for kind in SubscriptionKind}
        self._require_counts(1)

    def mark_incomplete(self, reason: str) -> None:
        """A filter may be missing."""
        for kind in SubscriptionKind:
            self._gap_reasons.setdefault(kind, {})[reason] = None
        self._require_counts(1)

    def close_gap(self, reason: str) -> None:
        """This reason does not hold any more; the counts have to confirm it."""
        for kind, reasons in list(self._gap_reasons.items()):
            reasons.pop(reason, None)
            if not reasons:
                del self._gap_reasons[kind]

    def mark_complete(self) -> None:
        """The log seems to show everything; the counts have to confirm it."""
        self._gap_reasons.clear()
        self._require_counts(1)

    def doubt_all(self) -> None:
        """Everything known is uncertain; nothing else can exist."""
        for session in self._sessions.values():
            self._mark_uncertain(session)

    def note_reread(self) -> None:
        """The log was read again: a count above the known subscriptions is still unexplained."""
        self._is_reread.update(dict.fromkeys(self._missing))

    def confirm(self) -> None:
        """Confirm the table: by a recent count, or because the broker publishes no counts and
        its log has no gap. Only counts can settle a contradiction."""
        if not self._missing:
            self._gap_reasons.clear()
            self._unconfirmed.clear()

    def _require_counts(self, number: int) -> None:
        for kind in SubscriptionKind:
            self._unconfirmed[kind] = max(self._unconfirmed.get(kind, 0), number)

    def on_broker_started(self) -> None:
        """The broker started: sessions that were not persisted are gone, the others offline."""
        for client, session in list(self._sessions.items()):
            if session.mode is SessionMode.CLEAN:
                self._remove_filters(session)
            self._mark_uncertain(session)
            session.reset_connection()
            self._remove_if_idle(client)

    def apply_tree(self, tree: SubscriptionTree) -> None:
        """Replace everything by a printed tree. Of shared subscriptions it only shows the
        filters."""
        for client in {**dict.fromkeys(self._sessions), **dict.fromkeys(tree.filters)}:
            self.set_plain_filters(client, tree.filters.get(client, ()))
        self._close_gap(SubscriptionKind.PLAIN)
        self._apply_shared(tree)

    def _apply_shared(self, tree: SubscriptionTree) -> None:
        known: set[str] = set()
        shared_filters = {*tree.shared, *tree.possibly_shared}
        for client, session in list(self._sessions.items()):
            for name in [
                name
                for name in session.filters
                if subscription_kind(name) is SubscriptionKind.SHARED
            ]:
                plain = split_share(name)[1]
                if plain in shared_filters:
                    known.add(plain)
                else:
                    self._remove_filter(session, name)
            self._remove_if_idle(client)
        # An inner level may have a shared subscription, too: one filter too many is better than one
        # too few.
        unknown = [path for path in (*tree.shared, *tree.possibly_shared) if path not in known]
        for path in unknown:
            self.on_subscribed(UNKNOWN_CLIENT, _UNKNOWN_GROUP + path, is_certain=False)
        if unknown:
            self._gap_reasons[SubscriptionKind.SHARED] = {
                "the groups of some shared subscriptions are unknown": None
            }
        elif not shared_filters:
            self._close_gap(SubscriptionKind.SHARED)

    def _close_gap(self, kind: SubscriptionKind) -> None:
        """The broker listed all subscriptions; only a contradiction still needs counts."""
        self._gap_reasons.pop(kind, None)
        if kind not in self._missing:
            self._unconfirmed.pop(kind, None)

    # ------------------------------------------------------------ the broker's counts

    def reconcile_count(self, kind: SubscriptionKind, counted: int) -> None:
        """Compare with the number of subscriptions of a kind that the broker has now."""
        if counted < self._certain[kind]:  # a disconnected session may end without a line
            for session in self._sessions.values():
                if not session.is_online:
                    self._mark_uncertain(session)
        certain, doubtful = self.count_by_certainty(kind)
        known = certain + doubtful
        if counted < certain:
            self._contradict(kind, known, counted)
            self.mark_all_uncertain(
                "the broker has fewer subscriptions than it logged: lines were lost"
            )
        elif counted == certain and not self._may_miss_ends():
            self._resolve_uncertain(kind, exist=False)
            self._agree(kind)
        elif counted > known:
            self._contradict(kind, known, counted)
        elif kind not in self._gap_reasons and not (self.needs_proof or kind in self._unexplained):
            if counted == known:
                self._resolve_uncertain(kind, exist=True)
            self._agree(kind)

    def _may_miss_ends(self) -> bool:
        """Whether clients with certain subscriptions may have left without a line."""
        return not self.shows_connections and any(
            not session.is_own and any(session.filters.values())
            for session in self._sessions.values()
        )

    def _contradict(self, kind: SubscriptionKind, known: int, counted: int) -> None:
        missing = max(counted - known, 0)
        if kind in self._is_reread:
            self._unexplained[kind] = None
        if self._missing.get(kind) != missing:
            self.findings.append(SubscriptionCountMismatch(kind.value, known, counted))
            self._is_reread.pop(kind, None)
        self._missing[kind] = missing
        self._unconfirmed[kind] = COUNTS_AFTER_CONTRADICTION

    def _agree(self, kind: SubscriptionKind) -> None:
        """Note that a count agrees; one is enough unless one disagreed before."""
        left = self._unconfirmed.get(kind, 0) - 1
        if left > 0:
            self._unconfirmed[kind] = left
            self._missing[kind] = 0
            return
        for table in (self._unconfirmed, self._missing, self._unexplained, self._is_reread):
            table.pop(kind, None)
        self._gap_reasons.pop(kind, None)

    def _resolve_uncertain(self, kind: SubscriptionKind, exist: bool) -> None:
        """Make uncertain subscriptions certain, or remove them."""
        if not self._uncertain[kind]:
            return
        for client, session in list(self._sessions.items()):
            for name, is_certain in list(session.filters.items()):
                if not is_certain and subscription_kind(name) is kind:
                    if exist:
                        self._set_certainty(session, name, True)
                    else:
                        self._remove_filter(session, name)
            self._remove_if_idle(client)

    # ------------------------------------------------------------ one filter of one session

    def _add_session(self, client: str) -> _ClientSession:
        session = self._sessions[client] = _ClientSession(self.is_own(client))
        return session

    def _remove_if_idle(self, client: str) -> None:
        session = self._sessions[client]
        if not session.filters and not session.is_online:
            del self._sessions[client]

    def _remove_filters(self, session: _ClientSession) -> None:
        for name in list(session.filters):
            self._remove_filter(session, name)

    def _mark_uncertain(self, session: _ClientSession) -> None:
        for name in session.filters:
            self._set_certainty(session, name, False)

    def _set_certainty(self, session: _ClientSession, name: str, is_certain: bool) -> None:
        kind = subscription_kind(name)
        self._count(kind, session.filters[name], -1)
        session.filters[name] = is_certain
        self._count(kind, is_certain, 1)

    def _remove_filter(self, session: _ClientSession, name: str) -> None:
        self._count(subscription_kind(name), session.filters.pop(name), -1)
        self._remove_interest(session, name)

    def _count(self, kind: SubscriptionKind, is_certain: bool, by: int) -> None:
        counts = self._certain if is_certain else self._uncertain
        counts[kind] += by

    def _add_interest(self, session: _ClientSession, name: str) -> None:
        """Announce a client's filter, if possible."""
        if name.endswith(CUT_MARK):
            self._has_truncated_filters = True
        if session.is_own or is_local_only(name):
            return
        plain = name.removeprefix(_UNKNOWN_GROUP)
        if name.endswith(CUT_MARK):
            self.truncated_count += 1
        elif plain in self.filter_counts or self._is_announceable(plain):
            self.filter_counts.add(plain)

    def _remove_interest(self, session: _ClientSession, name: str) -> None:
        if session.is_own or is_local_only(name):
            return
        plain = name.removeprefix(_UNKNOWN_GROUP)
        if name.endswith(CUT_MARK):
            self.truncated_count -= 1
        elif plain in self.filter_counts:
            self.filter_counts.remove(plain)

    def _is_announceable(self, topic_filter: str) -> bool:
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            self.findings.append(FilterNotAnnounced(topic_filter, str(error)))
            return False
        return True

    def _matching_filters(self, client: str, text: str) -> list[str]:
        """Return the filters of a session that a text from the log may mean."""
        filters = self._sessions[client].filters
        if text in filters:
            return [text]
        if not self._has_truncated_filters and not text.endswith(CUT_MARK):
            return []
        readable_text = _readable_part(text)
        return [
            name
            for name in filters
            if (name.endswith(CUT_MARK) and readable_text.startswith(_readable_part(name)))
            or (text.endswith(CUT_MARK) and name.startswith(readable_text))
        ]


def subscription_kind(topic_filter: str) -> SubscriptionKind:
    """Return the count to which the broker adds a subscription."""
    return SubscriptionKind.SHARED if topic_filter.startswith("$share/") else SubscriptionKind.PLAIN


def _plain_filters(session: _ClientSession) -> list[str]:
    return [name for name in session.filters if subscription_kind(name) is SubscriptionKind.PLAIN]


def _readable_part(text: str) -> str:
    """Return the reliable part of a text that may be truncated, even within a character."""
    return (
        text.removesuffix(CUT_MARK).rstrip(_BROKEN_CHARACTER) if text.endswith(CUT_MARK) else text
    )
