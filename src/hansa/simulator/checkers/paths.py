"""The promise of strategies whose copies take the ways of their own origin (rules 8.7 and 8.8)."""

from collections.abc import Iterable, Set

from hansa.protocol.model import Publication
from hansa.protocol.settings import Metric
from hansa.protocol.topics import matches, split_share
from hansa.simulator.analysis.convergence import Tracker
from hansa.simulator.analysis.ledger import Entry
from hansa.simulator.analysis.truth import Component
from hansa.simulator.checkers.publications import Undisturbed
from hansa.simulator.world.network import End
from hansa.simulator.world.world import World

Arc = tuple[int, int]
"""From a place to the next."""


class OwnWays(Undisturbed):
    """What is published undisturbed takes the shortest ways to all who want it, and no other; with
    redundancy, no link is missed but those that every way must use."""

    name = "own ways"

    def __init__(self, world: World, violations: list[str], tracker: Tracker) -> None:
        """Watch where copies go."""
        super().__init__(world, violations, tracker)
        self._settings = world.options.protocol
        self._arcs: dict[int, dict[Arc, None]] = {}
        self._judged: set[object] = set()

    def forwarded(self, end: End, publication: Publication) -> None:
        """Note where a copy goes."""
        entry = self.world.ledger.find(publication)
        if entry is not None and not entry.qos:
            arc = (end.machine.place, end.other.machine.place)
            self._arcs.setdefault(entry.number, {})[arc] = None

    def judge(self, entry: Entry, part: Component, wanted: tuple[int, ...]) -> None:
        """Hold the ways against the map; the same ways on the same map once."""
        arcs = tuple(self._arcs.pop(entry.number, ()))
        case = (entry.place, wanted, arcs, self.world.shape)
        if case in self._judged or self.world.options.topology.nodes > 30:
            return
        self._judged.add(case)
        near = _places(part)
        text = f"publication {entry.number} on {entry.topic} from n{entry.place}"
        stray = self._ends(arcs) - self._may_want(entry.topic, part)
        if stray:
            self.fail(f"{text} ends at n{min(stray)}, where nobody wants it")
        if self._settings.redundancy == 1:
            self._judge_tree(text, entry.place, wanted, arcs, near)
        else:
            self._judge_spare(text, entry.place, wanted, arcs, near)

    def _ends(self, arcs: tuple[Arc, ...]) -> set[int]:
        onward = {a for a, _ in arcs}
        return {b for _, b in arcs if b not in onward}

    def _may_want(self, topic: str, part: Component) -> set[int]:
        """The places where somebody wants a topic, be it only together with others."""
        if self._settings.group_depth:
            return {site.place for site in part.sites}
        views = {site.place: self._tracker.truth.view(site) for site in part.sites}
        return {
            place
            for place, view in views.items()
            if (own := view.interest.get(view.node))
            and any(matches(split_share(name)[1], topic) for name in own.filters)
        }

    def _judge_tree(
        self, text: str, start: int, wanted: tuple[int, ...], arcs: tuple[Arc, ...], near: "Map"
    ) -> None:
        """One way to each: no node is reached twice, and all as soon as can be."""
        heads = [b for _, b in arcs]
        if len(heads) != len(set(heads)) or start in heads:
            self.fail(f"{text} reaches a node by two ways: {sorted(arcs)}")
        if self._settings.metric is Metric.RTT:
            return
        real, taken = _distances(start, near), _distances(start, _map(arcs))
        for place in wanted:
            if place in taken and taken[place] != real[place]:
                self.fail(f"{text} takes {taken[place]} hops to n{place}, it is {real[place]} away")

    def _judge_spare(
        self, text: str, start: int, wanted: tuple[int, ...], arcs: tuple[Arc, ...], near: "Map"
    ) -> None:
        """Two ways to each: without any one link it still arrives, where that can be. Where a copy
        came, none goes back; it would have, had the other not been first."""
        ways = _map([*arcs, *((b, a) for a, b in arcs)])
        for a, b in arcs:
            lost = {(a, b), (b, a)}
            could = _distances(start, near, lost)
            does = _distances(start, ways, lost)
            missed = [place for place in wanted if place in could and place not in does]
            if missed:
                self.fail(f"{text} would miss n{missed[0]} without the link n{a}-n{b}")
                return


Map = dict[int, list[int]]
"""Per place, where one can go from there."""


def _map(arcs: Iterable[Arc]) -> Map:
    found: Map = {}
    for a, b in arcs:
        found.setdefault(a, []).append(b)
    return found


def _places(part: Component) -> Map:
    """Return the map of a component, in places instead of ids."""
    place = {node: site.place for node, site in part.by_id.items()}
    return {place[node]: [place[other] for other in near] for node, near in part.neighbours.items()}


def _distances(start: int, near: Map, lost: Set[Arc] = frozenset()) -> dict[int, int]:
    """Return how many hops each place is away that can be reached without what is lost."""
    found = {start: 0}
    queue = [start]
    for place in queue:  # grows as it is read: breadth first
        for other in near.get(place, ()):
            if other not in found and (place, other) not in lost:
                found[other] = found[place] + 1
                queue.append(other)
    return found
