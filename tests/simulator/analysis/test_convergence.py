"""How long it takes until all is right, and how long it may."""

import pytest
from tests.simulator.worlds import Played

from hansa.simulator.actions import Crash, CutSilently, Restart, Subscribe
from hansa.simulator.analysis.convergence import allowance
from hansa.simulator.options import LinkOptions, Options
from hansa.simulator.topologies import parse


def records(*script, until=20.0, word="ring:5"):
    return Played(word, script).run(until).simulation.tracker.records()


def test_every_fault_is_measured_from_its_own_moment():
    start, crash, restart = records((5.0, Crash(3)), (10.0, Restart(3)))
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
    _, first, second = records((5.5, CutSilently(0, 1)), (6.0, Crash(3)))
    assert first.converged_s is None
    assert second.converged_s is not None


def test_interest_that_changes_afterwards_does_not_count_against_the_fault():
    start, crash = records((5.0, Crash(3)), (8.0, Subscribe(0, "a")))
    assert crash.converged_s < 0.5


def test_interest_that_changes_before_all_is_right_belongs_to_the_fault():
    _, cut = records((5.5, CutSilently(0, 1)), (6.0, Subscribe(0, "a")))
    assert 2.0 < cut.converged_s < 3.5


def test_without_checkers_the_same_is_measured_with_fewer_comparisons():
    script = [(5.0, Crash(3)), (8.0, Subscribe(0, "a")), (8.001, Restart(3))]
    checked = Played("ring:5", script, check=True).run(20.0).simulation.tracker
    alone = Played("ring:5", script, check=False).run(20.0).simulation.tracker
    assert alone.records() == checked.records()
    assert (alone.holds, checked.holds) == (True, True)


def test_without_checkers_nothing_is_compared_that_nobody_asks_for():
    script = [(8.0, Subscribe(0, "a"))]
    tracker = Played("ring:5", script, check=False).run(20.0).simulation.tracker
    assert not tracker.holds


def test_where_frames_are_lost_a_missed_neighbour_is_a_disturbance():
    script = [(5.5, CutSilently(0, 1))]
    streams = Played("ring:5", script).run(20.0).simulation.tracker
    datagrams = Played("ring:5", script, links=LinkOptions(loss=0.001)).run(20.0).simulation.tracker
    assert datagrams.disturbances == streams.disturbances + 2
    assert datagrams.holds


def test_holds_only_while_nothing_has_changed_since():
    played = Played("ring:5", [(5.0, Subscribe(0, "a"))])
    tracker = played.run(4.0).simulation.tracker
    assert (tracker.holds, tracker.problem) == (True, None)
    assert not played.run(5.0).simulation.tracker.holds
    assert played.run(9.0).simulation.tracker.holds


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
    topology = parse("ring:8", 0)
    assert allowance(Options(topology, links=links)) > allowance(Options(topology))


def test_wider_federations_are_allowed_more_time():
    assert allowance(Options(parse("line:9", 0))) > allowance(Options(parse("full:9", 0)))
