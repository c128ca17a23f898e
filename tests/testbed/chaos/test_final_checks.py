"""What agents say when all is over counts, unless what was done to them explains it."""

from typing import Any

import pytest

from hansa.testbed.chaos.fault_effects import FaultEffects, LostState
from hansa.testbed.chaos.final_checks import find_problems

FAULT = {"fault": "a task ended"}
GAP = {"origin": "b", "epoch": 1, "first": 3, "last": 5, "reason": "retention"}


def page(node: str, alarms: dict[str, str] | None = None, **delivery: object) -> dict[str, Any]:
    empty = {"pending": {"a": 0, "b": 0}, "inbox": 0, "inbox_waiting": 0, "gaps": []}
    return {"node": node, "alarms": alarms or {}, "delivery": empty | delivery}


def forgot(place: int, memory: LostState) -> FaultEffects:
    harm = FaultEffects()
    harm.begin_loss(place, memory, 1.0)
    harm.end_loss(place, 2.0)
    return harm


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        (page("a"), []),
        (None, ["agent 0 does not answer"]),
        (page("a", pending={"b": 2}), ["agent 0: owes 2 to b"]),
        (page("a", pending={"gone": 2}), ["agent 0: owes 2 to gone"]),
        (
            page("a", inbox=1, inbox_waiting=4),
            ["agent 0: 1 in inbox", "agent 0: 4 in inbox_waiting"],
        ),
        (page("a", gaps=[GAP]), ["agent 0: gap 3 to 5 of b"]),
        (page("a", FAULT), ["agent 0: alarm fault: a task ended"]),
        (
            page("a", {"undelivered publications trimmed": "too small"}),
            ["agent 0: alarm undelivered publications trimmed: too small"],
        ),
        (page("a", {"incarnation raised": "a copy runs", "broker dropped messages": "full"}), []),
    ],
)
def test_who_is_well_has_empty_queues_and_no_alarm(shown, wrong):
    assert find_problems([shown, page("b")], FaultEffects()) == wrong


@pytest.mark.parametrize(
    ("memory", "explained"),
    [
        (LostState.AGENT_SESSION, ["broker session lost"]),
        (LostState.BROKER_SESSIONS, ["broker session lost"]),
        (LostState.STATE_DIRECTORY, ["journal damaged", "broker session lost"]),
    ],
)
def test_lost_memory_explains_the_alarms_that_tell_of_it_there_and_no_other(memory, explained):
    alarms = {"journal damaged": "torn", "broker session lost": "all of it", **FAULT}
    rest = [name for name in alarms if name not in explained]
    found = find_problems([page("a", alarms)], forgot(0, memory))
    assert found == [f"agent 0: alarm {name}: {alarms[name]}" for name in rest]
    assert len(find_problems([page("a", alarms)], forgot(1, memory))) == 3


@pytest.mark.parametrize("place", [0, 1])
def test_a_gap_is_explained_by_a_state_that_was_lost_at_either_end_and_by_nothing_else(place):
    pages = [page("a", gaps=[GAP]), page("b"), page("c")]
    assert find_problems(pages, forgot(place, LostState.STATE_DIRECTORY)) == []
    for harm in (forgot(place, LostState.BROKER_SESSIONS), forgot(2, LostState.STATE_DIRECTORY)):
        assert find_problems(pages, harm) == ["agent 0: gap 3 to 5 of b"]


def test_who_came_back_as_another_node_is_owed_for_ever_and_may_have_left_gaps():
    pages = [page("a", pending={"b": 7, "new": 0}, gaps=[GAP]), page("new")]
    assert find_problems(pages, forgot(1, LostState.STATE_DIRECTORY)) == []
