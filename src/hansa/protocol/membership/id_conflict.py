"""Conflict about this node's id: another record with it that is not older than its own.

The record may come from a copy of this node, from an earlier run whose incarnation was lost, or
from a forger. Without proof of identity these look the same, so none of them may stop this node or
delete its state. The node counts the record and raises its own incarnation above it, which makes
its own rows the newest again.

Two running copies would raise their incarnations in turn, as fast as records travel. So a node
waits `PAUSE_S` between two raises. The copy that started later waits `LATER_S` once an hour
instead. So the first copy keeps the id nearly all the time, until an operator has read the alarm
and stopped one of them. The start time can be forged, so the long wait is limited to once an hour.

While another record outranks its own, a node acknowledges no publications of QoS 1 and 2: a receipt
would count for both copies, and only one of them has the publication.
"""

PAUSE_S = 1.0
"""Seconds between two raises of the incarnation."""

LATER_S = 10.0
"""Seconds that a node waits if the other record says that its node started earlier."""

LATER_AGAIN_S = 3_600.0
"""Seconds until it waits that long again."""


class IdConflict:
    """Reaction of one node to foreign records with its id."""

    def __init__(self) -> None:
        self._claimed = 0
        self._since = 0.0
        self._raised_at = float("-inf")
        self._long_since = float("-inf")  # start of the conflict that had the long wait
        self.due: float | None = None
        """When to raise the incarnation; while this is set, another record outranks this node."""

    def add_foreign_record(
        self, incarnation: int, started_earlier: bool | None, now: float
    ) -> None:
        """A foreign record was received: schedule a higher incarnation. Only a node record tells
        whether the other copy started earlier; other frames of the copy may arrive before it."""
        self._claimed = max(self._claimed, incarnation)
        if self.due is None:
            self._since = now
        elif started_earlier is None:
            return
        wait = 0.0 if started_earlier is False else PAUSE_S
        if started_earlier and self._may_wait_long():
            wait, self._long_since = LATER_S, self._since
        self.due = max(self._since + wait, self._raised_at + PAUSE_S)

    def _may_wait_long(self) -> bool:
        """Whether this conflict has the long wait already, or none had it in the last hour."""
        passed = self._since - self._long_since
        return passed == 0 or passed >= LATER_AGAIN_S

    def pop_due_incarnation(self, now: float, forgotten: int | None = None) -> int | None:
        """Return an incarnation that outranks all foreign records, and the forgotten record of a
        former copy, if there is one; None if none is due."""
        due = self.due
        if due is None and forgotten is not None:
            due = self._raised_at + PAUSE_S
        if due is None or now < due:
            return None
        self.due, self._raised_at = None, now
        self._claimed = max(self._claimed, forgotten or 0)
        return self._claimed + 1
