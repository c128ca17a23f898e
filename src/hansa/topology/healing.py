"""What a node does about its links by itself, without any manager.

Every node knows who is in reach and who is linked with whom, so it runs the planner on that and
does its own share of the plan. All see nearly the same, so their plans agree; where they do not,
there is a link too many for a while. With nodes that are out of reach but known, it tries to link
now and then, as one of those who can.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from hansa.topology.graph import Name, Pair, bridges, graph_of, pair
from hansa.topology.planner import Limits, Member, Situation, plan

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


def heal(
    known: Surroundings, own: frozenset[Name], limits: Limits, chance: random.Random
) -> Wishes:
    """Return whom to dial, and which links to give up of those that this node dialled by its own
    decision: `own`."""
    if len(known.reach) == 1:
        count = min(limits.neighbours, len(known.absent))
        return Wishes(dial=tuple(sorted(chance.sample(known.absent, count))))
    dial: list[Name] = []
    drop: list[Name] = []
    situation = Situation(tuple(Member(name) for name in known.reach), known.links, known.rtt_ms)
    for change in plan(situation, limits):
        if known.me in change.link:
            other = change.link[change.link[0] == known.me]
            if change.kind == "add":
                dial.append(other)
            elif other in own:
                drop.append(other)
    if known.absent and chance.random() < TRIES / len(known.reach):
        dial.append(chance.choice(known.absent))
    return Wishes(tuple(dial), tuple(drop))
