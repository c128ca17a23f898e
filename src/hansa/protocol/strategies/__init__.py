"""Routing strategies, by name: the only place that lists them."""

from collections.abc import Callable

from hansa.errors import UsageError
from hansa.protocol.strategies.base import Strategy, Surroundings
from hansa.protocol.strategies.mesh import Mesh

STRATEGIES: dict[str, Callable[[Surroundings], Strategy]] = {"mesh": Mesh}


def make_strategy(surroundings: Surroundings) -> Strategy:
    """Return the strategy that the settings name."""
    name = surroundings.settings.strategy
    if name not in STRATEGIES:
        raise UsageError(f"unknown strategy {name!r}; there is: {', '.join(STRATEGIES)}")
    return STRATEGIES[name](surroundings)
