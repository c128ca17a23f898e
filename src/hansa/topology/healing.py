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

from hansa.topology.graph import Name, Pair, bridges, graph_of, pair
from hansa.topology.planner import Change, Limits, Member, Situation, plan

PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 60.0
"""Seconds between two attempts to reach somebody who does not answer."""

SLACK = 1
"""Neighbours more than allowed that a node has while somebody else plans: what is added stands
before what it replaces is removed."""

TRIES = 2.0
"""Nodes of a part, on average, that try to reach somebody outside it each time they all look."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What one node knows."""

    me: Name
    reach: tuple[Name, ...]
    """Nodes in reach, this one included."""
    absent: tuple[Name, ...]
    """Nodes that are known, have an address, and are not in reach."""
    links: frozenset[Pair]
    """Between nodes in reach."""
    rtt_ms: Mapping[Pair, float] = field(default_factory=dict)

    def needs(self, other: Name) -> bool:
        """Whether the link to a neighbour is the only way to somebody."""
        return pair(self.me, other) in bridges(graph_of(self.reach, self.links))

    @property
    def neighbours(self) -> list[Name]:
        """Return those that this node is linked to."""
        return [name for name in self.reach if pair(self.me, name) in self.links]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a node would like to do now."""

    dial: tuple[Name, ...] = ()
    drop: tuple[Name, ...] = ()


def surroundings(
    me: int,
    links: Mapping[int, Iterable[tuple[int, int]]],
    reach: Collection[int],
    addressed: Collection[int],
) -> Surroundings:
    """Return what a node knows: per known node its links with round trips in microseconds; who is
    in reach; who has an address. A link counts if both ends say that it is there, and its cost is
    what the more hopeful of them says: the same, whoever looks."""
    near = {node: dict(links.get(node, ())) for node in reach}
    rtt_ms = {
        (name_of(a), name_of(b)): min(rtt, near[b][a]) / 1000
        for a, others in near.items()
        for b, rtt in others.items()
        if a < b and a in near.get(b, ())
    }
    absent = [name_of(node) for node in addressed if node not in near]
    return Surroundings(
        name_of(me),
        tuple(sorted(map(name_of, reach))),
        tuple(sorted(absent)),
        frozenset(rtt_ms),
        rtt_ms,
    )


@lru_cache(maxsize=1 << 13)
def name_of(node: int) -> Name:
    """Return what the planner calls a node: its id as people see it."""
    return f"{node:016x}"


def share_of_plan(known: Surroundings, limits: Limits) -> Wishes:
    """Return what the planner would have this node do: whom to dial, which links to give up."""
    dial: list[Name] = []
    drop: list[Name] = []
    costs = frozenset(known.rtt_ms.items())
    for change in _planned(known.reach, known.links, costs, limits):
        if known.me in change.link:
            other = change.link[change.link[0] == known.me]
            (dial if change.kind == "add" else drop).append(other)
    return Wishes(tuple(dial), tuple(drop))


@lru_cache(maxsize=16)
def _planned(
    reach: tuple[Name, ...],
    links: frozenset[Pair],
    costs: frozenset[tuple[Pair, float]],
    limits: Limits,
) -> list[Change]:
    """Plan. In a simulation all nodes see the same: one of them does it for all."""
    return plan(Situation(tuple(map(Member, reach)), links, dict(costs)), limits)


def strangers(
    known: Surroundings, due: Sequence[Name], limits: Limits, chance: random.Random
) -> list[Name]:
    """Return whom to dial of those out of reach that are due: enough neighbours if this node is
    alone, else at most one, now and then."""
    if len(known.reach) == 1:
        return sorted(chance.sample(due, min(limits.neighbours, len(due))))
    return [chance.choice(due)] if due and chance.random() < TRIES / len(known.reach) else []


class Healer:
    """Looks again and again: what a plan wants is done when the next look still wants it, and who
    does not answer is tried more and more rarely."""

    def __init__(self, limits: Limits, chance: random.Random) -> None:
        """Start with nobody tried."""
        self.limits = limits
        self._chance = chance
        self._before = Wishes()
        self._planned: tuple[Surroundings, Limits, Wishes] | None = None
        self._tried: dict[Name, tuple[float, float]] = {}

    def look(
        self, known: Surroundings, own: frozenset[Name], now: float, planning: bool = True
    ) -> Wishes:
        """Return what to do now. Without `planning` somebody else plans: then only who is alone,
        who is out of reach and who has far too many neighbours matters."""
        self._tried = {name: at for name, at in self._tried.items() if name in known.absent}
        due = [name for name in known.absent if self._tried.get(name, (0, now))[1] <= now]
        outside = strangers(known, due, self.limits, self._chance)
        for name in outside:
            pause, _ = self._tried.get(name, (PAUSE_MIN_S / 2, now))
            pause = min(2 * pause, PAUSE_MAX_S)
            self._tried[name] = (pause, now + pause * self._chance.uniform(0.5, 1.0))
        if not planning:
            self._before = Wishes()
            return Wishes(tuple(outside), self._surplus(known))
        share = self._share(known)
        lasting = [name for name in share.dial if name in self._before.dial]
        self._before = share
        return Wishes((*lasting, *outside), tuple(name for name in share.drop if name in own))

    def _surplus(self, known: Surroundings) -> tuple[Name, ...]:
        """Return links to give up although somebody else plans: the planner would, too."""
        most = self.limits.degree_max + SLACK
        if not known.links or len(known.neighbours) <= most:
            return ()
        return share_of_plan(known, replace(self.limits, degree_max=most)).drop

    def _share(self, known: Surroundings) -> Wishes:
        """Plan, unless nothing has changed since the last time."""
        if self._planned is None or self._planned[:2] != (known, self.limits):
            self._planned = (known, self.limits, share_of_plan(known, self.limits))
        return self._planned[2]
