"""What other nodes may occupy here: bounds for all of them, and for all that one neighbour brings.

A node is attributed to the neighbour over which its first record came. So a neighbour that makes up
nodes, or filters for them, fills its own share and not everybody's. What it makes up also reaches
nodes further away, where honest nodes come over the same neighbour and must still find room:

- The neighbour that has been linked the longest may bring as many nodes as fit; all others have a
  bound, and a stranger comes later than the neighbours that were configured.
- Filters are bounded only for neighbours that opened their link to this node, except the
  longest-linked one. A neighbour that this node dialled was configured or suggested by the manager,
  and a node at the edge of a federation hears all others over one neighbour.
- When the filters of a bounded neighbour's nodes have reached their bound, each node may still have
  an equal part of it. So they never exceed twice the bound.
"""

from collections import Counter
from typing import TypeVar

from hansa.protocol.membership.records import RecordKind
from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings

_Key = TypeVar("_Key")

ANSWER_BYTES_MAX = 16 << 20
"""Bytes of records that one neighbour may ask for at once: a whole database within its bounds."""

ANSWER_BYTES_PER_S = 1 << 20
"""Bytes that it may ask for per second in the long run."""


class Allowance:
    """Bytes that a neighbour may make this node send: a bucket that fills up again with time."""

    __slots__ = ("_at", "_room")

    def __init__(self) -> None:
        """Start full."""
        self._room = float(ANSWER_BYTES_MAX)
        self._at = 0.0

    def take(self, count: int, now: float) -> bool:
        """Say whether so many bytes may be sent now, and take them from the bucket."""
        self._room = min(self._room + (now - self._at) * ANSWER_BYTES_PER_S, ANSWER_BYTES_MAX)
        self._at = now
        if count > self._room < ANSWER_BYTES_MAX:  # a full bucket permits one row of any size
            return False
        self._room -= count
        return True


class Quotas:
    """How many nodes and names there are, by the neighbour that brought them."""

    def __init__(self, settings: ProtocolSettings) -> None:
        """Start with nothing but this node itself."""
        self._settings = settings
        self._source: dict[NodeId, NodeId | None] = {}
        self._names: dict[tuple[RecordKind, NodeId], int] = {}
        self._nodes_of: Counter[NodeId | None] = Counter()
        self._names_of: Counter[tuple[RecordKind, NodeId | None]] = Counter()
        self.names: Counter[RecordKind] = Counter()
        """Filters and claims of all other nodes together: a core claims what it wants itself, so
        each kind has the same bounds."""

    def refuses_node(self, source: NodeId | None, oldest: NodeId | None) -> str | None:
        """Return the bound that one more node would exceed; `source` is the neighbour that brings
        it, None if it comes from this node's own disk; `oldest` the longest linked neighbour."""
        if len(self._source) + 1 >= self._settings.nodes_max:
            return "nodes_max"
        if source is None or source == oldest:
            return None
        is_full = self._nodes_of[source] >= self._settings.nodes_per_neighbour_max
        return "nodes_per_neighbour_max" if is_full else None

    def refuses_names(
        self, kind: RecordKind, node: NodeId, more: int, is_bounded: bool
    ) -> str | None:
        """Return the bound that so many more names of a node would exceed; `is_bounded` says
        whether the neighbour that brings them now has a bound of its own."""
        if more <= 0:
            return None
        if self.names[kind] + more > self._settings.filters_max:
            return "filters_max"
        if not is_bounded:
            return None
        source, most = self._source.get(node), self._settings.filters_per_neighbour_max
        if source is None or self._names_of[kind, source] + more <= most:
            return None
        own = self._names.get((kind, node), 0)
        return "filters_per_neighbour_max" if own + more > most // self._nodes_of[source] else None

    def learn(self, node: NodeId, source: NodeId | None) -> None:
        """A node's record is here; only the first counts."""
        if node not in self._source:
            self._source[node] = source
            _add(self._nodes_of, source, 1)

    def resize(self, kind: RecordKind, node: NodeId, count: int) -> None:
        """So many names of a node are held now."""
        change = count - self._names.get((kind, node), 0)
        if not change:
            return
        self.names[kind] += change
        _add(self._names_of, (kind, self._source.get(node)), change)
        self._names[kind, node] = count

    def forget(self, node: NodeId) -> None:
        """Everything of a node was dropped."""
        for kind in (RecordKind.INTEREST, RecordKind.CLAIMS):
            self.resize(kind, node, 0)
            self._names.pop((kind, node), None)
        if node in self._source:
            _add(self._nodes_of, self._source.pop(node), -1)


def _add(counts: Counter[_Key], key: _Key, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]
