"""Advice on federations with a known problem, or without one."""

from dataclasses import replace

import pytest
from tests.advice.federations import federation, with_protocol

from hansa.advice.adviser import advise
from hansa.advice.prediction import TrafficCost
from hansa.advice.proposals import (
    ACTOR_BY_KIND,
    KIND_ORDER,
    Proposal,
    apply_proposal,
    generate_proposals,
)
from hansa.advice.replay import replay_cost

TOLERANCE = 0.15

MISSING_LINK = federation("line:8", {7: ["a/#"]}, [(0, "a/x")])
BAD_CORE = with_protocol(
    federation("ring:8", {0: ["a/#"], 4: ["a/#"]}, [(5, "a/x"), (5, "a/y")], {"a/#": 0}),
    redundancy=1,
)
GOOD = federation("ring:5", {n: ["a/#"] for n in range(5)}, [(n, "a/x") for n in range(5)])
MANY_FILTERS = federation(
    "ring:4",
    {node: [f"plant/{number}/state" for number in range(25)] for node in range(4)},
    [(node, f"plant/{node}/state") for node in range(4)],
)
FAR_CLIENTS = federation("line:5", {4: ["a/#"]}, [(0, "a/x")])


@pytest.mark.parametrize(
    ("recorded", "degree_max", "first"),
    [
        (MISSING_LINK, 4, Proposal("add link", ("n00", "n07"))),
        (BAD_CORE, 2, Proposal("move core", ("a/#", "n04"))),
        (MANY_FILTERS, 2, Proposal("merge filters", ("1",))),
        (FAR_CLIENTS, 1, Proposal("move clients", ("a/#", "n04", "n00"))),
    ],
    ids=["missing link", "bad core", "many filters", "far clients"],
)
def test_first_advice_is_right_and_has_the_predicted_effect(recorded, degree_max, first):
    advice = next(advise(recorded, degree_max, 1))
    assert advice.proposal == first
    before, after = replay_cost(recorded), replay_cost(apply_proposal(recorded, first))
    assert advice.replayed == (before, after)
    for name in ("delay_ms", "bytes", "copies"):
        predicted, shown = (
            advice.predicted[0].relative_change(advice.predicted[1], name),
            before.relative_change(after, name),
        )
        assert predicted == pytest.approx(shown, abs=TOLERANCE), name


def test_good_federation_gets_no_advice():
    assert list(advise(GOOD, 4, 5)) == []


def test_each_advice_assumes_the_previous_ones():
    several = federation(
        "line:9", {8: ["a/#"], 4: ["b/#"]}, [(0, "a/x"), (8, "b/x")], publications=10
    )
    first, second, *_ = advise(several, 3, 5)
    assert second.predicted[0] == first.predicted[1]
    assert second.replayed[0] == first.replayed[1]
    assert second.predicted[1].delay_ms < first.predicted[1].delay_ms


def test_link_proposals_respect_degrees_and_create_no_bridge():
    ring = [p for p in generate_proposals(GOOD, 2) if p.kind in ("add link", "remove link")]
    assert ring == []
    full = federation("full:4", {0: ["a"]}, [(1, "a")])
    drops = {p.subject for p in generate_proposals(full, 3) if p.kind == "remove link"}
    assert len(drops) == 6


def test_gain_is_zero_if_another_figure_gets_worse():
    add = Proposal("add link", ("a", "b"))
    join = Proposal("merge filters", ("1",))
    before = TrafficCost(10, 100, 4, 30)
    assert add.gain(before, TrafficCost(5, 100, 4, 30)) == 0.5
    assert add.gain(before, TrafficCost(5, 120, 4, 30)) == 0
    assert join.gain(before, TrafficCost(10, 100, 4, 3)) == 0.9
    assert join.gain(before, TrafficCost(10, 130, 4, 3)) == 0


def test_proposal_not_confirmed_by_replay_is_dropped():
    """The replayed sample differs from the counted traffic."""
    lying = replace(MISSING_LINK, sample=GOOD.sample[:0])
    assert list(advise(lying, 4, 5)) == []


def test_advice_as_json_and_text():
    advice = next(advise(MISSING_LINK, 4, 1))
    values = advice.as_json()
    assert (values["kind"], values["subject"]) == ("add link", ["n00", "n07"])
    assert values["actor"] == "manager"
    assert set(ACTOR_BY_KIND) == set(KIND_ORDER)
    assert values["text"] == "link n00 with n07"
    assert values["predicted"]["after"]["copies"] == 1
    texts = {p.kind: p.text for case in (GOOD, MANY_FILTERS) for p in generate_proposals(case, 4)}
    assert texts["merge filters"] == "set group_depth = 3 on all nodes"
    assert "its clients should subscribe first" in texts["move core"]
    far = [p.text for p in generate_proposals(FAR_CLIENTS, 1) if p.kind == "move clients"]
    assert far == ["move the subscribers of a/# from n04 to n00"]
    assert Proposal("remove link", ("a", "b")).text == "remove the link between a and b"
