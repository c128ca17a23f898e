"""Base of strategies without frames of their own: they use only the map and the interest, which
every node holds. Nodes with the same database compute the same paths.

Paths are computed when a publication needs them, so a burst of changes costs one computation.
"""
# ruff: noqa: B027 -- hooks that most strategies do not need are empty here

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.model import MANAGEMENT_GROUP, Group, NodeId
from hansa.protocol.routing.base import CoreStatus, GroupStatus, StrategyContext, StrategyInvariant
from hansa.protocol.routing.output import StrategyOutput
from hansa.protocol.wire.frames import ControlFrame


class LinkStateStrategy(ABC):
    """A strategy without frames or timers. Subclasses decide where copies go."""

    invariants: ClassVar[frozenset[StrategyInvariant]] = frozenset(
        {StrategyInvariant.FOLLOWS_DATABASE}
    )

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._self = context.node
        self._computed_version: int | None = (
            None  # version of the map that paths were computed from
        )
        self._stale_groups: dict[Group, None] = {}

    # ------------------------------------------------------------ for subclasses

    def _recompute_paths(self) -> None:
        """The map, the capacities or the links of this node have changed."""

    @abstractmethod
    def _make_entry(self, group: Group, interested: list[NodeId]) -> GroupEntry:
        """Return the entry of a group in which these reachable nodes are interested."""

    # ------------------------------------------------------------ changes

    def neighbour_up(self, node: NodeId, now: float) -> StrategyOutput:
        """Entries contain links, and there is a new one."""
        return self._invalidate_paths()

    def neighbour_down(self, node: NodeId, now: float) -> StrategyOutput:
        return self._invalidate_paths()

    def costs_changed(self, now: float) -> StrategyOutput:
        return []

    def announcement_missed(self, core: NodeId, now: float) -> None:
        """There are no announcements."""

    def map_changed(self, now: float) -> StrategyOutput:
        return []

    def incarnation_raised(self, now: float) -> StrategyOutput:
        return []

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> StrategyOutput:
        """Reachable nodes and capacities decide the entries."""
        return self._invalidate_paths()

    def interest_changed(self, groups: Iterable[Group], now: float) -> StrategyOutput:
        self._stale_groups.update(dict.fromkeys(groups))
        return []

    def claims_changed(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> StrategyOutput:
        return []

    def expire_node(self, node: NodeId) -> None:
        pass

    def receive(self, sender: NodeId, frame: ControlFrame, now: float) -> StrategyOutput:
        """A frame of another strategy: the hello has ruled that out."""
        return []

    def handle_timer(self, now: float) -> StrategyOutput:
        return []

    def next_deadline(self) -> float | None:
        return None

    # ------------------------------------------------------------ entries and status

    def drain_entries(self) -> list[GroupEntry | Group]:
        """Compile the entries that changed since the last call."""
        self._recompute_if_stale()
        stale, self._stale_groups = self._stale_groups, {}
        return [self._compile_entry(group) for group in stale]

    def stale_entry_count(self) -> int:
        """Return how many groups the next `drain_entries` compiles."""
        return (
            len(self._stale_groups)
            if self._is_current()
            else len(self._context.index.nodes_by_group)
        )

    def core_statuses(self) -> dict[NodeId, CoreStatus]:
        return {}

    def group_status(self, group: Group) -> GroupStatus:
        """Return one group; it has no mesh."""
        interested = tuple(sorted(self._interested_nodes(group)))
        return GroupStatus(None, interested, self._self in interested, parents=(), children=())

    def groups(self) -> list[Group]:
        return list(dict.fromkeys((MANAGEMENT_GROUP, *self._context.index.nodes_by_group)))

    # ------------------------------------------------------------ paths

    def _invalidate_paths(self) -> StrategyOutput:
        self._computed_version = None
        return []

    def _is_current(self) -> bool:
        return self._computed_version == self._context.graph.version

    def _recompute_if_stale(self) -> None:
        """Recompute all paths if the map has changed."""
        if not self._is_current():
            self._computed_version = self._context.graph.version
            self._stale_groups.update(dict.fromkeys(self._context.index.nodes_by_group))
            self._recompute_paths()

    def _compile_entry(self, group: Group) -> GroupEntry | Group:
        interested = self._interested_nodes(group)
        return self._make_entry(group, interested) if interested else group

    def _interested_nodes(self, group: Group) -> list[NodeId]:
        reachable = self._context.graph.reachable
        if group == MANAGEMENT_GROUP:
            return list(reachable)
        return [
            node for node in self._context.index.nodes_by_group.get(group, ()) if node in reachable
        ]
