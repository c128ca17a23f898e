"""Election of the core of each group.

The first node with a subscriber claims the group; of several reachable claimants the smallest id is
the core and the others release the group. When a core is lost, the interested node that was nearest
to it takes over at once, and others only if it does not. The management group needs no claims: its
core is the best reachable node, by id or by capacity.

Only nodes whose certificate allows it become core. If none of the interested nodes may, the
smallest reachable node that may is the core in their place.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hansa.protocol.effects import CoreElected, CoreLost, Effect
from hansa.protocol.interest.groups import GroupIndex
from hansa.protocol.membership.graph import Graph
from hansa.protocol.model import MANAGEMENT_GROUP, Group, NodeId
from hansa.protocol.settings import ManagementBy, ProtocolSettings


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A group with local interest and without a core."""

    lost: NodeId | None
    """The former core; None if there was none."""
    since: float
    due: float
    """When this node may claim it."""


class Election:
    """The cores of all groups, as one node sees them."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        graph: Graph,
        index: GroupIndex,
        capacity: Callable[[NodeId], float],
        may_be_core: Callable[[NodeId], bool],
    ) -> None:
        self._self = node
        self._settings = settings
        self._graph = graph
        self._index = index
        self._capacity = capacity
        self._may_be_core = may_be_core
        self.cores: dict[Group, NodeId] = {MANAGEMENT_GROUP: node}
        self.groups_by_core: dict[NodeId, dict[Group, None]] = {node: {MANAGEMENT_GROUP: None}}
        """The groups of each core."""
        self.own_claims: dict[Group, None] = {}
        """The groups that this node claims."""
        self._claimants: dict[Group, dict[NodeId, None]] = {}
        self._vacancies: dict[Group, Vacancy] = {}
        # claimed here, but without an interested node: since when
        self._idle_since: dict[Group, float] = {}

    def apply_claims(self, node: NodeId, added: Iterable[Group], removed: Iterable[Group]) -> None:
        """Another node claims or releases groups; call `evaluate` for each next."""
        for group in added:
            self._claimants.setdefault(group, {})[node] = None
        for group in removed:
            claimants = self._claimants.get(group, {})
            claimants.pop(node, None)
            if not claimants:
                self._claimants.pop(group, None)

    def evaluate(self, group: Group, now: float) -> list[Effect]:
        """Elect the core of a group again; `own_claims` may change."""
        before = self.cores.get(group)
        if not self._may_be_core(self._self):
            self.own_claims.pop(group, None)
        core = self._best_claimant(group)
        if core is None:
            core = self._fill_vacancy(group, before, now)
        else:
            self._vacancies.pop(group, None)
            if core != self._self:
                self.own_claims.pop(group, None)
                self._idle_since.pop(group, None)
            else:
                core = self._keep_or_release(group, now)
        if core == before:
            return []
        return [self._set_core(group, core)]

    def evaluate_management(self, joined: Iterable[NodeId]) -> list[Effect]:
        """Elect the core of the management group again: the best reachable node. By id, only nodes
        that joined can be better than the present core."""
        core, reachable = self.cores[MANAGEMENT_GROUP], self._graph.reachable
        is_able = core in reachable and self._may_be_core(core)
        if self._settings.management_by is ManagementBy.ID and is_able:
            core = min([core, *(node for node in joined if node in reachable)], key=self._rank)
        else:
            core = min(reachable, key=self._rank)
        if core == self.cores[MANAGEMENT_GROUP]:
            return []
        return [self._set_core(MANAGEMENT_GROUP, core)]

    def due_groups(self, now: float) -> list[Group]:
        """Return the groups to evaluate again now."""
        due = [group for group, vacancy in self._vacancies.items() if now >= vacancy.due]
        idle = [g for g, since in self._idle_since.items() if now >= since + self._settings.linger]
        return due + idle

    def next_deadline(self) -> float | None:
        """When `due_groups` is due."""
        if not self._vacancies and not self._idle_since:
            return None
        dues = [vacancy.due for vacancy in self._vacancies.values()]
        dues += [since + self._settings.linger for since in self._idle_since.values()]
        return min(dues)

    def _set_core(self, group: Group, core: NodeId | None) -> Effect:
        before = self.cores.pop(group, None)
        if before is not None:
            del self.groups_by_core[before][group]
            if not self.groups_by_core[before]:
                del self.groups_by_core[before]
        if core is None:
            assert before is not None
            return CoreLost(group, before)
        self.cores[group] = core
        self.groups_by_core.setdefault(core, {})[group] = None
        return CoreElected(group, core)

    def _rank(self, node: NodeId) -> tuple[bool, float, NodeId]:
        unable = not self._may_be_core(node)
        if self._settings.management_by is ManagementBy.CAPACITY:
            return unable, -self._capacity(node), node
        return unable, 0.0, node

    def _best_claimant(self, group: Group) -> NodeId | None:
        reachable = self._graph.reachable
        claimants = [
            n for n in self._claimants.get(group, ()) if n in reachable and self._may_be_core(n)
        ]
        if group in self.own_claims:
            claimants.append(self._self)
        return min(claimants, default=None)

    def _interested_nodes(self, group: Group) -> list[NodeId]:
        reachable = self._graph.reachable
        return [node for node in self._index.nodes_by_group.get(group, ()) if node in reachable]

    def _candidates(self, group: Group) -> list[NodeId]:
        """Return the nodes that may claim a group."""
        interested = self._interested_nodes(group)
        able = [node for node in interested if self._may_be_core(node)]
        if able or not interested:
            return able
        others = [node for node in self._graph.reachable if self._may_be_core(node)]
        return [min(others)] if others else []

    def _fill_vacancy(self, group: Group, before: NodeId | None, now: float) -> NodeId | None:
        """No node claims the group: claim it now or later, if it is this node's turn."""
        candidates = self._candidates(group)
        if self._self not in candidates:
            self._vacancies.pop(group, None)
            return None
        vacancy = self._vacancies.pop(group, None)
        if vacancy is None and before is None and len(candidates) == 1:
            return self._claim(group)
        lost, since = (vacancy.lost, vacancy.since) if vacancy else (before, now)
        due = self._takeover_at(lost, since, candidates)
        if now >= due:
            return self._claim(group)
        self._vacancies[group] = Vacancy(lost, since, due)
        return None

    def _takeover_at(self, lost: NodeId | None, since: float, candidates: list[NodeId]) -> float:
        """When this node may claim a vacant group: at once if it is next in line."""
        if lost is None:
            return since + (
                0 if self._self == min(candidates) else self._settings.takeover_fallback_delay
            )
        due = since + self._settings.takeover_delay
        if self._graph.nearest_to(lost, candidates) != self._self:
            due += self._settings.takeover_fallback_delay
        return due

    def _claim(self, group: Group) -> NodeId:
        self.own_claims[group] = None
        return self._self

    def _keep_or_release(self, group: Group, now: float) -> NodeId | None:
        """This node is the core: release the group after a while without interested nodes."""
        if self._interested_nodes(group):
            self._idle_since.pop(group, None)
            return self._self
        since = self._idle_since.setdefault(group, now)
        if now < since + self._settings.linger:
            return self._self
        del self._idle_since[group]
        del self.own_claims[group]
        return None
