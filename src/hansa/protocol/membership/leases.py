"""Leases of unreachable nodes, and tombstones of nodes whose lease has ended.

Leases do not end at the same time everywhere. The tombstone, the stamp of the deleted record,
prevents that nodes send the record of a dead node back to each other endlessly. Leases and
tombstones survive restarts; else a node that restarts daily would never forget another.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile

from hansa.protocol.events import PeersRestored
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId

RESTORED_LEASE_FRACTION_MAX = 0.9
"""How much of a lease may have passed when an incarnation begins; the rest of the time is for
meeting nodes that are still there."""


class Leases:
    """The unreachable nodes, since when, and the tombstones."""

    def __init__(self, seconds: float, tombstones_max: int) -> None:
        self._seconds = seconds
        self._tombstones_max = tombstones_max
        self._absent_since: dict[NodeId, float] = {}  # ordered by time
        self._tombstones: dict[NodeId, Stamp] = {}

    @property
    def tombstones(self) -> Mapping[NodeId, Stamp]:
        """Per forgotten node, the newest record that must not come back."""
        return self._tombstones

    def absent_seconds(self, now: float) -> dict[NodeId, float]:
        """Return for how many seconds each unreachable node has been unreachable."""
        return {node: now - since for node, since in self._absent_since.items()}

    def restore(self, restored: PeersRestored, receivers: Iterable[NodeId], now: float) -> None:
        """Continue the leases of an earlier incarnation. The time in between does not count: this
        node may have been the absent one. Every receiver of pending publications has a lease, even
        without a record."""
        longest = RESTORED_LEASE_FRACTION_MAX * self._seconds
        for node, seconds in sorted(
            restored.absent_seconds.items(), key=lambda item: (-item[1], item[0])
        ):
            self._absent_since[node] = now - min(seconds, longest)
        for node in receivers:
            self.start_lease(node, now)
        self._tombstones.update(restored.tombstones)

    def start_lease(self, node: NodeId, now: float) -> None:
        """A node is unreachable; a running lease continues."""
        self._absent_since.setdefault(node, now)

    def cancel_lease(self, node: NodeId) -> None:
        """A node is reachable again."""
        self._absent_since.pop(node, None)

    def pop_expired(self, now: float) -> list[NodeId]:
        """Remove and return the nodes whose lease has ended."""
        if not self._absent_since:
            return []
        past = takewhile(lambda item: now >= item[1] + self._seconds, self._absent_since.items())
        ended = [node for node, _ in past]
        for node in ended:
            del self._absent_since[node]
        return ended

    def add_tombstone(self, node: NodeId, stamp: Stamp) -> None:
        """Remember which record of a node must not come back."""
        self._tombstones[node] = max(stamp, self._tombstones.get(node, stamp))
        if len(self._tombstones) > self._tombstones_max:
            del self._tombstones[next(iter(self._tombstones))]

    def tombstone_against(self, node: NodeId, stamp: Stamp) -> Stamp | None:
        """Return the tombstone that refuses a record; a newer record replaces it."""
        tombstone = self._tombstones.get(node)
        if tombstone is None or stamp > tombstone:
            self._tombstones.pop(node, None)
            return None
        return tombstone

    def next_deadline(self) -> float | None:
        """When the next lease ends."""
        return (
            next(iter(self._absent_since.values())) + self._seconds if self._absent_since else None
        )
