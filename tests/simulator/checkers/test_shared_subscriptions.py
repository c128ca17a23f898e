"""Shares with no consumer or too many, made by hand."""

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.simulator.actions import ClientPublish, ClientSubscribe, CrashAgent
from hansa.simulator.checkers import SharesServedOnce

SHARE = "$share/g/a"


def judged(*served, consumers=(2, 3), plain=(), origin=0):
    """Let a publication arrive at these places of a ring of five; return the violations without
    time and seed."""
    subscriptions = [(0.0, ClientSubscribe(place, SHARE)) for place in consumers]
    subscriptions += [(0.0, ClientSubscribe(place, "a")) for place in plain]
    played = SimulatedRun("ring:5", [*subscriptions, (5.0, ClientPublish(origin, "a"))]).run(6.0)
    assert played.simulation.violations == []
    complaints: list[str] = []
    checker = SharesServedOnce(played.world, complaints, played.simulation.tracker)
    entry = played.world.ledger.entries[0]
    entry.delivered_at = dict.fromkeys(served, 5.1)
    part = played.simulation.tracker.truth.component_of(played.world.sites[origin])
    assert part is not None
    checker.check_publication(entry, part, entry.expected_places)
    return [text.partition(SHARE)[2].rpartition(" (")[0] for text in complaints]


@pytest.mark.parametrize("served", [(2,), (3,)])
def test_one_remote_consumer_is_allowed(served):
    assert judged(*served) == []


def test_none_or_two_consumers_are_violations():
    assert judged() == [" at nowhere, of [2, 3]"]
    assert judged(2, 3) == [" at n2, n3, of [2, 3]"]


def test_local_consumer_excludes_remote_ones():
    assert judged(consumers=(0, 2)) == []
    assert judged(2, consumers=(0, 2)) == [" at n0, n2, of [0, 2]"]


def test_broker_that_gets_it_anyway_serves_the_share():
    assert judged(2, plain=(2,)) == []
    assert judged(2, 3, plain=(2,)) == [" at n2, n3, of [2, 3]"]
    assert judged(2, 3, plain=(2, 3)) == []  # nobody can stop either


def test_nothing_is_checked_while_a_broker_refuses_its_agent():
    played = SimulatedRun(
        "ring:5",
        [(0.0, ClientSubscribe(2, SHARE)), (4.0, CrashAgent(3)), (5.0, ClientPublish(0, "a"))],
    )
    played.run(6.0)
    complaints: list[str] = []
    checker = SharesServedOnce(played.world, complaints, played.simulation.tracker)
    part = played.simulation.tracker.truth.component_of(played.world.sites[0])
    assert part is not None
    entry = played.world.ledger.entries[0]
    entry.delivered_at = {}
    played.world.sites[1].broker.close_agent(6.0)
    checker.check_publication(entry, part, entry.expected_places)
    assert complaints == []
