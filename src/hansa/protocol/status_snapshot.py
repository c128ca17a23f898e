"""Takes a view of a node's parts; `inspection` says what a view is."""

from collections.abc import Collection, Mapping

from hansa.protocol.forwarding.engine import ForwardingEngine
from hansa.protocol.links.neighbours import NeighbourLink
from hansa.protocol.membership.leases import Leases
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.records import NodeRecord, RecordKind, Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.routing.base import RoutingStrategy
from hansa.protocol.status import InterestStatus, NeighbourStatus, NodeStatus


class MembershipView:
    """Who is known and who is in reach, as it is now: what is looked at often is not copied."""

    def __init__(self, overlay: Overlay) -> None:
        """Read from this overlay."""
        self._overlay = overlay

    @property
    def known(self) -> Mapping[NodeId, NodeRecord]:
        """Return what every known node says of itself, in reach or not."""
        return self._overlay.database.nodes

    @property
    def reachable(self) -> Collection[NodeId]:
        """Return the nodes in reach, this one included."""
        return self._overlay.graph.reachable

    @property
    def leases(self) -> Leases:
        """Return who is out of reach, and who was forgotten."""
        return self._overlay.leases

    @property
    def digest(self) -> int:
        """Return what differs when anything that nodes say of themselves does."""
        return self._overlay.database.digest

    @property
    def neighbours(self) -> Mapping[NodeId, NeighbourLink]:
        """Return the links to the nodes that this one is linked to."""
        return self._overlay.neighbours.by_node


def count_bounded_state(
    overlay: Overlay, forwarding: ForwardingEngine, filters: int
) -> dict[str, int]:
    """Count what has a bound."""
    links = overlay.neighbours.links.values()
    return {
        "filters": filters,
        "groups": len(forwarding.table),
        "nodes": len(overlay.database.nodes),
        "topic_plans": forwarding.table.plan_count,
        "unacknowledged": max(
            (link.channel.pending_count for link in links if link.channel), default=0
        ),
        "dedup_windows": len(forwarding.duplicate_filter),
    }


def make_node_status(
    overlay: Overlay,
    strategy: RoutingStrategy,
    in_force: Mapping[NodeId, Stamp],
    installed: bool,
    sizes: dict[str, int],
    counters: Mapping[str, int],
) -> NodeStatus:
    """Copy what people and checkers want to see."""
    database = overlay.database
    return NodeStatus(
        node=overlay.identity.node,
        incarnation=overlay.incarnation,
        neighbours={
            node: NeighbourStatus(link.id, None if link.rtt is None else link.rtt * 1000)
            for node, link in sorted(overlay.neighbours.by_node.items())
        },
        reachable=tuple(sorted(overlay.graph.reachable)),
        digest=database.digest,
        cores=strategy.core_statuses(),
        groups={group: strategy.group_status(group) for group in strategy.groups()},
        interest={
            node: InterestStatus(database.stamp(RecordKind.INTEREST, node), tuple(row.names))
            for node, row in sorted(database.sets[RecordKind.INTEREST].items())
        },
        in_force=dict(sorted(in_force.items())),
        installed=installed,
        sizes=sizes,
        counters=dict(sorted(counters.items())),
    )
