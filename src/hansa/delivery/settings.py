"""Settings of guaranteed delivery at one agent, with the trade-off of each."""

from dataclasses import dataclass

from hansa.errors import UsageError
from hansa.journal.settings import JournalSettings

IN_FLIGHT_LIMIT = 4_096
"""Upper bound of `in_flight_max`. The agent recognises redeliveries of all publications in flight
because it remembers more of them (`RECENT_MAX`, `OVERLAP_COPIES_MAX`)."""

SESSION_LOSS_POLICIES = ("no-loss", "no-dup")


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Journals and broker handshakes of QoS 1 and 2."""

    in_flight_max: int = 1_000
    """Publications that may be in flight from the broker, and to it; the broker may allow fewer.
    After a crash as many may be duplicated at QoS 1. At most IN_FLIGHT_LIMIT."""
    inbox_bytes: int = 64 << 20
    """Bytes of other nodes' publications that wait for the broker, in memory and on disk. Above
    this, received ones are held in memory only and stay pending at their origins."""
    session_loss_policy: str = "no-loss"
    """If the broker loses the agent's session, "no-loss" sends publications in flight again, with
    the risk of duplicates; "no-dup" does not, with the risk of losses."""
    retention_seconds: float = 7 * 86_400.0
    """Seconds for which local publications are kept; for unreachable nodes at most
    `interest_lease`. Both should exceed the longest partition."""
    retention_bytes: int = 4 << 30
    """Bytes of the journal of local publications; the oldest segments are deleted first. Exceeded
    by at most one segment, because retention runs when a segment starts."""

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight_max <= IN_FLIGHT_LIMIT:
            raise UsageError(
                f"in_flight_max must be from 1 to {IN_FLIGHT_LIMIT}, not {self.in_flight_max}"
            )
        if self.inbox_bytes < 1:
            raise UsageError(f"inbox_bytes must be at least 1, not {self.inbox_bytes}")
        if self.session_loss_policy not in SESSION_LOSS_POLICIES:
            choice = " or ".join(SESSION_LOSS_POLICIES)
            raise UsageError(
                f"session_loss_policy must be {choice}, not {self.session_loss_policy!r}"
            )
        self.outbox_settings()

    def outbox_settings(self) -> JournalSettings:
        segment = min(JournalSettings().segment_bytes, max(1, self.retention_bytes // 4))
        return JournalSettings(
            segment_bytes=segment,
            retention_seconds=self.retention_seconds,
            retention_bytes=self.retention_bytes,
        )

    def inbox_settings(self) -> JournalSettings:
        """Return the settings of the inbox journal, whose state is always in the last segment."""
        return JournalSettings(retention_bytes=JournalSettings().segment_bytes)
