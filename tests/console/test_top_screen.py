"""The screen of `hansa top`: rates, sorting, scrolling, names of dead nodes."""

import pytest
from tests.console.documents import ALPHA, BETA, GAMMA, federation, lost, node

from hansa.console.top_screen import TopScreen, shown_rate, split_keys


def shown(screen, width=80, height=24):
    lines = [line.plain for line in screen.lines(width, height)]
    assert len(lines) == height
    assert all(len(line) in (0, width) for line in lines)
    return lines


def counted(name, node_id, captured, dropped=0):
    return node(name, node_id, counters={"captured": captured, "dropped: x": dropped})


def test_rates_are_growth_per_second():
    screen = TopScreen(1.0)
    screen.add(10.0, federation(counted("alpha", ALPHA, 100), counted("beta", BETA, 5_000)))
    screen.add(12.0, federation(counted("alpha", ALPHA, 400, 6), counted("beta", BETA, 10)))
    lines = shown(screen)
    assert lines[0].split() == "Nodes 2 2 nodes, 0 not up, 0 alarms every 1 s".split()
    assert lines[2].split() == ["alpha", "up", "150", "0", "0", "0", "0", "3.0", "0"]
    assert lines[3].split() == ["beta", "up", "5.0", "0", "0", "0", "0", "0", "0"]  # it restarted


def test_first_sample_has_no_rates():
    screen = TopScreen(1.0)
    screen.add(10.0, federation(counted("alpha", ALPHA, 100)))
    assert shown(screen)[2].split()[2] == "0"


def test_dead_node_keeps_its_name():
    screen = TopScreen(1.0)
    screen.add(0.0, federation(node("alpha", ALPHA), node("beta", BETA), node("gamma", GAMMA)))
    screen.add(1.0, federation(node("alpha", ALPHA), lost("beta", BETA, 3.0)))
    lines = shown(screen)
    assert lines[0].startswith("Nodes 3  3 nodes, 2 not up")
    assert [line.split() for line in lines[3:5]] == [["beta", "down", "3", "s"], ["gamma", "down"]]


def test_problem_keeps_the_last_sample():
    screen = TopScreen(1.0)
    screen.add(0.0, federation(node("alpha", ALPHA)))
    screen.problem = "no answer"
    assert shown(screen)[0].startswith("Nodes 1  no answer")
    assert shown(screen)[2].startswith("alpha")
    screen.add(1.0, federation(node("alpha", ALPHA)))
    assert "no answer" not in shown(screen)[0]


def names(screen, height=24):
    return [line.split()[0] for line in shown(screen, height=height)[2:-1] if line.strip()]


def test_rows_are_sorted_by_any_column():
    screen = TopScreen(1.0)
    three = (("beta", BETA, 10), ("alpha", ALPHA, 10), ("gamma", GAMMA, 30))
    screen.add(0.0, federation(*(counted(name, each, 0) for name, each, _ in three)))
    screen.add(1.0, federation(*(counted(*each) for each in three)))
    assert names(screen) == ["alpha", "beta", "gamma"]
    screen.press("right", 24)
    screen.press(">", 24)
    assert "IN/s▼" in shown(screen)[1]
    assert names(screen) == ["gamma", "alpha", "beta"]
    screen.press("r", 24)
    assert names(screen) == ["alpha", "beta", "gamma"]
    for _ in range(3):
        screen.press("left", 24)
    assert "ALM▲" in shown(screen)[1]


def test_rows_scroll():
    screen = TopScreen(1.0)
    many = [node(f"n{number:02}", f"{number:016x}") for number in range(30)]
    screen.add(0.0, federation(node("alpha", ALPHA), node("beta", BETA), *many))
    assert shown(screen, height=13)[0].startswith("Nodes 1-10 of 32")
    screen.press("down", 13)
    assert names(screen, 13)[0] == "beta"
    screen.press("page down", 13)
    assert names(screen, 13)[0] == "n08"
    screen.press("end", 13)
    assert names(screen, 13)[-1] == "n29"
    screen.press("up", 13)
    assert names(screen, 13)[-1] == "n28"
    screen.press("home", 13)
    assert names(screen, 13)[0] == "alpha"
    screen.press("page up", 13)
    assert names(screen, 13)[0] == "alpha"


def test_views_follow_each_other():
    screen = TopScreen(1.0)
    screen.add(0.0, federation(node("alpha", ALPHA), node("beta", BETA)))
    grown = {ALPHA: {"rtt_ms": 0.5, "bytes_out": 277, "dropped": 4}}
    alarms = {"clock set back": "behind"}
    screen.add(
        2.0,
        federation(node("alpha", ALPHA), node("beta", BETA, neighbours=grown, alarms=alarms)),
    )
    screen.press("tab", 24)
    assert shown(screen)[2].split() == ["alpha", "beta", "0.50", "0", "100", "2.0"]
    screen.press("tab", 24)
    assert shown(screen)[2].split() == ["captured", "0", "6.0", "alpha"]
    screen.press("tab", 24)
    assert shown(screen)[2].split() == ["beta", "clock", "set", "back:", "behind"]
    screen.press("tab", 24)
    assert shown(screen)[0].startswith("Nodes")


def test_empty_screen_has_no_rows():
    screen = TopScreen(1.0)
    for _ in range(4):
        assert shown(screen)[2] == ""
        screen.press("tab", 24)


@pytest.mark.parametrize("size", [(80, 24), (20, 4), (1, 1), (200, 60)])
def test_screen_fits_any_terminal(size):
    screen = TopScreen(1.0)
    screen.add(0.0, federation(node("ä" * 50, ALPHA), node("漢字" * 20, BETA)))
    width, height = size
    lines = screen.lines(width, height)
    assert all(line.cell_len <= width for line in lines)
    assert len(lines) == max(4, height)


def test_keys():
    assert split_keys(b"q\t\x1b[A\x1b[Bx\x1b[C\x1b[D\x1b[5~\x1b[6~\x1b[15~r\x1bOPk") == [
        *("q", "tab", "up", "down", "x", "right", "left", "page up", "page down", "r", "k"),
    ]
    assert TopScreen(1.0).press("q", 24)
    assert not TopScreen(1.0).press("x", 24)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0, "0"), (0.04, "0.0"), (9.96, "10.0"), (9_999, "9999"), (12_345, "12.3k"), (5e6, "5.0M")],
)
def test_rates_are_short(rate, text):
    assert shown_rate(rate) == text
