"""Which neighbour may bring publications and unicast frames of which node.

A frame of a node reaches this one through a neighbour that has a path to that node without passing
here. So a node with a single link can only send in its own name, and in that of nodes that exist
only behind it. A node with several links could still forge frames of others; `pair_authentication`
prevents that in a federation with certificates, except for publications of QoS 0.
"""

from collections.abc import Mapping

from hansa.protocol.links.neighbours import NeighbourLink
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.pair_authentication import PairAuthenticator

WRONG_SIDE = "origin not behind this neighbour"


SequenceBounds = dict[NodeId, tuple[int, int]]
"""Per origin, the epoch of its last copy and the greatest sequence number allowed in it."""


class Origins:
    """Which nodes are behind which neighbour, cached per link until the map changes."""

    def __init__(
        self,
        graph: Graph,
        links: Mapping[LinkId, NeighbourLink],
        known: Mapping[NodeId, NodeRecord],
        pair_authenticator: PairAuthenticator | None = None,
        admits_unknown: bool = True,
    ) -> None:
        """`admits_unknown`: whether publications of nodes without a record are accepted."""
        self.pair_authenticator = pair_authenticator
        """Proves the source of unicast frames and of publications of QoS 1 and 2; None in a
        federation without certificates."""
        self._admits_unknown = admits_unknown
        self.known = known
        self.graph = graph
        self._links = links
        self._version = graph.version
        self._sequence_bounds: dict[LinkId, SequenceBounds] = {}

    def sequence_bounds(self, link: LinkId) -> SequenceBounds:
        """Return the epoch and greatest sequence number of each origin accepted over a link since
        the map changed. The forwarding engine adds
        origins, and only reachable ones."""
        if self._version != self.graph.version:
            self._version = self.graph.version
            self._sequence_bounds.clear()
        return self._sequence_bounds.setdefault(link, {})

    def accepts(self, link: LinkId, origin: NodeId) -> bool:
        """Whether a copy of an origin may arrive over a link. If the origin is unreachable, the map
        cannot tell: the copy may have overtaken the record, or left before the origin was lost."""
        if origin not in self.graph.reachable:
            return self._admits_unknown or origin in self.known
        peer = self._links[link].peer
        return peer is not None and self.speaks_for(peer.node, origin)

    def speaks_for(self, neighbour: NodeId, node: NodeId) -> bool:
        """Whether a frame from a neighbour can come from a node: the node is reachable behind
        it."""
        return neighbour == node or self.graph.is_behind(neighbour, node)

    def is_linked(self, link: LinkId, node: NodeId) -> bool:
        """Whether a link leads to this node."""
        peer = self._links[link].peer
        return peer is not None and peer.node == node

    def is_reachable(self, node: NodeId) -> bool:
        return node in self.graph.reachable
