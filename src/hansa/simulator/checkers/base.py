"""What all promises share: a name, and a place to complain."""

from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.world import World

VIOLATIONS_MAX = 50
"What is broken is often broken many times; so many are written down."


class Checker(Hooks):
    """What all promises share: a name, and a place to complain."""

    name = ""

    def __init__(self, world: World, violations: list[str]) -> None:
        """Watch a world; complaints are added to `violations`."""
        self.world = world
        self._violations = violations

    def report_violation(self, text: str, name: str = "") -> None:
        """The promise is broken."""
        if len(self._violations) < VIOLATIONS_MAX:
            seed = self.world.options.seed
            at = f"{self.world.now:.4f} s, seed {seed}"
            self._violations.append(f"{name or self.name}: {text} ({at})")
