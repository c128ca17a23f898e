"""What is reckoned is what the protocol does: the same copies, the same delays."""

import random

import pytest
from tests.advice.federations import federation, with_protocol

from hansa.advice.prediction import TrafficCost, predict_cost
from hansa.advice.replay import replay_cost

TOLERANCE = 0.15
"""What a prediction may be off, of what the simulator then shows."""

FILTERS = ("a/#", "a/x", "b/+", "b/y/#")
TOPICS = ("a/x", "a/y", "b/x", "b/y", "c/nobody")


def drawn(seed: int):
    chance = random.Random(seed)
    nodes = chance.randint(4, 10)
    word = chance.choice([f"ring:{nodes}", f"line:{nodes}", f"random:{nodes},3", f"star:{nodes}"])
    wants = {
        place: chance.sample(FILTERS, chance.randint(1, 2))
        for place in chance.sample(range(nodes), chance.randint(1, nodes - 1))
    }
    flows = [(chance.randrange(nodes), chance.choice(TOPICS)) for _ in range(4)]
    made = federation(word, wants, flows, publications=10)
    return with_protocol(made, redundancy=chance.choice([1, 2]))


@pytest.mark.parametrize("seed", range(25))
def test_a_federation_costs_what_was_reckoned(seed):
    recorded = drawn(seed)
    reckoned, played = predict_cost(recorded), replay_cost(recorded)
    assert reckoned.copies == pytest.approx(played.copies, rel=TOLERANCE)
    assert reckoned.delay_ms == pytest.approx(played.delay_ms, rel=TOLERANCE, abs=0.5)
    assert reckoned.bytes == pytest.approx(played.bytes, rel=TOLERANCE)


def test_what_nobody_else_wants_costs_nothing():
    recorded = federation("ring:3", {0: ["a"]}, [(0, "a"), (1, "b")])
    assert predict_cost(recorded) == TrafficCost(0.0, 0.0, 0.0, 1)
    assert replay_cost(recorded) == TrafficCost(0.0, 0.0, 0.0, 1)


def test_a_change_is_told_as_a_part():
    before, after = TrafficCost(10.0, 100.0, 4.0, 0), TrafficCost(5.0, 110.0, 4.0, 3)
    names = ("delay_ms", "bytes", "copies", "groups")
    assert [before.relative_change(after, name) for name in names] == [-0.5, 0.1, 0.0, 0.0]
