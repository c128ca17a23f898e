"""The planner beside the paper's rule: the same nodes join one by one, then some fail at once.

Nodes lie at random places of a square; a round trip takes as long as they are apart. The paper's
rule knows only how fast brokers answer the manager, which stands in the middle. The planner is
tried with just that, and with round trips that nodes measured.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import mean

from hansa.topology import paper_rule
from hansa.topology.graph import (
    Graph,
    Pair,
    graph_of,
    hops_from,
    is_connected,
    lengths_from,
    pair,
)
from hansa.topology.planner import Limits, Member, Situation, settle

SIDE_MS = 100.0
"""Round trip from one side of the square to the other."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a rule made of some federations, on average; the extremes where the name says so."""

    rule: str
    links: float
    degree_max: int
    diameter: float
    """Hops between the two nodes that are farthest from each other."""
    mean_hops: float
    mean_ms: float
    """Round trip between two nodes along the shortest way, over all pairs."""
    whole: float
    """Part of the trials in which the survivors hung together before anybody repaired anything."""
    mended: float
    """… and after the rule had repaired what it repairs."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the rules are tried on."""

    nodes: int = 30
    degree_max: int = 5
    federations: int = 20
    failures: int = 20
    """Times that nodes fail, for each federation."""
    failed: float = 0.2
    """Part of the nodes that fail at once."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class _Federation:
    members: list[Member]
    rtt_ms: dict[Pair, float]
    links: frozenset[Pair] = frozenset()


def compare(trial: Trial) -> list[Score]:
    """Return one score per rule."""
    grown: dict[str, list[_Federation]] = {"paper": [], "planner": [], "planner, measured": []}
    for number in range(trial.federations):
        square = _square(trial.nodes, random.Random(f"{trial.seed} {number}"))
        blind = replace(square, rtt_ms={})
        grown["paper"].append(_grow_by_paper(square, trial.degree_max))
        planned = _grow_by_planner(blind, trial.degree_max)
        grown["planner"].append(replace(square, links=planned.links))
        grown["planner, measured"].append(_grow_by_planner(square, trial.degree_max))
    return [_score(rule, made, trial) for rule, made in grown.items()]


def _square(count: int, chance: random.Random) -> _Federation:
    places = [(chance.uniform(0, SIDE_MS), chance.uniform(0, SIDE_MS)) for _ in range(count)]
    middle = (SIDE_MS / 2, SIDE_MS / 2)
    members = [Member(f"n{n:03}", math.dist(place, middle)) for n, place in enumerate(places)]
    rtt_ms = {
        pair(members[a].name, members[b].name): math.dist(places[a], places[b])
        for a in range(count)
        for b in range(a)
    }
    return _Federation(members, rtt_ms)


def _grow_by_paper(square: _Federation, degree_max: int) -> _Federation:
    links: frozenset[Pair] = frozenset()
    for count, newcomer in enumerate(square.members, 1):
        links = paper_rule.join(newcomer.name, square.members[:count], links, degree_max)
    return replace(square, links=links)


def _grow_by_planner(square: _Federation, degree_max: int) -> _Federation:
    links: frozenset[Pair] = frozenset()
    for count in range(1, len(square.members) + 1):
        links = _planned(square, square.members[:count], links, degree_max)
    return replace(square, links=links)


def _planned(
    square: _Federation, members: list[Member], links: frozenset[Pair], degree_max: int
) -> frozenset[Pair]:
    situation = Situation(tuple(members), links, square.rtt_ms)
    return settle(situation, Limits(degree_max))[0].links


def _score(rule: str, federations: list[_Federation], trial: Trial) -> Score:
    graphs = [graph_of((m.name for m in each.members), each.links) for each in federations]
    hops = [_ways(graph) for graph in graphs]
    whole, mended = _survival(rule, federations, trial)
    return Score(
        rule,
        links=mean(len(each.links) for each in federations),
        degree_max=max(len(near) for graph in graphs for near in graph.values()),
        diameter=mean(max(each) for each in hops),
        mean_hops=mean(mean(each) for each in hops),
        mean_ms=mean(
            mean(_lengths(graph, each.rtt_ms))
            for graph, each in zip(graphs, federations, strict=True)
        ),
        whole=whole,
        mended=mended,
    )


def _survival(rule: str, federations: list[_Federation], trial: Trial) -> tuple[float, float]:
    chance = random.Random(f"{trial.seed} failures")
    whole: list[bool] = []
    mended: list[bool] = []
    for federation in federations:
        for _ in range(trial.failures):
            count = round(trial.failed * len(federation.members))
            lost = {member.name for member in chance.sample(federation.members, count)}
            left = [member for member in federation.members if member.name not in lost]
            names = [member.name for member in left]
            whole.append(is_connected(graph_of(names, federation.links)))
            links = _mend(rule, federation, left, sorted(lost), trial.degree_max)
            mended.append(is_connected(graph_of(names, links)))
    return mean(whole), mean(mended)


def _mend(
    rule: str, federation: _Federation, left: list[Member], lost: list[str], degree_max: int
) -> frozenset[Pair]:
    if rule != "paper":
        return _planned(federation, left, federation.links, degree_max)
    links = federation.links
    for number, gone in enumerate(lost, 1):  # one after the other, as they are noticed
        there = [m for m in federation.members if m.name not in lost[:number]]
        links = paper_rule.lose(gone, there, links, degree_max)
    return links


def _ways(graph: Graph) -> list[int]:
    return [
        hops for name in graph for other, hops in hops_from(graph, name).items() if other > name
    ]


def _lengths(graph: Graph, rtt_ms: dict[Pair, float]) -> Iterable[float]:
    for name in graph:
        for other, length in lengths_from(graph, name, rtt_ms, 0.0).items():
            if other > name:
                yield length
