"""Which neighbour may bring publications and unicast frames of which node.

What a node sends reaches this one through a neighbour from which the map leads to that node without
passing here. So a node that hangs on a single link can only speak for itself, and for nodes that
exist nowhere but behind it. A node with several links can still speak for others: that takes proof
of identity.
"""

from collections.abc import Mapping

from hansa.protocol.links.neighbours import NeighbourLink
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import LinkId, NodeId

WRONG_SIDE = "origin not behind this neighbour"


Accepted = dict[NodeId, tuple[int, int]]
"""Per origin, the life of its last copy and the greatest number that this life can have."""


class Origins:
    """What the map says of who is behind whom, remembered per link until the map changes."""

    def __init__(
        self,
        graph: Graph,
        links: Mapping[LinkId, NeighbourLink],
        known: Mapping[NodeId, NodeRecord],
    ) -> None:
        """Read from the map, the links and the records of one node."""
        self.known = known
        self.graph = graph
        self._links = links
        self._version = graph.version
        self._accepted: dict[LinkId, Accepted] = {}

    def accepted(self, link: LinkId) -> Accepted:
        """Return the origins that were accepted over a link since the map changed; `plane` notes
        them here, and only those in reach."""
        if self._version != self.graph.version:
            self._version = self.graph.version
            self._accepted.clear()
        return self._accepted.setdefault(link, {})

    def accepts(self, link: LinkId, origin: NodeId) -> bool:
        """Whether a copy of an origin may come over a link. If the origin is not in reach, the map
        cannot tell: what it published may have overtaken its record, or left before it was lost."""
        if origin not in self.graph.reachable:
            return True
        peer = self._links[link].peer
        return peer is not None and self.speaks_for(peer.node, origin)

    def speaks_for(self, neighbour: NodeId, node: NodeId) -> bool:
        """Whether what a neighbour brings can come from a node: the node is in reach, behind it."""
        return neighbour == node or self.graph.is_behind(neighbour, node)

    def is_in_reach(self, node: NodeId) -> bool:
        """Whether the map leads to a node."""
        return node in self.graph.reachable
