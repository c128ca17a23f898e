"""Tables of a federation: names, states, problems."""

import pytest
from tests.console.documents import ALPHA, BETA, GAMMA, federation, lost, node, summary

from hansa.console import federation_tables as tables
from hansa.console.federation import Trace, check
from hansa.console.node_answers import NodeSummary
from hansa.console.terminal import console
from hansa.errors import UsageError


def drawn(table):
    """Lines of a table, with single blanks."""
    out = console()
    with out.capture() as text:
        out.print(table)
    return [" ".join(line.split()) for line in text.get().splitlines()]


def test_nodes_have_names_and_states():
    lines = drawn(
        tables.nodes_table(
            federation(
                node("alpha", ALPHA),
                node("beta", BETA, broker={"address": "b:1", "connected": False}),
                lost("gamma", GAMMA),
            )
        )
    )
    assert "alpha up 0.2.0 127.0.0.1:1 1 1 0 0" in lines
    assert "beta no broker 0.2.0 b:1 1 1 0 0" in lines
    assert "gamma down 1 min" in lines


@pytest.mark.parametrize(
    ("seconds", "shown"), [(59, "59 s"), (60, "1 min"), (7_200, "2 h"), (172_800, "2 d")]
)
def test_time_of_absence(seconds, shown):
    assert f"gamma down {shown}" in drawn(
        tables.nodes_table(federation(lost("gamma", GAMMA, seconds)))
    )


def test_nodes_with_equal_names_show_their_ids():
    lines = drawn(tables.nodes_table(federation(node("x", ALPHA), node("x", BETA))))
    assert any(line.startswith("x (aa0000) up") for line in lines)
    assert any(line.startswith("x (bb0000) up") for line in lines)


def test_ids_on_request():
    lines = drawn(tables.nodes_table(federation(node("alpha", ALPHA)), with_ids=True))
    assert f"alpha {ALPHA} up 0.2.0 127.0.0.1:1 1 1 0 0" in lines


def test_link_has_the_traffic_of_both_ends():
    both = federation(node("alpha", ALPHA), node("beta", BETA))
    assert "alpha beta up 0.50 77 77 0 0" in drawn(tables.links_table(both))
    one = federation(node("alpha", ALPHA), lost("beta", BETA), two_way=False)
    assert "alpha beta one side only 0.50 77 1,234 0 0" in drawn(tables.links_table(one))


def test_link_of_a_node_that_left_is_down():
    left = federation(node("alpha", ALPHA), lost("beta", BETA), two_way=False, is_lost=True)
    assert "alpha beta down 77 1,234 0 0" in drawn(tables.links_table(left))


def test_node_without_links_shows_the_neighbours_that_it_does_not_reach():
    problem = {"not_reached": {"south:10500": "Connection refused"}}
    alone = federation(node("alpha", ALPHA, neighbours={}, **problem))
    assert "alpha not reached south:10500: Connection refused" in drawn(tables.alarms_table(alone))
    linked = federation(node("alpha", ALPHA, **problem))
    assert tables.alarms_table(linked).row_count == 0
    details = check(summary("alpha", ALPHA, **problem), NodeSummary)
    assert "south:10500 Connection refused" in drawn(tables.node_tables(details, {}))


def test_topics_have_subscribers_and_core():
    groups = {
        "": {"core": ALPHA, "interested_nodes": [ALPHA]},
        "plant/#": {"core": BETA, "interested_nodes": [ALPHA, BETA]},
        "x": {"core": None, "interested_nodes": [GAMMA]},
    }
    topics = check({"groups": groups}, tables.TopicsDocument)
    pending = {"filters": 1, "installed": False}
    lines = drawn(
        tables.topics_table(
            federation(node("alpha", ALPHA), node("beta", BETA, interest=pending)), topics
        )
    )
    assert "plant/# alpha beta beta pending: beta" in lines
    assert "x cc0000 none yet yes" in lines
    assert len(lines) == 7


def test_alarms_of_all_nodes():
    quiet = {
        "id": GAMMA,
        "name": "gamma",
        "reachable": True,
        "problem": "no answer within 3 s",
        "summary": None,
    }
    lines = drawn(
        tables.alarms_table(
            federation(
                node(
                    "alpha", ALPHA, alarms={"clock set back": "behind"}, refused=["other version"]
                ),
                lost("beta", BETA),
                quiet,
            )
        )
    )
    assert "alpha clock set back behind" in lines
    assert "alpha link refused other version" in lines
    assert "beta unreachable the asked node has no path to it: down 1 min" in lines
    assert "gamma no answer no answer within 3 s" in lines


def test_broker_problem_is_shown_once():
    found = federation(
        node("alpha", ALPHA, problem="refused"),
        node("beta", BETA, problem="bad login", alarms={"broker login refused": "bad login"}),
    )
    assert [each.problems() for each in found.nodes] == [
        ["broker: refused"],
        ["broker login refused: bad login"],
    ]


def test_counters_are_summed():
    lines = drawn(
        tables.counters_table(
            federation(node("alpha", ALPHA), node("beta", BETA, counters={"captured": 1_000}))
        )
    )
    assert "captured 1,003 beta" in lines
    assert "dropped: broker disconnected 1 alpha" in lines


