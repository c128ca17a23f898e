"""The base class of all checkers."""

from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.world import World

VIOLATIONS_MAX = 50
"""Violations that are recorded; one error often causes many."""


class Checker(Hooks):
    name = ""

    def __init__(self, world: World, violations: list[str]) -> None:
        """Observe a world; violations are appended to `violations`."""
        self.world = world
        self._violations = violations

    def report_violation(self, text: str, name: str = "") -> None:
        if len(self._violations) < VIOLATIONS_MAX:
            seed = self.world.options.seed
            at = f"{self.world.now:.4f} s, seed {seed}"
            self._violations.append(f"{name or self.name}: {text} ({at})")
