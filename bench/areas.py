"""Flat federations compared with areas (docs/decisions/0040-areas.md), in a simplified simulation.

*Flat*: every node holds the record and the filters of every node, and a publication of QoS 1 or 2
names all receivers. *Areas*: a node holds only those of its area. Two border nodes per area
announce a summary of the area's filters in a backbone federation, and a summary of all other areas'
summaries in the area. A publication names receivers of its area and one border; the border names
areas; a border there names receivers of its area.

Both use the same links, subscriptions and publications. There is no time and no loss: costs are
counted on the final state and on single changes. A flood reaches every node at its distance in
hops; a node does not send to neighbours that it heard from. No part of the protocol runs, except
the matching of topics.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean

from bench.area_custody import HandOver, explore
from bench.console import say
from bench.interest_summary import Change, InterestSummary
from hansa.protocol.topics import FilterTrie, remove_covered

# Bytes on the wire in a federation with certificates, the length of the frame included, names of
# filters excluded. tests/bench/test_areas.py compares them with the codec.
UPDATE_BYTES = 100  # Update with the change of one InterestRecord
ANNOUNCEMENT_BYTES = 196  # CoreAnnouncement with the change of one ClaimsRecord
ACK_BYTES = 57  # one InterestAck of a batch
HEARTBEATS_BYTES = 46  # both directions, each second
RECEIVER_BYTES = 28  # receiver, previous position and MAC in a publication

# Memory, measured in docs/growth.md: 2.4 kB per node, 0.5 to 0.8 kB per filter of a node.
NODE_MEMORY_KB = 2.4
FILTER_MEMORY_KB = 0.6

BORDERS = 2
SIGNALS = 20
GLOBAL_TOPICS = 10
FILTERS_PER_NODE = 10
PROBED_AREAS = 5
"""Areas that publish and whose imported summaries are computed: all areas are alike."""
PUBLICATIONS = 3_000
ROUTED = 100
"""Publications whose paths are compared."""
CHANGES = 200

SIZES = ((10, 10), (30, 30), (100, 100))
BOUNDS = (16, 64, 256, 1_024)


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    locality: float
    """Share of filters for topics of the subscriber's own area; the others are for any area."""
    names_have_place: bool
    """Whether a topic names the area of its publisher."""


WORKLOADS = (
    Workload("local interest, area in topic", 0.95, True),
    Workload("interest anywhere, area in topic", 0.0, True),
    Workload("local interest, no area in topic", 0.95, False),
)


@dataclass(frozen=True, slots=True)
class Publication:
    origin: int
    topic: str


