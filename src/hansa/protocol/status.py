"""A node's state as plain values: what `/status`, the console and the simulator's checkers read.

Taking a view changes nothing. It copies, so it is for people and tests, not for the fast path.
"""

from dataclasses import dataclass

from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import Group, LinkId, NodeId


@dataclass(frozen=True, slots=True)
class NeighbourStatus:
    """One usable link."""

    link: LinkId
    rtt_ms: float | None
    """Shortest recent round-trip time; None until the first heartbeat came back."""


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """The way to one core. At the core itself the distance is 0 and there are no parents."""

    incarnation: int
    seq: int
    distance: int
    feasible_distance: int
    """The smallest distance it ever announced for this `seq`. Parents' are always smaller, which is
    why parents never form a loop."""
    parents: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group as this node sees it."""

    core: NodeId | None
    interested_nodes: tuple[NodeId, ...]
    """The nodes in reach whose clients want it, this one included, ordered by id."""
    is_member: bool
    parents: tuple[NodeId, ...]
    """Parents that this node has told of its membership, ordered by id; empty if no member."""
    children: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class InterestStatus:
    """What one node wants, as far as this node knows."""

    stamp: Stamp
    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node, whole."""

    node: NodeId
    incarnation: int
    neighbours: dict[NodeId, NeighbourStatus]
    reachable: tuple[NodeId, ...]
    """Every node in reach, this one included, ordered by id."""
    digest: int
    """Equal on two nodes if and only if their databases hold the same rows."""
    cores: dict[NodeId, CoreStatus]
    groups: dict[Group, GroupStatus]
    interest: dict[NodeId, InterestStatus]
    in_force: dict[NodeId, Stamp]
    """Per other node, the stamp of its interest that this node has in force."""
    installed: bool
    """Whether every node in reach has this node's newest interest in force."""
    sizes: dict[str, int]
    """How much of each bounded thing there is: rows, filters, windows, plans, waiting frames …"""
    counters: dict[str, int]
    """What was dropped, ignored or refused, by reason."""
