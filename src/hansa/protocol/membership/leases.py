"""How long a node out of reach keeps its place, and that it stays forgotten afterwards.

Leases end a little earlier here than there. So what was forgotten is remembered by its stamp, or
the nodes would give a dead one's record back to one another for ever. Both outlive a restart: who
is started anew once a day would never forget anybody.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile

from hansa.protocol.events import PeersRestored
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId

RESTORED_LEASE_FRACTION_MAX = 0.9
"""How much of a lease may be over when a life begins: the rest is for meeting again who is there
after all."""


class Leases:
    """The nodes that are out of reach, since when, and those that were forgotten."""

    def __init__(self, seconds: float, tombstones_max: int) -> None:
        """Start with nobody absent."""
        self._seconds = seconds
        self._tombstones_max = tombstones_max
        self._absent_since: dict[NodeId, float] = {}  # in the order of time
        self._tombstones: dict[NodeId, Stamp] = {}

    @property
    def tombstones(self) -> Mapping[NodeId, Stamp]:
        """Which records must not come back."""
        return self._tombstones

    def absent_seconds(self, now: float) -> dict[NodeId, float]:
        """Return for how many seconds each absent node has been out of reach."""
        return {node: now - since for node, since in self._absent_since.items()}

    def restore(self, restored: PeersRestored, receivers: Iterable[NodeId], now: float) -> None:
        """Go on where a former life ended. The time between does not count: this node may have been
        the one that was away. Who is owed something has a lease, even if no record tells of it."""
        longest = RESTORED_LEASE_FRACTION_MAX * self._seconds
        for node, seconds in sorted(
            restored.absent_seconds.items(), key=lambda item: (-item[1], item[0])
        ):
            self._absent_since[node] = now - min(seconds, longest)
        for node in receivers:
            self.start_lease(node, now)
        self._tombstones.update(restored.tombstones)

    def start_lease(self, node: NodeId, now: float) -> None:
        """A node is out of reach; if it has been for a while, its lease runs on."""
        self._absent_since.setdefault(node, now)

    def cancel_lease(self, node: NodeId) -> None:
        """A node is in reach again."""
        self._absent_since.pop(node, None)

    def pop_expired(self, now: float) -> list[NodeId]:
        """Return the nodes whose lease has ended; they are absent no more."""
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

    def admit_record(self, node: NodeId, stamp: Stamp) -> bool:
        """Whether a record is news of a node, and not what was forgotten."""
        if stamp <= self._tombstones.get(node, (-1, 0)):
            return False
        self._tombstones.pop(node, None)
        return True

    def next_deadline(self) -> float | None:
        """When the next lease ends."""
        return (
            next(iter(self._absent_since.values())) + self._seconds if self._absent_since else None
        )
