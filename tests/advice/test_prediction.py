"""The predicted cost agrees with a replay in the simulator."""

import random

import pytest
from tests.advice.federations import federation, with_protocol

from hansa.advice.prediction import TrafficCost, predict_cost
from hansa.advice.replay import replay_cost

TOLERANCE = 0.15
"""Relative error of a prediction."""

FILTERS = ("a/#", "a/x", "b/+", "b/y/#")
TOPICS = ("a/x", "a/y", "b/x", "b/y", "c/nobody")


def random_federation(seed: int):
    rng = random.Random(seed)
    nodes = rng.randint(4, 10)
    word = rng.choice([f"ring:{nodes}", f"line:{nodes}", f"random:{nodes},3", f"star:{nodes}"])
    interest = {
        place: rng.sample(FILTERS, rng.randint(1, 2))
        for place in rng.sample(range(nodes), rng.randint(1, nodes - 1))
    }
    flows = [(rng.randrange(nodes), rng.choice(TOPICS)) for _ in range(4)]
    made = federation(word, interest, flows, publications=10)
    return with_protocol(made, redundancy=rng.choice([1, 2]))


@pytest.mark.parametrize("seed", range(25))
def test_predicted_cost_equals_the_replayed_cost(seed):
    recorded = random_federation(seed)
    predicted, replayed = predict_cost(recorded), replay_cost(recorded)
    assert predicted.copies == pytest.approx(replayed.copies, rel=TOLERANCE)
    assert predicted.delay_ms == pytest.approx(replayed.delay_ms, rel=TOLERANCE, abs=0.5)
    assert predicted.bytes == pytest.approx(replayed.bytes, rel=TOLERANCE)


def test_publications_without_interest_elsewhere_cost_nothing():
    recorded = federation("ring:3", {0: ["a"]}, [(0, "a"), (1, "b")])
    assert predict_cost(recorded) == TrafficCost(0.0, 0.0, 0.0, 1)
    assert replay_cost(recorded) == TrafficCost(0.0, 0.0, 0.0, 1)


def test_relative_change():
    before, after = TrafficCost(10.0, 100.0, 4.0, 0), TrafficCost(5.0, 110.0, 4.0, 3)
    names = ("delay_ms", "bytes", "copies", "groups")
    assert [before.relative_change(after, name) for name in names] == [-0.5, 0.1, 0.0, 0.0]
