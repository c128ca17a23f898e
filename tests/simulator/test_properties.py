"""Random federations under random faults: every invariant, for every seed.

The quick part takes the small federations among the first seeds; the long part takes all of 2,000,
with every strategy. To repeat a failing seed: `./run hansa simulate --scenario random --seed N
--strategy NAME`.
"""

import pytest

from hansa.protocol.routing import STRATEGIES
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import random_options

QUICK_NODES_MAX = 8
QUICK = [seed for seed in range(120) if random_options(seed).topology.nodes <= QUICK_NODES_MAX]
LONG = range(2_000)
AT_ONCE = 20
"""Seeds per test: ten thousand tests would slow down every collection."""


@pytest.mark.parametrize("seed", QUICK)
def test_small_federations_keep_every_invariant(seed):
    assert simulate(random_options(seed)).violations == ()


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("first", LONG[::AT_ONCE])
def test_federations_of_up_to_fifty_nodes_keep_every_invariant(first, strategy):
    played = {seed: simulate(random_options(seed, strategy)) for seed in LONG[first:][:AT_ONCE]}
    assert {seed: run.violations for seed, run in played.items() if run.violations} == {}
