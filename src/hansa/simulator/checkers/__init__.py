"""The promises, one small class each. A broken one becomes a text with time, nodes and seed.

Some are checked at every step, because a moment's breach is a breach: no phantom, at most once, no
loop, parents nearer, bounded, cost. The others hold when the federation has had time to come to
rest.
"""

from hansa.protocol.routing import strategy_of
from hansa.protocol.routing.base import Fact
from hansa.simulator.analysis.convergence import Tracker
from hansa.simulator.analysis.structure import Structure
from hansa.simulator.checkers.announcements import Cost, ParentsNearer
from hansa.simulator.checkers.base import Checker
from hansa.simulator.checkers.bounded import Bounded
from hansa.simulator.checkers.guarantees import Guaranteed
from hansa.simulator.checkers.paths import OwnWays
from hansa.simulator.checkers.publications import AtMostOnce, Completeness, NoLoop, NoPhantom
from hansa.simulator.checkers.quiescence import AtRest
from hansa.simulator.checkers.retained import RetainedAgree
from hansa.simulator.checkers.shared_subscriptions import SharesServed
from hansa.simulator.world.world import World

__all__ = [
    "AtMostOnce",
    "AtRest",
    "Bounded",
    "Checker",
    "Completeness",
    "Cost",
    "Guaranteed",
    "NoLoop",
    "NoPhantom",
    "OwnWays",
    "ParentsNearer",
    "RetainedAgree",
    "SharesServed",
    "all_checkers",
]


def all_checkers(
    world: World, violations: list[str], tracker: Tracker, structure: Structure
) -> list[Checker]:
    """Return one of each that the strategy promises, but those that are measurements, too: the cost
    and the guarantee."""
    facts = strategy_of(world.options.protocol.strategy).facts
    own_ways = [OwnWays(world, violations, tracker)] if Fact.OWN_WAYS in facts else []
    return [
        NoPhantom(world, violations),
        AtMostOnce(world, violations),
        NoLoop(world, violations),
        ParentsNearer(world, violations),
        Completeness(world, violations, tracker),
        AtRest(world, violations, tracker, structure),
        Bounded(world, violations),
        SharesServed(world, violations, tracker),
        RetainedAgree(world, violations),
        *own_ways,
    ]