class Graph:
    """Links between nodes; a random graph with four neighbours per node on average."""

    def __init__(self, links: Iterable[tuple[int, int]]) -> None:
        self.links = sorted({(min(link), max(link)) for link in links})
        self._neighbours: dict[int, list[int]] = {}
        for one, other in self.links:
            self._neighbours.setdefault(one, []).append(other)
            self._neighbours.setdefault(other, []).append(one)

    @classmethod
    def draw(cls, nodes: Sequence[int], chance: random.Random) -> "Graph":
        ring = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
        links = {(min(link), max(link)) for link in ring}
        while len(links) < 2 * len(nodes):
            one, other = chance.sample(nodes, 2)
            links.add((min(one, other), max(one, other)))
        return cls(links)

    def distances(self, source: int) -> dict[int, int]:
        """Return the hops from one node to every node."""
        found = {source: 0}
        waiting = deque([source])
        while waiting:
            node = waiting.popleft()
            for neighbour in self._neighbours[node]:
                if neighbour not in found:
                    found[neighbour] = found[node] + 1
                    waiting.append(neighbour)
        return found

    @cached_property
    def flood(self) -> tuple[float, float]:
        """Return, per link, how often a flood crosses it, and how many acknowledgements return to
        its source; means over three sources. Nodes at equal distance send to each other at the same
        time, so their link is crossed twice."""
        crossings = acks = 0
        sources = sorted(self._neighbours)[:: max(1, len(self._neighbours) // 3)][:3]
        for source in sources:
            hops = self.distances(source)
            crossings += sum(2 if hops[one] == hops[other] else 1 for one, other in self.links)
            acks += sum(hops.values())
        total = len(sources) * len(self.links)
        return crossings / total, acks / total

    def change_bytes(self, names: Sequence[str]) -> float:
        """Return the bytes per link of one changed record: the update, the announcement of the
        changed groups, and the acknowledgements of all nodes."""
        if not names:
            return 0.0
        crossings, acks = self.flood
        names_bytes = sum(len(name.encode()) + 1 for name in names)
        flooded = UPDATE_BYTES + ANNOUNCEMENT_BYTES + 2 * names_bytes
        return crossings * flooded + acks * ACK_BYTES


class Federation:
    """The nodes, links and subscriptions. Node `area * size + place` is at `place` in `area`; the
    first ones of each area are its borders."""

    def __init__(self, areas: int, size: int, workload: Workload, seed: int = 1) -> None:
        self.areas, self.size, self.workload = areas, size, workload
        self._chance = random.Random(f"{seed} {areas} {size} {workload.name}")
        self.area_graphs = [
            Graph.draw(range(area * size, (area + 1) * size), self._chance) for area in range(areas)
        ]
        borders = [area * size + place for area in range(areas) for place in range(BORDERS)]
        self.backbone = Graph.draw(borders, self._chance)
        self.graph = Graph(
            link for graph in (*self.area_graphs, self.backbone) for link in graph.links
        )
        self.filters = [
            list(remove_covered(self._draw_filters(node))) for node in range(areas * size)
        ]
        self.subscribers = self._index_subscribers()
        step = max(1, areas // PROBED_AREAS)
        self.probed = range(0, areas, step)[:PROBED_AREAS]
        self.publications = [self._draw_publication() for _ in range(PUBLICATIONS)]

    def area_of(self, node: int) -> int:
        return node // self.size

    def borders_of(self, area: int) -> range:
        return range(area * self.size, area * self.size + BORDERS)

    def area_filters(self, area: int) -> list[str]:
        nodes = self.filters[area * self.size : (area + 1) * self.size]
        return [text for filters in nodes for text in filters]

    def receivers(self, publication: Publication) -> set[int]:
        found = {node for nodes in self.subscribers.match(publication.topic) for node in nodes}
        return found - {publication.origin}

    def draw_filter(self, area: int, chance: random.Random) -> str:
        """Draw a filter for one signal of a node: in this area or any, by the locality."""
        if chance.random() >= self.workload.locality:
            area = chance.randrange(self.areas)
        return self._topic(area, chance.randrange(self.size), chance)

    def _topic(self, area: int, place: int, chance: random.Random) -> str:
        signal = chance.randrange(SIGNALS)
        if self.workload.names_have_place:
            return f"plant/{area}/{place}/signal/{signal}"
        # A permutation: 7,919 is prime and divides no number of nodes used here.
        serial = (area * self.size + place) * 7_919 % (self.areas * self.size)
        return f"device/{serial}/signal/{signal}"

    def _draw_filters(self, node: int) -> list[str]:
        area = self.area_of(node)
        has_place = self.workload.names_have_place
        drawn = [self.draw_filter(area, self._chance) for _ in range(FILTERS_PER_NODE)]
        drawn += [f"global/{n}" for n in range(GLOBAL_TOPICS) if self._chance.random() < 0.1]
        if node % 20 == 3 and has_place:  # one signal of all nodes of an area
            levels = self.draw_filter(area, self._chance).split("/")
            levels[2] = "+"
            drawn.append("/".join(levels))
        if area % 3 == 0 and node % self.size == 7 and has_place:  # everything in its own area
            drawn.append(f"plant/{area}/#")
        if node % 1_000 == 9:  # one signal of all nodes
            drawn.append("plant/+/+/signal/0" if has_place else "device/+/signal/0")
        return drawn

    def _index_subscribers(self) -> FilterTrie[list[int]]:
        by_filter: dict[str, list[int]] = {}
        for node, filters in enumerate(self.filters):
            for text in filters:
                by_filter.setdefault(text, []).append(node)
        trie = FilterTrie[list[int]]()
        for text, nodes in by_filter.items():
            trie.put(text, nodes)
        return trie

    def _draw_publication(self) -> Publication:
        """A node's own signal (90 %), another node's (5 %), or a global topic from the first
        node after the borders of an area (5 %)."""
        area, place = self._chance.choice(self.probed), self._chance.randrange(self.size)
        origin, kind = area * self.size + place, self._chance.random()
        if kind < 0.9:
            return Publication(origin, self._topic(area, place, self._chance))
        if kind < 0.95:
            other = self._chance.randrange(self.areas), self._chance.randrange(self.size)
            return Publication(origin, self._topic(*other, self._chance))
        topic = f"global/{self._chance.randrange(GLOBAL_TOPICS)}"
        return Publication(area * self.size + BORDERS, topic)


# ---------------------------------------------------------------- flat


@dataclass(frozen=True, slots=True)
class FlatCost:
    nodes_known: int
    filters_known: int
    filters_at_broker: int
    memory_mb: float
    change_bytes_per_link: float
    receivers_mean: float
    receivers_max: int
    receiver_bytes: float
    """Of a copy, mean."""
    pending_entries: float
    """Pairs of a publication and a receiver in journals, per publication."""
    hops_mean: float
    hops_max: int


def measure_flat(federation: Federation) -> FlatCost:
    receivers = [federation.receivers(each) for each in federation.publications]
    named = [len(each) for each in receivers]
    known = sum(map(len, federation.filters))
    name = max(federation.filters[0], key=len)
    hops = [hop for each in _routed(federation) for hop in _flat_hops(federation, each)]
    nodes = len(federation.filters)
    return FlatCost(
        nodes_known=nodes,
        filters_known=known,
        filters_at_broker=len(federation.subscribers),
        memory_mb=_memory_mb(nodes, known),
        change_bytes_per_link=federation.graph.change_bytes([name]),
        receivers_mean=fmean(named),
        receivers_max=max(named),
        receiver_bytes=RECEIVER_BYTES * fmean(named),
        pending_entries=fmean(named),
        hops_mean=fmean(hops),
        hops_max=max(hops),
    )


def _memory_mb(nodes: int, filters: int) -> float:
    return (NODE_MEMORY_KB * nodes + FILTER_MEMORY_KB * filters) / 1024


def _routed(federation: Federation) -> list[Publication]:
    found = [each for each in federation.publications if federation.receivers(each)]
    return found[:ROUTED]


def _flat_hops(federation: Federation, publication: Publication) -> list[int]:
    hops = federation.graph.distances(publication.origin)
    return [hops[node] for node in sorted(federation.receivers(publication))]


# ---------------------------------------------------------------- areas


@dataclass(frozen=True, slots=True)
class AreaCost:
    bound: int
    nodes_known: int
    filters_known: int
    filters_at_broker: int
    memory_mb: float
    border_filters_known: int
    border_memory_mb: float
    change_bytes_per_area_link: float
    """Of a change anywhere in the federation, mean over all areas."""
    change_bytes_per_backbone_link: float
    changes_leaving_area: float
    """Share of changes that change the summary of their area."""
    needed_crossings: float
    """Share of publications with a subscriber in another area."""
    needless_to_border: float
    """Share of publications that go to the border without one."""
    needed_areas: float
    """Other areas with a subscriber, per publication."""
    needless_areas: float
    """Other areas that get a copy without a subscriber, per publication."""
    receivers_at_origin: float
    receivers_at_origin_max: int
    receiver_bytes: float
    """Of a copy in the area of its origin, mean."""
    areas_named_max: int
    receivers_in_area_max: int
    """The most that the copy of a border in its area names."""
    pending_entries: float
    journals: float
    """Journals that hold a publication, that of its origin included; per publication."""
    hops_mean: float
    hops_max: int


class Areas:
    """The summaries of one federation under one bound."""

    def __init__(self, federation: Federation, bound: int) -> None:
        self.federation, self.bound = federation, bound
        self.exports = [
            InterestSummary(bound, federation.area_filters(area))
            for area in range(federation.areas)
        ]
        entries = [export.entries for export in self.exports]
        self.imports = {
            area: InterestSummary(
                bound,
                (text for other, texts in enumerate(entries) if other != area for text in texts),
            )
            for area in federation.probed
        }
        by_entry: dict[str, list[int]] = {}
        for area, texts in enumerate(entries):
            for text in texts:
                by_entry.setdefault(text, []).append(area)
        self._areas = FilterTrie[list[int]]()
        for text, areas in by_entry.items():
            self._areas.put(text, areas)

    def route(self, publication: Publication) -> "Route":
        """Return who is named on the three legs; raise if a receiver would be missed."""
        federation = self.federation
        home = federation.area_of(publication.origin)
        by_area: dict[int, list[int]] = {}
        for node in sorted(federation.receivers(publication)):
            by_area.setdefault(federation.area_of(node), []).append(node)
        local = by_area.pop(home, [])
        named = {area for areas in self._areas.match(publication.topic) for area in areas} - {home}
        is_exported = self.imports[home].matches(publication.topic)
        if not named >= by_area.keys() or (named and not is_exported):
            raise AssertionError(f"false negative for {publication}")
        return Route(publication.origin, local, is_exported, sorted(named), by_area)

    def apply_changes(self, count: int) -> tuple[float, float, float]:
        """Add a filter and remove one, in turn, at random nodes. Return the bytes of a change per
        area link and per backbone link, and the share of changes that leave their area."""
        federation, chance = self.federation, random.Random(f"{self.bound} changes")
        present = [
            (federation.area_of(node), text)
            for node, filters in enumerate(federation.filters)
            for text in filters
        ]
        area_bytes = backbone_bytes = leaving = 0.0
        for number in range(count):
            if number % 2:
                area, text = present.pop(chance.randrange(len(present)))
                change = self.exports[area].remove(text)
            else:
                area = chance.randrange(federation.areas)
                text = federation.draw_filter(area, chance)
                present.append((area, text))
                change = self.exports[area].add(text)
            area_bytes += federation.area_graphs[area].change_bytes([text]) / federation.areas
            names = change.added + change.removed
            leaving += bool(names)
            backbone_bytes += BORDERS * federation.backbone.change_bytes(names)
            area_bytes += self._import_bytes(area, change)
        return area_bytes / count, backbone_bytes / count, leaving / count

    def _import_bytes(self, changed_area: int, change: Change) -> float:
        """Return the bytes per link that a changed summary causes in other areas, mean over all."""
        total = 0.0
        for area, imported in self.imports.items():
            if area != changed_area:
                changes = [imported.add(text) for text in change.added]
                changes += [imported.remove(text) for text in change.removed]
                names = [text for each in changes for text in each.added + each.removed]
                total += BORDERS * self.federation.area_graphs[area].change_bytes(names)
        return total / len(self.imports)


@dataclass(frozen=True, slots=True)
class Route:
    """The nodes and areas that the copies of one publication name."""

    origin: int
    local: list[int]
    is_exported: bool
    """Whether the origin names a border."""
    areas: list[int]
    """Named by the border of the origin's area."""
    remote: dict[int, list[int]]
    """By area, the receivers that a border there names; no entry for a false positive."""

    def pending_entries(self) -> int:
        receivers = len(self.local) + sum(map(len, self.remote.values()))
        return receivers + self.is_exported + len(self.areas)

    def journals(self) -> int:
        return bool(self.local or self.is_exported) + self.is_exported + len(self.areas)

    def hops(self, federation: Federation) -> list[int]:
        """Return the hops to each receiver through the nearest borders."""
        home = federation.area_of(self.origin)
        near = federation.area_graphs[home].distances(self.origin)
        found = [near[node] for node in self.local]
        if not self.remote:
            return found
        exit_border = min(federation.borders_of(home), key=lambda node: (near[node], node))
        far = federation.backbone.distances(exit_border)
        for area, nodes in self.remote.items():
            entry = min(federation.borders_of(area), key=lambda node: (far[node], node))
            inside = federation.area_graphs[area].distances(entry)
            found += [near[exit_border] + far[entry] + inside[node] for node in nodes]
        return found


def measure_areas(federation: Federation, bound: int) -> AreaCost:
    areas = Areas(federation, bound)
    routes = [areas.route(each) for each in federation.publications]
    hops = [hop for each in _routed(federation) for hop in areas.route(each).hops(federation)]
    probed = federation.probed[0]
    own = federation.area_filters(probed)
    imported = areas.imports[probed].entries
    known = len(own) + BORDERS * len(imported)
    at_border = known + BORDERS * sum(len(export) for export in areas.exports)
    size, borders = federation.size, BORDERS * federation.areas
    named = [len(each.local) + each.is_exported for each in routes]
    area_bytes, backbone_bytes, leaving = areas.apply_changes(CHANGES)
    return AreaCost(
        bound=bound,
        nodes_known=size,
        filters_known=known,
        filters_at_broker=len({*own, *imported}),
        memory_mb=_memory_mb(size, known),
        border_filters_known=at_border,
        border_memory_mb=_memory_mb(size + borders, at_border),
        change_bytes_per_area_link=area_bytes,
        change_bytes_per_backbone_link=backbone_bytes,
        changes_leaving_area=leaving,
        needed_crossings=fmean(bool(each.remote) for each in routes),
        needless_to_border=fmean(each.is_exported and not each.remote for each in routes),
        needed_areas=fmean(len(each.remote) for each in routes),
        needless_areas=fmean(len(each.areas) - len(each.remote) for each in routes),
        receivers_at_origin=fmean(named),
        receivers_at_origin_max=max(named),
        receiver_bytes=RECEIVER_BYTES * fmean(named),
        areas_named_max=max(len(each.areas) for each in routes),
        receivers_in_area_max=max(
            (len(nodes) for each in routes for nodes in each.remote.values()), default=0
        ),
        pending_entries=fmean(each.pending_entries() for each in routes),
        journals=fmean(each.journals() for each in routes),
        hops_mean=fmean(hops),
        hops_max=max(hops),
    )


# ---------------------------------------------------------------- report


def measure() -> dict[str, object]:
    """Flat compared with areas, up to 10,000 nodes: bytes, memory, hops, needless copies."""
    custody = {
        f"{hand_over.value}{', chooses again' if again else ''}": sorted(explore(hand_over, again))
        for hand_over, again in (*((each, False) for each in HandOver), (HandOver.ONE_RECORD, True))
    }
    for rule, deliveries in custody.items():
        say(rule, f"deliveries {deliveries}")
    say("steady control traffic in both, B per link and second", f"{HEARTBEATS_BYTES:>9}")
    results = []
    for areas, size in SIZES:
        for workload in WORKLOADS:
            federation = Federation(areas, size, workload)
            flat = measure_flat(federation)
            costs = [measure_areas(federation, bound) for bound in BOUNDS]
            _report(federation, flat, costs)
            results.append(
                {
                    "areas": areas,
                    "size": size,
                    "workload": workload.name,
                    "flat": asdict(flat),
                    "by_bound": [asdict(cost) for cost in costs],
                }
            )
    return {
        "deliveries_by_rule": custody,
        "steady_bytes_per_link_s": HEARTBEATS_BYTES,
        "results": results,
    }


def _report(federation: Federation, flat: FlatCost, costs: Sequence[AreaCost]) -> None:
    title = f"{federation.areas} x {federation.size}, {federation.workload.name}"
    say(title, "     flat" + "".join(f"{f'<={cost.bound:,}':>9}" for cost in costs))
    rows: list[tuple[str, float | None, str]] = [
        ("nodes known", flat.nodes_known, "nodes_known"),
        ("filters known", flat.filters_known, "filters_known"),
        ("  at a border", None, "border_filters_known"),
        ("filters at each broker", flat.filters_at_broker, "filters_at_broker"),
        ("memory, MB", flat.memory_mb, "memory_mb"),
        ("  of a border", None, "border_memory_mb"),
        ("B per change and link", flat.change_bytes_per_link, "change_bytes_per_area_link"),
        ("  and link of the backbone", None, "change_bytes_per_backbone_link"),
        ("share of changes that leave the area", None, "changes_leaving_area"),
        ("share of publications that must leave it", None, "needed_crossings"),
        ("  that go to a border needlessly", None, "needless_to_border"),
        ("other areas needed per publication", None, "needed_areas"),
        ("  reached needlessly", None, "needless_areas"),
        ("receivers named, mean", flat.receivers_mean, "receivers_at_origin"),
        ("  bytes in a copy, mean", flat.receiver_bytes, "receiver_bytes"),
        ("  most, by the origin", flat.receivers_max, "receivers_at_origin_max"),
        ("  most areas, by a border", None, "areas_named_max"),
        ("  most, by a border in its area", None, "receivers_in_area_max"),
        ("pending entries per publication", flat.pending_entries, "pending_entries"),
        ("journals that hold it", None, "journals"),
        ("hops, mean", flat.hops_mean, "hops_mean"),
        ("hops, most", flat.hops_max, "hops_max"),
    ]
    for name, of_flat, field in rows:
        of_areas = "".join(f"{_number(getattr(cost, field)):>9}" for cost in costs)
        say(f"  {name}", f"{'' if of_flat is None else _number(of_flat):>9}{of_areas}")


def _number(value: float) -> str:
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
