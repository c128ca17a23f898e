"""What strategies share that say nothing: all they need is the map and the interest, which every
node holds anyway. Nodes that hold the same database find the same ways.

Ways are drawn when a publication needs them, so that a burst of news costs one drawing.
"""
# ruff: noqa: B027 -- what most of them need not do is left empty here

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from hansa.protocol.forwarding.table import Entry
from hansa.protocol.model import MANAGEMENT, Group, NodeId
from hansa.protocol.routing.base import Fact, Outcome, Surroundings
from hansa.protocol.status import CoreView, GroupView
from hansa.protocol.wire.frames import Control


class FromMap(ABC):
    """A strategy without frames or timers of its own. What differs is where copies go."""

    facts: ClassVar[frozenset[Fact]] = frozenset({Fact.FOLLOWS_DATABASE})

    def __init__(self, around: Surroundings) -> None:
        """Start alone."""
        self._around = around
        self._self = around.node
        self._drawn: int | None = None  # the version of the map that ways were drawn from
        self._stale: dict[Group, None] = {}

    # ------------------------------------------------------------ what differs

    def _draw(self) -> None:
        """The map, the capacities or the links of this node are others now."""

    @abstractmethod
    def _entry(self, group: Group, wanters: list[NodeId]) -> Entry:
        """Return where publications of a group go that these nodes in reach want."""

    # ------------------------------------------------------------ what happens

    def neighbour_up(self, node: NodeId, now: float) -> Outcome:
        """Entries name links, and there is a new one."""
        return self._redraw()

    def neighbour_down(self, node: NodeId, now: float) -> Outcome:
        """A link is gone."""
        return self._redraw()

    def costs_changed(self, now: float) -> Outcome:
        """The map knows."""
        return []

    def incarnation_raised(self, now: float) -> Outcome:
        """Nothing here is numbered by incarnation."""
        return []

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> Outcome:
        """Who is in reach wants something; capacities may have changed, too."""
        return self._redraw()

    def interest_changed(self, groups: Iterable[Group], now: float) -> Outcome:
        """These groups lead elsewhere."""
        self._stale.update(dict.fromkeys(groups))
        return []

    def claims_changed(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> Outcome:
        """Nobody claims anything."""
        return []

    def forget(self, node: NodeId) -> None:
        """It is out of reach already, and what it wanted is known to be gone."""

    def receive(self, sender: NodeId, frame: Control, now: float) -> Outcome:
        """It is another strategy's frame; hello made sure that there is none."""
        return []

    def fire(self, now: float) -> Outcome:
        """Nothing is ever due."""
        return []

    def next_deadline(self) -> float | None:
        """Nothing is ever due."""
        return None

    # ------------------------------------------------------------ what others read

    def take_entries(self) -> list[Entry | Group]:
        """Compile what changed since last asked."""
        self._look()
        stale, self._stale = self._stale, {}
        return [self._compile(group) for group in stale]

    def entries_waiting(self) -> int:
        """Return how many groups the next `take_entries` looks at."""
        return len(self._stale) if self._is_drawn() else len(self._around.index.wanters)

    def core_views(self) -> dict[NodeId, CoreView]:
        """There are no cores."""
        return {}

    def group_view(self, group: Group) -> GroupView:
        """Return one group; it has no mesh."""
        wanters = tuple(sorted(self._wanters(group)))
        return GroupView(None, wanters, self._self in wanters, parents=(), children=())

    def groups(self) -> list[Group]:
        """Return all groups known."""
        return sorted({MANAGEMENT, *self._around.index.wanters})

    # ------------------------------------------------------------ ways

    def _redraw(self) -> Outcome:
        self._drawn = None
        return []

    def _is_drawn(self) -> bool:
        return self._drawn == self._around.graph.version

    def _look(self) -> None:
        """Draw all ways anew if the map has changed."""
        if not self._is_drawn():
            self._drawn = self._around.graph.version
            self._stale.update(dict.fromkeys(self._around.index.wanters))
            self._draw()

    def _compile(self, group: Group) -> Entry | Group:
        wanters = self._wanters(group)
        return self._entry(group, wanters) if wanters else group

    def _wanters(self, group: Group) -> list[NodeId]:
        """Return the nodes in reach that want a group."""
        reachable = self._around.graph.reachable
        if group == MANAGEMENT:
            return list(reachable)
        return [node for node in self._around.index.wanters.get(group, ()) if node in reachable]
