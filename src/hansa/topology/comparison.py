"""Compares the planner with the paper's rule: nodes join one by one, then some fail at once.

Nodes are placed at random in a square; the round-trip time is their distance. The paper's rule uses
only the latency between brokers and the manager, which is in the centre. The planner is run with
the same information, and with measured round-trip times.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import mean

from hansa.topology import paper_rule
from hansa.topology.graph import (
    Graph,
    LinkPair,
    hops_from,
    is_connected,
    make_graph,
    make_link_pair,
    path_lengths_from,
)
from hansa.topology.planner import PlannerInput, PlannerLimits, PlannerNode, plan_until_stable

SQUARE_SIDE_MS = 100.0
"""Round-trip time from one side of the square to the other."""


@dataclass(frozen=True, slots=True)
class RuleScore:
    """Results of a rule: means over federations, except the maximum `degree_max`."""

    rule: str
    links: float
    degree_max: int
    diameter: float
    """Largest number of hops between two nodes."""
    mean_hops: float
    mean_ms: float
    """Round-trip time along the shortest path, over all pairs."""
    connected_ratio: float
    """Ratio of failure rounds in which the survivors were connected before any repair."""
    repaired_ratio: float
    """Ratio of failure rounds in which they were connected after the repair."""


@dataclass(frozen=True, slots=True)
class TopologyTrial:
    nodes: int = 30
    degree_max: int = 5
    federations: int = 20
    failure_rounds: int = 20
    """Rounds of failures per federation."""
    failed_ratio: float = 0.2
    """Ratio of nodes that fail at once."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class _TrialFederation:
    members: list[PlannerNode]
    rtt_ms: dict[LinkPair, float]
    links: frozenset[LinkPair] = frozenset()


def compare_rules(trial: TopologyTrial) -> list[RuleScore]:
    federations_by_rule: dict[str, list[_TrialFederation]] = {
        "paper": [],
        "planner": [],
        "planner, measured": [],
    }
    for number in range(trial.federations):
        federation = _make_federation(trial.nodes, random.Random(f"{trial.seed} {number}"))
        unmeasured = replace(federation, rtt_ms={})
        planned = _grow_by_planner(unmeasured, trial.degree_max)
        measured = _grow_by_planner(federation, trial.degree_max)
        federations_by_rule["paper"].append(_grow_by_paper(federation, trial.degree_max))
        federations_by_rule["planner"].append(replace(federation, links=planned.links))
        federations_by_rule["planner, measured"].append(measured)
    return [_score(rule, federations, trial) for rule, federations in federations_by_rule.items()]


def _make_federation(count: int, rng: random.Random) -> _TrialFederation:
    positions = [
        (rng.uniform(0, SQUARE_SIDE_MS), rng.uniform(0, SQUARE_SIDE_MS)) for _ in range(count)
    ]
    centre = (SQUARE_SIDE_MS / 2, SQUARE_SIDE_MS / 2)
    members = [
        PlannerNode(f"n{n:03}", math.dist(position, centre)) for n, position in enumerate(positions)
    ]
    rtt_ms = {
        make_link_pair(members[a].name, members[b].name): math.dist(positions[a], positions[b])
        for a in range(count)
        for b in range(a)
    }
    return _TrialFederation(members, rtt_ms)


def _grow_by_paper(federation: _TrialFederation, degree_max: int) -> _TrialFederation:
    links: frozenset[LinkPair] = frozenset()
    for count, newcomer in enumerate(federation.members, 1):
        links = paper_rule.join_node(newcomer.name, federation.members[:count], links, degree_max)
    return replace(federation, links=links)


def _grow_by_planner(federation: _TrialFederation, degree_max: int) -> _TrialFederation:
    links: frozenset[LinkPair] = frozenset()
    for count in range(1, len(federation.members) + 1):
        links = _plan_links(federation, federation.members[:count], links, degree_max)
    return replace(federation, links=links)


def _plan_links(
    federation: _TrialFederation,
    members: list[PlannerNode],
    links: frozenset[LinkPair],
    degree_max: int,
) -> frozenset[LinkPair]:
    planner_input = PlannerInput(tuple(members), links, federation.rtt_ms)
    return plan_until_stable(planner_input, PlannerLimits(degree_max))[0].links


def _score(rule: str, federations: list[_TrialFederation], trial: TopologyTrial) -> RuleScore:
    graphs = [make_graph((m.name for m in each.members), each.links) for each in federations]
    hops = [_hop_counts(graph) for graph in graphs]
    connected_ratio, repaired_ratio = _measure_survival(rule, federations, trial)
    return RuleScore(
        rule,
        links=mean(len(each.links) for each in federations),
        degree_max=max(len(neighbours) for graph in graphs for neighbours in graph.values()),
        diameter=mean(max(each) for each in hops),
        mean_hops=mean(mean(each) for each in hops),
        mean_ms=mean(
            mean(_path_lengths(graph, each.rtt_ms))
            for graph, each in zip(graphs, federations, strict=True)
        ),
        connected_ratio=connected_ratio,
        repaired_ratio=repaired_ratio,
    )


def _measure_survival(
    rule: str, federations: list[_TrialFederation], trial: TopologyTrial
) -> tuple[float, float]:
    rng = random.Random(f"{trial.seed} failures")
    connected: list[bool] = []
    repaired: list[bool] = []
    for federation in federations:
        for _ in range(trial.failure_rounds):
            count = round(trial.failed_ratio * len(federation.members))
            lost = {member.name for member in rng.sample(federation.members, count)}
            survivors = [member for member in federation.members if member.name not in lost]
            names = [member.name for member in survivors]
            connected.append(is_connected(make_graph(names, federation.links)))
            links = _repair_links(rule, federation, survivors, sorted(lost), trial.degree_max)
            repaired.append(is_connected(make_graph(names, links)))
    return mean(connected), mean(repaired)


def _repair_links(
    rule: str,
    federation: _TrialFederation,
    survivors: list[PlannerNode],
    lost: list[str],
    degree_max: int,
) -> frozenset[LinkPair]:
    if rule != "paper":
        return _plan_links(federation, survivors, federation.links, degree_max)
    links = federation.links
    for number, removed in enumerate(lost, 1):  # one after the other, as failures are detected
        present = [m for m in federation.members if m.name not in lost[:number]]
        links = paper_rule.remove_node(removed, present, links, degree_max)
    return links


def _hop_counts(graph: Graph) -> list[int]:
    return [
        hops for name in graph for other, hops in hops_from(graph, name).items() if other > name
    ]


def _path_lengths(graph: Graph, rtt_ms: dict[LinkPair, float]) -> Iterable[float]:
    for name in graph:
        for other, length in path_lengths_from(graph, name, rtt_ms, 0.0).items():
            if other > name:
                yield length
