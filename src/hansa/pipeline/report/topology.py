"""A federation as a drawing: near nodes are drawn near, busy links thick."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from hansa.pipeline.report.plots import WIDTH, format_bytes

HEIGHT = 360.0
ROUNDS = 60
NODES_MAX = 150
"""More could not be told apart."""

DrawnPosition = tuple[float, float]
ReportedLink = tuple[str, str]


def draw_topology(
    title: str, nodes: Sequence[str], bytes_by_link: Mapping[ReportedLink, float]
) -> str:
    """Return nodes and links as SVG; `bytes_by_link` has each link once."""
    nodes = nodes[:NODES_MAX]
    links = {pair: amount for pair, amount in bytes_by_link.items() if set(pair) <= set(nodes)}
    places = _fitted(_placed(nodes, list(links)))
    most = max(links.values(), default=0) or 1
    radius = 15.0 if len(nodes) <= 30 else 7.0
    body = []
    for (a, b), amount in links.items():
        (x1, y1), (x2, y2) = places[a], places[b]
        width = 1.5 + 8.5 * amount / most
        body.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="link"'
            f' style="stroke-width:{width:.1f}"><title>{escape(a)} – {escape(b)}: {format_bytes(amount)}'
            "</title></line>"
        )
    for node in nodes:
        x, y = places[node]
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


def _placed(nodes: Sequence[str], links: Sequence[ReportedLink]) -> dict[str, DrawnPosition]:
    """As far apart as they are hops apart, as well as a plane allows; the same every time.

    Stress majorisation (Gansner, Koren, North 2004): every node moves to where the others, each by
    its distance, would have it.
    """
    far = _distances(nodes, links)
    at = _first_guess(nodes, far)
    for _ in range(ROUNDS):
        at = {node: _better(node, at, far[node]) for node in nodes}
    return at


def _distances(nodes: Sequence[str], links: Sequence[ReportedLink]) -> dict[str, dict[str, int]]:
    around: dict[str, list[str]] = {node: [] for node in nodes}
    for a, b in links:
        around[a].append(b)
        around[b].append(a)
    found = {}
    for start in nodes:
        hops = {start: 0}
        queue = [start]
        for node in queue:  # grows as it is read
            for other in around[node]:
                if other not in hops:
                    hops[other] = hops[node] + 1
                    queue.append(other)
        apart = max(hops.values()) + 1
        found[start] = {node: hops.get(node, apart) for node in nodes}
    return found


def _first_guess(nodes: Sequence[str], far: dict[str, dict[str, int]]) -> dict[str, DrawnPosition]:
    """By the distance to two nodes that are far from one another, a little apart."""
    if not nodes:
        return {}
    one = max(nodes, key=lambda node: far[nodes[0]][node])
    two = max(nodes, key=lambda node: min(far[one][node], 2 * far[nodes[0]][node]))
    return {
        node: (far[one][node] + 0.1 * math.cos(place), far[two][node] + 0.1 * math.sin(place))
        for place, node in enumerate(nodes)
    }


def _better(node: str, at: dict[str, DrawnPosition], far: dict[str, int]) -> DrawnPosition:
    x, y = at[node]
    sums = [0.0, 0.0, 0.0]
    for other, (ox, oy) in at.items():
        if other == node:
            continue
        wanted = far[other]
        weight = 1.0 / wanted**2
        apart = max(1e-6, math.hypot(x - ox, y - oy))
        sums[0] += weight * (ox + wanted * (x - ox) / apart)
        sums[1] += weight * (oy + wanted * (y - oy) / apart)
        sums[2] += weight
    return (sums[0] / sums[2], sums[1] / sums[2]) if sums[2] else (x, y)


def _fitted(at: dict[str, DrawnPosition]) -> dict[str, DrawnPosition]:
    """Into the drawing, with a margin, and not stretched."""
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
