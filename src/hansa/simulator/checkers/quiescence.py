"""Invariants that hold after the federation had time to converge."""

from math import ceil

from hansa.simulator.analysis.convergence import (
    ConvergenceTracker,
    convergence_limit_s,
    crossing_s,
)
from hansa.simulator.analysis.structure import StructureCheck
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.world import World

RECHECK_S = 0.1
RECHECK_COUNT_MIN = 8
"""A problem is checked again after so many seconds, and at least so often."""


class Quiescence(Checker):
    """Without disturbance for the allowed time the federation is converged: one core per group and
    component, all nodes agree, and all tables are exact.

    Round-trip times are still measured and reported then, so a problem is checked again for as
    long as a report may need to reach all nodes: only a persistent one is a violation. If a
    disturbance comes before that, whether the problem persists is unknown, and it is not reported.
    """

    name = "convergence"

    def __init__(
        self,
        world: World,
        violations: list[str],
        tracker: ConvergenceTracker,
        structure: StructureCheck,
    ) -> None:
        super().__init__(world, violations)
        self._tracker = tracker
        self._structure = structure
        self._convergence_limit_s = convergence_limit_s(world.options)
        self._recheck_count = max(RECHECK_COUNT_MIN, ceil(crossing_s(world.options) / RECHECK_S))
        self._problems: list[tuple[str, str]] = []
        self.checked_count = 0

    def on_disturbance(self, description: str, is_fault: bool, places: tuple[int, ...]) -> None:
        self._problems = []
        count = self._tracker.disturbance_count
        rechecks = self._recheck_count
        self.world.scheduler.after(
            self._convergence_limit_s, self._check_converged, description, count, rechecks
        )

    def on_run_finished(self) -> None:
        self._report_problems()

    def _report_problems(self) -> None:
        for name, text in self._problems:
            self.report_violation(text, name)
        self._problems = []

    def _check_converged(self, description: str, disturbances: int, rechecks_left: int) -> None:
        if self._tracker.disturbance_count != disturbances:
            return
        self.checked_count += 1
        self._structure.truth.clear_statuses()
        problem = self._tracker.find_problem()
        if problem:
            text = f"{self._convergence_limit_s:.2f} s after {description}: {problem}"
            self._problems = [(self.name, text)]
        else:
            self._problems = list(self._structure.find_broken_invariants())
        if self._problems and rechecks_left:
            self.world.scheduler.after(
                RECHECK_S, self._check_converged, description, disturbances, rechecks_left - 1
            )
        else:
            self._report_problems()
