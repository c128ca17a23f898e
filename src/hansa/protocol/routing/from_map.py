"""What strategies share that say nothing: all they need is the map and the interest, which every
node holds anyway. Nodes that hold the same database find the same ways.

Ways are drawn when a publication needs them, so that a burst of news costs one drawing.
"""
# ruff: noqa: B027 -- what most of them need not do is left empty here

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.model import MANAGEMENT_GROUP, Group, NodeId
from hansa.protocol.routing.base import (
    CoreStatus,
    GroupStatus,
    StrategyContext,
    StrategyInvariant,
    StrategyOutput,
)
from hansa.protocol.wire.frames import ControlFrame


class LinkStateStrategy(ABC):
    """A strategy without frames or timers of its own. What differs is where copies go."""

    invariants: ClassVar[frozenset[StrategyInvariant]] = frozenset(
        {StrategyInvariant.FOLLOWS_DATABASE}
    )

    def __init__(self, context: StrategyContext) -> None:
        """Start alone."""
        self._context = context
        self._self = context.node
        self._computed_version: int | None = (
            None  # the version of the map that ways were drawn from
        )
        self._stale_groups: dict[Group, None] = {}

    # ------------------------------------------------------------ what differs

    def _recompute_paths(self) -> None:
        """The map, the capacities or the links of this node are others now."""

    @abstractmethod
    def _make_entry(self, group: Group, interested: list[NodeId]) -> GroupEntry:
        """Return where publications of a group go that these nodes in reach want."""

    # ------------------------------------------------------------ what happens

    def neighbour_up(self, node: NodeId, now: float) -> StrategyOutput:
        """Entries name links, and there is a new one."""
        return self._invalidate_paths()

    def neighbour_down(self, node: NodeId, now: float) -> StrategyOutput:
        """A link is gone."""
        return self._invalidate_paths()

    def costs_changed(self, now: float) -> StrategyOutput:
        """The map knows."""
        return []

    def incarnation_raised(self, now: float) -> StrategyOutput:
        """Nothing here is numbered by incarnation."""
        return []

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> StrategyOutput:
        """Who is in reach wants something; capacities may have changed, too."""
        return self._invalidate_paths()

    def interest_changed(self, groups: Iterable[Group], now: float) -> StrategyOutput:
        """These groups lead elsewhere."""
        self._stale_groups.update(dict.fromkeys(groups))
        return []

    def claims_changed(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> StrategyOutput:
        """Nobody claims anything."""
        return []

    def expire_node(self, node: NodeId) -> None:
        """It is out of reach already, and what it wanted is known to be gone."""

    def receive(self, sender: NodeId, frame: ControlFrame, now: float) -> StrategyOutput:
        """It is another strategy's frame; hello made sure that there is none."""
        return []

    def handle_timer(self, now: float) -> StrategyOutput:
        """Nothing is ever due."""
        return []

    def next_deadline(self) -> float | None:
        """Nothing is ever due."""
        return None

    # ------------------------------------------------------------ what others read

    def drain_entries(self) -> list[GroupEntry | Group]:
        """Compile what changed since last asked."""
        self._recompute_if_stale()
        stale, self._stale_groups = self._stale_groups, {}
        return [self._compile_entry(group) for group in stale]

    def stale_entry_count(self) -> int:
        """Return how many groups the next `take_entries` looks at."""
        return (
            len(self._stale_groups)
            if self._is_current()
            else len(self._context.index.nodes_by_group)
        )

    def core_statuses(self) -> dict[NodeId, CoreStatus]:
        """There are no cores."""
        return {}

    def group_status(self, group: Group) -> GroupStatus:
        """Return one group; it has no mesh."""
        interested = tuple(sorted(self._interested_nodes(group)))
        return GroupStatus(None, interested, self._self in interested, parents=(), children=())

    def groups(self) -> list[Group]:
        """Return all groups known."""
        return sorted({MANAGEMENT_GROUP, *self._context.index.nodes_by_group})

    # ------------------------------------------------------------ ways

    def _invalidate_paths(self) -> StrategyOutput:
        self._computed_version = None
        return []

    def _is_current(self) -> bool:
        return self._computed_version == self._context.graph.version

    def _recompute_if_stale(self) -> None:
        """Draw all ways anew if the map has changed."""
        if not self._is_current():
            self._computed_version = self._context.graph.version
            self._stale_groups.update(dict.fromkeys(self._context.index.nodes_by_group))
            self._recompute_paths()

    def _compile_entry(self, group: Group) -> GroupEntry | Group:
        interested = self._interested_nodes(group)
        return self._make_entry(group, interested) if interested else group

    def _interested_nodes(self, group: Group) -> list[NodeId]:
        """Return the nodes in reach that want a group."""
        reachable = self._context.graph.reachable
        if group == MANAGEMENT_GROUP:
            return list(reachable)
        return [
            node for node in self._context.index.nodes_by_group.get(group, ()) if node in reachable
        ]
