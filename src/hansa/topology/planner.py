"""Which links to add and which to remove, and why. Pure: a situation and limits in, a plan out.

Adding comes before removing: a plan that adds removes nothing that still carries something, so that
what is removed in a later plan is not missed. With nothing to mend the plan is empty, however often
it is asked for.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from hansa.topology.graph import (
    Graph,
    Name,
    Pair,
    blocks,
    bridges,
    graph_of,
    hops_from,
    pair,
    parts,
)

UNKNOWN_MS = 50.0
"""What a link between two nodes is taken to cost that nobody has measured."""

NEAR_MS = 5.0
"""… if they have a location tag in common."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that is there."""

    name: Name
    latency_ms: float = 0.0
    """From a publication at its broker until that comes back."""
    tags: tuple[str, ...] = ()
    """Where it is: nodes with a tag in common are near."""
    draining: bool = False
    """It is about to leave: nobody may need it."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known."""

    members: tuple[Member, ...]
    links: frozenset[Pair]
    """Those that are wanted now, some of them perhaps to nodes that are gone."""
    rtt_ms: Mapping[Pair, float] = field(default_factory=dict)
    """Measured round trips, of links and of others."""
    pinned: frozenset[Pair] = frozenset()
    """Links that an operator wants: never removed."""
    barred: frozenset[Pair] = frozenset()
    """Links that an operator removed: not added unless nothing else connects two parts."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the planner keeps to."""

    degree_max: int = 5
    """Neighbours of a node at most (`TOP_MAX_REDUNDANCY`), from 3: with two, a ring would be all
    there is. To connect parts that are full, a node may have more until a later plan."""
    neighbours: int = 2
    """Neighbours that every node gets if it can."""
    changes_max: int = 8
    """Changes in one plan, besides those that connect parts and those that gone nodes need."""


@dataclass(frozen=True, slots=True)
class Change:
    """One link more or less."""

    kind: Literal["add", "remove"]
    link: Pair
    reason: str


def plan(situation: Situation, limits: Limits) -> list[Change]:
    """Return what to change now, in order. Apply it, let it stand, and ask again."""
    draft = _Draft(situation, limits)
    draft.drop_gone()
    draft.connect()
    draft.make_safe()
    draft.give_neighbours()
    if not any(change.kind == "add" for change in draft.changes):
        draft.release_draining()
        draft.trim()
    return draft.changes


def after(situation: Situation, changes: Iterable[Change]) -> Situation:
    """Return the situation in which these changes have been made."""
    links = set(situation.links)
    for change in changes:
        (links.add if change.kind == "add" else links.discard)(change.link)
    return replace(situation, links=frozenset(links))


def settle(situation: Situation, limits: Limits, rounds: int = 64) -> tuple[Situation, int]:
    """Return where planning again and again leads, and how many changes that takes."""
    count = 0
    for _ in range(rounds):
        changes = plan(situation, limits)
        if not changes:
            break
        count += len(changes)
        situation = after(situation, changes)
    return situation, count


