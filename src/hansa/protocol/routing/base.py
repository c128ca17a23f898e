"""Interface of routing strategies: they apply changes and compile one forwarding entry per group.

Each strategy has its own module or package here. Other packages know strategies by name only.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.interest.groups import GroupIndex, group_of
from hansa.protocol.links.neighbours import NeighbourLink
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.records import ClaimsRecord, RecordKind, Stamp
from hansa.protocol.model import Group, LinkId, NodeId
from hansa.protocol.routing.output import StrategyOutput
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import ControlFrame

TOO_SHORT = "announced distance shorter than the map allows"
"""Why a strategy corrects an announced distance."""


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """The route to one core. At the core itself the distance is 0 and there are no parents."""

    incarnation: int
    sequence: int
    distance: int
    feasible_distance: int
    """The smallest distance announced for this sequence number. Parents are always closer to the
    core than this, so parents never form a loop."""
    parents: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group as this node sees it. All nodes are ordered by id."""

    core: NodeId | None
    interested_nodes: tuple[NodeId, ...]
    """The reachable nodes with subscribers, this one included."""
    is_member: bool
    parents: tuple[NodeId, ...]
    """Parents to which this node announced its membership; empty if it is not a member."""
    children: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """The state that a strategy may read, and the only part that it may write: this node's
    claims."""

    node: NodeId
    settings: ProtocolSettings
    graph: Graph
    index: GroupIndex
    neighbours: Mapping[NodeId, NeighbourLink]
    cost: Callable[[NodeId], int | None]
    """The cost of a path through a neighbour; None if it is none, or may not relay."""
    least_distance: Callable[[NodeId, NodeId], int]
    """The shortest distance between two nodes that the map allows; 0 if unknown."""
    may_be_core: Callable[[NodeId], bool]
    capacity: Callable[[NodeId], float]
    incarnation: Callable[[], int]
    claims_of: Callable[[NodeId], Iterable[Group]]
    groups_of: Callable[[NodeId], Iterable[Group]]
    """The groups that a node is interested in."""
    claim: Callable[[list[Group], list[Group], float], list[ClaimsRecord]]
    sign_announcement: Callable[[NodeId, Stamp], bytes]

    def links(self, nodes: Iterable[NodeId]) -> tuple[LinkId, ...]:
        """Return the links to those of these nodes that are neighbours."""
        return tuple(self.neighbours[node].id for node in nodes if node in self.neighbours)


def make_strategy_context(
    overlay: Overlay, index: GroupIndex, settings: ProtocolSettings
) -> StrategyContext:
    """Return the parts of a node that a strategy may use."""

    def claim(added: list[Group], removed: list[Group], now: float) -> list[ClaimsRecord]:
        records = overlay.change_own_set(RecordKind.CLAIMS, added, removed, now)
        return [record for record in records if isinstance(record, ClaimsRecord)]

    def groups_of(node: NodeId) -> Iterable[Group]:
        names = overlay.interest_of(node)
        return dict.fromkeys(group_of(name, settings.group_depth) for name in names)

    return StrategyContext(
        node=overlay.identity.node,
        settings=settings,
        graph=overlay.graph,
        index=index,
        neighbours=overlay.neighbours.by_node,
        cost=overlay.parent_cost,
        least_distance=overlay.least_distance,
        may_be_core=lambda node: overlay.authentication.rights_of(node).may_be_core,
        capacity=overlay.capacity,
        incarnation=lambda: overlay.incarnation,
        claims_of=lambda node: overlay.database.names(RecordKind.CLAIMS, node),
        groups_of=groups_of,
        claim=claim,
        sign_announcement=overlay.authentication.sign_announcement,
    )


class StrategyInvariant(StrEnum):
    """Properties that a strategy guarantees after convergence; checkers test those that it
    names."""

    ONE_CORE = "one core per group; all routes lead to it and all interested nodes are members"
    TRUE_DISTANCES = "the distance to a core is that of the shortest path"
    REDUNDANCY_FILLED = "as many parents as the redundancy says, if so many lead to the core"
    TABLES_AGREE = "a parent has as children exactly those that have it as parent"
    MINIMAL = "a member has a reason: clients, a child, or being the core"
    SHORTEST_PATHS_FROM_ORIGIN = (
        "copies take the shortest paths from their origin to all interested nodes, and no others"
    )
    FOLLOWS_DATABASE = "all paths follow from the database: correct when all nodes hold the same"


class RoutingStrategy(Protocol):
    """Changes in, forwarding entries out. Methods return frames to send and effects."""

    invariants: ClassVar[frozenset[StrategyInvariant]]

    def __init__(self, context: StrategyContext) -> None: ...

    def neighbour_up(self, node: NodeId, now: float) -> StrategyOutput:
        """A link became usable."""

    def neighbour_down(self, node: NodeId, now: float) -> StrategyOutput:
        """A neighbour was lost."""

    def costs_changed(self, now: float) -> StrategyOutput:
        """Link costs changed."""

    def map_changed(self, now: float) -> StrategyOutput:
        """A node reports other links than before."""

    def incarnation_raised(self, now: float) -> StrategyOutput:
        """This node raised its incarnation without a restart."""

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> StrategyOutput:
        """Nodes became reachable or unreachable, or changed their capacity."""

    def announcement_missed(self, core: NodeId, now: float) -> None:
        """Announcements of a core were refused before it was known (rule 4.6)."""

    def interest_changed(self, groups: Iterable[Group], now: float) -> StrategyOutput:
        """The interest in these groups changed."""

    def claims_changed(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> StrategyOutput:
        """A node claims or releases groups."""

    def expire_node(self, node: NodeId) -> None:
        """A node's lease has ended: drop its state."""

    def receive(self, sender: NodeId, frame: ControlFrame, now: float) -> StrategyOutput:
        """A neighbour sent a frame of the strategy."""

    def handle_timer(self, now: float) -> StrategyOutput:
        """Do everything that is due."""

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due. Only a call of one of the methods above changes it."""

    def drain_entries(self) -> list[GroupEntry | Group]:
        """Return the entries that changed since the last call; a bare group is to be removed."""

    def stale_entry_count(self) -> int:
        """Return how many entries may have changed since the last call."""

    def core_statuses(self) -> dict[NodeId, CoreStatus]:
        """Return the routes to all cores, for status."""

    def group_status(self, group: Group) -> GroupStatus:
        """Return one group, for status."""

    def groups(self) -> list[Group]:
        """Return all known groups, the management group included."""
