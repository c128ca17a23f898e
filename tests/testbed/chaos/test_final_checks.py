"""Final checks of agents: pending publications, alarms and gaps, unless a fault explains them."""

from typing import Any

import pytest

from hansa.testbed.chaos.fault_effects import FaultEffects, LostState
from hansa.testbed.chaos.final_checks import find_problems

FAULT = {"internal error": "a task ended"}
GAP = {"origin": "b", "epoch": 1, "first": 3, "last": 5, "reason": "retention"}


def status(node: str, alarms: dict[str, str] | None = None, **delivery: object) -> dict[str, Any]:
    empty = {"pending": {"a": 0, "b": 0}, "inbox": 0, "inbox_waiting": 0, "gaps": []}
    return {"node": node, "alarms": alarms or {}, "delivery": empty | delivery}


def loss(place: int, lost_state: LostState) -> FaultEffects:
    effects = FaultEffects()
    effects.begin_loss(place, lost_state, 1.0)
    effects.end_loss(place, 2.0)
    return effects


@pytest.mark.parametrize(
    ("answer", "problems"),
    [
        (status("a"), []),
        (None, ["agent 0 does not answer"]),
        (status("a", pending={"b": 2}), ["agent 0: 2 pending for b"]),
        (status("a", pending={"gone": 2}), ["agent 0: 2 pending for gone"]),
        (
            status("a", inbox=1, inbox_waiting=4),
            ["agent 0: 1 in inbox", "agent 0: 4 in inbox_waiting"],
        ),
        (status("a", gaps=[GAP]), ["agent 0: gap 3 to 5 of b"]),
        (status("a", FAULT), ["agent 0: alarm internal error: a task ended"]),
        (
            status("a", {"undelivered publications trimmed": "too small"}),
            ["agent 0: alarm undelivered publications trimmed: too small"],
        ),
        (status("a", {"incarnation raised": "a copy runs", "broker dropped messages": "full"}), []),
        (status("a", {"delivery gap": "3 to 5 of b"}), []),  # gaps are checked one by one
    ],
)
def test_pending_publications_gaps_and_alarms_are_problems(answer, problems):
    assert find_problems([answer, status("b")], FaultEffects()) == problems


@pytest.mark.parametrize(
    ("lost_state", "explained"),
    [
        (LostState.AGENT_SESSION, ["broker session lost"]),
        (LostState.BROKER_SESSIONS, ["broker session lost"]),
        (LostState.STATE_DIRECTORY, ["journal damaged", "broker session lost"]),
    ],
)
def test_state_loss_explains_only_its_own_alarms_at_its_place(lost_state, explained):
    alarms = {"journal damaged": "torn", "broker session lost": "all of it", **FAULT}
    rest = [name for name in alarms if name not in explained]
    found = find_problems([status("a", alarms)], loss(0, lost_state))
    assert found == [f"agent 0: alarm {name}: {alarms[name]}" for name in rest]
    assert len(find_problems([status("a", alarms)], loss(1, lost_state))) == 3


@pytest.mark.parametrize("place", [0, 1])
def test_gap_is_explained_only_by_a_lost_state_directory_at_either_end(place):
    statuses = [status("a", gaps=[GAP]), status("b"), status("c")]
    assert find_problems(statuses, loss(place, LostState.STATE_DIRECTORY)) == []
    for effects in (loss(place, LostState.BROKER_SESSIONS), loss(2, LostState.STATE_DIRECTORY)):
        assert find_problems(statuses, effects) == ["agent 0: gap 3 to 5 of b"]


def test_node_with_a_new_id_explains_pending_publications_and_gaps_of_its_old_id():
    statuses = [status("a", pending={"b": 7, "new": 0}, gaps=[GAP]), status("new")]
    assert find_problems(statuses, loss(1, LostState.STATE_DIRECTORY)) == []