class _Draft:
    """A plan in the making. Draining nodes are left out of it: others must do without them."""

    def __init__(self, situation: Situation, limits: Limits) -> None:
        self.changes: list[Change] = []
        self._situation = situation
        self._limits = limits
        self._members = {member.name: member for member in situation.members}
        self._staying = [m.name for m in situation.members if not m.draining]
        self._links = set(situation.links)
        self._degree = Counter(name for link in self._links for name in link)
        self._budget = limits.changes_max

    # ------------------------------------------------------------ the steps

    def drop_gone(self) -> None:
        """A link to a node that is gone is no link."""
        for link in sorted(self._links):
            gone = [name for name in link if name not in self._members]
            if gone:
                self._change("remove", link, f"{gone[0]} is gone")

    def connect(self) -> None:
        """Join parts until there is one, each time by the cheapest link that may be."""
        while len(found := parts(self._graph())) > 1:
            first, rest = found[0], [name for part in found[1:] for name in part]
            link = self._cheapest(self._ends(first), self._ends(rest))
            alone = next((name for name in link if self._degree[name] == 0), None)
            reason = f"{alone} has no neighbour" if alone else "two parts become one"
            self._change("add", link, f"{reason}, {self._cost_text(link)}")

    def make_safe(self) -> None:
        """Give a second way to what hangs by one link, one end after the other."""
        if len(self._staying) < 3:
            return
        while self._budget > 0 and (cut := bridges(graph := self._graph())):
            touched = Counter(name for link in cut for name in link)
            hanging = [b for b in blocks(graph) if sum(touched[name] for name in b) == 1]
            others = [name for block in hanging[1:] for name in block]
            link = self._second_way(graph, self._ends(hanging[0]), self._ends(others))
            if link is None:
                return
            self._change("add", link, "a second way: one lost link must not split the federation")
            self._budget -= 1

    def give_neighbours(self) -> None:
        """Give every node as many neighbours as it should have, as far as others have room."""
        wanted = min(self._limits.neighbours, len(self._staying) - 1)
        for name in self._staying:
            while self._budget > 0 and self._degree[name] < wanted:
                graph = self._graph()
                others = [n for n in self._room(self._staying) if n not in (name, *graph[name])]
                link = self._second_way(graph, [name], others)
                if link is None:
                    break
                self._change("add", link, f"{name} should have {wanted} neighbours")
                self._budget -= 1

    def release_draining(self) -> None:
        """What stays hangs together without those that leave: let them go, but by one link to
        somebody who stays, or who has such a link, they remain until they have left."""
        leaving = set(self._members) - set(self._staying)
        anchors = {name: found[0] for name in leaving if (found := self._anchors(name))}
        for name in sorted(anchors):
            needed = {
                link for link in self._links_of(name) if (leaving - anchors.keys()) & set(link)
            }
            kept = {anchors[name], *needed, *self._situation.pinned}
            for link in self._links_of(name):
                if self._budget > 0 and link not in kept:
                    self._change("remove", link, f"{name} is draining")
                    self._budget -= 1

    def trim(self) -> None:
        """Take from nodes with too many neighbours the costliest link that nobody needs; where all
        are needed, link another to a third node, and the next plan finds one that is not."""
        most = self._limits.degree_max
        for name in self._staying:
            while self._budget > 0 and self._degree[name] > most:
                self._budget -= 1
                if link := next(self._spare([name]), None):
                    self._change("remove", link, f"{name} has more than {most} neighbours")
                    continue
                link = self._relief(name)
                if link is not None:
                    self._change("add", link, f"{name} has more than {most} neighbours, all needed")
                break

    # ------------------------------------------------------------ choices

    def _cheapest(self, near: list[Name], far: list[Name]) -> Pair:
        """Return the best link between two groups: allowed, cheap, and to nodes with few others."""
        _, _, _, link = min(
            (link in self._situation.barred, self._cost(link), self._degree[a] + self._degree[b],
             link)
            for a in near for b in far for link in [pair(a, b)]
        )  # fmt: skip
        return link

    def _second_way(self, graph: Graph, near: list[Name], far: list[Name]) -> Pair | None:
        """Return the link that adds most: between nodes with few neighbours, far from each other by
        hops, and of those the cheapest. None if there is none that may be."""
        best: tuple[int, int, float, Pair] | None = None
        for a in near:
            hops = hops_from(graph, a)
            for b in far:
                link = pair(a, b)
                if a == b or link in self._links or link in self._situation.barred:
                    continue
                away = -hops.get(b, len(graph))
                key = (self._degree[a] + self._degree[b], away, self._cost(link), link)
                best = key if best is None else min(best, key)
        return best[-1] if best else None

    def _spare(self, names: Iterable[Name]) -> Iterator[Pair]:
        """Yield links of these nodes without which all is as safe as with them, the costliest
        first."""
        cut = bridges(self._graph())
        least = min(self._limits.neighbours, len(self._staying) - 1)
        links = {link for name in names for link in self._links_of(name)}
        for link in sorted(links, key=lambda link: (-self._cost(link), link)):
            rest = graph_of(self._staying, self._links - {link})
            if (
                link not in cut | self._situation.pinned
                and all(len(rest[name]) >= least for name in link if name in rest)
                and all(self._anchors(name) != [link] for name in link)
                and len(bridges(rest)) <= len(cut)
            ):
                yield link

    def _relief(self, name: Name) -> Pair | None:
        """Return a link between a neighbour of a node with too many and somebody else."""
        graph = self._graph()
        neighbours = self._room(graph[name])
        return self._second_way(graph, neighbours, [n for n in self._room(graph) if n != name])

    def _ends(self, names: list[Name]) -> list[Name]:
        """Return those of some nodes that may take one more link: with room, or able to give
        another link up, or, if all fails, with the fewest."""
        if room := self._room(names):
            return room
        if link := next(self._spare(names), None):
            return [name for name in link if name in names]
        least = min(self._degree[name] for name in names)
        return [name for name in names if self._degree[name] == least]

    def _room(self, names: Iterable[Name]) -> list[Name]:
        return [name for name in names if self._degree[name] < self._limits.degree_max]

    def _cost(self, link: Pair) -> float:
        """Return what a link costs: measured, or guessed from where and how fast its ends are."""
        measured = self._situation.rtt_ms.get(link)
        if measured is not None:
            return measured
        a, b = self._members[link[0]], self._members[link[1]]
        base = NEAR_MS if set(a.tags) & set(b.tags) else UNKNOWN_MS
        return base + a.latency_ms + b.latency_ms

    def _cost_text(self, link: Pair) -> str:
        how = "measured" if link in self._situation.rtt_ms else "guessed"
        return f"{self._cost(link):.1f} ms ({how})"

    # ------------------------------------------------------------ the graph

    def _graph(self) -> Graph:
        return graph_of(self._staying, self._links)

    def _anchors(self, name: Name) -> list[Pair]:
        """Return the links of a node to those who stay."""
        staying = set(self._staying)
        return [link for link in self._links_of(name) if staying & set(link) - {name}]

    def _links_of(self, name: Name) -> list[Pair]:
        return sorted(link for link in self._links if name in link)

    def _change(self, kind: Literal["add", "remove"], link: Pair, reason: str) -> None:
        (self._links.add if kind == "add" else self._links.discard)(link)
        for name in link:
            self._degree[name] += 1 if kind == "add" else -1
        self.changes.append(Change(kind, link, reason))
