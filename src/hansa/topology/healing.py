"""What a node does about its links by itself, without any manager.

Every node knows who is in reach and who is linked with whom, so it runs the planner on that and
does its own share of the plan. All see nearly the same, so their plans agree; where they do not,
there is a link too many for a while. With nodes that are out of reach but known, it tries to link
now and then, as one of those who can.
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
"""Seconds between two attempts to reach somebody who does not answer."""

DEGREE_SLACK = 1
"""Neighbours more than allowed that a node has while somebody else plans: what is added stands
before what it replaces is removed."""

DIALS_PER_ROUND = 2.0
"""Nodes of a part, on average, that try to reach somebody outside it each time they all look."""


@dataclass(frozen=True, slots=True)
class LocalTopology:
    """What one node knows."""

    own_name: NodeName
    reachable: tuple[NodeName, ...]
    """Nodes in reach, this one included."""
    absent: tuple[NodeName, ...]
    """Nodes that are known, have an address, and are not in reach."""
    links: frozenset[LinkPair]
    """Between nodes in reach."""
    rtt_ms: Mapping[LinkPair, float] = field(default_factory=dict)

    def is_bridge_to(self, other: NodeName) -> bool:
        """Whether the link to a neighbour is the only way to somebody."""
        return make_link_pair(self.own_name, other) in bridges(
            make_graph(self.reachable, self.links)
        )

    @property
    def neighbours(self) -> list[NodeName]:
        """Return those that this node is linked to."""
        return [
            name for name in self.reachable if make_link_pair(self.own_name, name) in self.links
        ]


@dataclass(frozen=True, slots=True)
class LinkActions:
    """What a node would like to do now."""

    dial: tuple[NodeName, ...] = ()
    drop: tuple[NodeName, ...] = ()


def make_local_topology(
    own_node: int,
    links: Mapping[int, Iterable[tuple[int, int]]],
    reachable: Collection[int],
    addressed: Collection[int],
) -> LocalTopology:
    """Return what a node knows: per known node its links with round trips in microseconds; who is
    in reach; who has an address. A link counts if both ends say that it is there, and its cost is
    what the more hopeful of them says: the same, whoever looks."""
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
    """Return what the planner calls a node: its id as people see it."""
    return f"{node:016x}"


def plan_own_links(local_topology: LocalTopology, limits: PlannerLimits) -> LinkActions:
    """Return what the planner would have this node do: whom to dial, which links to give up."""
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
    """Plan. In a simulation all nodes see the same: one of them does it for all."""
    return plan_changes(
        PlannerInput(tuple(map(PlannerNode, reachable)), links, dict(costs)), limits
    )


def choose_absent_to_dial(
    local_topology: LocalTopology,
    due: Sequence[NodeName],
    limits: PlannerLimits,
    rng: random.Random,
) -> list[NodeName]:
    """Return whom to dial of those out of reach that are due: enough neighbours if this node is
    alone, else at most one, now and then."""
    if len(local_topology.reachable) == 1:
        return sorted(rng.sample(due, min(limits.degree_min, len(due))))
    return (
        [rng.choice(due)]
        if due and rng.random() < DIALS_PER_ROUND / len(local_topology.reachable)
        else []
    )


class TopologyHealer:
    """Looks again and again: what a plan wants is done when the next look still wants it, and who
    does not answer is tried more and more rarely."""

    def __init__(self, limits: PlannerLimits, rng: random.Random) -> None:
        """Start with nobody tried."""
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
        """Return what to do now. Without `planning` somebody else plans: then only who is alone,
        who is out of reach and who has far too many neighbours matters."""
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
        """Return links to give up although somebody else plans: the planner would, too."""
        degree_max = self.limits.degree_max + DEGREE_SLACK
        if not local_topology.links or len(local_topology.neighbours) <= degree_max:
            return ()
        return plan_own_links(local_topology, replace(self.limits, degree_max=degree_max)).drop

    def _own_actions(self, local_topology: LocalTopology) -> LinkActions:
        """Plan, unless nothing has changed since the last time."""
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
