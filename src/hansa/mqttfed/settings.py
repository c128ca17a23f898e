"""What one node of `mqtt-fed` has to know."""

from dataclasses import dataclass

LIFETIME_INTERVALS = 3
"""A beacon, an announcement and a child are good for so many of their intervals."""


@dataclass(frozen=True, slots=True)
class FedSettings:
    """All nodes should have the same intervals and redundancy."""

    node: int
    """Our id. The smaller one of two cores wins."""
    neighbours: tuple[int, ...]
    redundancy: int = 2
    """Parents at the same distance that are kept."""
    announce_interval: float = 10.0
    """Seconds between a core's announcements."""
    beacon_interval: float = 5.0
    """Seconds between two beacons of one topic."""
    seen_max: int = 65_536
    """Publications that are remembered, to cut duplicates."""
    topics_max: int = 10_000
    """Topics with a mesh; messages for more are left aside, and counted."""

    @property
    def announcement_lifetime(self) -> float:
        """Seconds until an announcement or a child is forgotten."""
        return LIFETIME_INTERVALS * self.announce_interval

    @property
    def beacon_lifetime(self) -> float:
        """Seconds until a beacon is forgotten."""
        return LIFETIME_INTERVALS * self.beacon_interval
