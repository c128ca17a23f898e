"""Bars as SVG: what is drawn is what was measured."""

from xml.etree import ElementTree

from hansa.experiments.bars import LABEL_WIDTH, PANEL_WIDTH, VALUE_WIDTH, draw_bars

SVG = "{http://www.w3.org/2000/svg}"


def drawn(title: str, panels: dict[str, dict[str, float]]) -> tuple[list[str], list[float]]:
    """All texts, and the lengths of all bars."""
    root = ElementTree.fromstring(draw_bars(title, panels))
    bars = [float(each.attrib["width"]) for each in root.iter(f"{SVG}rect")]
    return [each.text or "" for each in root.iter(f"{SVG}text")], bars[1:]  # the first is the paper


def test_bars_are_as_long_as_their_values_within_a_panel():
    texts, bars = drawn("copies", {"one": {"a": 10.0, "b": 2.5}, "two": {"a": 1_000.0}})
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    assert bars == [room, room / 4, room]
    assert texts == ["copies", "one", "a", "10", "b", "2.5", "two", "a", "1,000"]


def test_nothing_is_no_bar_and_text_is_text():
    texts, bars = drawn("<&>", {"<none>": {"a": 0.0}, "empty": {}})
    assert (texts, bars) == (["<&>", "<none>", "a", "0", "empty"], [0.0])
