"""The settings of an `mqtt-fed` node."""

from dataclasses import dataclass

LIFETIME_INTERVALS = 3
"""Beacons, announcements and children expire after this many of their intervals."""


@dataclass(frozen=True, slots=True)
class FedSettings:
    """All nodes should have the same intervals and redundancy."""

    node: int
    """Our node id. Of two cores the smaller id wins."""
    neighbours: tuple[int, ...]
    redundancy: int = 2
    """Parents that are kept, all at the same distance."""
    announce_interval: float = 10.0
    """Seconds between a core's announcements."""
    beacon_interval: float = 5.0
    """Seconds between two beacons of a topic."""
    seen_max: int = 65_536
    """Publications remembered for duplicate detection."""
    topics_max: int = 10_000
    """Topics with a mesh; messages for further topics are ignored and counted."""

    @property
    def announcement_lifetime(self) -> float:
        """Seconds until an announcement or a child expires."""
        return LIFETIME_INTERVALS * self.announce_interval

    @property
    def beacon_lifetime(self) -> float:
        """Seconds until a beacon expires."""
        return LIFETIME_INTERVALS * self.beacon_interval
