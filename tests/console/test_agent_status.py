"""Status of agents as tables."""

import json

import msgspec
import pytest

from hansa.console import agent_status
from hansa.console.agent_status import StatusResponse
from hansa.console.terminal import console

ALPHA, BETA, GAMMA = (f"{digits:0<16}" for digits in ("aa", "bb", "cc"))


def page(name="alpha", node=ALPHA, **changes):
    """Status of one of two agents."""
    told = {
        "name": name,
        "node": node,
        "incarnation": 7,
        "broker": {"address": "127.0.0.1:1", "connected": True, "observer_complete": True},
        "neighbours": {BETA if node == ALPHA else ALPHA: {"rtt_ms": 0.5, "bytes_in": 1234}},
        "reachable_nodes": [ALPHA, BETA],
        "cores": {ALPHA: {"distance": 0 if node == ALPHA else 1}},
        "groups": {
            "plant/#": {
                "core": ALPHA,
                "member": True,
                "interested_nodes": [ALPHA, BETA],
                "parents": [] if node == ALPHA else [ALPHA],
                "children": [BETA] if node == ALPHA else [],
            }
        },
        "interest": {"local": ["plant/#"], "installed": True},
        "counters": {"captured": 3, "dropped: broker disconnected": 1},
        **changes,
    }
    status = msgspec.convert(told, agent_status.AgentStatus, strict=False)
    return StatusResponse(f"http://{name}", json.dumps(told), status)


def drawn(*pages, rates=None):
    """Lines of the tables, with single blanks."""
    out = console()
    with out.capture() as text:
        out.print(agent_status.render_tables(pages, rates))
    return [" ".join(line.split()) for line in text.get().splitlines()]


def test_tables_show_nodes_links_topics_and_counters():
    lines = drawn(page(), page("beta", BETA))
    for line in (
        "alpha aa0000 127.0.0.1:1 2 installed",
        "alpha beta 0.50 1,234 0",
        "plant/# alpha alpha beta alpha 0 beta",
        "plant/# alpha alpha beta beta 1 alpha",
        "alpha 1 plant/# yes",
        "dropped: broker disconnected 2 alpha",
    ):
        assert line in lines


def test_member_without_status_is_shown_by_id():
    lines = drawn(page())
    assert "also members: bb0000" in lines
    assert "alpha bb0000 0.50 1,234 0" in lines


def test_member_without_status_is_shown_by_known_name():
    lines = drawn(page(names={ALPHA: "alpha", BETA: "beta"}))
    assert "also members: beta" in lines
    assert "alpha beta 0.50 1,234 0" in lines


def test_problems_are_shown():
    away = {"address": "b:1", "connected": False, "problem": "Connection refused"}
    blind = {
        "address": "b:1",
        "connected": True,
        "observer_complete": False,
        "observer_problem": "no log",
    }
    lines = drawn(
        page(broker=away), page("beta", BETA, broker=blind), StatusResponse("http://c", problem="x")
    )
    assert "alpha aa0000 b:1 2 installed broker: Connection refused" in lines
    assert "beta bb0000 b:1 2 installed observer incomplete: no log" in lines
    assert "? http://c: x" in lines
    parted = page(refused=["of a meets of b"], alarms={"clock set back": "behind"})
    (told,) = (at for at, line in enumerate(drawn(parted)) if "link refused: of a meets" in line)
    assert drawn(parted)[told + 1] == "clock set back: behind"


def test_incomplete_observer_is_shown_once():
    broker = {
        "address": "b:1",
        "connected": True,
        "observer_complete": False,
        "observer_problem": "no log",
    }
    interest = {"local": ["plant/#"], "installed": True, "wide": ["#"]}
    alarms = {"observer incomplete": "no log; meanwhile the agent asks other brokers for #"}
    lines = drawn(page(broker=broker, interest=interest, alarms=alarms))
    assert sum("observer incomplete" in line for line in lines) == 1
    assert "alpha 1 plant/#; others may be unknown, so it announces # yes" in lines


def test_topic_without_known_members_is_shown_once():
    topic = {"core": BETA, "member": False, "interested_nodes": [BETA]}
    topic |= {"parents": [], "children": []}
    lines = drawn(page(groups={"plant/#": topic}, cores={}))
    assert "plant/# bb0000 bb0000 alpha, not a member" in lines


def test_long_tables_are_truncated(monkeypatch):
    monkeypatch.setattr(agent_status, "ROWS_MAX", 1)
    assert drawn(page(), page("beta", BETA)).count("1 more; --json has all") == 4


def test_markup_in_a_filter_is_text():
    lines = drawn(page(interest={"local": ["[red]x"], "installed": False}))
    assert "alpha 1 [red]x no" in lines


def test_counters_have_rates():
    before = [page(counters={"captured": 10, "injected": 5})]
    after = [page(counters={"captured": 30, "injected": 1, "new": 4})]
    assert agent_status.rates_between(before, after, seconds=2.0) == {
        ("http://alpha", "captured"): 10.0,
        ("http://alpha", "injected"): 0.5,  # the agent restarted
        ("http://alpha", "new"): 2.0,
    }


def test_rates_need_two_responses():
    nothing = [StatusResponse("http://alpha", problem="x")]
    assert agent_status.rates_between(nothing, [page()], 1.0) == {}
    assert agent_status.rates_between([page()], nothing, 1.0) == {}


@pytest.mark.parametrize(
    "target",
    ["http://h:1", "h:1", "http://h:1/", "http://h:1/status"],
)
def test_forms_of_an_address(target):
    assert agent_status.status_urls(target) == ("http://h:1",)
