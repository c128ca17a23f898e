"""Topologies: graphs made from a specification such as `ring:3` or `grid:3x3`.

`TOPOLOGY_EXAMPLES` shows all kinds. A graph depends only on its specification and the seed, so a
run can be repeated from its command line.
"""

import difflib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hansa.errors import UsageError
from hansa.simulator import link_file

NODES_MAX = 10_000
"""Largest number of nodes: more do not fit one process."""

LINKS_MAX = 500_000
"""Largest number of links, for the same reason."""

TOPOLOGY_EXAMPLES = {
    "ring": "ring:3",
    "line": "line:5",
    "star": "star:8",
    "grid": "grid:3x3",
    "tree": "tree:15",
    "full": "full:6",
    "random": "random:50,4",
    "geometric": "geometric:100,0.15",
    "file": "file:links.json",
}
"""One valid specification of each kind."""

TopologyLink = tuple[int, int]
"""Two nodes, the smaller first."""


@dataclass(frozen=True, slots=True)
class Topology:
    """An undirected graph. Nodes are numbered from 0; links are sorted and unique."""

    name: str
    nodes: int
    links: tuple[TopologyLink, ...]
    labels: tuple[str, ...] = ()
    """Names of the nodes, if the file names them."""

    def __post_init__(self) -> None:
        """Require a simple graph in canonical form."""
        _require(
            1 <= self.nodes <= NODES_MAX,
            self.name,
            f"{self.nodes} nodes; 1 to {NODES_MAX} are possible",
        )
        _require(
            len(self.links) <= LINKS_MAX, self.name, f"more than {LINKS_MAX} links; ask for fewer"
        )
        for a, b in self.links:
            if not 0 <= a < b < self.nodes:
                rule = f"must name two of the nodes 0 to {self.nodes - 1}, the smaller first"
                raise UsageError(f"topology {self.name!r}: link {a}-{b} {rule}")
        _require(
            list(self.links) == sorted(set(self.links)),
            self.name,
            "links must be ordered and unique",
        )
        _require(
            len(self.labels) in (0, self.nodes), self.name, "labels must name all nodes or none"
        )

    def node_label(self, node: int) -> str:
        """Return a node's name if it has one, otherwise its number."""
        return self.labels[node] if self.labels else str(node)

    def find_node(self, text: str) -> int:
        """Return the node with this name or number."""
        if text in self.labels:
            return self.labels.index(text)
        numbers = range(0 if self.labels else self.nodes)
        if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) in numbers:
            return int(text)
        known = ", ".join(self.labels[:8]) if self.labels else f"0 to {self.nodes - 1}"
        raise UsageError(f"there is no node {text!r} in {self.name}; its nodes are {known}")


def make_topology(name: str, nodes: int, pairs: Iterable[TopologyLink]) -> Topology:
    """Return the topology of these pairs, in any order, duplicates allowed."""
    return Topology(name, nodes, tuple(sorted({(min(pair), max(pair)) for pair in pairs})))


# ---------------------------------------------------------------- graph queries


def neighbours_of(topology: Topology) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in range(topology.nodes)]
    for a, b in topology.links:
        found[a].append(b)
        found[b].append(a)
    return tuple(tuple(sorted(linked)) for linked in found)


def hop_distances(topology: Topology, start: int) -> dict[int, int]:
    """Return the distance of each node from `start` in links; unreachable nodes are missing."""
    near = neighbours_of(topology)
    found = {start: 0}
    queue = [start]
    for node in queue:  # grows while it is read: breadth first
        for other in near[node]:
            if other not in found:
                found[other] = found[node] + 1
                queue.append(other)
    return found


