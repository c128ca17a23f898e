"""Plots as SVG text, independent of what the numbers mean.

All are drawn for a width of 480, so that a phone shows one and a desktop two side by side. Class
names refer to the colours of the page; every mark has a tooltip.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from hansa.pipeline.report.durations import duration

WIDTH = 480
ROW = 26
LABEL = 108
LINES_MAX = 8
ROWS_MAX = 40


def format_number(value: float | None, unit: str = "") -> str:
    """Return a number with three significant digits and thousands separators."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 100 or value == int(value):
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def format_bytes(count: float | None) -> str:
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000 or unit == "GB":
            return format_number(count, unit)
        count /= 1_000
    raise AssertionError


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        + "".join(body)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _short(text: str, most: int = 15) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _steps(most: float) -> list[float]:
    """Return three to six round numbers from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    return [step * count for count in range(math.ceil(most / step) + 1)]


def _axis(steps: Sequence[float], bottom: float, unit: str, left: float = LABEL) -> list[str]:
    reach = WIDTH - left - 24
    drawn = []
    for step in steps:
        x = left + reach * step / steps[-1]
        drawn.append(f'<line x1="{x:.1f}" y1="4" x2="{x:.1f}" y2="{bottom:.1f}" class="grid"/>')
        drawn.append(_text(x, bottom + 16, _tick(step), "tick", "middle"))
    drawn.append(_text(WIDTH - 2, bottom + 32, unit, "tick", "end"))
    return drawn


def _tick(step: float) -> str:
    return format_number(step) if step < 100_000 else _format_compact(step)


def bars(title: str, rows: Sequence[tuple[str, Sequence[float]]], unit: str) -> str:
    """Draw one stacked bar per row."""
    rows = rows[:ROWS_MAX]
    bottom = 8 + ROW * len(rows)
    steps = _steps(max((sum(parts) for _, parts in rows), default=0))
    reach = WIDTH - LABEL - 24
    body = _axis(steps, bottom, unit)
    for index, (label, parts) in enumerate(rows):
        y = 8 + ROW * index
        body.append(_text(LABEL - 6, y + 15, _short(label), "label", "end"))
        x = float(LABEL)
        for part, value in enumerate(parts):
            length = reach * value / steps[-1]
            body.append(
                f'<rect x="{x:.1f}" y="{y + 3}" width="{max(length, 0):.1f}" height="{ROW - 8}"'
                f' rx="2" class="part{part}"><title>{escape(label)}: {format_number(value, unit)}'
                "</title></rect>"
            )
            x += length
    return _svg(bottom + 38, title, body)


def ranges(title: str, rows: Sequence[tuple[str, float, float, float]], unit: str) -> str:
    """Draw three percentiles per row: a dot at the 50th, a tick at the 95th, a line to the 99th."""
    rows = rows[:ROWS_MAX]
    bottom = 8 + ROW * len(rows)
    steps = _steps(max((row[3] for row in rows), default=0))
    reach = WIDTH - LABEL - 24
    body = _axis(steps, bottom, unit)
    for index, (label, *values) in enumerate(rows):
        y = 8 + ROW * index + ROW / 2
        p50, p95, p99 = (LABEL + reach * value / steps[-1] for value in values)
        texts = [format_number(value, unit) for value in values]
        words = f"{label}: median {texts[0]}, 95 % {texts[1]}, 99 % {texts[2]}"
        body += [
            _text(LABEL - 6, y + 4, _short(label), "label", "end"),
            f"<g><title>{escape(words)}</title>"
            f'<line x1="{p50:.1f}" y1="{y:.1f}" x2="{p99:.1f}" y2="{y:.1f}" class="range"/>'
            f'<path d="M{p95:.1f} {y - 6:.1f}v12" class="mark"/>'
            f'<circle cx="{p50:.1f}" cy="{y:.1f}" r="5" class="part0"/></g>',
        ]
    return _svg(bottom + 38, title, body)


def heat(
    title: str,
    names: Sequence[str],
    values: Mapping[tuple[str, str], float],
    unit: str,
    axes: tuple[str, str],
) -> str:
    """Draw a heat map with one cell per pair of names."""
    names = names[:ROWS_MAX]
    count = max(1, len(names))
    cell = min(40.0, (WIDTH - 100) / count)
    left, top = 84.0, 34.0
    most = max(values.values(), default=0) or 1
    body = [_text(left, 12, f"{axes[1]} →", "tick"), _text(2, top - 6, f"{axes[0]} ↓", "tick")]
    every = math.ceil(14 / cell)
    for index, name in enumerate(names):
        if index % every == 0:
            middle = cell * (index + 0.5)
            body.append(_text(left - 6, top + middle + 4, _short(name, 11), "label", "end"))
            body.append(_text(left + middle, top - 6, _short(name, 4), "label", "middle"))
    for row, one in enumerate(names):
        for column, other in enumerate(names):
            value = values.get((one, other))
            shade = f"fill-opacity:{0.12 + 0.88 * value / most:.3f}" if value is not None else ""
            words = f"{one} → {other}: {format_number(value, unit)}"
            body.append(
                f'<rect x="{left + cell * column + 1:.1f}" y="{top + cell * row + 1:.1f}"'
                f' width="{cell - 2:.1f}" height="{cell - 2:.1f}" rx="2"'
                f' class="{"cell" if value is not None else "none"}" style="{shade}">'
                f"<title>{escape(words)}</title></rect>"
            )
            if value is not None and cell >= 34:
                tone = "on" if value / most > 0.55 else "value"
                x, y = left + cell * (column + 0.5), top + cell * (row + 0.5) + 4
                body.append(_text(x, y, _format_compact(value), tone, "middle"))
    return _svg(top + cell * count + 6, title, body)


def _format_compact(value: float) -> str:
    """Return a number that fits into a cell: 1.5k, 20M."""
    for unit in ("", "k", "M"):
        if value < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1_000
    return f"{value:.3g}G"


def columns(title: str, values: Sequence[tuple[str, float]], limit: float, limit_text: str) -> str:
    """Draw columns and the limit that they should stay below."""
    values = values[:200]
    height, bottom, left = 180.0, 160.0, 40.0
    top = max(limit * 1.15, *(value for _, value in values)) if values else limit * 1.15
    step = (WIDTH - left - 8) / max(1, len(values))
    body = []
    for tick in _steps(top)[:-1]:
        y = bottom - (bottom - 10) * tick / top
        body.append(f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}" class="grid"/>')
        body.append(_text(left - 6, y + 4, format_number(tick), "tick", "end"))
    wide = max(1.0, step - min(2.0, step / 3))
    for index, (label, value) in enumerate(values):
        tall = (bottom - 10) * value / top
        over = "part1" if value > limit else "part0"
        body.append(
            f'<rect x="{left + step * index:.1f}" y="{bottom - tall:.1f}"'
            f' width="{wide:.1f}" height="{tall:.1f}" class="{over}">'
            f"<title>{escape(label)}: {format_number(value)}</title></rect>"
        )
    y = bottom - (bottom - 10) * limit / top
    body.append(f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}" class="limit"/>')
    body.append(_text(WIDTH - 4, y - 5, limit_text, "limit-text", "end"))
    return _svg(height, title, body)


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], across: str) -> str:
    """Draw a line per series, with a legend below."""
    shown = dict(list(series.items())[:LINES_MAX])
    points = [point for line in shown.values() for point in line]
    steps_x = _steps(max((x for x, _ in points), default=0))
    steps_y = _steps(max((y for _, y in points), default=0))
    left, right, top, bottom = 46.0, WIDTH - 12.0, 10.0, 200.0
    body = []
    for step in steps_y:
        y = bottom - (bottom - top) * step / steps_y[-1]
        body.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
        body.append(_text(left - 6, y + 4, format_number(step), "tick", "end"))
    for step in steps_x:
        x = left + (right - left) * step / steps_x[-1]
        body.append(_text(x, bottom + 16, format_number(step), "tick", "middle"))
    body.append(_text(right, bottom + 32, across, "tick", "end"))
    for index, (label, line) in enumerate(shown.items()):
        at = [
            (left + (right - left) * x / steps_x[-1], bottom - (bottom - top) * y / steps_y[-1])
            for x, y in line
        ]
        points_text = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        body.append(f'<polyline points="{points_text}" class="line line{index}"/>')
        for (x, y), (across_value, value) in zip(at, line, strict=True):
            words = f"{label}, {format_number(across_value, across)}: {format_number(value)}"
            body.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="dot{index}">'
                f"<title>{escape(words)}</title></circle>"
            )
        x, y = 8 + (WIDTH / 2) * (index % 2), bottom + 48 + 20 * (index // 2)
        body.append(f'<rect x="{x}" y="{y - 9}" width="14" height="8" class="dot{index}"/>')
        body.append(_text(x + 20, y, _short(label, 30), "label"))
    return _svg(bottom + 48 + 20 * ((len(shown) + 1) // 2), title, body)


def timeline(
    title: str, rows: Sequence[tuple[float, str, float | None]], unknown: str = "not recorded"
) -> str:
    """Draw events from top to bottom with their durations; `unknown` replaces a missing one."""
    rows = rows[:ROWS_MAX]
    known = [took for _, _, took in rows if took is not None]
    longest = max(known, default=0) or 1
    left, reach = 218.0, WIDTH - 218.0 - 84
    body = [f'<line x1="62" y1="6" x2="62" y2="{8 + ROW * len(rows)}" class="range"/>']
    for index, (at, event, took) in enumerate(rows):
        y = 8 + ROW * index + ROW / 2
        body += [
            _text(52, y + 4, f"{at:.1f} s", "tick", "end"),
            f'<circle cx="62" cy="{y:.1f}" r="4" class="part1"/>',
            _text(74, y + 4, _short(event, 22), "label"),
        ]
        if took is not None:
            length = reach * took / longest
            body += [
                f'<rect x="{left}" y="{y - 8:.1f}" width="{max(1.5, length):.1f}" height="16"'
                f' rx="2" class="part0">'
                f"<title>{escape(event)}: {format_number(took, 's')}</title></rect>",
                _text(left + length + 6, y + 4, duration(took), "value"),
            ]
        else:
            body.append(_text(left, y + 4, unknown, "tick"))
    return _svg(14 + ROW * len(rows), title, body)
