"""A node's state as plain values, for `/status` and the simulator's checkers.

A status is a copy: making one changes nothing and is too slow for the forwarding path.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hansa.protocol.forwarding.engine import ForwardingEngine
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.records import RecordKind, Stamp
from hansa.protocol.model import Group, LinkId, NodeId
from hansa.protocol.routing.base import CoreStatus, GroupStatus, RoutingStrategy


@dataclass(frozen=True, slots=True)
class NeighbourStatus:
    link: LinkId
    rtt_ms: float | None
    """Shortest recent round-trip time; None until the first heartbeat came back."""


@dataclass(frozen=True, slots=True)
class InterestStatus:
    """The interest of one node, as far as this node knows it."""

    stamp: Stamp
    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The whole state of one node."""

    node: NodeId
    incarnation: int
    neighbours: dict[NodeId, NeighbourStatus]
    reachable: tuple[NodeId, ...]
    """Every reachable node, this one included, ordered by id."""
    digest: int
    """Equal on two nodes if and only if their databases hold the same rows."""
    cores: dict[NodeId, CoreStatus]
    groups: dict[Group, GroupStatus]
    interest: dict[NodeId, InterestStatus]
    in_force: dict[NodeId, Stamp]
    """Per other node, the stamp of its interest that is in force here."""
    installed: bool
    """Whether this node's newest interest is in force at every reachable node."""
    sizes: dict[str, int]
    """Current size of everything that has a bound: rows, filters, windows, pending frames …"""
    counters: dict[str, int]
    """Dropped, ignored and refused inputs, by reason."""


def count_bounded_state(
    overlay: Overlay, forwarding: ForwardingEngine, filters: int
) -> dict[str, int]:
    """Return the size of everything that has a bound."""
    return {
        "filters": filters,
        "groups": len(forwarding.table),
        "nodes": len(overlay.database.nodes),
        "topic_plans": forwarding.table.plan_count,
        "unacknowledged": overlay.neighbours.pending_max(),
        "dedup_windows": len(forwarding.duplicate_filter),
    }


def make_node_status(  # noqa: PLR0913 -- the parts of a node
    overlay: Overlay,
    strategy: RoutingStrategy,
    in_force: Mapping[NodeId, Stamp],
    installed: bool,
    sizes: dict[str, int],
    counters: Mapping[str, int],
    is_brief: bool,
) -> NodeStatus:
    """Copy the state of a node's parts; a brief copy has no groups and no filters."""
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
        groups={
            group: strategy.group_status(group)
            for group in (() if is_brief else sorted(strategy.groups()))
        },
        interest={
            node: InterestStatus(
                database.stamp(RecordKind.INTEREST, node), () if is_brief else tuple(row.names)
            )
            for node, row in sorted(database.sets[RecordKind.INTEREST].items())
        },
        in_force=dict(sorted(in_force.items())),
        installed=installed,
        sizes=sizes,
        counters=dict(sorted(counters.items())),
    )
