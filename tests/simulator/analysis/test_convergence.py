"""Time to convergence, and its limit."""

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    CrashAgent,
    CutSilently,
    RestartAgent,
)
from hansa.simulator.analysis.convergence import convergence_limit_s
from hansa.simulator.options import DiskOptions, LinkOptions, SimulationOptions
from hansa.simulator.topologies import parse_topology


def records(*script, until=20.0, word="ring:5"):
    return SimulatedRun(word, script).run(until).simulation.tracker.measurements()


def test_every_fault_is_measured_from_its_own_time():
    start, crash, restart = records((5.0, CrashAgent(3)), (10.0, RestartAgent(3)))
    assert (start.after, start.at_s) == ("start", 0.0)
    assert 0.0 < start.converged_s < 1.0
    assert (crash.after, crash.at_s) == ("crash 3", 5.0)
    assert 0.001 < crash.converged_s < 0.5
    assert (restart.after, restart.at_s) == ("restart 3", 10.0)
    assert 0.0 < restart.converged_s < 2.0


def test_silent_fault_includes_detection_time():
    _, cut = records((5.5, CutSilently(0, 1)))
    assert 2.0 < cut.converged_s < 3.5


def test_no_convergence_before_the_next_fault_is_none():
    _, first, second = records((5.5, CutSilently(0, 1)), (6.0, CrashAgent(3)))
    assert first.converged_s is None
    assert second.converged_s is not None


def test_interest_change_after_convergence_does_not_count():
    start, crash = records((5.0, CrashAgent(3)), (8.0, ClientSubscribe(0, "a")))
    assert crash.converged_s < 0.5


def test_interest_change_before_convergence_belongs_to_the_fault():
    _, cut = records((5.5, CutSilently(0, 1)), (6.0, ClientSubscribe(0, "a")))
    assert 2.0 < cut.converged_s < 3.5


def test_fewer_comparisons_without_checkers_give_the_same_times():
    script = [(5.0, CrashAgent(3)), (8.0, ClientSubscribe(0, "a")), (8.001, RestartAgent(3))]
    checked = SimulatedRun("ring:5", script, check_invariants=True).run(20.0).simulation.tracker
    alone = SimulatedRun("ring:5", script, check_invariants=False).run(20.0).simulation.tracker
    assert alone.measurements() == checked.measurements()
    assert (alone.is_converged, checked.is_converged) == (True, True)


def test_no_comparison_for_frames_of_guaranteed_delivery(monkeypatch):
    script = [(1.0, ClientSubscribe(1, "a")), (5.0, ClientPublish(0, "a", count=20, qos=1))]
    run = SimulatedRun("line:2", script, disk=DiskOptions(), check_invariants=True).run(4.9)
    tracker = run.simulation.tracker
    compared: list[float] = []
    monkeypatch.setattr(tracker, "find_problem", lambda: compared.append(run.world.now))
    run.run(10.0)
    assert len(run.received(1)) == 20
    assert run.world.traffic.control_frames()["Receipt"] > 0
    assert (compared, tracker.is_converged) == ([], True)


def test_no_comparison_without_checkers_and_measurement():
    script = [(8.0, ClientSubscribe(0, "a"))]
    tracker = SimulatedRun("ring:5", script, check_invariants=False).run(20.0).simulation.tracker
    assert not tracker.is_converged


def test_lost_neighbour_on_lossy_links_is_a_disturbance():
    script = [(5.5, CutSilently(0, 1))]
    streams = SimulatedRun("ring:5", script).run(20.0).simulation.tracker
    datagrams = (
        SimulatedRun("ring:5", script, links=LinkOptions(loss=0.001)).run(20.0).simulation.tracker
    )
    assert datagrams.disturbance_count == streams.disturbance_count + 2
    assert datagrams.is_converged


def test_is_converged_only_while_nothing_changed():
    played = SimulatedRun("ring:5", [(5.0, ClientSubscribe(0, "a"))])
    tracker = played.run(4.0).simulation.tracker
    assert (tracker.is_converged, tracker.problem) == (True, None)
    assert not played.run(5.0).simulation.tracker.is_converged
    assert played.run(9.0).simulation.tracker.is_converged


@pytest.mark.parametrize(
    "links",
    [
        LinkOptions(delay_ms=20.0),
        LinkOptions(jitter_ms=20.0),
        LinkOptions(delays_ms=((0, 1, 40.0),)),
        LinkOptions(loss=0.1),
    ],
)
def test_slower_links_have_a_longer_limit(links):
    topology = parse_topology("ring:8", 0)
    assert convergence_limit_s(SimulationOptions(topology, links=links)) > convergence_limit_s(
        SimulationOptions(topology)
    )


def test_larger_diameter_has_a_longer_limit():
    assert convergence_limit_s(
        SimulationOptions(parse_topology("line:9", 0))
    ) > convergence_limit_s(SimulationOptions(parse_topology("full:9", 0)))
