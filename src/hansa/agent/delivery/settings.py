"""The choices of guaranteed delivery at one agent, with what each of them trades."""

from dataclasses import dataclass

from hansa.errors import UsageError
from hansa.journal.settings import JournalSettings

SESSION_LOSS_POLICIES = ("no-loss", "no-dup")


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How publications of QoS 1 and 2 are kept and given to the broker."""

    in_flight_max: int = 1_000
    """Publications that may be under way from the broker, and to it; the broker may allow less.
    As many may come twice at QoS 1 after a crash."""
    inbox_bytes: int = 64 << 20
    """Bytes of others' publications that wait here for the broker, in memory and on disk; beyond
    them they wait at their origins."""
    session_loss_policy: str = "no-loss"
    """When the broker has lost the agent's session: no-loss sends again what was under way, no-dup
    does not."""
    retention_seconds: float = 7 * 86_400.0
    """Seconds that what clients here published is kept for nodes that are away."""
    retention_bytes: int = 4 << 30
    """Bytes of it; the oldest goes first."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not 1 <= self.in_flight_max <= 32_768:
            raise UsageError(f"window must be from 1 to 32768, not {self.in_flight_max}")
        if self.inbox_bytes < 1:
            raise UsageError(f"inbox_bytes must be at least 1, not {self.inbox_bytes}")
        if self.session_loss_policy not in SESSION_LOSS_POLICIES:
            choice = " or ".join(SESSION_LOSS_POLICIES)
            raise UsageError(
                f"session_loss_policy must be {choice}, not {self.session_loss_policy!r}"
            )
        self.outbox_settings()

    def outbox_settings(self) -> JournalSettings:
        """Return how the journal of what clients here published is kept."""
        segment = min(JournalSettings().segment_bytes, max(1, self.retention_bytes // 4))
        return JournalSettings(
            segment_bytes=segment,
            retention_seconds=self.retention_seconds,
            retention_bytes=self.retention_bytes,
        )

    def inbox_settings(self) -> JournalSettings:
        """Return how the journal of what others published is kept: its last segment tells all."""
        return JournalSettings(retention_bytes=JournalSettings().segment_bytes)