def connected_components(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the connected components, each sorted, ordered by their smallest node."""
    parts = _UnionFind(topology.nodes)
    for a, b in topology.links:
        parts.union(a, b)
    found: dict[int, list[int]] = {}
    for node in range(topology.nodes):
        found.setdefault(parts.find_root(node), []).append(node)
    return tuple(tuple(part) for part in found.values())


class _UnionFind:
    """Union-find over nodes."""

    def __init__(self, nodes: int) -> None:
        self._parents = list(range(nodes))
        self.count = nodes

    def find_root(self, node: int) -> int:
        while self._parents[node] != node:
            self._parents[node] = self._parents[self._parents[node]]
            node = self._parents[node]
        return node

    def union(self, a: int, b: int) -> bool:
        """Join the components of two nodes; return False if they were connected already."""
        low, high = sorted((self.find_root(a), self.find_root(b)))
        self._parents[high] = low
        self.count -= low != high
        return low != high


# ---------------------------------------------------------------- specifications


def parse_topology(spec: str, seed: int) -> Topology:
    """Return the topology of a specification; the seed decides what it leaves open."""
    kind, colon, arguments = spec.partition(":")
    if kind not in _MAKERS:
        near = difflib.get_close_matches(kind, _MAKERS, n=1)
        hint = f"did you mean {TOPOLOGY_EXAMPLES[near[0]]!r}? " if near else ""
        raise UsageError(
            f"topology {spec!r}: {hint}write one of {' '.join(TOPOLOGY_EXAMPLES.values())}"
        )
    expected = "which file" if kind == "file" else "how many"
    _require(
        bool(colon and arguments),
        spec,
        f"say {expected} after {kind!r}, as in {TOPOLOGY_EXAMPLES[kind]}",
    )
    return _MAKERS[kind](spec, arguments, random.Random(f"topology {seed}"))


def _ring(spec: str, arguments: str, _: random.Random) -> Topology:
    nodes = _parse_node_count(spec, arguments, 3)
    return make_topology(spec, nodes, ((node, (node + 1) % nodes) for node in range(nodes)))


def _line(spec: str, arguments: str, _: random.Random) -> Topology:
    nodes = _parse_node_count(spec, arguments, 1)
    return make_topology(spec, nodes, ((node, node + 1) for node in range(nodes - 1)))


def _star(spec: str, arguments: str, _: random.Random) -> Topology:
    nodes = _parse_node_count(spec, arguments, 2)
    return make_topology(spec, nodes, ((0, node) for node in range(1, nodes)))


def _tree(spec: str, arguments: str, _: random.Random) -> Topology:
    """Balanced and binary: node 0 is the root, the parent of node n is (n - 1) // 2."""
    nodes = _parse_node_count(spec, arguments, 2)
    return make_topology(spec, nodes, (((node - 1) // 2, node) for node in range(1, nodes)))


def _full(spec: str, arguments: str, _: random.Random) -> Topology:
    nodes = _parse_node_count(spec, arguments, 2)
    total = _pairs(nodes)
    _require(
        total <= LINKS_MAX, spec, f"{total} links are too many; at most {LINKS_MAX} are possible"
    )
    return make_topology(spec, nodes, (_pair(number) for number in range(total)))


def _grid(spec: str, arguments: str, _: random.Random) -> Topology:
    """Numbered row by row, as in Spohn 2021."""
    sides = arguments.split("x")
    _require(len(sides) == 2, spec, "write rows x columns, as in grid:3x3")
    rows, columns = (_parse_node_count(spec, side, 0) for side in sides)
    _require(rows * columns >= 2, spec, "a grid needs at least 2 nodes, as in grid:3x3")
    _require(
        rows * columns <= NODES_MAX,
        spec,
        f"{rows * columns} nodes; at most {NODES_MAX} are possible",
    )
    across = ((node, node + 1) for node in range(rows * columns) if (node + 1) % columns)
    down = ((node, node + columns) for node in range((rows - 1) * columns))
    return make_topology(spec, rows * columns, [*across, *down])


def _random(spec: str, arguments: str, rng: random.Random) -> Topology:
    """Connected, with the requested mean degree: a random tree plus random links."""
    nodes, degree = _parse_node_count_and_number(spec, arguments, "a mean degree")
    least, most = 2 * (nodes - 1) / nodes, nodes - 1
    _require(
        degree >= least,
        spec,
        f"{nodes} nodes hang together only from a mean degree of {math.ceil(least * 100) / 100:g}; "
        f"write random:{nodes},{min(3, most)}",
    )
    _require(
        degree <= most,
        spec,
        f"{nodes} nodes have at most {most} neighbours; write random:{nodes},{most}",
    )
    total = round(nodes * degree / 2)
    _require(
        total <= LINKS_MAX, spec, f"{total} links are too many; at most {LINKS_MAX} are possible"
    )
    order = rng.sample(range(nodes), nodes)
    tree = [(order[rng.randrange(place)], order[place]) for place in range(1, nodes)]
    links = {(min(link), max(link)) for link in tree}
    for number in rng.sample(range(_pairs(nodes)), total):
        if len(links) == total:
            break
        links.add(_pair(number))
    return make_topology(spec, nodes, links)


def _pairs(nodes: int) -> int:
    return nodes * (nodes - 1) // 2


def _pair(number: int) -> TopologyLink:
    """Return one of all pairs of nodes: (0, 1), (0, 2), (1, 2), (0, 3) …"""
    high = (1 + math.isqrt(1 + 8 * number)) // 2
    return number - _pairs(high), high


def _geometric(spec: str, arguments: str, rng: random.Random) -> Topology:
    """Random points in the unit square, linked if close; then the nearest components are joined."""
    nodes, radius = _parse_node_count_and_number(spec, arguments, "a radius")
    _require(
        0 < radius <= 1.5,
        spec,
        f"the radius must be above 0 and at most 1.5, as in {TOPOLOGY_EXAMPLES['geometric']}",
    )
    points = [(rng.random(), rng.random()) for _ in range(nodes)]
    links: list[TopologyLink] = []
    for _, link in _pairs_within(points, radius):
        links.append(link)
        _require(
            len(links) <= LINKS_MAX, spec, f"more than {LINKS_MAX} links; write a smaller radius"
        )
    parts = _UnionFind(nodes)
    for a, b in links:
        parts.union(a, b)
    reach = max(radius, 1 / math.sqrt(nodes))
    while parts.count > 1:
        links.extend(link for _, link in sorted(_pairs_within(points, reach)) if parts.union(*link))
        reach *= 2
    return make_topology(spec, nodes, links)


def _pairs_within(
    points: Sequence[tuple[float, float]], radius: float
) -> Iterator[tuple[float, TopologyLink]]:
    """Yield the pairs of points within a distance, with their distance."""
    cells: dict[tuple[int, int], list[int]] = {}
    for node, (x, y) in enumerate(points):
        cells.setdefault((int(x / radius), int(y / radius)), []).append(node)
    for node, (x, y) in enumerate(points):
        column, row = int(x / radius), int(y / radius)
        around = ((column + dx, row + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1))
        for other in (other for cell in around for other in cells.get(cell, ()) if other > node):
            distance = math.dist((x, y), points[other])
            if distance <= radius:
                yield distance, (node, other)


def _file(spec: str, arguments: str, _: random.Random) -> Topology:
    """The links of a file; they may form several components."""
    ends = link_file.read_links(Path(arguments))
    labels, numbers = link_file.number_nodes(arguments, ends)
    made = make_topology(spec, len(numbers), ((numbers[a], numbers[b]) for a, b in ends))
    return Topology(spec, made.nodes, made.links, labels)


# ---------------------------------------------------------------- numbers in a specification


def _parse_node_count(spec: str, text: str, least: int) -> int:
    kind = spec.partition(":")[0]
    is_number = text.isdecimal() and text.isascii() and len(text) < 10
    _require(
        is_number,
        spec,
        f"{text!r} is not a number of nodes; write it as in {TOPOLOGY_EXAMPLES[kind]}",
    )
    some = f"{least} node{'s' * (least > 1)}"
    noun = f"{kind} graph" if kind in ("full", "random", "geometric") else kind
    _require(
        int(text) >= least, spec, f"a {noun} needs at least {some}, as in {TOPOLOGY_EXAMPLES[kind]}"
    )
    _require(int(text) <= NODES_MAX, spec, f"{text} nodes; at most {NODES_MAX} are possible")
    return int(text)


def _parse_node_count_and_number(spec: str, arguments: str, expected: str) -> tuple[int, float]:
    first, comma, second = arguments.partition(",")
    kind = spec.partition(":")[0]
    _require(
        bool(comma),
        spec,
        f"write a number of nodes and {expected}, as in {TOPOLOGY_EXAMPLES[kind]}",
    )
    nodes = _parse_node_count(spec, first, 2)
    try:
        number = float(second)
    except ValueError:
        number = math.nan
    _require(
        math.isfinite(number),
        spec,
        f"{second!r} is not {expected}; write it as in {TOPOLOGY_EXAMPLES[kind]}",
    )
    return nodes, number


def _require(holds: bool, spec: str, problem: str) -> None:
    if not holds:
        raise UsageError(f"topology {spec!r}: {problem}")


_MAKERS: dict[str, Callable[[str, str, random.Random], Topology]] = {
    "ring": _ring,
    "line": _line,
    "star": _star,
    "grid": _grid,
    "tree": _tree,
    "full": _full,
    "random": _random,
    "geometric": _geometric,
    "file": _file,
}
