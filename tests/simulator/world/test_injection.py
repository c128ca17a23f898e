"""Injection of QoS 1 and 2 into a broker: each step, and a crash after it."""

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.delivery.injection import COMPLETION_DELAY_S
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    CrashAgent,
    FailDisk,
    FreezeAgent,
    RefuseAgent,
    RestartAgent,
    RestartBroker,
)
from hansa.simulator.options import DiskOptions, LinkOptions

SAFE_AT = 5.2
"""When its acceptance is synced at the receiver: two syncs of 0.1 s; the rest takes no time."""

STEPS = (0.005, 0.015, 0.025, 0.11, 0.125, 0.135, 0.3)
"""After that: PUBLISH in flight, PUBREC in flight, written, synced, PUBREL in flight, PUBCOMP in
flight, completed."""


def play(*script, qos=2, count=1, **disk):
    """Two nodes, the second interested in `a`; a broker is 10 ms away in each direction."""
    subscribe = [(0.0, ClientSubscribe(1, "a")), (5.0, ClientPublish(0, "a", qos=qos, count=count))]
    links = LinkOptions(delay_ms=0.0, broker_delay_ms=10.0)
    return SimulatedRun(
        "line:2", [*subscribe, *script], links=links, disk=DiskOptions(100.0, **disk)
    )


def start(played, until=SAFE_AT):
    """Run until the acceptance of the publication is synced."""
    return played.run(until + 0.01)


def arrivals(played):
    """Return the publications delivered at node 1 and the duplicates; require no violation."""
    assert played.simulation.violations == []
    ledger = played.world.ledger
    return len(
        [entry for entry in ledger.entries if 1 in entry.delivered_at]
    ), ledger.duplicate_count


def broker(played):
    return played.world.sites[1].broker


def test_qos_1_is_delivered_on_arrival():
    played = start(play(qos=1))
    assert arrivals(played) == (0, 0)
    assert arrivals(played.run(5.225)) == (1, 0)


def test_qos_2_is_delivered_after_release():
    played = start(play())
    played.run(5.225)
    assert (broker(played).unreleased_count, arrivals(played)) == (1, (0, 0))
    played.run(5.325)
    assert (broker(played).unreleased_count, arrivals(played)) == (1, (0, 0))
    played.run(5.345)
    assert (broker(played).unreleased_count, arrivals(played)) == (0, (1, 0))


@pytest.mark.parametrize("after", STEPS)
@pytest.mark.parametrize("torn", [False, True])
def test_crash_after_any_step_delivers_qos_2_once(after, torn):
    script = ((SAFE_AT + 0.01 + after, CrashAgent(1)), (6.0, RestartAgent(1)))
    assert arrivals(play(*script, partial_writes=torn).run(10.0)) == (1, 0)


@pytest.mark.parametrize("after", STEPS)
def test_crash_after_any_step_may_duplicate_qos_1(after):
    script = ((SAFE_AT + 0.01 + after, CrashAgent(1)), (6.0, RestartAgent(1)))
    count, copies = arrivals(play(*script, qos=1).run(10.0))
    completion_durable_after = 0.12 + COMPLETION_DELAY_S
    assert (count, copies) == (1, int(after < completion_durable_after))


def test_in_flight_limit_is_kept():
    played = start(play(count=5, in_flight_max=2))
    played.run(5.9)
    assert arrivals(played.run(20.0)) == (5, 0)
    crash = ((6.0, CrashAgent(1)), (6.1, RestartAgent(1)))
    assert arrivals(play(*crash, qos=1, count=30, in_flight_max=2).run(30.0))[0] == 30


@pytest.mark.parametrize("qos", [1, 2])
def test_accepted_publications_are_resent_after_lost_session(qos):
    script = (
        (SAFE_AT + 0.01 + 0.05, RefuseAgent(1, 0.5)),
        (5.4, RestartBroker(1, 0.01)),
    )
    assert arrivals(play(*script, qos=qos).run(20.0))[0] == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_refusing_broker_gets_publications_later(qos):
    played = play((5.1, RefuseAgent(1, 2.0)), qos=qos)
    assert arrivals(played.run(7.0)) == (0, 0)
    assert arrivals(played.run(10.0)) == (1, 0)


def test_publications_wait_in_session_while_agent_is_refused():
    played = play((4.9, RefuseAgent(0, 2.0)))
    played.run(6.0)
    assert len(played.world.sites[0].broker.unacknowledged) == 1
    assert arrivals(played.run(10.0)) == (1, 0)
    assert played.world.sites[0].broker.unacknowledged == []


def test_qos_0_is_lost_while_a_broker_refuses_its_agent():
    for place in (0, 1):
        assert arrivals(play((4.9, RefuseAgent(place, 2.0)), qos=0).run(10.0)) == (0, 0)


def test_redelivery_during_write_is_not_captured_again():
    played = play((5.05, RefuseAgent(0, 0.01)))
    played.run(10.0)
    assert len(played.world.sites[0].state.disk.journal) == 1
    assert arrivals(played) == (1, 0)


def test_response_to_suspended_agent_waits():
    assert arrivals(play((5.225, FreezeAgent(1, 1.0))).run(6.0)) == (0, 0)
    assert arrivals(play((5.225, FreezeAgent(1, 1.0))).run(10.0)) == (1, 0)


@pytest.mark.parametrize("place", [0, 1])
def test_failed_disk_blocks_until_restart(place):
    played = play((4.0, FailDisk(place)), (8.0, RestartAgent(place)))
    assert arrivals(played.run(7.9)) == (0, 0)
    assert arrivals(played.run(20.0)) == (1, 0)
