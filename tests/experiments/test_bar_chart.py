"""Bar charts as SVG."""

from dataclasses import replace
from xml.etree import ElementTree

from hansa.experiments.bar_chart import (
    LABEL_WIDTH,
    PANEL_WIDTH,
    VALUE_WIDTH,
    draw_bars,
    draw_measurements,
)
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.scenarios.comparison import measure_strategy
from hansa.simulator.scenarios.trials import make_trials

SVG = "{http://www.w3.org/2000/svg}"


def drawn(title: str, panels: dict[str, dict[str, float]]) -> tuple[list[str], list[float]]:
    """Return all texts and the lengths of all bars."""
    root = ElementTree.fromstring(draw_bars(title, panels))
    bars = [float(each.attrib["width"]) for each in root.iter(f"{SVG}rect")]
    return [each.text or "" for each in root.iter(f"{SVG}text")], bars[
        1:
    ]  # the first is the background


def test_bar_lengths_are_proportional_within_a_panel():
    texts, bars = drawn("copies", {"one": {"a": 10.0, "b": 2.5}, "two": {"a": 1_000.0}})
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    assert bars == [room, room / 4, room]
    assert texts == ["copies", "one", "a", "10", "b", "2.5", "two", "a", "1,000"]


def test_zero_has_no_length_and_text_is_escaped():
    texts, bars = drawn("<&>", {"<none>": {"a": 0.0}, "empty": {}})
    assert (texts, bars) == (["<&>", "<none>", "a", "0", "empty"], [0.0])


def test_losses_are_drawn_for_a_strategy_without_measured_recovery(tmp_path):
    trial = next(each for each in make_trials(seed=1) if each.name == "spohn-2020")
    found = measure_strategy(trial, ProtocolSettings(), "mesh", seed=1)
    shown = [
        replace(found, trial="faults", lost=3, recovered_s=2.0),
        replace(found, trial="faults", lost=7, strategy="paths", recovered_s=None),
        replace(found, trial="none", lost=5),
    ]
    draw_measurements(shown, {"faults"}, tmp_path)
    picture = (tmp_path / "lost.svg").read_text()
    assert ">paths</text>" in picture and ">faults</text>" in picture
    assert ">none</text>" not in picture
