"""Announcements of this node as a core: sequence number and minimum interval.

Also the claim of the management group: it needs no record, but a node waits until the known nodes
have not changed for a while, so that not every node of a starting federation announces itself.
"""

from hansa.protocol.deadlines import earliest
from hansa.protocol.settings import ProtocolSettings


class Announcer:
    """Schedules the announcements of one node."""

    def __init__(self, settings: ProtocolSettings) -> None:
        self._interval_min = settings.announcement_interval_min
        self._management_claim_delay = settings.management_claim_delay
        self.sequence = 0
        self.is_management_core = False
        """Whether this node announces itself as core of the management group."""
        self._announced_at = float("-inf")
        self._due: float | None = None
        self._management_due: float | None = None

    def schedule_announcement(self, now: float) -> None:
        """Announce now, or when the minimum interval since the last time has passed."""
        if self._due is None:
            self._due = max(now, self._announced_at + self._interval_min)

    def is_due(self, now: float) -> bool:
        return self._due is not None and now >= self._due

    def start_announcement(self, now: float) -> int:
        """Return the sequence number of the announcement that is made now."""
        self._due, self._announced_at = None, now
        self.sequence += 1
        return self.sequence

    def raise_sequence(self, sequence: int, now: float) -> None:
        """Another announcement in this node's name has a higher number: use a higher one still, and
        announce soon."""
        self.sequence = max(self.sequence, sequence)
        self.schedule_announcement(now)

    def is_silent_since(self, then: float) -> bool:
        """Whether the last announcement is at least that old."""
        return self._announced_at <= then

    def update_management_core(self, is_best: bool, now: float) -> None:
        """This node is, or is not, the best reachable node; the reachable nodes have just
        changed."""
        if not is_best:
            self.is_management_core, self._management_due = False, None
        elif not self.is_management_core:
            self._management_due = now + self._management_claim_delay

    def claim_management_if_due(self, now: float) -> bool:
        """Whether this node becomes core of the management group now."""
        if self._management_due is None or now < self._management_due:
            return False
        self.is_management_core, self._management_due = True, None
        return True

    def next_deadline(self) -> float | None:
        """When `is_due` or `claim_management_if_due` must be asked again."""
        return earliest(self._due, self._management_due)
