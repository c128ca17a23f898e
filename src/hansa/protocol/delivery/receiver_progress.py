"""What a node owes to one receiver, and what it knows of who has what."""

from hansa.protocol.wire.frames import Receipt


class ReceiverProgress:
    """What is owed to one receiver."""

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
        "unheard_since",
    )

    def __init__(
        self,
        last_assigned: int,
        retry_interval: float,
        acknowledged: int = 0,
        unheard_since: int = 0,
    ) -> None:
        """Owe everything up to a position, but for what was acknowledged."""
        self.unheard_since = unheard_since
        """The first position that it cannot have; 0 if it has said what it has."""
        self.last_receipt: Receipt | None = None
        """By which it said so, until that is safe."""
        self.first_pending = acknowledged + 1
        """Before this one it has all that it was owed."""
        self.last_assigned = last_assigned
        self.last_committed = last_assigned
        """The newest of them that is safe in the journal."""
        self.acknowledged = acknowledged
        self.retry_interval = retry_interval
        self.remind_at: float | None = None
        self.transfer_until = 0.0
        """Until then a large publication may be on its way …"""
        self.transfer_upto = 0
        """… with this position."""
        self.is_reading_journal = False
        self.repaired_upto = 0
        self.repair_until = 0.0
        """Until then a large answer, up to that position, may be on its way."""
