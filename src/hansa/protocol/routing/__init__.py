"""Routing strategies, by name: the only place that lists them."""

from hansa.errors import UsageError
from hansa.protocol.routing.base import RoutingStrategy, StrategyContext, StrategyInvariant
from hansa.protocol.routing.bridge_flood import BridgeFlood
from hansa.protocol.routing.mesh.strategy import MeshStrategy
from hansa.protocol.routing.paths import PathsStrategy
from hansa.protocol.routing.tree_flood import TreeFlood
from hansa.protocol.routing.tree_subscriptions import TreeSubscriptions

STRATEGIES: dict[str, type[RoutingStrategy]] = {
    "mesh": MeshStrategy,
    "paths": PathsStrategy,
    "tree-subscriptions": TreeSubscriptions,
    "tree-flood": TreeFlood,
    "bridge-flood": BridgeFlood,
}


def make_strategy(context: StrategyContext) -> RoutingStrategy:
    """Return the strategy that the settings name."""
    return strategy_class(context.settings.strategy)(context)


def strategy_class(name: str) -> type[RoutingStrategy]:
    if name not in STRATEGIES:
        raise UsageError(f"unknown strategy {name!r}; there is: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def elects_cores(name: str) -> bool:
    """Whether nodes elect cores; in other strategies all paths follow from the database."""
    return StrategyInvariant.FOLLOWS_DATABASE not in strategy_class(name).invariants
