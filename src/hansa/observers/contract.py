"""What an observer is: it says which filters a broker's clients want, and whether these are all.

Interest that is missing loses messages, interest that is too much only costs traffic. So every
observer keeps a filter when in doubt, and says `complete` only when it has a reason to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Snapshot: TypeAlias = dict[str, object]
"""What an observer learned, as plain values that JSON can hold."""

# ---------------------------------------------------------------- findings


@dataclass(frozen=True, slots=True)
class Incomplete:
    """From now on filters may be missing: a resync is due, and the operator should know."""

    reason: str


@dataclass(frozen=True, slots=True)
class Completed:
    """From now on every wanted filter is known."""


@dataclass(frozen=True, slots=True)
class Drifted:
    """The broker's own count of subscriptions contradicts what was observed."""

    kind: str
    known: int
    counted: int


@dataclass(frozen=True, slots=True)
class BridgeNoticed:
    """A bridge of the broker's own: if it leads to another federated broker, messages will loop."""

    name: str
    is_up: bool


@dataclass(frozen=True, slots=True)
class LineUnread:
    """Something arrived that the observer should understand and does not; it was counted."""

    line: str
    reason: str


@dataclass(frozen=True, slots=True)
class FilterRefused:
    """A client wants a filter that cannot be announced; it was counted and left out."""

    topic_filter: str
    reason: str


@dataclass(frozen=True, slots=True)
class PublicationWithheld:
    """The broker did not send the agent a publication that is larger than the agent takes."""

    size: int


@dataclass(frozen=True, slots=True)
class PublicationsDropped:
    """The broker has dropped messages for clients that did not take them, maybe for the agent."""

    count: int
    total: int
    """Since the broker was started."""


@dataclass(frozen=True, slots=True)
class ResyncFailed:
    """What was offered as the whole truth is not; nothing of it was taken."""

    reason: str


Finding = (
    Incomplete
    | Completed
    | Drifted
    | BridgeNoticed
    | LineUnread
    | FilterRefused
    | PublicationWithheld
    | PublicationsDropped
    | ResyncFailed
)


@dataclass(frozen=True, slots=True)
class Change:
    """What is different after an input: for the node the filters, for the operator the findings."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


UNCHANGED = Change()


class Observer(Protocol):
    """One way of learning what the clients of a broker want.

    The shell calls `restore` once, before anything else, if there is a snapshot; `reconnected`
    whenever the connection that carries `subscriptions` stands, the first time too, before it
    subscribes; `take` for each publication that this connection delivers, in order; `expire` at
    `next_deadline`.
    """

    @property
    def complete(self) -> bool:
        """Whether every filter that is wanted at the broker is known."""

    @property
    def reason(self) -> str:
        """Why it is not complete, in words for the operator; empty if it is."""

    def subscriptions(self) -> tuple[str, ...]:
        """Return what the shell must subscribe to: at QoS 0, in one SUBSCRIBE, in this order."""
        return ()

    def extra_subscriptions(self) -> tuple[str, ...]:
        """Return what the shell must subscribe to besides, on this connection, at QoS 0."""
        return ()

    def wanted(self) -> tuple[str, ...]:
        """Return, sorted, the filters that clients want now."""

    def reconnected(self, session_lost: bool, now: float) -> Change:
        """Note that the connection is new: what happened before it went by unseen.

        `session_lost` says that the broker has no session of before for it, as for a clean one.
        """
        return UNCHANGED

    def take(self, topic: str, payload: bytes, now: float) -> Change:
        """Learn from one publication."""
        return UNCHANGED

    def expire(self, now: float) -> Change:
        """Forget what was valid for a time only."""
        return UNCHANGED

    def next_deadline(self) -> float | None:
        """When `expire` is due; None if nothing is."""
        return None

    def begin_resync(self, now: float) -> None:
        """Remember what arrives from now on, for `resync` to apply once more.

        To be called before the source is read or asked for: whatever happens while that goes on
        is then in the source, or remembered, or both.
        """
        return None

    def resync(self, text: str, now: float) -> Change:
        """Correct everything from a source that knows more; each observer says which it reads."""
        return UNCHANGED

    def snapshot(self) -> Snapshot:
        """Return what must survive a restart of the agent."""
        return {}

    def restore(self, saved: Snapshot, now: float) -> Change:
        """Start from a snapshot; raise UsageError if it is none of this observer's."""
        return UNCHANGED


class Interest:
    """How many clients want each filter, and what that changed since last asked."""

    def __init__(self) -> None:
        """Start with nothing wanted."""
        self._holders: dict[str, int] = {}
        self._before: dict[str, bool] = {}

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._holders

    def __len__(self) -> int:
        return len(self._holders)

    def hold(self, topic_filter: str) -> None:
        """One client more wants it."""
        count = self._holders.get(topic_filter, 0)
        self._before.setdefault(topic_filter, count > 0)
        self._holders[topic_filter] = count + 1

    def release(self, topic_filter: str) -> None:
        """One client less wants it."""
        count = self._holders[topic_filter]
        self._before.setdefault(topic_filter, True)
        if count > 1:
            self._holders[topic_filter] = count - 1
        else:
            del self._holders[topic_filter]

    def wanted(self) -> tuple[str, ...]:
        """Return, sorted, what anybody wants."""
        return tuple(sorted(self._holders))

    def change(self, findings: Iterable[Finding] = ()) -> Change:
        """Return the net change since last asked: what came and went in between is not in it."""
        before, self._before = self._before, {}
        if not before and not findings:
            return UNCHANGED
        return Change(
            tuple(f for f, was in before.items() if not was and f in self._holders),
            tuple(f for f, was in before.items() if was and f not in self._holders),
            tuple(findings),
        )
