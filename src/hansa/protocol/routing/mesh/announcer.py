"""When this node speaks as a core: its sequence number, and the least time between announcements.

Also when it begins to lead the management group: it needs no claim for that, but waits until news
of nodes has settled, so that a starting federation does not hear every node announce itself.
"""

from hansa.protocol.deadlines import earliest
from hansa.protocol.settings import ProtocolSettings


class Announcer:
    """The place from which one node announces itself."""

    def __init__(self, settings: ProtocolSettings) -> None:
        """Start silent."""
        self._interval_min = settings.announcement_interval_min
        self._management_claim_delay = settings.management_claim_delay
        self.seq = 0
        self.is_management_core = False
        """Whether this node leads the management group, and says so."""
        self._announced_at = float("-inf")
        self._due: float | None = None
        self._management_due: float | None = None

    def schedule_announcement(self, now: float) -> None:
        """Something is to be announced: now, or when the gap since the last time allows it."""
        if self._due is None:
            self._due = max(now, self._announced_at + self._interval_min)

    def is_due(self, now: float) -> bool:
        """Whether to announce now."""
        return self._due is not None and now >= self._due

    def start_announcement(self, now: float) -> int:
        """Return the sequence number of the announcement that is made now."""
        self._due, self._announced_at = None, now
        self.seq += 1
        return self.seq

    def outrun(self, seq: int, now: float) -> None:
        """An announcement of this node that it did not make has a higher number: the next one must
        have a higher one still, and is due soon."""
        self.seq = max(self.seq, seq)
        self.schedule_announcement(now)

    def is_silent_since(self, then: float) -> bool:
        """Whether the last announcement is at least that old."""
        return self._announced_at <= then

    def update_management_core(self, leads: bool, now: float) -> None:
        """This node is the best in reach, or is not; the reach has just changed."""
        if not leads:
            self.is_management_core, self._management_due = False, None
        elif not self.is_management_core:
            self._management_due = now + self._management_claim_delay

    def claim_management_if_due(self, now: float) -> bool:
        """Whether this node begins to lead the management group now."""
        if self._management_due is None or now < self._management_due:
            return False
        self.is_management_core, self._management_due = True, None
        return True

    def next_deadline(self) -> float | None:
        """When `is_due` or `take_lead` must be asked again."""
        return earliest(self._due, self._management_due)
