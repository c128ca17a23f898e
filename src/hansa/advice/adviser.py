"""Finds what is worth changing: reckons every proposal, replays the best, takes it, and goes on."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from hansa.advice.proposals import ORDER, WORTH, Advice, Proposal, applied, proposals
from hansa.advice.reckoning import Cost, reckon
from hansa.advice.recorded import Recorded
from hansa.advice.replay import replay

REPLAYS_MAX = 8
"""Proposals of one round that are replayed at most: those that promise most."""
CONFIRMED = WORTH / 2
"""What a replay must show of it at least."""

Spread = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]
"""Applies a function to many, in order, wherever there is room for it."""


def advise(
    recorded: Recorded, degree_max: int, advice_max: int, spread: Spread = map
) -> Iterator[Advice]:
    """Yield advice, what is easier to do first; each is meant to be taken after those before it.

    `spread` does the work: `map` here, or Spark's executors.
    """
    now, now_replayed = reckon(recorded), replay(recorded)
    for _ in range(advice_max):
        best = _best(recorded, (now, now_replayed), degree_max, spread)
        if best is None:
            return
        proposal, advice = best
        yield advice
        recorded = applied(recorded, proposal)
        now, now_replayed = advice.reckoned[1], advice.replayed[1]


def _best(
    recorded: Recorded, before: tuple[Cost, Cost], degree_max: int, spread: Spread
) -> tuple[Proposal, Advice] | None:
    """Return, of the easiest kind that is worth it, the proposal that promises most and keeps
    it."""
    possible = list(proposals(recorded, degree_max))
    costs = spread(partial(_reckon_after, replace(recorded, sample=())), possible)
    worth = [
        (proposal, cost)
        for proposal, cost in zip(possible, costs, strict=True)
        if proposal.gain(before[0], cost) >= WORTH
    ]
    worth.sort(key=lambda each: (ORDER.index(each[0].kind), -each[0].gain(before[0], each[1])))
    del worth[REPLAYS_MAX:]
    replayed = spread(partial(_replay_after, recorded), [proposal for proposal, _ in worth])
    for (proposal, cost), shown in zip(worth, replayed, strict=True):
        if proposal.gain(before[1], shown) >= CONFIRMED:
            return proposal, Advice(proposal, (before[0], cost), (before[1], shown))
    return None


def _reckon_after(recorded: Recorded, proposal: Proposal) -> Cost:
    return reckon(applied(recorded, proposal))


def _replay_after(recorded: Recorded, proposal: Proposal) -> Cost:
    return replay(applied(recorded, proposal))
