"""Bar charts as SVG: one panel per trial with its own scale, one bar per strategy.

Colours and order are the same in every panel. Values are printed beside the bars, so there is no
axis.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from hansa.simulator.scenarios.comparison import StrategyMeasurement

COLOURS = ("#3b6fb6", "#e08a2e", "#3f9b57", "#b64b4b", "#7d62a8", "#7a7a7a")
COLUMNS = 2
PANEL_WIDTH = 430
LABEL_WIDTH = 150
VALUE_WIDTH = 70
BAR_HEIGHT = 16
GAP = 4
TITLE_HEIGHT = 26
MARGIN = 16
FONT = "font-family='sans-serif' font-size='12'"

Panels = Mapping[str, Mapping[str, float]]
"""The values of the bars, by panel and label."""


PLOTS = {
    "copies": "copies per publication, over all links",
    "busiest": "copies per publication that the busiest node sends",
    "delay_ms": "mean delay, ms",
    "control_frames": "control frames in the whole run, without heartbeats",
    "lost": "deliveries lost at QoS 0, with faults",
}
"""Titles of the plots, by field of StrategyMeasurement."""


def draw_measurements(
    measured: Iterable[StrategyMeasurement], trials_with_faults: set[str], directory: Path
) -> None:
    """Write one SVG file per plot; losses are drawn only for trials with faults."""
    measured = list(measured)
    for name, title in PLOTS.items():
        panels: dict[str, dict[str, float]] = {}
        for each in measured:
            value = getattr(each, name)
            if value is not None and (name != "lost" or each.trial in trials_with_faults):
                panels.setdefault(each.trial, {})[each.strategy] = value
        panels = {trial: bars for trial, bars in panels.items() if any(bars.values())}
        if panels:
            path = directory / f"{name.removesuffix('_ms').replace('_', '-')}.svg"
            path.write_text(draw_bars(title, panels), encoding="utf-8")


def draw_bars(title: str, panels: Panels) -> str:
    names = list(dict.fromkeys(name for bars in panels.values() for name in bars))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    panel_height = TITLE_HEIGHT + len(names) * (BAR_HEIGHT + GAP) + MARGIN
    rows = -(-len(panels) // COLUMNS)
    width = MARGIN + COLUMNS * (PANEL_WIDTH + MARGIN)
    height = 2 * MARGIN + TITLE_HEIGHT + rows * panel_height
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {FONT}>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
        _text(MARGIN, MARGIN + 14, title, "font-weight='bold' font-size='15'"),
    ]
    for number, (name, bars) in enumerate(panels.items()):
        x = MARGIN + number % COLUMNS * (PANEL_WIDTH + MARGIN)
        y = MARGIN + TITLE_HEIGHT + number // COLUMNS * panel_height
        parts += _panel(x, y, name, bars, colours)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    x: int, y: int, name: str, bars: Mapping[str, float], colours: Mapping[str, str]
) -> list[str]:
    largest = max(bars.values(), default=0.0)
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    parts = [_text(x, y + 14, name, "font-weight='bold'")]
    for number, (label, value) in enumerate(bars.items()):
        top = y + TITLE_HEIGHT + number * (BAR_HEIGHT + GAP)
        length = round(room * value / largest, 1) if largest else 0.0
        base = top + BAR_HEIGHT - 4
        parts += [
            _text(x + LABEL_WIDTH - 6, base, label, "text-anchor='end'"),
            f"<rect x='{x + LABEL_WIDTH}' y='{top}' width='{length}' height='{BAR_HEIGHT}'"
            f" fill='{colours[label]}'/>",
            _text(x + LABEL_WIDTH + length + 5, base, _format_number(value)),
        ]
    return parts


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' fill='#222222' {style}>{escape(text)}</text>"


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
