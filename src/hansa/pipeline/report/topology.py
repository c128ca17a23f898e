"""Draws a federation as SVG: distances follow the number of hops, line widths the bytes."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from hansa.pipeline.report.plots import WIDTH, format_bytes
from hansa.topology.graph import hops_from, make_graph

HEIGHT = 360.0
ROUNDS = 60
NODES_MAX = 150

DrawnPosition = tuple[float, float]
ReportedLink = tuple[str, str]


def draw_topology(
    title: str, nodes: Sequence[str], bytes_by_link: Mapping[ReportedLink, float]
) -> str:
    """Return the SVG; `bytes_by_link` has each link once."""
    nodes = nodes[:NODES_MAX]
    links = {pair: amount for pair, amount in bytes_by_link.items() if set(pair) <= set(nodes)}
    positions = _fit(_place_nodes(nodes, list(links)))
    most = max(links.values(), default=0) or 1
    radius = 15.0 if len(nodes) <= 30 else 7.0
    body = []
    for (a, b), amount in links.items():
        (x1, y1), (x2, y2) = positions[a], positions[b]
        width = 1.5 + 8.5 * amount / most
        body.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="link"'
            f' style="stroke-width:{width:.1f}">'
            f"<title>{escape(a)} – {escape(b)}: {format_bytes(amount)}</title></line>"
        )
    for node in nodes:
        x, y = positions[node]
        body.append(
            f'<g><title>{escape(node)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
            ' class="node"/>'
        )
        if radius > 10:
            name = node if len(node) <= 4 else node[-4:]
            body.append(
                f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" class="on">{escape(name)}'
                "</text>"
            )
        body.append("</g>")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT:.0f}" role="img" aria-label="{escape(title)}">'
        + "".join(body)
        + "</svg>"
    )


def _place_nodes(nodes: Sequence[str], links: Sequence[ReportedLink]) -> dict[str, DrawnPosition]:
    """Place nodes at distances proportional to their hops, as well as a plane allows.

    Deterministic stress majorisation (Gansner, Koren, North 2004): in each round, every node moves
    to the weighted mean of the positions that its distances to the others ask for.
    """
    distances = _distances(nodes, links)
    positions = _initial_positions(nodes, distances)
    for _ in range(ROUNDS):
        positions = {node: _improve(node, positions, distances[node]) for node in nodes}
    return positions


def _distances(nodes: Sequence[str], links: Sequence[ReportedLink]) -> dict[str, dict[str, int]]:
    graph = make_graph(nodes, links)
    distances = {}
    for start in nodes:
        hops = hops_from(graph, start)
        unreachable = max(hops.values()) + 1
        distances[start] = {node: hops.get(node, unreachable) for node in nodes}
    return distances


def _initial_positions(
    nodes: Sequence[str], distances: dict[str, dict[str, int]]
) -> dict[str, DrawnPosition]:
    """Use the distances to two distant nodes as coordinates, with small offsets."""
    if not nodes:
        return {}
    one = max(nodes, key=lambda node: distances[nodes[0]][node])
    two = max(nodes, key=lambda node: min(distances[one][node], 2 * distances[nodes[0]][node]))
    return {
        node: (
            distances[one][node] + 0.1 * math.cos(index),
            distances[two][node] + 0.1 * math.sin(index),
        )
        for index, node in enumerate(nodes)
    }


def _improve(node: str, at: dict[str, DrawnPosition], distances: dict[str, int]) -> DrawnPosition:
    x, y = at[node]
    sums = [0.0, 0.0, 0.0]
    for other, (ox, oy) in at.items():
        if other == node:
            continue
        target = distances[other]
        weight = 1.0 / target**2
        current = max(1e-6, math.hypot(x - ox, y - oy))
        sums[0] += weight * (ox + target * (x - ox) / current)
        sums[1] += weight * (oy + target * (y - oy) / current)
        sums[2] += weight
    return (sums[0] / sums[2], sums[1] / sums[2]) if sums[2] else (x, y)


def _fit(at: dict[str, DrawnPosition]) -> dict[str, DrawnPosition]:
    """Scale the positions to the drawing, with a margin, without distortion."""
    if not at:
        return at
    xs, ys = [x for x, _ in at.values()], [y for _, y in at.values()]
    wide, tall = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    scale = min((WIDTH - 60) / wide, (HEIGHT - 60) / tall)
    middle = ((max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2)
    return {
        node: (WIDTH / 2 + (x - middle[0]) * scale, HEIGHT / 2 + (y - middle[1]) * scale)
        for node, (x, y) in at.items()
    }
