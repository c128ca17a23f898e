"""Repairs the topology without a manager.

Every node knows the reachable nodes and their links. It runs the planner on them and makes the
changes that concern its own links. All nodes have nearly the same view, so their plans agree; if
they do not, there is a surplus link for some time. Nodes dial known but unreachable nodes at random
intervals, so that on average only a few of them dial at the same time.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from hansa.topology.graph import LinkPair, NodeName, bridges, make_graph, make_link_pair
from hansa.topology.planner import (
    LinkChange,
    PlannerInput,
    PlannerLimits,
    PlannerNode,
    plan_changes,
)

RETRY_PAUSE_MIN_S = 1.0
RETRY_PAUSE_MAX_S = 60.0
"""Seconds between two attempts to dial an unreachable node."""

DEGREE_SLACK = 1
"""Neighbours above `degree_max` that are tolerated while the manager plans: it adds links before it
removes those that they replace."""

DIALS_PER_ROUND = 2.0
"""Mean number of nodes of a partition that dial an unreachable node in one round."""


@dataclass(frozen=True, slots=True)
class LocalTopology:
    """The topology as one node knows it."""

    own_name: NodeName
    reachable: tuple[NodeName, ...]
    """Reachable nodes, including this one."""
    absent: tuple[NodeName, ...]
    """Known nodes that have an address and are unreachable."""
    links: frozenset[LinkPair]
    """Links between reachable nodes."""
    rtt_ms: Mapping[LinkPair, float] = field(default_factory=dict)

    def is_bridge_to(self, other: NodeName) -> bool:
        """Return whether the link to a neighbour is the only path to some node."""
        return make_link_pair(self.own_name, other) in bridges(
            make_graph(self.reachable, self.links)
        )

    @property
    def neighbours(self) -> list[NodeName]:
        return [
            name for name in self.reachable if make_link_pair(self.own_name, name) in self.links
        ]


@dataclass(frozen=True, slots=True)
class LinkActions:
    """Links that a node should dial and close now."""

    dial: tuple[NodeName, ...] = ()
    drop: tuple[NodeName, ...] = ()


def make_local_topology(
    own_node: int,
    links: Mapping[int, Iterable[tuple[int, int]]],
    reachable: Collection[int],
    addressed: Collection[int],
) -> LocalTopology:
    """Return the local topology. `links` has per known node its links with round-trip times in
    microseconds; `addressed` are the nodes that have an address. A link counts if both ends
    announce it. Its cost is the smaller of the two times, so that all nodes use the same cost."""
    links_by_node = {node: dict(links.get(node, ())) for node in reachable}
    rtt_ms = {
        (node_name(a), node_name(b)): min(rtt, links_by_node[b][a]) / 1000
        for a, others in links_by_node.items()
        for b, rtt in others.items()
        if a < b and a in links_by_node.get(b, ())
    }
    absent = [node_name(node) for node in addressed if node not in links_by_node]
    return LocalTopology(
        node_name(own_node),
        tuple(sorted(map(node_name, reachable))),
        tuple(sorted(absent)),
        frozenset(rtt_ms),
        rtt_ms,
    )


@lru_cache(maxsize=1 << 13)
def node_name(node: int) -> NodeName:
    """Return the name of a node for the planner: its id in hexadecimal digits."""
    return f"{node:016x}"


def plan_own_links(local_topology: LocalTopology, limits: PlannerLimits) -> LinkActions:
    """Return the planned changes that concern this node."""
    dial: list[NodeName] = []
    drop: list[NodeName] = []
    costs = frozenset(local_topology.rtt_ms.items())
    for change in _cached_plan(local_topology.reachable, local_topology.links, costs, limits):
        if local_topology.own_name in change.link:
            other = change.link[change.link[0] == local_topology.own_name]
            (dial if change.kind == "add" else drop).append(other)
    return LinkActions(tuple(dial), tuple(drop))


@lru_cache(maxsize=16)
def _cached_plan(
    reachable: tuple[NodeName, ...],
    links: frozenset[LinkPair],
    costs: frozenset[tuple[LinkPair, float]],
    limits: PlannerLimits,
) -> list[LinkChange]:
    # In a simulation, all nodes have the same view and share the plan.
    return plan_changes(
        PlannerInput(tuple(map(PlannerNode, reachable)), links, dict(costs)), limits
    )


def choose_absent_to_dial(
    local_topology: LocalTopology,
    due: Sequence[NodeName],
    limits: PlannerLimits,
    rng: random.Random,
) -> list[NodeName]:
    """Return which of the due unreachable nodes to dial: `degree_min` if this node is isolated,
    else at most one, with a probability that gives DIALS_PER_ROUND in the partition."""
    if len(local_topology.reachable) == 1:
        return sorted(rng.sample(due, min(limits.degree_min, len(due))))
    return (
        [rng.choice(due)]
        if due and rng.random() < DIALS_PER_ROUND / len(local_topology.reachable)
        else []
    )


class TopologyHealer:
    """Determines the actions of one node in each round. A planned dial is made when two successive
    plans contain it; the pauses between dials of an unreachable node grow."""

    def __init__(self, limits: PlannerLimits, rng: random.Random) -> None:
        self.limits = limits
        self._rng = rng
        self._previous_actions = LinkActions()
        self._cached_actions: tuple[LocalTopology, PlannerLimits, LinkActions] | None = None
        self._retry_state: dict[NodeName, tuple[float, float]] = {}

    def next_actions(
        self,
        local_topology: LocalTopology,
        self_dialled: frozenset[NodeName],
        now: float,
        is_planning: bool = True,
    ) -> LinkActions:
        """Return the actions of this round. Without `is_planning`, the manager plans: the node then
        only dials unreachable nodes and closes links far beyond `degree_max`."""
        self._retry_state = {
            name: at for name, at in self._retry_state.items() if name in local_topology.absent
        }
        due = [
            name
            for name in local_topology.absent
            if self._retry_state.get(name, (0, now))[1] <= now
        ]
        absent_to_dial = choose_absent_to_dial(local_topology, due, self.limits, self._rng)
        for name in absent_to_dial:
            pause, _ = self._retry_state.get(name, (RETRY_PAUSE_MIN_S / 2, now))
            pause = min(2 * pause, RETRY_PAUSE_MAX_S)
            self._retry_state[name] = (pause, now + pause * self._rng.uniform(0.5, 1.0))
        if not is_planning:
            self._previous_actions = LinkActions()
            return LinkActions(tuple(absent_to_dial), self._surplus_links(local_topology))
        own_actions = self._own_actions(local_topology)
        confirmed_dials = [name for name in own_actions.dial if name in self._previous_actions.dial]
        self._previous_actions = own_actions
        return LinkActions(
            (*confirmed_dials, *absent_to_dial),
            tuple(name for name in own_actions.drop if name in self_dialled),
        )

    def _surplus_links(self, local_topology: LocalTopology) -> tuple[NodeName, ...]:
        """Return the links to close although the manager plans."""
        degree_max = self.limits.degree_max + DEGREE_SLACK
        if not local_topology.links or len(local_topology.neighbours) <= degree_max:
            return ()
        return plan_own_links(local_topology, replace(self.limits, degree_max=degree_max)).drop

    def _own_actions(self, local_topology: LocalTopology) -> LinkActions:
        """Return the planned actions; reuse the last plan if nothing has changed."""
        if self._cached_actions is None or self._cached_actions[:2] != (
            local_topology,
            self.limits,
        ):
            self._cached_actions = (
                local_topology,
                self.limits,
                plan_own_links(local_topology, self.limits),
            )
        return self._cached_actions[2]
