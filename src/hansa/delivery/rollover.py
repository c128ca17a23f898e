"""Epoch rollover: a log of a new epoch replaces one that is a restored copy.

    schedule → delay → plan → build (repeated while the disk is full) → adopt → remove ended epochs
    `is_pending` ────────────────────────────────────────────────────┤
               `is_copying` ────────────────────────────────────────┤

The new log holds the publications that receivers have not acknowledged, in the old order with new
positions, and the redelivery candidates. The shell builds it in a temporary place and then puts it
in place at once: before that the old log counts, after it the new one, whatever crashes.

While a rollover is pending, capture postpones what the broker sends: the in-flight window bounds
it. While the log is copied, changes of the old one would be lost: lost sessions and expired nodes
are applied again to the new one; progress of receivers is not recorded, because the new epoch
starts without any.
"""

from collections.abc import Callable

from hansa.delivery.context import Context
from hansa.delivery.rollover_plan import RolloverPlan
from hansa.protocol.model import NodeId


class Rollover:
    """The rollover of one outbox, with everything that waits for it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_epoch = 0
        self._due = 0.0
        self.plan: RolloverPlan | None = None
        """The plan that is being carried out."""
        self.is_pending = False
        """Whether a rollover is scheduled or running, or postponed steps wait for the node."""
        self._adopted_epoch: int | None = None
        """The epoch of the new log, until the node knows it."""
        self._retry_at: float | None = None
        self._postponed: list[Callable[[], None]] = []
        self._deferred: dict[NodeId | None, Callable[[], None]] = {}

    @property
    def is_copying(self) -> bool:
        """Whether changes of the old log would be lost."""
        return self.plan is not None

    @property
    def deadline(self) -> float | None:
        if self.plan is not None:
            return self._retry_at
        if self._adopted_epoch is not None:
            return self._context.now
        return self._due if self.is_pending else None

    def schedule(self, epoch: int, delay_s: float) -> None:
        """Start a rollover to at least `epoch` after a delay, or bring a pending one forward."""
        self._next_epoch = max(self._next_epoch, epoch)
        due = self._context.now + delay_s
        self._due = min(self._due, due) if self.is_pending else due
        self.is_pending = True

    def epoch_if_due(self) -> int | None:
        """Return the number of the epoch that has to be planned now."""
        is_scheduled = self.is_pending and self.plan is None
        return self._next_epoch if is_scheduled and self._context.now >= self._due else None

    def plan_if_retry_due(self) -> RolloverPlan | None:
        """Return the plan to build again after a failure, if its pause has passed."""
        if self._retry_at is None or self._context.now < self._retry_at:
            return None
        self._retry_at = None
        return self.plan

    def retry_after(self, seconds: float) -> None:
        self._retry_at = self._context.now + seconds

    def finish(self) -> RolloverPlan:
        """The new log is in place; return its plan. Postponed steps need positions of the new
        epoch, so they wait until the node knows it: until the next timer."""
        assert self.plan is not None
        plan, self.plan = self.plan, None
        self._adopted_epoch = plan.epoch
        return plan

    def postpone(self, step: Callable[[], None]) -> None:
        """Handle something that the broker sent after the rollover."""
        self._postponed.append(step)

    def clear_postponed(self) -> None:
        """Forget what the broker sent: it sends it again on the next connection."""
        self._postponed.clear()

    def run_postponed(self) -> None:
        """Handle what the broker sent meanwhile, once the node knows the new epoch. A rollover that
        was requested after the adoption follows."""
        if self._adopted_epoch is None:
            return
        self.is_pending = self._next_epoch > self._adopted_epoch
        self._adopted_epoch = None
        postponed, self._postponed = self._postponed, []
        for step in postponed:
            step()

    def defer_session_start(self, change: Callable[[], None]) -> None:
        """Record a new session in the new log, too; several sessions need one record."""
        self._deferred[None] = change

    def defer_expiry(self, node: NodeId, change: Callable[[], None]) -> None:
        """Remove a receiver from the new log."""
        self._deferred[node] = change

    def apply_deferred(self) -> None:
        """Apply the deferred changes to the new log."""
        deferred, self._deferred = self._deferred, {}
        for change in deferred.values():
            change()
