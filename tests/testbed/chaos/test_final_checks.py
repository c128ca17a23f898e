"""What agents say when all is over counts, unless what was done to them explains it."""

from typing import Any

import pytest

from hansa.testbed.chaos.fault_effects import Harm, Memory
from hansa.testbed.chaos.final_checks import complaints

FAULT = {"fault": "a task ended"}
GAP = {"origin": "b", "epoch": 1, "first": 3, "last": 5, "reason": "retention"}


def page(node: str, alarms: dict[str, str] | None = None, **delivery: object) -> dict[str, Any]:
    empty = {"owed": {"a": 0, "b": 0}, "inbox": 0, "inbox_waiting": 0, "gaps": []}
    return {"node": node, "alarms": alarms or {}, "delivery": empty | delivery}


def forgot(place: int, memory: Memory) -> Harm:
    harm = Harm()
    harm.forget(place, memory, 1.0)
    harm.remember(place, 2.0)
    return harm


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        (page("a"), []),
        (None, ["agent 0 does not answer"]),
        (page("a", owed={"b": 2}), ["agent 0: owes 2 to b"]),
        (page("a", owed={"gone": 2}), ["agent 0: owes 2 to gone"]),
        (
            page("a", inbox=1, inbox_waiting=4),
            ["agent 0: 1 in inbox", "agent 0: 4 in inbox_waiting"],
        ),
        (page("a", gaps=[GAP]), ["agent 0: gap 3 to 5 of b"]),
        (page("a", FAULT), ["agent 0: alarm fault: a task ended"]),
        (page("a", {"retention": "too small"}), ["agent 0: alarm retention: too small"]),
        (page("a", {"identity": "a copy runs", "broker queue": "full"}), []),
    ],
)
def test_who_is_well_has_empty_queues_and_no_alarm(shown, wrong):
    assert complaints([shown, page("b")], Harm()) == wrong


@pytest.mark.parametrize(
    ("memory", "explained"),
    [
        (Memory.SESSION, ["broker session lost"]),
        (Memory.BROKER, ["broker session lost"]),
        (Memory.STATE, ["journal damaged", "broker session lost"]),
    ],
)
def test_lost_memory_explains_the_alarms_that_tell_of_it_there_and_no_other(memory, explained):
    alarms = {"journal damaged": "torn", "broker session lost": "all of it", **FAULT}
    rest = [name for name in alarms if name not in explained]
    found = complaints([page("a", alarms)], forgot(0, memory))
    assert found == [f"agent 0: alarm {name}: {alarms[name]}" for name in rest]
    assert len(complaints([page("a", alarms)], forgot(1, memory))) == 3


@pytest.mark.parametrize("place", [0, 1])
def test_a_gap_is_explained_by_a_state_that_was_lost_at_either_end_and_by_nothing_else(place):
    pages = [page("a", gaps=[GAP]), page("b"), page("c")]
    assert complaints(pages, forgot(place, Memory.STATE)) == []
    for harm in (forgot(place, Memory.BROKER), forgot(2, Memory.STATE)):
        assert complaints(pages, harm) == ["agent 0: gap 3 to 5 of b"]


def test_who_came_back_as_another_node_is_owed_for_ever_and_may_have_left_gaps():
    pages = [page("a", owed={"b": 7, "new": 0}, gaps=[GAP]), page("new")]
    assert complaints(pages, forgot(1, Memory.STATE)) == []
