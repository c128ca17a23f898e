"""Federations that are not converged in time, made by hand."""

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.simulator.analysis.convergence import convergence_limit_s
from hansa.simulator.analysis.ground_truth import GroundTruth
from hansa.simulator.analysis.structure import StructureCheck
from hansa.simulator.checkers import Quiescence
from hansa.simulator.options import LinkOptions


@pytest.fixture
def violations():
    return []


class Resting:
    """A federation, of two nodes by default, with checks whose results the test replaces."""

    def __init__(self, violations, run=None):
        self.played = (run or SimulatedRun("line:2")).run(1.0)
        self.tracker = self.played.simulation.tracker
        self.structure = StructureCheck(
            GroundTruth(self.played.world), self.played.simulation.options.protocol
        )
        self.checker = Quiescence(self.played.world, violations, self.tracker, self.structure)

    def disturb(self, what, rest_s=20.0):
        self.played.world.report_disturbance(what)
        self.checker.on_disturbance(what, True, ())
        self.played.run(self.played.world.now + rest_s)


def test_missed_convergence_limit_is_a_violation(violations, monkeypatch):
    resting = Resting(violations)
    monkeypatch.setattr(resting.tracker, "find_problem", lambda: "all is wrong")
    resting.disturb("crash 3")
    resting.checker.on_run_finished()
    (violation,) = violations
    assert "s after crash 3: all is wrong" in violation
    assert resting.checker.checked_count == 9


def test_large_federation_is_checked_until_a_report_has_crossed_it(violations, monkeypatch):
    resting = Resting(violations, SimulatedRun("line:10", links=LinkOptions(delay_ms=200.0)))
    problems = [[("databases equal", "n1 is late")]] * 20 + [[]]
    monkeypatch.setattr(resting.structure, "find_broken_invariants", lambda: problems.pop(0))
    resting.disturb("crash 3", rest_s=60.0)
    assert (violations, problems) == ([], [])


def test_inexact_table_is_a_violation_before_the_next_fault(violations, monkeypatch):
    resting = Resting(violations)
    lost = [("true distances", "n1 is lost")]
    monkeypatch.setattr(resting.structure, "find_broken_invariants", lambda: lost)
    resting.disturb("crash 3")
    assert violations[0].startswith("true distances: n1 is lost")


def test_problem_that_a_fault_interrupts_is_no_violation(violations, monkeypatch):
    resting = Resting(violations)
    late = [("databases equal", "n1 is late")]
    monkeypatch.setattr(resting.structure, "find_broken_invariants", lambda: late)
    resting.disturb("crash 3", rest_s=convergence_limit_s(resting.played.simulation.options) + 0.05)
    assert resting.checker.checked_count == 1
    resting.disturb("crash 2", rest_s=0.0)
    assert violations == []


def test_problem_at_the_end_of_the_run_is_a_violation(violations, monkeypatch):
    resting = Resting(violations)
    late = [("databases equal", "n1 is late")]
    monkeypatch.setattr(resting.structure, "find_broken_invariants", lambda: late)
    resting.disturb("crash 3", rest_s=convergence_limit_s(resting.played.simulation.options) + 0.05)
    resting.checker.on_run_finished()
    assert len(violations) == 1


def test_transient_problem_is_no_violation(violations, monkeypatch):
    resting = Resting(violations)
    problems = [[("databases equal", "n1 is late")], []]
    monkeypatch.setattr(resting.structure, "find_broken_invariants", lambda: problems.pop(0))
    resting.disturb("crash 3")
    resting.checker.on_run_finished()
    assert (violations, problems) == ([], [])


def test_disturbance_extends_the_limit(violations, monkeypatch):
    resting = Resting(violations)
    monkeypatch.setattr(resting.tracker, "find_problem", lambda: "all is wrong")
    resting.disturb("crash 3", rest_s=1.0)
    resting.disturb("crash 2", rest_s=1.0)
    resting.checker.on_run_finished()
    assert violations == []
