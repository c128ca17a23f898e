"""Drawings of graphs as text. Pure."""

from collections.abc import Callable, Collection

from hansa.simulator.topologies import TopologyLink

NodeMark = Callable[[int], str]
"""Returns the character that represents a node."""


def draw_grid(
    rows: int, columns: int, mark: NodeMark, mesh_links: Collection[TopologyLink]
) -> list[str]:
    """Draw a grid, numbered row by row; links of a mesh are heavy lines."""
    lines = []
    for row in range(rows):
        first = row * columns
        lines.append(_across(range(first, first + columns), mark, mesh_links))
        if row + 1 < rows:
            lines.append(_down(range(first, first + columns), columns, mesh_links))
    return lines


def _across(places: range, mark: NodeMark, mesh_links: Collection[TopologyLink]) -> str:
    parts = []
    for node in places:
        line = "" if node == places[-1] else ("━" if (node, node + 1) in mesh_links else "─") * 3
        parts.append(f"{mark(node)} {node:<2} {line}")
    return " ".join(parts).rstrip()


def _down(places: range, columns: int, mesh_links: Collection[TopologyLink]) -> str:
    lines = ("┃" if (node, node + columns) in mesh_links else "│" for node in places)
    return (" " * 8).join(lines)
