"""Plans which links to add and to remove, with reasons. Pure: same input and limits, same plan.

A plan that adds links removes none but those to dead nodes: surplus links are removed by a later
plan, when the added ones are established. The plan for a sound topology is empty.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from hansa.topology.graph import (
    Graph,
    LinkPair,
    NodeName,
    bridges,
    connected_components,
    hops_from,
    make_graph,
    make_link_pair,
    two_edge_connected_components,
)

UNMEASURED_RTT_MS = 50.0
"""Assumed round-trip time of a link that was not measured."""

SAME_TAG_RTT_MS = 5.0
"""Assumed round-trip time between nodes with a common location tag."""


@dataclass(frozen=True, slots=True)
class PlannerNode:
    name: NodeName
    latency_ms: float = 0.0
    """Round-trip time of a publication at its broker."""
    tags: tuple[str, ...] = ()
    """Location tags: nodes with a common tag are near each other."""
    draining: bool = False
    """It is about to leave: no other node may depend on it."""


@dataclass(frozen=True, slots=True)
class PlannerInput:
    nodes: tuple[PlannerNode, ...]
    links: frozenset[LinkPair]
    """Present links, perhaps also to dead nodes."""
    rtt_ms: Mapping[LinkPair, float] = field(default_factory=dict)
    """Measured round-trip times, also between nodes without a link."""
    pinned: frozenset[LinkPair] = frozenset()
    """Links that an operator added: never removed."""
    barred: frozenset[LinkPair] = frozenset()
    """Links that an operator removed: added only if nothing else connects two components."""


@dataclass(frozen=True, slots=True)
class PlannerLimits:
    degree_max: int = 5
    """Maximum number of neighbours (`TOP_MAX_REDUNDANCY`), at least 3: with two, only a ring would
    be possible. To connect components without room, a node may exceed it until a later plan."""
    degree_min: int = 2
    """Number of neighbours that every node gets if possible."""
    changes_max: int = 8
    """Changes per plan, besides those that connect components or remove links to dead nodes."""


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A link to add or remove."""

    kind: Literal["add", "remove"]
    link: LinkPair
    reason: str


def plan_changes(planner_input: PlannerInput, limits: PlannerLimits) -> list[LinkChange]:
    """Return the changes to make now, in order; plan again when they are established."""
    draft = _PlanDraft(planner_input, limits)
    draft.remove_dead_links()
    draft.connect_components()
    draft.add_second_paths()
    draft.raise_degrees()
    if not any(change.kind == "add" for change in draft.changes):
        draft.release_draining()
        draft.remove_surplus_links()
    return draft.changes


def apply_changes(planner_input: PlannerInput, changes: Iterable[LinkChange]) -> PlannerInput:
    links = set(planner_input.links)
    for change in changes:
        (links.add if change.kind == "add" else links.discard)(change.link)
    return replace(planner_input, links=frozenset(links))


def plan_until_stable(
    planner_input: PlannerInput, limits: PlannerLimits, rounds: int = 64
) -> tuple[PlannerInput, int]:
    """Plan and apply until nothing changes; return the result and the number of changes."""
    count = 0
    for _ in range(rounds):
        changes = plan_changes(planner_input, limits)
        if not changes:
            break
        count += len(changes)
        planner_input = apply_changes(planner_input, changes)
    return planner_input, count


