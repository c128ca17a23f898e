"""How long it takes until all is right, and how long it may."""

import pytest
from tests.simulator.worlds import Played

from hansa.simulator.actions import ClientSubscribe, CrashAgent, CutSilently, RestartAgent
from hansa.simulator.analysis.convergence import convergence_limit_s
from hansa.simulator.options import LinkOptions, SimulationOptions
from hansa.simulator.topologies import parse_topology


def records(*script, until=20.0, word="ring:5"):
    return Played(word, script).run(until).simulation.tracker.measurements()


def test_every_fault_is_measured_from_its_own_moment():
    start, crash, restart = records((5.0, CrashAgent(3)), (10.0, RestartAgent(3)))
    assert (start.after, start.at_s) == ("start", 0.0)
    assert 0.0 < start.converged_s < 1.0
    assert (crash.after, crash.at_s) == ("crash 3", 5.0)
    assert 0.001 < crash.converged_s < 0.5
    assert (restart.after, restart.at_s) == ("restart 3", 10.0)
    assert 0.0 < restart.converged_s < 2.0


def test_a_silent_fault_takes_as_long_as_it_takes_to_be_noticed():
    _, cut = records((5.5, CutSilently(0, 1)))
    assert 2.0 < cut.converged_s < 3.5


def test_what_is_not_right_before_the_next_fault_never_was():
    _, first, second = records((5.5, CutSilently(0, 1)), (6.0, CrashAgent(3)))
    assert first.converged_s is None
    assert second.converged_s is not None


def test_interest_that_changes_afterwards_does_not_count_against_the_fault():
    start, crash = records((5.0, CrashAgent(3)), (8.0, ClientSubscribe(0, "a")))
    assert crash.converged_s < 0.5


def test_interest_that_changes_before_all_is_right_belongs_to_the_fault():
    _, cut = records((5.5, CutSilently(0, 1)), (6.0, ClientSubscribe(0, "a")))
    assert 2.0 < cut.converged_s < 3.5


def test_without_checkers_the_same_is_measured_with_fewer_comparisons():
    script = [(5.0, CrashAgent(3)), (8.0, ClientSubscribe(0, "a")), (8.001, RestartAgent(3))]
    checked = Played("ring:5", script, check_invariants=True).run(20.0).simulation.tracker
    alone = Played("ring:5", script, check_invariants=False).run(20.0).simulation.tracker
    assert alone.measurements() == checked.measurements()
    assert (alone.is_converged, checked.is_converged) == (True, True)


def test_without_checkers_nothing_is_compared_that_nobody_asks_for():
    script = [(8.0, ClientSubscribe(0, "a"))]
    tracker = Played("ring:5", script, check_invariants=False).run(20.0).simulation.tracker
    assert not tracker.is_converged


def test_where_frames_are_lost_a_missed_neighbour_is_a_disturbance():
    script = [(5.5, CutSilently(0, 1))]
    streams = Played("ring:5", script).run(20.0).simulation.tracker
    datagrams = Played("ring:5", script, links=LinkOptions(loss=0.001)).run(20.0).simulation.tracker
    assert datagrams.disturbance_count == streams.disturbance_count + 2
    assert datagrams.is_converged


def test_holds_only_while_nothing_has_changed_since():
    played = Played("ring:5", [(5.0, ClientSubscribe(0, "a"))])
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
def test_slower_links_are_allowed_more_time(links):
    topology = parse_topology("ring:8", 0)
    assert convergence_limit_s(SimulationOptions(topology, links=links)) > convergence_limit_s(
        SimulationOptions(topology)
    )


def test_wider_federations_are_allowed_more_time():
    assert convergence_limit_s(
        SimulationOptions(parse_topology("line:9", 0))
    ) > convergence_limit_s(SimulationOptions(parse_topology("full:9", 0)))
