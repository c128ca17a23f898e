"""The invariants, one class each. A violation is a text with time, nodes and seed.

Some are checked at every step: no phantom, at most once, no loop, parents nearer, bounded,
announcement cost. The others must hold after the federation had time to converge.
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
    """Return a checker for each invariant of the strategy, except those that also measure:
    announcement cost and guaranteed delivery. QoS 0 has no path that avoids a compromised node, so
    deliveries at QoS 0 are not checked if there is one."""
    facts = strategy_class(world.options.protocol.strategy).invariants
    shortest_paths = (
        [ShortestPathsFromOrigin(world, violations, tracker)]
        if StrategyInvariant.SHORTEST_PATHS_FROM_ORIGIN in facts
        else []
    )
    always = [
        NoPhantom(world, violations),
        AtMostOnce(world, violations),
        NoLoop(world, violations),
        ParentsNearer(world, violations),
        Quiescence(world, violations, tracker, structure),
        BoundedState(world, violations),
        RetainedAgree(world, violations, structure.truth),
    ]
    if world.compromised:
        return always
    return [
        *always,
        Completeness(world, violations, tracker),
        SharesServedOnce(world, violations, tracker),
        *shortest_paths,
    ]
