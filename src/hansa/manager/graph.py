"""The graph that a manager keeps, read over its API and exported as text, JSON, DOT or SVG."""

import json
import math
from dataclasses import asdict, dataclass
from html import escape

from hansa.errors import UsageError
from hansa.manager.client import ManagerRequests

SIZE = 640
RADIUS = 250
DOT_RADIUS = 18


@dataclass(frozen=True, slots=True)
class GraphNode:
    id: int
    name: str
    state: str
    draining: bool
    latency_ms: float | None


@dataclass(frozen=True, slots=True)
class GraphLink:
    a: int
    b: int
    origin: str
    established: bool
    rtt_ms: float | None


@dataclass(frozen=True, slots=True)
class TopologyGraph:
    nodes: list[GraphNode]
    links: list[GraphLink]

    def neighbours(self, number: int) -> list[int]:
        return sorted(link.a + link.b - number for link in self.links if number in (link.a, link.b))


def read_graph(api: ManagerRequests) -> TopologyGraph:
    """Fetch nodes and links from a manager; nodes that left are omitted."""
    try:
        nodes = [
            GraphNode(n["id"], n["name"], n["state"], n["draining"], n["latency"])
            for n in api.request("/nodes")
            if n["state"] != "left"
        ]
        known = {node.id for node in nodes}
        return TopologyGraph(
            nodes,
            [
                GraphLink(k["a"], k["b"], k["origin"], k["established"], k["rtt_ms"])
                for k in api.request("/links")
                if known.issuperset((k["a"], k["b"]))  # a node may have joined between requests
            ],
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"the server at {api.url} is not a manager") from error


def as_json(graph: TopologyGraph) -> str:
    return json.dumps(asdict(graph), indent=1)


def as_text(graph: TopologyGraph) -> str:
    """Return one line per node, with its neighbours."""
    lines = []
    for node in graph.nodes:
        words = [str(node.id), node.name or "-", "draining" if node.draining else node.state]
        if node.latency_ms is not None:
            words.append(f"{node.latency_ms:.1f} ms")
        near = " ".join(_neighbour_labels(graph, node.id))
        lines.append("  ".join([*words, f"— {near or 'none'}"]))
    return "\n".join(lines)


def _neighbour_labels(graph: TopologyGraph, number: int) -> list[str]:
    links = {link.a + link.b - number: link for link in graph.links if number in (link.a, link.b)}
    return [
        f"{other}{'' if links[other].established else '?'}" for other in graph.neighbours(number)
    ]


def as_dot(graph: TopologyGraph) -> str:
    """Return a Graphviz file; links that are not established are dashed."""
    lines = ["graph hansa {", "  node [shape=circle];"]
    for node in graph.nodes:
        label = json.dumps(f"{node.id} {node.name}".strip(), ensure_ascii=False)
        style = "" if node.state == "up" else ", style=dashed"
        lines.append(f"  {node.id} [label={label}{style}];")
    for link in graph.links:
        label = f"{link.rtt_ms:.1f} ms" if link.rtt_ms is not None else ""
        style = "" if link.established else ", style=dashed"
        lines.append(f'  {link.a} -- {link.b} [label="{label}"{style}];')
    return "\n".join([*lines, "}"])


def as_svg(graph: TopologyGraph) -> str:
    """Return a drawing with the nodes on a circle; links that are not established are dashed."""
    positions = _positions(graph)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}"'
        f' width="{SIZE}" height="{SIZE}" font-family="sans-serif" font-size="13">',
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
    ]
    for link in graph.links:
        (x1, y1), (x2, y2) = positions[link.a], positions[link.b]
        dash = "" if link.established else ' stroke-dasharray="6 4"'
        title = f"{link.a}-{link.b} {link.origin}" + (
            f" {link.rtt_ms:.1f} ms" if link.rtt_ms is not None else ""
        )
        lines.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#567"{dash}>'
            f"<title>{escape(title)}</title></line>"
        )
    for node in graph.nodes:
        x, y = positions[node.id]
        fill = {"up": "#dfe", "gone": "#fcc"}.get(node.state, "#eee")
        fill = "#fe9" if node.draining else fill
        lines += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT_RADIUS}" fill="{fill}" stroke="#345"/>',
            f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{node.id}'
            f"<title>{escape(node.name)}</title></text>",
        ]
    return "\n".join([*lines, "</svg>"])


def _positions(graph: TopologyGraph) -> dict[int, tuple[float, float]]:
    middle, count = SIZE / 2, max(1, len(graph.nodes))
    return {
        node.id: (
            middle + RADIUS * math.sin(2 * math.pi * number / count),
            middle - RADIUS * math.cos(2 * math.pi * number / count),
        )
        for number, node in enumerate(graph.nodes)
    }


FORMATS = {"text": as_text, "json": as_json, "dot": as_dot, "svg": as_svg}
