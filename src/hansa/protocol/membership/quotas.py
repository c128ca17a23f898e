"""Quotas: bounds for the state of all other nodes, and for the nodes that one neighbour brings.

A node is attributed to the neighbour that brought its first record. So a neighbour that invents
nodes, or filters for them, fills its own quota and not that of others. Invented nodes also reach
nodes further away, where honest nodes come over the same neighbour and must still find room:

- The neighbour that has been linked the longest may bring as many nodes as fit. All others have a
  bound; unknown peers connect later than the configured neighbours.
- Filters are bounded only for neighbours that opened their link to this node, except the
  longest-linked one. A neighbour that this node dialled was configured or suggested by the manager,
  and a node at the edge of a federation learns of all others from one neighbour.
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
"""Bytes of records that one neighbour may request at once: a whole database within its bounds."""

ANSWER_BYTES_PER_S = 1 << 20
"""Bytes that it may request per second in the long run."""


class Allowance:
    """Token bucket: bytes that a neighbour may make this node send."""

    __slots__ = ("_at", "_room")

    def __init__(self) -> None:
        self._room = float(ANSWER_BYTES_MAX)
        self._at = 0.0

    def take(self, count: int, now: float) -> bool:
        """Take so many bytes from the bucket if it holds them; say whether it did."""
        self._room = min(self._room + (now - self._at) * ANSWER_BYTES_PER_S, ANSWER_BYTES_MAX)
        self._at = now
        if count > self._room < ANSWER_BYTES_MAX:  # a full bucket permits one row of any size
            return False
        self._room -= count
        return True


class Quotas:
    """Number of nodes and names, by the neighbour that brought them."""

    def __init__(self, settings: ProtocolSettings) -> None:
        self._settings = settings
        self._source: dict[NodeId, NodeId | None] = {}
        self._names: dict[tuple[RecordKind, NodeId], int] = {}
        self._nodes_of: Counter[NodeId | None] = Counter()
        self._names_of: Counter[tuple[RecordKind, NodeId | None]] = Counter()
        self.names: Counter[RecordKind] = Counter()
        """Filters and claims of all other nodes together. A group has one core, except for a
        moment, so both kinds have the same bounds."""

    def refuses_node(self, source: NodeId | None, oldest: NodeId | None) -> str | None:
        """Return the bound that one more node would exceed. `source` is the neighbour that brings
        it, None for this node's own disk; `oldest` is the longest-linked neighbour."""
        if len(self._source) + 1 >= self._settings.nodes_max:
            return "nodes_max"
        if source is None or source == oldest:
            return None
        is_full = self._nodes_of[source] >= self._settings.nodes_per_neighbour_max
        return "nodes_per_neighbour_max" if is_full else None

    def refuses_names(
        self, kind: RecordKind, node: NodeId, more: int, is_bounded: bool
    ) -> str | None:
        """Return the bound that so many more names of a node would exceed. `is_bounded`: the
        neighbour that brings them has a bound of its own."""
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

    def add_node(self, node: NodeId, source: NodeId | None) -> None:
        """Attribute a node to the neighbour that brought its first record."""
        if node not in self._source:
            self._source[node] = source
            _add(self._nodes_of, source, 1)

    def resize(self, kind: RecordKind, node: NodeId, count: int) -> None:
        """Set the number of names held for a node."""
        change = count - self._names.get((kind, node), 0)
        if not change:
            return
        self.names[kind] += change
        _add(self._names_of, (kind, self._source.get(node)), change)
        self._names[kind, node] = count

    def remove_node(self, node: NodeId) -> None:
        """Forget a node whose state was dropped."""
        for kind in (RecordKind.INTEREST, RecordKind.CLAIMS):
            self.resize(kind, node, 0)
            self._names.pop((kind, node), None)
        if node in self._source:
            _add(self._nodes_of, self._source.pop(node), -1)


def _add(counts: Counter[_Key], key: _Key, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]
