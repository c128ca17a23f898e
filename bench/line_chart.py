"""Line charts as SVG with logarithmic axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#3b6fb6", "#e08a2e", "#3f9b57", "#b64b4b", "#7d62a8")
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 90
LINE_HEIGHT = 16


@dataclass(frozen=True, slots=True)
class Curve:
    title: str
    points: Sequence[tuple[float, float]]


def draw_curves(title: str, x_title: str, curves: Sequence[Curve]) -> str:
    """Return a chart. Points that are not positive are left out: the axes are logarithmic."""
    kept = [
        Curve(each.title, [(x, y) for x, y in each.points if x > 0 and y > 0]) for each in curves
    ]
    points = [point for curve in kept for point in curve.points]
    x_range = _decades([x for x, _ in points])
    y_range = _decades([y for _, y in points])
    height = HEIGHT + LINE_HEIGHT * max(0, len(curves) - 3)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}'"
        " font-family='sans-serif' font-size='12'>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        _text(LEFT, 22, title, "font-weight='bold' font-size='15'"),
        *_grid(x_range, y_range),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 32, x_title, "text-anchor='middle'"),
    ]
    for number, curve in enumerate(kept):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            (_place(x, x_range, LEFT, WIDTH - RIGHT), _place(y, y_range, HEIGHT - BOTTOM, TOP))
            for x, y in curve.points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        base = HEIGHT - BOTTOM + 50 + LINE_HEIGHT * number
        parts += [
            f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>",
            *(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in places),
            f"<rect x='{LEFT}' y='{base - 9}' width='10' height='10' fill='{colour}'/>",
            _text(LEFT + 16, base, curve.title),
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten around these values."""
    if not values:
        return 0, 1
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _place(value: float, decades: tuple[int, int], start: float, end: float) -> float:
    return start + (math.log10(value) - decades[0]) / (decades[1] - decades[0]) * (end - start)


def _grid(x_range: tuple[int, int], y_range: tuple[int, int]) -> list[str]:
    parts: list[str] = []
    line = "stroke='#dddddd'"
    for power in range(x_range[0], x_range[1] + 1):
        x = _place(10.0**power, x_range, LEFT, WIDTH - RIGHT)
        parts.append(f"<path d='M{x:.1f} {TOP}V{HEIGHT - BOTTOM}' {line}/>")
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{10.0**power:,g}", "text-anchor='middle'"))
    for power in range(y_range[0], y_range[1] + 1):
        y = _place(10.0**power, y_range, HEIGHT - BOTTOM, TOP)
        parts.append(f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' {line}/>")
        parts.append(_text(LEFT - 6, y + 4, f"{10.0**power:,g}", "text-anchor='end'"))
    return parts


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' fill='#222222' {style}>{escape(text)}</text>"
