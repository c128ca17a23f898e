"""Progress of one receiver: positions assigned to it, committed, acknowledged and being
repaired."""

from hansa.protocol.wire.frames import Receipt


class ReceiverProgress:
    __slots__ = (
        "acknowledged",
        "repaired_upto",
        "repair_until",
        "last_receipt",
        "last_assigned",
        "first_pending",
        "retry_interval",
        "transfer_until",
        "transfer_upto",
        "is_reading_journal",
        "remind_at",
        "last_committed",
        "unreported_since",
    )

    def __init__(
        self,
        last_assigned: int,
        retry_interval: float,
        acknowledged: int = 0,
        unreported_since: int = 0,
    ) -> None:
        self.unreported_since = unreported_since
        """The first position that it cannot have; 0 once it has reported its position."""
        self.last_receipt: Receipt | None = None
        """The report, until it is durable."""
        self.first_pending = acknowledged + 1
        """It has everything before this position."""
        self.last_assigned = last_assigned
        self.last_committed = last_assigned
        """The newest position for this receiver that is durable in the journal."""
        self.acknowledged = acknowledged
        self.retry_interval = retry_interval
        self.remind_at: float | None = None
        self.transfer_until = 0.0
        """Until then a large publication may be in flight …"""
        self.transfer_upto = 0
        """… with this position."""
        self.is_reading_journal = False
        self.repaired_upto = 0
        self.repair_until = 0.0
        """Until then a large repair response, up to that position, may be in flight."""

    def assign(self, sequence: int) -> int:
        """Assign a new position; return the previous one."""
        previous = self.last_assigned
        if self.acknowledged == previous:
            self.first_pending = sequence
        self.last_assigned = sequence
        return previous

    def start_transfer(self, sequence: int, until: float) -> None:
        """A publication was sent; it should arrive by `until`."""
        if until >= self.transfer_until:
            self.transfer_until, self.transfer_upto = until, sequence

    def acknowledge(self, sequence: int) -> bool:
        """Note an acknowledged position; return whether it is progress."""
        if sequence <= self.acknowledged:
            return False
        self.acknowledged = sequence
        self.first_pending = sequence + 1
        if sequence >= self.transfer_upto:
            self.transfer_until = 0.0
        return True

    def forget_transfers(self) -> None:
        """Frames in flight may be lost: remind and repair without waiting for them."""
        self.transfer_until = self.repair_until = 0.0
