"""When this node speaks as a core: its sequence number, and the least time between announcements.

Also when it begins to lead the management group: it needs no claim for that, but waits until news
of nodes has settled, so that a starting federation does not hear every node announce itself.
"""

from hansa.protocol.deadlines import earliest
from hansa.protocol.settings import ProtocolSettings


class Pulpit:
    """The place from which one node announces itself."""

    def __init__(self, settings: ProtocolSettings) -> None:
        """Start silent."""
        self._gap = settings.announce_gap
        self._settle = settings.settle_delay
        self.seq = 0
        self.manages = False
        """Whether this node leads the management group, and says so."""
        self._spoke_at = float("-inf")
        self._due: float | None = None
        self._manage_due: float | None = None

    def announce_soon(self, now: float) -> None:
        """Something is to be announced: now, or when the gap since the last time allows it."""
        if self._due is None:
            self._due = max(now, self._spoke_at + self._gap)

    def is_due(self, now: float) -> bool:
        """Whether to announce now."""
        return self._due is not None and now >= self._due

    def speak(self, now: float) -> int:
        """Return the sequence number of the announcement that is made now."""
        self._due, self._spoke_at = None, now
        self.seq += 1
        return self.seq

    def outrun(self, seq: int, now: float) -> None:
        """An announcement of this node that it did not make has a higher number: the next one must
        have a higher one still, and is due soon."""
        self.seq = max(self.seq, seq)
        self.announce_soon(now)

    def silent_since(self, then: float) -> bool:
        """Whether the last announcement is at least that old."""
        return self._spoke_at <= then

    def note_manager(self, leads: bool, now: float) -> None:
        """This node is the best in reach, or is not; the reach has just changed."""
        if not leads:
            self.manages, self._manage_due = False, None
        elif not self.manages:
            self._manage_due = now + self._settle

    def take_lead(self, now: float) -> bool:
        """Whether this node begins to lead the management group now."""
        if self._manage_due is None or now < self._manage_due:
            return False
        self.manages, self._manage_due = True, None
        return True

    def next_deadline(self) -> float | None:
        """When `is_due` or `take_lead` must be asked again."""
        return earliest(self._due, self._manage_due)
