"""The comparison with a bridge of Mosquitto is fair."""

import asyncio

import pytest

from hansa.testbed.chaos.bridges import BRIDGE_FAULTS, run_bridges


@pytest.mark.long
@pytest.mark.usefixtures("mosquitto")
@pytest.mark.parametrize("name", BRIDGE_FAULTS)
def test_bridge_alters_nothing_and_loss_of_a_killed_broker_is_allowed(name):
    verdict = asyncio.run(run_bridges(BRIDGE_FAULTS[name], seed=1, seconds=5.0, rate=50.0))
    assert verdict.fates["ok"] > 100
    assert verdict.phantoms == 0
    assert bool(verdict.excusable) == (name == "bridge: killed")
