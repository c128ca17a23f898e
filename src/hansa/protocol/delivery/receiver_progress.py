"""What a node owes to one receiver, and what it knows of who has what."""

from hansa.protocol.wire.frames import Receipt


class Debt:
    """What is owed to one receiver."""

    __slots__ = (
        "acknowledged",
        "answered",
        "answered_until",
        "last_receipt",
        "newest",
        "oldest",
        "patience",
        "quiet_until",
        "quiet_upto",
        "recalling",
        "remind_at",
        "safe",
        "unheard_since",
    )

    def __init__(
        self, newest: int, patience: float, acknowledged: int = 0, unheard_since: int = 0
    ) -> None:
        """Owe everything up to a position, but for what was acknowledged."""
        self.unheard_since = unheard_since
        """The first position that it cannot have; 0 if it has said what it has."""
        self.last_receipt: Receipt | None = None
        """By which it said so, until that is safe."""
        self.oldest = acknowledged + 1
        """Before this one it has all that it was owed."""
        self.newest = newest
        self.safe = newest
        """The newest of them that is safe in the journal."""
        self.acknowledged = acknowledged
        self.patience = patience
        self.remind_at: float | None = None
        self.quiet_until = 0.0
        """Until then a large publication may be on its way …"""
        self.quiet_upto = 0
        """… with this position."""
        self.recalling = False
        self.answered = 0
        self.answered_until = 0.0
        """Until then a large answer, up to that position, may be on its way."""
