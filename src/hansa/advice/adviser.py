"""Finds advice: predicts every proposal, replays the best ones, applies one, and repeats."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from hansa.advice.federation import RecordedFederation
from hansa.advice.prediction import TrafficCost, predict_cost
from hansa.advice.proposals import (
    GAIN_MIN,
    KIND_ORDER,
    Advice,
    Proposal,
    apply_proposal,
    generate_proposals,
)
from hansa.advice.replay import replay_cost

REPLAYS_MAX = 8
"""Proposals replayed per round: those with the largest predicted gain."""
REPLAYED_GAIN_MIN = GAIN_MIN / 2
"""Minimum gain in the replay."""

ParallelMap = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]
"""Applies a function to a list, in order: `map`, or on Spark's executors."""


def advise(
    federation: RecordedFederation,
    degree_max: int,
    advice_max: int,
    parallel_map: ParallelMap = map,
) -> Iterator[Advice]:
    """Yield advice, easier changes first; each assumes that the previous ones are applied."""
    predicted, replayed = predict_cost(federation), replay_cost(federation)
    for _ in range(advice_max):
        best = _best_proposal(federation, (predicted, replayed), degree_max, parallel_map)
        if best is None:
            return
        proposal, advice = best
        yield advice
        federation = apply_proposal(federation, proposal)
        predicted, replayed = advice.predicted[1], advice.replayed[1]


def _best_proposal(
    federation: RecordedFederation,
    before: tuple[TrafficCost, TrafficCost],
    degree_max: int,
    parallel_map: ParallelMap,
) -> tuple[Proposal, Advice] | None:
    """Return the proposal of the easiest kind with the largest gain that a replay confirms."""
    possible = list(generate_proposals(federation, degree_max))
    costs = parallel_map(partial(_predict_after, replace(federation, sample=())), possible)
    candidates = [
        (proposal, cost)
        for proposal, cost in zip(possible, costs, strict=True)
        if proposal.gain(before[0], cost) >= GAIN_MIN
    ]
    candidates.sort(
        key=lambda each: (KIND_ORDER.index(each[0].kind), -each[0].gain(before[0], each[1]))
    )
    del candidates[REPLAYS_MAX:]
    replayed = parallel_map(
        partial(_replay_after, federation), [proposal for proposal, _ in candidates]
    )
    for (proposal, cost), replayed_cost in zip(candidates, replayed, strict=True):
        if proposal.gain(before[1], replayed_cost) >= REPLAYED_GAIN_MIN:
            return proposal, Advice(proposal, (before[0], cost), (before[1], replayed_cost))
    return None


def _predict_after(federation: RecordedFederation, proposal: Proposal) -> TrafficCost:
    return predict_cost(apply_proposal(federation, proposal))


def _replay_after(federation: RecordedFederation, proposal: Proposal) -> TrafficCost:
    return replay_cost(apply_proposal(federation, proposal))
