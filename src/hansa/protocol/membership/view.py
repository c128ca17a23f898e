"""Read access to a node's membership for shells: known and reachable nodes, links, leases."""

from collections.abc import Collection, Mapping

from hansa.protocol.links.neighbours import NeighbourLink
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.records import NodeRecord, Record, RecordKind, Stamp
from hansa.protocol.membership.rights import Rights
from hansa.protocol.model import NodeId


class MembershipView:
    """The current membership. Nothing is copied and nothing may be changed through it."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    @property
    def known(self) -> Mapping[NodeId, NodeRecord]:
        """The record of every known node, reachable or not."""
        return self._overlay.database.nodes

    @property
    def reachable(self) -> Collection[NodeId]:
        """The reachable nodes, this one included."""
        return self._overlay.graph.reachable

    @property
    def digest(self) -> int:
        """Changes whenever a record in the database changes."""
        return self._overlay.database.digest

    @property
    def neighbours(self) -> Mapping[NodeId, NeighbourLink]:
        return self._overlay.neighbours.by_node

    def filters_of(self, node: NodeId) -> Collection[str]:
        """Return the filters that a node has announced."""
        return self._overlay.database.names(RecordKind.INTEREST, node)

    def records_of(self, node: NodeId) -> list[Record]:
        """Return the records of a node that have to be persisted: identity and interest."""
        return [
            record
            for kind in (RecordKind.NODE, RecordKind.INTEREST)
            for record in self._overlay.database.row_records((kind, node))
        ]

    def rights_of(self, node: NodeId) -> Rights:
        """Return what the certificate of a node allows it to do."""
        return self._overlay.authentication.rights_of(node)

    @property
    def tombstones(self) -> Mapping[NodeId, Stamp]:
        """Per node whose lease ended, the newest record that must not come back."""
        return self._overlay.leases.tombstones

    def absent_seconds(self, now: float) -> dict[NodeId, float]:
        """Return for how long each unreachable node has been unreachable."""
        return self._overlay.leases.absent_seconds(now)
