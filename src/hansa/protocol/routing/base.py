"""What a routing strategy is: it hears what changes, and compiles one forwarding entry per group.

Each has a file of its own here. Nothing outside this package knows them but by name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

import msgspec

from hansa.protocol.effects import Effect
from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.interest.groups import GroupIndex, group_of
from hansa.protocol.links.neighbours import NeighbourLink
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.records import ClaimsRecord, RecordKind
from hansa.protocol.model import Group, LinkId, NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import ControlFrame, OrderedFrame


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """The route to one core. At the core itself the distance is 0 and there are no parents."""

    incarnation: int
    seq: int
    distance: int
    feasible_distance: int
    """The smallest distance announced for this `seq`. Parents are always closer to the core than
    this, so parents never form a loop."""
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


class SendToNeighbour(msgspec.Struct, frozen=True):
    """Send this to a neighbour: what strategies return beside news."""

    node: NodeId
    frame: OrderedFrame


StrategyOutput = list[Effect | SendToNeighbour]


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """What a strategy may read, and the one thing that it may write: this node's claims."""

    node: NodeId
    settings: ProtocolSettings
    graph: Graph
    index: GroupIndex
    neighbours: Mapping[NodeId, NeighbourLink]
    cost: Callable[[NodeId], int | None]
    capacity: Callable[[NodeId], float]
    incarnation: Callable[[], int]
    claims_of: Callable[[NodeId], Iterable[Group]]
    groups_of: Callable[[NodeId], Iterable[Group]]
    """The groups that a node wants."""
    claim: Callable[[list[Group], list[Group], float], list[ClaimsRecord]]

    def links(self, nodes: Iterable[NodeId]) -> tuple[LinkId, ...]:
        """Return the links to those of these nodes that are neighbours."""
        return tuple(self.neighbours[node].id for node in nodes if node in self.neighbours)


def make_strategy_context(
    overlay: Overlay, index: GroupIndex, settings: ProtocolSettings
) -> StrategyContext:
    """Show a strategy what it needs of a node."""

    def claim(added: list[Group], removed: list[Group], now: float) -> list[ClaimsRecord]:
        records = overlay.change_own_set(RecordKind.CLAIMS, added, removed, now)
        return [record for record in records if isinstance(record, ClaimsRecord)]

    def groups_of(node: NodeId) -> Iterable[Group]:
        names = overlay.database.names(RecordKind.INTEREST, node)
        return dict.fromkeys(group_of(name, settings.group_depth) for name in names)

    return StrategyContext(
        node=overlay.identity.node,
        settings=settings,
        graph=overlay.graph,
        index=index,
        neighbours=overlay.neighbours.by_node,
        cost=overlay.link_cost,
        capacity=overlay.capacity,
        incarnation=lambda: overlay.incarnation,
        claims_of=lambda node: overlay.database.names(RecordKind.CLAIMS, node),
        groups_of=groups_of,
        claim=claim,
    )


class StrategyInvariant(StrEnum):
    """What a strategy promises about its shape at rest; whoever checks it asks for these."""

    ONE_CORE = "one core per group, to which all lead and all who want the group are joined"
    TRUE_DISTANCES = "the distance to a core is the shortest way's"
    REDUNDANCY_FILLED = "as many parents as the redundancy says, where so many lead to the core"
    TABLES_AGREE = "a parent has as children those that have it as parent"
    MINIMAL = "a member has a reason: clients, a child, or being the core"
    SHORTEST_PATHS_FROM_ORIGIN = (
        "copies take the shortest ways from their own origin to all who want them, no others"
    )
    FOLLOWS_DATABASE = "all ways follow from the database: they are right when all hold the same"


class RoutingStrategy(Protocol):
    """Events in, forwarding entries out. Every method returns what must be sent and told."""

    invariants: ClassVar[frozenset[StrategyInvariant]]

    def __init__(self, context: StrategyContext) -> None:
        """Start alone."""

    def neighbour_up(self, node: NodeId, now: float) -> StrategyOutput:
        """A link became usable."""

    def neighbour_down(self, node: NodeId, now: float) -> StrategyOutput:
        """A neighbour is gone."""

    def costs_changed(self, now: float) -> StrategyOutput:
        """Links became longer or shorter."""

    def incarnation_raised(self, now: float) -> StrategyOutput:
        """This node has a new incarnation although it did not start anew."""

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> StrategyOutput:
        """Nodes came into reach or went out of it."""

    def interest_changed(self, groups: Iterable[Group], now: float) -> StrategyOutput:
        """Somebody wants these groups now, or no more."""

    def claims_changed(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> StrategyOutput:
        """Another node claims groups, or gives them up."""

    def expire_node(self, node: NodeId) -> None:
        """A node's lease has ended: nothing about it need be kept."""

    def receive(self, sender: NodeId, frame: ControlFrame, now: float) -> StrategyOutput:
        """A neighbour sent a frame of the strategy's own."""

    def handle_timer(self, now: float) -> StrategyOutput:
        """Do what is due."""

    def next_deadline(self) -> float | None:
        """When `fire` is next due. Only a call of one of the methods above changes it."""

    def drain_entries(self) -> list[GroupEntry | Group]:
        """Return the entries that changed since last asked; a bare group is to be forgotten."""

    def stale_entry_count(self) -> int:
        """Return how many entries may have changed since last asked."""

    def core_statuses(self) -> dict[NodeId, CoreStatus]:
        """Return the ways to all cores, for inspection."""

    def group_status(self, group: Group) -> GroupStatus:
        """Return one group, for inspection."""

    def groups(self) -> list[Group]:
        """Return all groups known, the management group included."""
