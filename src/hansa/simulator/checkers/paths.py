"""Invariant of strategies with shortest paths from each origin (rules 8.7 and 8.8)."""

from collections.abc import Iterable, Set

from hansa.protocol.model import Publication
from hansa.protocol.settings import Metric
from hansa.protocol.topics import matches, split_share
from hansa.simulator.analysis.convergence import ConvergenceTracker
from hansa.simulator.analysis.ground_truth import Component
from hansa.simulator.checkers.publications import UndisturbedPublicationChecker
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.network import LinkEnd
from hansa.simulator.world.world import World

DirectedLink = tuple[int, int]
"""From a place to the next."""


class ShortestPathsFromOrigin(UndisturbedPublicationChecker):
    """An undisturbed publication takes shortest paths to all interested nodes, and no others; with
    redundancy, paths share only links that every path must use."""

    name = "shortest paths from origin"

    def __init__(self, world: World, violations: list[str], tracker: ConvergenceTracker) -> None:
        super().__init__(world, violations, tracker)
        self._settings = world.options.protocol
        self._links_used: dict[int, dict[DirectedLink, None]] = {}
        self._checked_cases: set[object] = set()

    def on_copy_sent(self, end: LinkEnd, publication: Publication) -> None:
        entry = self.world.ledger.find(publication)
        if entry is not None and not entry.qos:
            arc = (end.host.place, end.peer.host.place)
            self._links_used.setdefault(entry.number, {})[arc] = None

    def check_publication(
        self, entry: LedgerEntry, component: Component, expected_places: tuple[int, ...]
    ) -> None:
        """Compare the paths with the graph; equal paths on an equal graph only once."""
        arcs = tuple(self._links_used.pop(entry.number, ()))
        case = (entry.place, expected_places, arcs, self.world.topology_version)
        if case in self._checked_cases or self.world.options.topology.nodes > 30:
            return
        self._checked_cases.add(case)
        near = _component_adjacency(component)
        text = f"publication {entry.number} on {entry.topic} from n{entry.place}"
        stray = self._path_ends(arcs) - self._interested_places(entry.topic, component)
        if stray:
            self.report_violation(f"{text} ends at n{min(stray)}, where no client subscribes to it")
        if self._settings.redundancy == 1:
            self._check_single_paths(text, entry.place, expected_places, arcs, near)
        else:
            self._check_redundant_paths(text, entry.place, expected_places, arcs, near)

    def _path_ends(self, arcs: tuple[DirectedLink, ...]) -> set[int]:
        onward = {a for a, _ in arcs}
        return {b for _, b in arcs if b not in onward}

    def _interested_places(self, topic: str, part: Component) -> set[int]:
        """The places with interest in a topic, shared subscriptions included."""
        if self._settings.group_depth:
            return {site.place for site in part.sites}
        views = {site.place: self._tracker.truth.status(site) for site in part.sites}
        return {
            place
            for place, view in views.items()
            if (own := view.interest.get(view.node))
            and any(matches(split_share(name)[1], topic) for name in own.filters)
        }

    def _check_single_paths(
        self,
        text: str,
        start: int,
        expected_places: tuple[int, ...],
        arcs: tuple[DirectedLink, ...],
        near: "Adjacency",
    ) -> None:
        """One path to each: no node is reached twice, and each by a shortest path."""
        heads = [b for _, b in arcs]
        if len(heads) != len(set(heads)) or start in heads:
            self.report_violation(f"{text} reaches a node by two paths: {sorted(arcs)}")
        if self._settings.metric is Metric.RTT:
            return
        real, taken = _distances(start, near), _distances(start, _make_adjacency(arcs))
        for place in expected_places:
            if place in taken and taken[place] != real[place]:
                self.report_violation(
                    f"{text} takes {taken[place]} hops to n{place}, it is {real[place]} away"
                )

    def _check_redundant_paths(
        self,
        text: str,
        start: int,
        expected_places: tuple[int, ...],
        arcs: tuple[DirectedLink, ...],
        near: "Adjacency",
    ) -> None:
        """Two paths to each: without any one link it still arrives where possible. No copy goes
        back over a link that brought one; otherwise the other path would have been used."""
        adjacency = _make_adjacency([*arcs, *((b, a) for a, b in arcs)])
        for a, b in arcs:
            lost = {(a, b), (b, a)}
            could = _distances(start, near, lost)
            does = _distances(start, adjacency, lost)
            missed = [place for place in expected_places if place in could and place not in does]
            if missed:
                self.report_violation(f"{text} would miss n{missed[0]} without the link n{a}-n{b}")
                return


Adjacency = dict[int, list[int]]
"""Per place, the reachable next places."""


def _make_adjacency(arcs: Iterable[DirectedLink]) -> Adjacency:
    found: Adjacency = {}
    for a, b in arcs:
        found.setdefault(a, []).append(b)
    return found


def _component_adjacency(part: Component) -> Adjacency:
    """Return the graph of a component with places instead of ids."""
    place = {node: site.place for node, site in part.by_id.items()}
    return {place[node]: [place[other] for other in near] for node, near in part.neighbours.items()}


def _distances(
    start: int, near: Adjacency, lost: Set[DirectedLink] = frozenset()
) -> dict[int, int]:
    """Return the distance of each place that is reachable without the removed links."""
    found = {start: 0}
    queue = [start]
    for place in queue:  # grows while it is read: breadth first
        for other in near.get(place, ()):
            if other not in found and (place, other) not in lost:
                found[other] = found[place] + 1
                queue.append(other)
    return found