def test_long_tables_are_truncated(monkeypatch):
    monkeypatch.setattr(tables, "ROWS_MAX", 1)
    lines = drawn(tables.nodes_table(federation(node("alpha", ALPHA), node("beta", BETA))))
    assert "1 more; --json has all" in lines


def test_markup_and_control_characters_are_text():
    shown = drawn(tables.nodes_table(federation(node("[red]x\x1b[2J", ALPHA))))
    assert any(line.startswith("[red]x\\x1b[2J up") for line in shown)


def test_details_of_a_node():
    details = check(
        summary(
            "alpha",
            ALPHA,
            local_filters=["a/#", "b"],
            interest={"filters": 9, "installed": False},
            security={"federation": "plant", "valid_until": "2027"},
            delivery={
                "pending": {BETA: 4, GAMMA: 0},
                "gaps": [{"origin": BETA, "first": 3, "last": 5, "reason": "trimmed"}],
            },
            alarms={"delivery gap": "3 to 5"},
        ),
        NodeSummary,
    )
    lines = drawn(tables.node_tables(details, {ALPHA: "alpha", BETA: "beta"}))
    for line in (
        "Node alpha",
        f"id {ALPHA}",
        "certificate federation plant, valid until 2027",
        "interest not installed everywhere yet",
        "a/#",
        "7 more",
        "beta 4",
        "beta 3 to 5 trimmed",
        "delivery gap 3 to 5",
        "dropped 1",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("broker", "shown"),
    [
        ({"connected": False, "problem": "refused"}, "b:1 not connected: refused"),
        (
            {"connected": True, "observer_complete": False, "observer_problem": "no log"},
            "b:1 connected; some subscriptions may be unknown: no log",
        ),
    ],
)
def test_state_of_the_broker(broker, shown):
    details = check(summary("alpha", ALPHA, broker={"address": "b:1", **broker}), NodeSummary)
    lines = drawn(tables.node_tables(details, {}))
    assert f"broker {shown}" in lines
    assert "certificate none: links are neither authenticated nor encrypted" in lines


def test_trace_shows_hops_and_missed_nodes():
    place = {"node": ALPHA, "delivered": False, "duplicate": False, "to": []}
    trace = check(
        {
            "topic": "a",
            "origin_name": "alpha",
            "hops": [
                {**place, "name": "alpha", "hop": 0, "reasons": ["to beta"]},
                {**place, "name": "beta", "hop": 1, "reasons": ["x", "y"], "from_name": "alpha"},
            ],
            "delivered": [],
            "missed": [{"node": GAMMA, "name": "gamma", "filters": ["a"], "reason": "lost"}],
            "is_complete": False,
        },
        Trace,
    )
    lines = drawn(tables.trace_table(trace))
    assert "0 alpha published to beta" in lines
    assert "1 beta from alpha x" in lines
    assert "delivered at no other broker" in lines
    assert "not at gamma, which subscribes to a: lost" in lines
    assert "incomplete: a node gave no answer" in lines


def test_real_trace_shows_times_and_their_clocks():
    hop = {"duplicate": False, "to": [], "error_ms": 0.0}
    to_beta = {**hop, "to": [{"name": "beta", "after_ms": 0.25}]}
    place = {"node": GAMMA, "name": "gamma"}
    trace = check(
        {
            "topic": "a",
            "origin_name": "alpha",
            "hops": [],
            "delivered": [],
            "missed": [],
            "is_complete": True,
            "real": {
                "payload": "hansa trace 77",
                "clock_of": "beta",
                "hops": [
                    {**to_beta, "name": "alpha", "hop": 0, "at_ms": 0, "captured_ms": 0.5},
                    {
                        **{**hop, "name": "beta", "hop": 1, "at_ms": 1.5, "error_ms": 0.125},
                        **{"from_name": "alpha", "delivered_ms": 0.75},
                    },
                    {**hop, "name": "gamma", "hop": 2, "at_ms": 2, "from_name": "beta"},
                    {**hop, "name": "beta", "hop": 3, "at_ms": 3, "duplicate": True},
                ],
                "delivered": [{"node": BETA, "name": "beta"}],
                "missed": [place],
                "problems": [{**place, "reason": "received, but not delivered: refused"}],
            },
        },
        Trace,
    )
    assert trace.real is not None
    lines = drawn(tables.real_trace_table(trace, trace.real))
    assert "0 alpha published 0.00 from the broker 0.50, to beta 0.25" in lines
    assert "1 beta from alpha 1.50 ± 0.12 to the broker 0.75" in lines
    assert "2 gamma from beta 2.00 no copy sent, not delivered" in lines
    assert "3 beta published 3.00 another copy came before" in lines
    assert lines[-5:-1] == [
        "delivered at: beta",
        "not at gamma",
        "gamma: received, but not delivered: refused",
        "Subscribers of a received 'hansa trace 77'.",
    ]


def test_document_of_another_form_is_refused():
    with pytest.raises(UsageError, match="does it run another version"):
        check({"nodes": 1}, Trace)
