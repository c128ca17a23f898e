"""The pair that ours is compared with gets a fair chance."""

import asyncio

import pytest

from hansa.testbed.chaos.bridges import BRIDGE_FAULTS, run_bridges


@pytest.mark.long
@pytest.mark.usefixtures("mosquitto")
@pytest.mark.parametrize("name", BRIDGE_FAULTS)
def test_a_bridge_carries_all_as_it_was_published_and_its_killed_broker_is_excused(name):
    verdict = asyncio.run(run_bridges(BRIDGE_FAULTS[name], seed=1, seconds=5.0, rate=50.0))
    assert verdict.fates["ok"] > 100
    assert verdict.phantoms == 0
    assert bool(verdict.excusable) == (name == "bridge: killed")
