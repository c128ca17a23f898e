"""Options: invalid values are refused with the name of the field."""

import pickle

import pytest

from hansa.errors import UsageError
from hansa.simulator.actions import CrashAgent, ScheduledAction
from hansa.simulator.options import FaultCounts, LinkOptions, Phases, SimulationOptions, Workload
from hansa.simulator.topologies import parse_topology


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: LinkOptions(loss=1.0), "loss"),
        (lambda: LinkOptions(duplicate=-0.1), "duplicate"),
        (lambda: LinkOptions(delay_ms=-1), "delay_ms"),
        (lambda: LinkOptions(frames_in_flight_max=-1), "frames_in_flight_max"),
        (lambda: LinkOptions(redial_wait_s=(1.0, 0.1)), "redial_wait_s"),
        (lambda: FaultCounts(crashes=-1), "crashes"),
        (lambda: FaultCounts(outage_s=(0.0, 1.0)), "outage_s"),
        (lambda: Workload(payload_bytes=7), "payload_bytes"),
        (lambda: Workload(subscribers=-1), "subscribers"),
        (lambda: Workload(publishers=-1), "publishers"),
        (lambda: Workload(rate=0), "rate"),
        (lambda: Workload(churn=-1), "churn"),
        (lambda: Workload(subscribers=1, filters=()), "filters"),
        (lambda: Workload(publishers=1, topics=()), "topics"),
        (lambda: Workload(qos=(0.0, 0.0, 0.0)), "qos"),
        (lambda: Phases(traffic_s=-1), "traffic_s"),
    ],
)
def test_invalid_values_are_refused_by_name(make, field):
    with pytest.raises(UsageError, match=field):
        make()


@pytest.mark.parametrize(
    "links", [LinkOptions(loss=0.01), LinkOptions(duplicate=0.01), LinkOptions(reorder=0.01)]
)
def test_loss_duplicates_or_reordering_make_datagram_links(links):
    assert LinkOptions(jitter_ms=9.0).is_ordered
    assert not links.is_ordered


def test_run_ends_after_phases_and_last_action():
    phases = Phases(warm_up_s=1, traffic_s=2, settle_s=3, final_s=4)
    assert SimulationOptions(parse_topology("ring:3", 0), phases=phases).end_s == 10
    late = (ScheduledAction(11.0, CrashAgent(0)),)
    assert SimulationOptions(parse_topology("ring:3", 0), phases=phases, schedule=late).end_s == 11


def test_options_can_be_pickled():
    options = SimulationOptions(
        parse_topology("ring:3", 0), schedule=(ScheduledAction(1.0, CrashAgent(0)),)
    )
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301  # our own bytes
