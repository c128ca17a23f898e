"""Promises that hold when the federation has had time to come to rest."""

from hansa.simulator.analysis.convergence import Tracker, allowance
from hansa.simulator.analysis.structure import Structure
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.world import World

RECHECK_S = 0.1
RECHECK_COUNT = 8
"What is wrong at rest is looked at so often again, so many seconds apart."


class AtRest(Checker):
    """When nothing has happened for the time that the protocol may take, all is right: one core
    per group and component, everybody agrees, and every table is exact.

    Even then round-trip times are measured and reported anew, so what is wrong is looked at again
    for a moment: only what stays wrong is broken.
    """

    name = "convergence"

    def __init__(
        self, world: World, violations: list[str], tracker: Tracker, structure: Structure
    ) -> None:
        """Ask the tracker and the structure."""
        super().__init__(world, violations)
        self._tracker = tracker
        self._structure = structure
        self._allowance = allowance(world.options)
        self._problems: list[tuple[str, str]] = []
        self.checked = 0

    def disturbed(self, what: str, fault: bool, places: tuple[int, ...]) -> None:
        """Look again when all must be right."""
        self.finished()
        count = self._tracker.disturbances
        self.world.scheduler.after(self._allowance, self._verify, what, count, RECHECK_COUNT)

    def finished(self) -> None:
        """Complain about what is still wrong."""
        for name, text in self._problems:
            self.fail(text, name)
        self._problems = []

    def _verify(self, what: str, disturbances: int, again: int) -> None:
        if self._tracker.disturbances != disturbances:
            return
        self.checked += 1
        self._structure.truth.forget_views()
        problem = self._tracker.compare()
        if problem:
            text = f"{self._allowance:.2f} s after {what}: {problem}"
            self._problems = [(self.name, text)]
        else:
            self._problems = list(self._structure.exact())
        if self._problems and again:
            self.world.scheduler.after(RECHECK_S, self._verify, what, disturbances, again - 1)
