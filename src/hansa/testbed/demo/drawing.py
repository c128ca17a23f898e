"""Graphs drawn in text: what the demo shows. Pure: nodes and links in, lines out."""

from collections.abc import Callable, Collection

from hansa.simulator.topologies import Link

Mark = Callable[[int], str]
"""What is drawn for a node: one character."""


def grid(rows: int, columns: int, mark: Mark, heavy: Collection[Link]) -> list[str]:
    """Draw a grid, numbered row by row. Heavy links are those of a mesh."""
    lines = []
    for row in range(rows):
        first = row * columns
        lines.append(_across(range(first, first + columns), mark, heavy))
        if row + 1 < rows:
            lines.append(_down(range(first, first + columns), columns, heavy))
    return lines


def _across(places: range, mark: Mark, heavy: Collection[Link]) -> str:
    parts = []
    for node in places:
        line = "" if node == places[-1] else ("━" if (node, node + 1) in heavy else "─") * 3
        parts.append(f"{mark(node)} {node:<2} {line}")
    return " ".join(parts).rstrip()


def _down(places: range, columns: int, heavy: Collection[Link]) -> str:
    lines = ("┃" if (node, node + columns) in heavy else "│" for node in places)
    return (" " * 8).join(lines)
