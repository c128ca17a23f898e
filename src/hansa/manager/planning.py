"""Runs the planner on the rows of the manager, separately for agents and paper federators."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from hansa.manager.rows import LinkOrigin, LinkRow, NodeRow, NodeState
from hansa.topology.graph import LinkPair, hops_from, make_graph, make_link_pair
from hansa.topology.planner import (
    LinkChange,
    PlannerInput,
    PlannerLimits,
    PlannerNode,
    plan_changes,
)

UNKNOWN_LATENCY_MS = 50.0
"""Assumed latency of a broker that was not measured recently."""

LinkKey = tuple[int, int]


def plan_manager_changes(
    nodes: Collection[NodeRow],
    links: Sequence[LinkRow],
    rtts: Mapping[LinkKey, float | None],
    barred: Iterable[LinkKey],
    degree_max: int,
) -> list[LinkChange]:
    """Plan agents and federators of the paper separately: they cannot be linked. `nodes` are all
    known nodes."""
    known = {_name(key): rtt for key, rtt in rtts.items() if rtt is not None}
    limits = PlannerLimits(degree_max=degree_max)
    avoided = frozenset(map(_name, barred))
    paper_federators = {node.id for node in nodes if node.is_paper_federator}
    up = [node for node in nodes if node.state is NodeState.UP]
    found: list[LinkChange] = []
    for is_paper_federator in (False, True):
        of_kind = [
            link
            for link in links
            if paper_federators.issuperset((link.a, link.b)) is is_paper_federator
        ]
        planner_input = PlannerInput(
            tuple(_member(node) for node in up if node.is_paper_federator is is_paper_federator),
            frozenset(_name((link.a, link.b)) for link in of_kind),
            known,
            pinned=frozenset(
                _name((link.a, link.b)) for link in of_kind if link.origin is LinkOrigin.OPERATOR
            ),
            barred=avoided,
        )
        found += plan_changes(planner_input, limits)
    return found


def urgent_changes(
    changes: Iterable[LinkChange], nodes: Collection[NodeRow], links: Iterable[LinkRow]
) -> list[LinkChange]:
    """Return the changes that need no approval: links that join parts of a split federation, and
    removals of links whose end is not up."""
    up = {str(node.id) for node in nodes if node.state is NodeState.UP}
    pairs = [_name((link.a, link.b)) for link in links]
    found = []
    for change in changes:
        a, b = change.link
        if change.kind == "remove":
            if not up.issuperset(change.link):
                found.append(change)
        elif b not in hops_from(make_graph(up, pairs), a):
            found.append(change)
            pairs.append(change.link)  # the next one need not join the same parts
    return found


def _member(node: NodeRow) -> PlannerNode:
    latency = UNKNOWN_LATENCY_MS if node.latency_ms is None else node.latency_ms
    return PlannerNode(str(node.id), latency, node.tags, node.draining)


def _name(key: LinkKey) -> LinkPair:
    return make_link_pair(str(key[0]), str(key[1]))
