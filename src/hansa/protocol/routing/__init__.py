"""Routing strategies, by name: the only place that lists them."""

from hansa.errors import UsageError
from hansa.protocol.routing.base import Strategy, Surroundings
from hansa.protocol.routing.bridge_flood import BridgeFlood
from hansa.protocol.routing.mesh.strategy import Mesh
from hansa.protocol.routing.paths import Paths
from hansa.protocol.routing.tree_flood import TreeFlood
from hansa.protocol.routing.tree_subscriptions import TreeSubscriptions

STRATEGIES: dict[str, type[Strategy]] = {
    "mesh": Mesh,
    "paths": Paths,
    "tree-subscriptions": TreeSubscriptions,
    "tree-flood": TreeFlood,
    "bridge-flood": BridgeFlood,
}


def make_strategy(surroundings: Surroundings) -> Strategy:
    """Return the strategy that the settings name."""
    return strategy_of(surroundings.settings.strategy)(surroundings)


def strategy_of(name: str) -> type[Strategy]:
    """Return the strategy with this name."""
    if name not in STRATEGIES:
        raise UsageError(f"unknown strategy {name!r}; there is: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
