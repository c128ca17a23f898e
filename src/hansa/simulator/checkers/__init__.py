"""The promises, one small class each. A broken one becomes a text with time, nodes and seed.

Some are checked at every step, because a moment's breach is a breach: no phantom, at most once, no
loop, parents nearer, bounded, cost. The others hold when the federation has had time to come to
rest.
"""

from hansa.protocol.routing import strategy_class
from hansa.protocol.routing.base import StrategyInvariant
from hansa.simulator.analysis.convergence import ConvergenceTracker
from hansa.simulator.analysis.structure import StructureCheck
from hansa.simulator.checkers.announcements import AnnouncementCost, ParentsNearer
from hansa.simulator.checkers.base import Checker
from hansa.simulator.checkers.bounded import BoundedState
from hansa.simulator.checkers.guarantees import GuaranteedDelivery
from hansa.simulator.checkers.paths import ShortestPathsFromOrigin
from hansa.simulator.checkers.publications import AtMostOnce, Completeness, NoLoop, NoPhantom
from hansa.simulator.checkers.quiescence import Quiescence
from hansa.simulator.checkers.retained import RetainedAgree
from hansa.simulator.checkers.shared_subscriptions import SharesServedOnce
from hansa.simulator.world.world import World

__all__ = [
    "AtMostOnce",
    "Quiescence",
    "BoundedState",
    "Checker",
    "Completeness",
    "AnnouncementCost",
    "GuaranteedDelivery",
    "NoLoop",
    "NoPhantom",
    "ShortestPathsFromOrigin",
    "ParentsNearer",
    "RetainedAgree",
    "SharesServedOnce",
    "make_checkers",
]


def make_checkers(
    world: World, violations: list[str], tracker: ConvergenceTracker, structure: StructureCheck
) -> list[Checker]:
    """Return one of each that the strategy promises, but those that are measurements, too: the cost
    and the guarantee."""
    facts = strategy_class(world.options.protocol.strategy).invariants
    shortest_paths = (
        [ShortestPathsFromOrigin(world, violations, tracker)]
        if StrategyInvariant.SHORTEST_PATHS_FROM_ORIGIN in facts
        else []
    )
    return [
        NoPhantom(world, violations),
        AtMostOnce(world, violations),
        NoLoop(world, violations),
        ParentsNearer(world, violations),
        Completeness(world, violations, tracker),
        Quiescence(world, violations, tracker, structure),
        BoundedState(world, violations),
        SharesServedOnce(world, violations, tracker),
        RetainedAgree(world, violations),
        *shortest_paths,
    ]
