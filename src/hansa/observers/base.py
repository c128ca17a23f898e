"""What an observer is: it says which filters a broker's clients want, and whether these are all.

Interest that is missing loses messages, interest that is too much only costs traffic. So every
observer keeps a filter when in doubt, and says `complete` only when it has a reason to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

ObserverSnapshot: TypeAlias = dict[str, object]
"""What an observer learned, as plain values that JSON can hold."""

# ---------------------------------------------------------------- findings


@dataclass(frozen=True, slots=True)
class ObservationIncomplete:
    """From now on filters may be missing: a resync is due, and the operator should know."""

    reason: str


@dataclass(frozen=True, slots=True)
class ObservationComplete:
    """From now on every wanted filter is known."""


@dataclass(frozen=True, slots=True)
class SubscriptionCountMismatch:
    """The broker's own count of subscriptions contradicts what was observed."""

    kind: str
    known: int
    counted: int


@dataclass(frozen=True, slots=True)
class BridgeDetected:
    """A bridge of the broker's own: if it leads to another federated broker, messages will loop."""

    name: str
    is_up: bool


@dataclass(frozen=True, slots=True)
class LineNotUnderstood:
    """Something arrived that the observer should understand and does not; it was counted."""

    line: str
    reason: str


@dataclass(frozen=True, slots=True)
class FilterNotAnnounced:
    """A client wants a filter that cannot be announced; it was counted and left out."""

    topic_filter: str
    reason: str


@dataclass(frozen=True, slots=True)
class OversizedPublicationSkipped:
    """The broker did not send the agent a publication that is larger than the agent takes."""

    size: int


@dataclass(frozen=True, slots=True)
class BrokerDroppedPublications:
    """The broker has dropped messages for clients that did not take them, maybe for the agent."""

    count: int
    total: int
    """Since the broker was started."""


@dataclass(frozen=True, slots=True)
class ResyncFailed:
    """What was offered as the whole truth is not; nothing of it was taken."""

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
    """What is different after an input: for the node the filters, for the operator the findings."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    findings: tuple[ObserverFinding, ...] = ()


NO_CHANGE = ObserverOutput()


class Observer(Protocol):
    """One way of learning what the clients of a broker want.

    The shell calls `restore` once, before anything else, if there is a snapshot; `reconnected`
    whenever the connection that carries `subscriptions` stands, the first time too, before it
    subscribes; `take` for each publication that this connection delivers, in order; `expire` at
    `next_deadline`.
    """

    @property
    def is_complete(self) -> bool:
        """Whether every filter that is wanted at the broker is known."""

    @property
    def incomplete_reason(self) -> str:
        """Why it is not complete, in words for the operator; empty if it is."""

    @property
    def is_confirmation_pending(self) -> bool:
        """Whether it is incomplete only because the broker's next counters have to confirm it."""
        return False

    def topics_to_subscribe(self) -> tuple[str, ...]:
        """Return what the shell must subscribe to: at QoS 0, in one SUBSCRIBE, in this order."""
        return ()

    def extra_subscriptions(self) -> tuple[str, ...]:
        """Return what the shell must subscribe to besides, on this connection, at QoS 0."""
        return ()

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return, sorted, the filters that clients want now."""

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Note that the connection is new: what happened before it went by unseen.

        `session_lost` says that the broker has no session of before for it, as for a clean one.
        """
        return NO_CHANGE

    def receive_publication(self, topic: str, payload: bytes, now: float) -> ObserverOutput:
        """Learn from one publication."""
        return NO_CHANGE

    def handle_timer(self, now: float) -> ObserverOutput:
        """Forget what was valid for a time only."""
        return NO_CHANGE

    def next_deadline(self) -> float | None:
        """When `expire` is due; None if nothing is."""
        return None

    def begin_resync(self, now: float) -> None:
        """Remember what arrives from now on, for `resync` to apply once more.

        To be called before the source is read or asked for: whatever happens while that goes on
        is then in the source, or remembered, or both.
        """
        return None

    def resync(self, text: str, now: float) -> ObserverOutput:
        """Correct everything from a source that knows more; each observer says which it reads."""
        return NO_CHANGE

    def snapshot(self) -> ObserverSnapshot:
        """Return what must survive a restart of the agent."""
        return {}

    def restore(self, saved: ObserverSnapshot, now: float) -> ObserverOutput:
        """Start from a snapshot; raise UsageError if it is none of this observer's."""
        return NO_CHANGE

    def on_snapshot_missing(self) -> None:
        """Note that an earlier incarnation was connected to the broker and saved no snapshot."""
        return None


class FilterCounts:
    """How many clients want each filter, and what that changed since last asked."""

    def __init__(self) -> None:
        """Start with nothing wanted."""
        self._counts: dict[str, int] = {}
        self._was_subscribed: dict[str, bool] = {}

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, topic_filter: str) -> None:
        """One client more wants it."""
        count = self._counts.get(topic_filter, 0)
        self._was_subscribed.setdefault(topic_filter, count > 0)
        self._counts[topic_filter] = count + 1

    def remove(self, topic_filter: str) -> None:
        """One client less wants it."""
        count = self._counts[topic_filter]
        self._was_subscribed.setdefault(topic_filter, True)
        if count > 1:
            self._counts[topic_filter] = count - 1
        else:
            del self._counts[topic_filter]

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return, sorted, what anybody wants."""
        return tuple(sorted(self._counts))

    def drain_changes(self, findings: Iterable[ObserverFinding] = ()) -> ObserverOutput:
        """Return the net change since last asked: what came and went in between is not in it."""
        before, self._was_subscribed = self._was_subscribed, {}
        if not before and not findings:
            return NO_CHANGE
        return ObserverOutput(
            tuple(f for f, was in before.items() if not was and f in self._counts),
            tuple(f for f, was in before.items() if was and f not in self._counts),
            tuple(findings),
        )
