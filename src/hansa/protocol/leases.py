"""How long a node out of reach keeps its place, and that it stays forgotten afterwards.

Leases end a little earlier here than there. So what was forgotten is remembered by its stamp, or
the nodes would give a dead one's record back to one another for ever.
"""

from itertools import takewhile

from hansa.protocol.records import Stamp
from hansa.protocol.vocabulary import NodeId


class Leases:
    """The nodes that are out of reach, since when, and those that were forgotten."""

    def __init__(self, seconds: float, forgotten_max: int) -> None:
        """Start with nobody absent."""
        self._seconds = seconds
        self._forgotten_max = forgotten_max
        self._absent: dict[NodeId, float] = {}  # in the order of time
        self._forgotten: dict[NodeId, Stamp] = {}

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
        self._forgotten[node] = stamp
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
