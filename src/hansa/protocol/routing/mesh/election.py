"""Who is core of a group. All that changes it is here; nothing here knows frames or meshes.

The first node with a subscriber claims the group; of several claimants in reach the smallest id is
the core and the others give way. When a core is lost, the wanting node that was nearest to it takes
over at once and the others only if it does not. The management group needs no claims: its core is
the best node in reach, by id or by capacity.
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
    """A group that is wanted here and has no core."""

    lost: NodeId | None
    """The core it had; None if it never had one."""
    since: float
    due: float
    """When it falls to this node to claim it."""


class Election:
    """The cores of all groups, as one node sees them."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        graph: Graph,
        index: GroupIndex,
        capacity: Callable[[NodeId], float],
    ) -> None:
        """Start alone: this node is the core of the management group, and of nothing else."""
        self._self = node
        self._settings = settings
        self._graph = graph
        self._index = index
        self._capacity = capacity
        self.cores: dict[Group, NodeId] = {MANAGEMENT_GROUP: node}
        self.groups_by_core: dict[NodeId, dict[Group, None]] = {node: {MANAGEMENT_GROUP: None}}
        """The groups of each core."""
        self.own_claims: dict[Group, None] = {}
        """The groups that this node claims."""
        self._claimants: dict[Group, dict[NodeId, None]] = {}
        self._vacancies: dict[Group, Vacancy] = {}
        self._idle_since: dict[Group, float] = {}  # claimed here, but wanted nowhere: since when

    def apply_claims(self, node: NodeId, added: Iterable[Group], removed: Iterable[Group]) -> None:
        """Another node claims groups or gives them up; `evaluate` them next."""
        for group in added:
            self._claimants.setdefault(group, {})[node] = None
        for group in removed:
            claimants = self._claimants.get(group, {})
            claimants.pop(node, None)
            if not claimants:
                self._claimants.pop(group, None)

    def evaluate(self, group: Group, now: float) -> list[Effect]:
        """Decide anew who is core of a group; `claims` may change."""
        before = self.cores.get(group)
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
        """Decide anew who leads the management group: the best node in reach. By id, only those
        who joined can be better than the core that is there."""
        core, reachable = self.cores[MANAGEMENT_GROUP], self._graph.reachable
        if self._settings.management_by is ManagementBy.ID and core in reachable:
            core = min([core, *(node for node in joined if node in reachable)])
        else:
            core = min(reachable, key=self._rank)
        if core == self.cores[MANAGEMENT_GROUP]:
            return []
        return [self._set_core(MANAGEMENT_GROUP, core)]

    def due_groups(self, now: float) -> list[Group]:
        """Return the groups that must be evaluated again by now."""
        due = [group for group, vacancy in self._vacancies.items() if now >= vacancy.due]
        idle = [g for g, since in self._idle_since.items() if now >= since + self._settings.linger]
        return due + idle

    def next_deadline(self) -> float | None:
        """When `waiting` next returns something."""
        if not self._vacancies and not self._idle_since:
            return None
        dues = [vacancy.due for vacancy in self._vacancies.values()]
        dues += [since + self._settings.linger for since in self._idle_since.values()]
        return min(dues)

    def _set_core(self, group: Group, core: NodeId | None) -> Effect:
        """Put a core in the place of another, or of none."""
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

    def _rank(self, node: NodeId) -> tuple[float, NodeId]:
        if self._settings.management_by is ManagementBy.CAPACITY:
            return -self._capacity(node), node
        return 0.0, node

    def _best_claimant(self, group: Group) -> NodeId | None:
        reachable = self._graph.reachable
        claimants = [n for n in self._claimants.get(group, ()) if n in reachable]
        if group in self.own_claims:
            claimants.append(self._self)
        return min(claimants, default=None)

    def _interested_nodes(self, group: Group) -> list[NodeId]:
        reachable = self._graph.reachable
        return [node for node in self._index.nodes_by_group.get(group, ()) if node in reachable]

    def _fill_vacancy(self, group: Group, before: NodeId | None, now: float) -> NodeId | None:
        """Nobody claims the group: claim it if that falls to this node, now or after a while."""
        wanters = self._interested_nodes(group)
        if self._self not in wanters:
            self._vacancies.pop(group, None)
            return None
        vacancy = self._vacancies.pop(group, None)
        if vacancy is None and before is None and len(wanters) == 1:
            return self._claim(group)
        lost, since = (vacancy.lost, vacancy.since) if vacancy else (before, now)
        due = self._takeover_at(lost, since, wanters)
        if now >= due:
            return self._claim(group)
        self._vacancies[group] = Vacancy(lost, since, due)
        return None

    def _takeover_at(self, lost: NodeId | None, since: float, wanters: list[NodeId]) -> float:
        """When it falls to this node to claim a vacant group: at once if it is the next in line."""
        if lost is None:
            return since + (
                0 if self._self == min(wanters) else self._settings.takeover_fallback_delay
            )
        due = since + self._settings.takeover_delay
        if self._graph.nearest_to(lost, wanters) != self._self:
            due += self._settings.takeover_fallback_delay
        return due

    def _claim(self, group: Group) -> NodeId:
        self.own_claims[group] = None
        return self._self

    def _keep_or_release(self, group: Group, now: float) -> NodeId | None:
        """This node leads the group: give it up when nobody has wanted it for a while."""
        if self._interested_nodes(group):
            self._idle_since.pop(group, None)
            return self._self
        since = self._idle_since.setdefault(group, now)
        if now < since + self._settings.linger:
            return self._self
        del self._idle_since[group]
        del self.own_claims[group]
        return None
