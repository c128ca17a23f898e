"""How long a node out of reach keeps its place, and that it stays forgotten afterwards.

Leases end a little earlier here than there. So what was forgotten is remembered by its stamp, or
the nodes would give a dead one's record back to one another for ever. Both outlive a restart: who
is started anew once a day would never forget anybody.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile

from hansa.protocol.events import Restored
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId

RESUMED_MAX = 0.9
"""How much of a lease may be over when a life begins: the rest is for meeting again who is there
after all."""


class Leases:
    """The nodes that are out of reach, since when, and those that were forgotten."""

    def __init__(self, seconds: float, forgotten_max: int) -> None:
        """Start with nobody absent."""
        self._seconds = seconds
        self._forgotten_max = forgotten_max
        self._absent: dict[NodeId, float] = {}  # in the order of time
        self._forgotten: dict[NodeId, Stamp] = {}

    @property
    def forgotten(self) -> Mapping[NodeId, Stamp]:
        """Which records must not come back."""
        return self._forgotten

    def absences(self, now: float) -> dict[NodeId, float]:
        """Return for how many seconds each absent node has been out of reach."""
        return {node: now - since for node, since in self._absent.items()}

    def resume(self, past: Restored, owed: Iterable[NodeId], now: float) -> None:
        """Go on where a former life ended. The time between does not count: this node may have been
        the one that was away. Who is owed something has a lease, even if no record tells of it."""
        longest = RESUMED_MAX * self._seconds
        for node, seconds in sorted(past.absent.items(), key=lambda item: (-item[1], item[0])):
            self._absent[node] = now - min(seconds, longest)
        for node in owed:
            self.begin(node, now)
        self._forgotten.update(past.forgotten)

    def begin(self, node: NodeId, now: float) -> None:
        """A node is out of reach; if it has been for a while, its lease runs on."""
        self._absent.setdefault(node, now)

    def end(self, node: NodeId) -> None:
        """A node is in reach again."""
        self._absent.pop(node, None)

    def expired(self, now: float) -> list[NodeId]:
        """Return the nodes whose lease has ended; they are absent no more."""
        if not self._absent:
            return []
        past = takewhile(lambda item: now >= item[1] + self._seconds, self._absent.items())
        ended = [node for node, _ in past]
        for node in ended:
            del self._absent[node]
        return ended

    def forget(self, node: NodeId, stamp: Stamp) -> None:
        """Remember which record of a node must not come back."""
        self._forgotten[node] = max(stamp, self._forgotten.get(node, stamp))
        if len(self._forgotten) > self._forgotten_max:
            del self._forgotten[next(iter(self._forgotten))]

    def admits(self, node: NodeId, stamp: Stamp) -> bool:
        """Whether a record is news of a node, and not what was forgotten."""
        if stamp <= self._forgotten.get(node, (-1, 0)):
            return False
        self._forgotten.pop(node, None)
        return True

    def next_deadline(self) -> float | None:
        """When the next lease ends."""
        return next(iter(self._absent.values())) + self._seconds if self._absent else None