class _PlanDraft:
    """An unfinished plan. Draining nodes are not part of its graph: others must not need them."""

    def __init__(self, planner_input: PlannerInput, limits: PlannerLimits) -> None:
        self.changes: list[LinkChange] = []
        self._input = planner_input
        self._limits = limits
        self._nodes = {node.name: node for node in planner_input.nodes}
        self._staying = [node.name for node in planner_input.nodes if not node.draining]
        self._links = set(planner_input.links)
        self._degree = Counter(name for link in self._links for name in link)
        self._budget = limits.changes_max

    # ------------------------------------------------------------ the steps

    def remove_dead_links(self) -> None:
        for link in sorted(self._links):
            gone = [name for name in link if name not in self._nodes]
            if gone:
                self._apply_change("remove", link, f"{gone[0]} is gone")

    def connect_components(self) -> None:
        """Connect the components, each time by the cheapest allowed link."""
        while len(found := connected_components(self._graph())) > 1:
            first, rest = found[0], [name for component in found[1:] for name in component]
            link = self._cheapest_link(self._candidate_ends(first), self._candidate_ends(rest))
            alone = next((name for name in link if self._degree[name] == 0), None)
            reason = f"{alone} has no neighbour" if alone else "connects two components"
            self._apply_change("add", link, f"{reason}, {self._cost_text(link)}")

    def add_second_paths(self) -> None:
        """Add second paths to nodes behind a bridge, one leaf block at a time."""
        if len(self._staying) < 3:
            return
        while self._budget > 0 and (bridge_links := bridges(graph := self._graph())):
            touched = Counter(name for link in bridge_links for name in link)
            leaf_blocks = [
                b
                for b in two_edge_connected_components(graph)
                if sum(touched[name] for name in b) == 1
            ]
            others = [name for block in leaf_blocks[1:] for name in block]
            link = self._second_path_link(
                graph, self._candidate_ends(leaf_blocks[0]), self._candidate_ends(others)
            )
            if link is None:
                return
            self._apply_change(
                "add", link, "second path: one lost link must not split the federation"
            )
            self._budget -= 1

    def raise_degrees(self) -> None:
        """Raise degrees to `degree_min`, as far as other nodes have room."""
        degree_min = min(self._limits.degree_min, len(self._staying) - 1)
        for name in self._staying:
            while self._budget > 0 and self._degree[name] < degree_min:
                graph = self._graph()
                others = [
                    n
                    for n in self._below_degree_max(self._staying)
                    if n not in (name, *graph[name])
                ]
                link = self._second_path_link(graph, [name], others)
                if link is None:
                    break
                self._apply_change("add", link, f"{name} should have {degree_min} neighbours")
                self._budget -= 1

    def release_draining(self) -> None:
        """Remove the links of draining nodes, which the staying ones no longer need. Each keeps one
        link to a staying node, or to a draining node that has one, until it has left."""
        leaving = set(self._nodes) - set(self._staying)
        anchors = {name: found[0] for name in leaving if (found := self._links_to_staying(name))}
        for name in sorted(anchors):
            needed = {
                link for link in self._links_of(name) if (leaving - anchors.keys()) & set(link)
            }
            kept = {anchors[name], *needed, *self._input.pinned}
            for link in self._links_of(name):
                if self._budget > 0 and link not in kept:
                    self._apply_change("remove", link, f"{name} is draining")
                    self._budget -= 1

    def remove_surplus_links(self) -> None:
        """Remove the most expensive unneeded link of nodes with too many neighbours. If all links
        are needed, add a link between two others, so that the next plan can remove one."""
        degree_max = self._limits.degree_max
        for name in self._staying:
            while self._budget > 0 and self._degree[name] > degree_max:
                self._budget -= 1
                if link := next(self._removable_links([name]), None):
                    self._apply_change(
                        "remove", link, f"{name} has more than {degree_max} neighbours"
                    )
                    continue
                link = self._relief_link(name)
                if link is not None:
                    self._apply_change(
                        "add", link, f"{name} has more than {degree_max} neighbours, all needed"
                    )
                break

    # ------------------------------------------------------------ choices

    def _cheapest_link(self, near: list[NodeName], far: list[NodeName]) -> LinkPair:
        """Return the best link between two sets: allowed, cheap, and between low degrees."""
        _, _, _, link = min(
            (link in self._input.barred, self._cost(link), self._degree[a] + self._degree[b],
             link)
            for a in near for b in far for link in [make_link_pair(a, b)]
        )  # fmt: skip
        return link

    def _second_path_link(
        self, graph: Graph, near: list[NodeName], far: list[NodeName]
    ) -> LinkPair | None:
        """Return the link with the most benefit: between nodes with few neighbours, many hops
        apart, and of those the cheapest. None if no link is allowed."""
        best: tuple[int, int, float, LinkPair] | None = None
        for a in near:
            hops = hops_from(graph, a)
            for b in far:
                link = make_link_pair(a, b)
                if a == b or link in self._links or link in self._input.barred:
                    continue
                negative_hops = -hops.get(b, len(graph))
                key = (self._degree[a] + self._degree[b], negative_hops, self._cost(link), link)
                best = key if best is None else min(best, key)
        return best[-1] if best else None

    def _removable_links(self, names: Iterable[NodeName]) -> Iterator[LinkPair]:
        """Yield links of these nodes whose removal creates no bridge, the most expensive first."""
        bridge_links = bridges(self._graph())
        degree_min = min(self._limits.degree_min, len(self._staying) - 1)
        links = {link for name in names for link in self._links_of(name)}
        for link in sorted(links, key=lambda link: (-self._cost(link), link)):
            rest = make_graph(self._staying, self._links - {link})
            if (
                link not in bridge_links | self._input.pinned
                and all(len(rest[name]) >= degree_min for name in link if name in rest)
                and all(self._links_to_staying(name) != [link] for name in link)
                and len(bridges(rest)) <= len(bridge_links)
            ):
                yield link

    def _relief_link(self, name: NodeName) -> LinkPair | None:
        """Return a link between a neighbour of a node with too many neighbours and another node."""
        graph = self._graph()
        neighbours = self._below_degree_max(graph[name])
        return self._second_path_link(
            graph, neighbours, [n for n in self._below_degree_max(graph) if n != name]
        )

    def _candidate_ends(self, names: list[NodeName]) -> list[NodeName]:
        """Return the nodes that may get one more link: those with room, else those that can remove
        another link, else those with the fewest neighbours."""
        if room := self._below_degree_max(names):
            return room
        if link := next(self._removable_links(names), None):
            return [name for name in link if name in names]
        degree_least = min(self._degree[name] for name in names)
        return [name for name in names if self._degree[name] == degree_least]

    def _below_degree_max(self, names: Iterable[NodeName]) -> list[NodeName]:
        return [name for name in names if self._degree[name] < self._limits.degree_max]

    def _cost(self, link: LinkPair) -> float:
        """Return the measured cost, else an estimate from tags and latencies of both ends."""
        measured = self._input.rtt_ms.get(link)
        if measured is not None:
            return measured
        a, b = self._nodes[link[0]], self._nodes[link[1]]
        base = SAME_TAG_RTT_MS if set(a.tags) & set(b.tags) else UNMEASURED_RTT_MS
        return base + a.latency_ms + b.latency_ms

    def _cost_text(self, link: LinkPair) -> str:
        source = "measured" if link in self._input.rtt_ms else "estimated"
        return f"{self._cost(link):.1f} ms ({source})"

    # ------------------------------------------------------------ the graph

    def _graph(self) -> Graph:
        return make_graph(self._staying, self._links)

    def _links_to_staying(self, name: NodeName) -> list[LinkPair]:
        staying = set(self._staying)
        return [link for link in self._links_of(name) if staying & set(link) - {name}]

    def _links_of(self, name: NodeName) -> list[LinkPair]:
        return sorted(link for link in self._links if name in link)

    def _apply_change(self, kind: Literal["add", "remove"], link: LinkPair, reason: str) -> None:
        (self._links.add if kind == "add" else self._links.discard)(link)
        for name in link:
            self._degree[name] += 1 if kind == "add" else -1
        self.changes.append(LinkChange(kind, link, reason))
