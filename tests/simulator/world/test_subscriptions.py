"""The agent's subscriptions while its broker refuses it."""

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.simulator.actions import (
    ClientSubscribe,
    ClientUnsubscribe,
    CrashAgent,
    RefuseAgent,
    RestartBroker,
)
from hansa.simulator.options import DiskOptions


def granted(*script, until):
    """Return the granted subscriptions of node 0's agent, with interest at the other node."""
    run = SimulatedRun("line:2", script, disk=DiskOptions()).run(until)
    return list(run.world.sites[0].broker.granted)


def test_refusing_broker_grants_subscription_later():
    script = ((2.0, RefuseAgent(0, 3.0)), (3.0, ClientSubscribe(1, "a")))
    assert granted(*script, until=4.9) == []
    assert granted(*script, until=5.1) == ["a"]


def test_refusing_broker_removes_subscription_later():
    script = (
        (0.0, ClientSubscribe(1, "a")),
        (2.0, RefuseAgent(0, 3.0)),
        (3.0, ClientUnsubscribe(1, "a")),
    )
    assert granted(*script, until=4.9) == ["a"]
    assert granted(*script, until=5.1) == []


@pytest.mark.parametrize(("refused", "after"), [((), 2.02), (((1.9, RefuseAgent(0, 3.0)),), 5.0)])
def test_lost_subscriptions_are_renewed(refused, after):
    script = ((0.0, ClientSubscribe(1, "a")), *refused, (2.0, RestartBroker(0)))
    assert granted(*script, until=2.001) == []
    assert granted(*script, until=after) == ["a"]


def test_stopped_agent_subscribes_after_restart():
    script = ((0.0, ClientSubscribe(1, "a")), (2.0, RestartBroker(0)), (2.005, CrashAgent(0)))
    assert granted(*script, until=3.0) == []
