"""Seeds that once found a fault, each with one sentence. They must never find it again."""

import pytest

from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import random_options

SEEDS = {
    0: "a deadline that rounding kept one step away from its own test made the timer spin",
    3: "a dropped route forgot its feasible distance, and parents formed a loop",
    9: "a retired core took its own announcement, back around a loop, for another's",
    15: "the first record of a new life wiped the claims of that very life",
    27: "a node's changed capacity did not bring on a new election of the management core",
    70: "an answer to a question of a former life passed over what that life had not on disk yet",
    82: "frames released together were merged before the first of them was carried on",
    127: "a clone and the restarted original shared an incarnation, and the id stayed contested",
    551: "two parts refused each other's hello and closed before either read the other's goodbye;"
    " a node in the middle was refused membership of more groups than one node may want",
    734: "what was published at QoS 0 was left to consumers of a share that were out of reach",
    1202: "two nodes of one id in parts that never meet were taken for settled",
    1788: "datagram links ended without a word, and a link to a halted clone passed for the right"
    " one",
    1891: "a share that nobody consumed any more lingered, and had its turn in vain",
}


WITH_STRATEGY = {
    (1554, "paths"): "of nodes to be remembered the newest change was not the last that was"
    " written, so that their interest was never in force",
    (723, "paths"): "the run ended before what was lost could be asked for a third time",
}


@pytest.mark.parametrize(("seed", "strategy"), WITH_STRATEGY)
def test_formerly_failing_seed_with_strategy(seed: int, strategy: str) -> None:
    assert simulate(random_options(seed, strategy)).violations == ()


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_formerly_failing_seed(seed: int) -> None:
    assert simulate(random_options(seed)).violations == ()
