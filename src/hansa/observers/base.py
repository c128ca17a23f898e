"""The interface of observers: which filters a broker's clients are subscribed to, and whether that
is all.

Missing interest loses messages; excess interest only costs traffic. So every observer keeps these
rules, which `tests/observers/test_conformance.py` checks for each of them:

1. If `is_complete`, every subscription at the broker is in `subscribed_filters`: of connected
   clients and of persistent sessions. Proof is a list or a count of the broker, or a declaration of
   the operator. Without proof it is not complete, and `incomplete_reason` says why.
2. In doubt a filter stays: `subscribed_filters` may be a superset.
3. Subscriptions of the agent's own clients are excluded, and filters of `$` topics except
   `$share/<group>/<filter>`. Refused subscriptions do not count.
4. Each change of `subscribed_filters` is in exactly one output, and so is each change of
   `is_complete` (a finding).
5. Filters restored from a snapshot stay until the broker confirms or corrects them.
6. Everything that grows has a bound; an observer that reaches it is not complete.
7. Nothing that a broker or a client sends raises an exception.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

ObserverSnapshot: TypeAlias = dict[str, object]
"""State of an observer as JSON values."""

# ---------------------------------------------------------------- findings


@dataclass(frozen=True, slots=True)
class ObservationIncomplete:
    """Filters may be missing from now on: a resync is due, and the operator should know."""

    reason: str


@dataclass(frozen=True, slots=True)
class ObservationComplete:
    """Every subscribed filter is known from now on."""


@dataclass(frozen=True, slots=True)
class SubscriptionCountMismatch:
    """The broker's own count of subscriptions contradicts the observed one."""

    kind: str
    known: int
    counted: int


@dataclass(frozen=True, slots=True)
class BridgeDetected:
    """The broker has a bridge: if it leads to another federated broker, messages will loop."""

    name: str
    is_up: bool


@dataclass(frozen=True, slots=True)
class LineNotUnderstood:
    """A message that the observer should understand and does not; counted."""

    line: str
    reason: str


@dataclass(frozen=True, slots=True)
class FilterNotAnnounced:
    """A client subscribed to a filter that cannot be announced; counted and ignored."""

    topic_filter: str
    reason: str


@dataclass(frozen=True, slots=True)
class OversizedPublicationSkipped:
    """The broker did not send the agent a publication larger than the agent accepts."""

    size: int


@dataclass(frozen=True, slots=True)
class BrokerDroppedPublications:
    """The broker dropped messages for slow clients, possibly for the agent."""

    count: int
    total: int
    """Since the broker started."""


@dataclass(frozen=True, slots=True)
class ResyncFailed:
    """The history is not usable; nothing of it was applied."""

    reason: str


ObserverFinding = (
    ObservationIncomplete
    | ObservationComplete
    | SubscriptionCountMismatch
    | BridgeDetected
    | LineNotUnderstood
    | FilterNotAnnounced
    | OversizedPublicationSkipped
    | BrokerDroppedPublications
    | ResyncFailed
)


@dataclass(frozen=True, slots=True)
class ObserverOutput:
    """Result of an input: changed filters for the node, findings for the operator."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    findings: tuple[ObserverFinding, ...] = ()


NO_CHANGE = ObserverOutput()


class Observer(Protocol):
    """A source of the subscriptions at a broker.

    The shell calls `restore` once, before anything else, if there is a snapshot; `on_connected`
    whenever the connection for `topics_to_subscribe` is up, before it subscribes;
    `receive_publication` for each publication on this connection, in order; `handle_timer` at
    `next_deadline`.
    """

    @property
    def is_complete(self) -> bool:
        """Whether every subscribed filter is known."""

    @property
    def incomplete_reason(self) -> str:
        """Why it is not complete, for the operator; empty if it is."""

    @property
    def is_confirmation_pending(self) -> bool:
        """Whether it is incomplete only because the broker's next counters have to confirm it."""
        return False

    def topics_to_subscribe(self) -> tuple[str, ...]:
        """Return the topics to subscribe to: at QoS 0, in one SUBSCRIBE, in this order."""
        return ()

    def extra_subscriptions(self) -> tuple[str, ...]:
        """Return further topics to subscribe to on this connection, at QoS 0."""
        return ()

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the subscribed filters, sorted."""

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Note a new connection: earlier changes were missed.

        `session_lost` says that the broker has no previous session of this client, as with clean
        start.
        """
        return NO_CHANGE

    def receive_publication(self, topic: str, payload: bytes, now: float) -> ObserverOutput:
        """Process one publication."""
        return NO_CHANGE

    def handle_timer(self, now: float) -> ObserverOutput:
        """Expire what was valid for a limited time."""
        return NO_CHANGE

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due; None if never."""
        return None

    def begin_resync(self, now: float) -> None:
        """Buffer further input, for `resync` to apply again.

        Called before the history is read: a change that happens meanwhile is then in the history,
        or in the buffer, or both.
        """
        return None

    def resync(self, text: str, now: float) -> ObserverOutput:
        """Correct the state from a more complete source; each observer says which one."""
        return NO_CHANGE

    def snapshot(self) -> ObserverSnapshot:
        """Return what must survive a restart of the agent."""
        return {}

    def restore(self, saved: ObserverSnapshot, now: float) -> ObserverOutput:
        """Start from a snapshot; raise UsageError if it belongs to another observer."""
        return NO_CHANGE

    def on_snapshot_missing(self) -> None:
        """Note that an earlier incarnation was connected to the broker and saved no snapshot."""
        return None


class FilterCounts:
    """Number of subscribers of each filter, and the changes since the last call."""

    def __init__(self, was_complete: bool = False) -> None:
        """`was_complete` says whether the observer starts as complete."""
        self._was_complete = was_complete
        self._counts: dict[str, int] = {}
        self._was_subscribed: dict[str, bool] = {}

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, topic_filter: str) -> None:
        """Add one subscriber."""
        count = self._counts.get(topic_filter, 0)
        self._was_subscribed.setdefault(topic_filter, count > 0)
        self._counts[topic_filter] = count + 1

    def remove(self, topic_filter: str) -> None:
        """Remove one subscriber."""
        count = self._counts[topic_filter]
        self._was_subscribed.setdefault(topic_filter, True)
        if count > 1:
            self._counts[topic_filter] = count - 1
        else:
            del self._counts[topic_filter]

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the subscribed filters, sorted."""
        return tuple(sorted(self._counts))

    def drain_output(
        self, observer: Observer, findings: Iterable[ObserverFinding]
    ) -> ObserverOutput:
        """Return the net change since the last call, with a finding if the observer became complete
        or incomplete."""
        if observer.is_complete != self._was_complete:
            self._was_complete = observer.is_complete
            changed: ObserverFinding = (
                ObservationComplete()
                if observer.is_complete
                else ObservationIncomplete(observer.incomplete_reason)
            )
            findings = (*findings, changed)
        return self.drain_changes(findings)

    def drain_changes(self, findings: Iterable[ObserverFinding] = ()) -> ObserverOutput:
        """Return the net change since the last call."""
        before, self._was_subscribed = self._was_subscribed, {}
        if not before and not findings:
            return NO_CHANGE
        return ObserverOutput(
            tuple(f for f, was in before.items() if not was and f in self._counts),
            tuple(f for f, was in before.items() if was and f not in self._counts),
            tuple(findings),
        )
