"""How long nodes were unreachable from each other: only then a lease may end."""

from itertools import combinations

from hansa.protocol.model import NodeId
from hansa.simulator.analysis.ground_truth import GroundTruth
from hansa.simulator.world.world import World

FOREVER = float("inf")


class Separations:
    """The current or last separation of every pair of nodes."""

    def __init__(
        self, world: World, truth: GroundTruth, lease_s: float, detection_s: float
    ) -> None:
        """`detection_s` is the time nodes may take to notice that they are connected again."""
        self._world = world
        self._truth = truth
        self._lease_s = lease_s
        self._detection_s = detection_s
        self._intervals: dict[tuple[NodeId, NodeId], tuple[float, float]] = {}
        self._lease_expired_until: dict[tuple[NodeId, NodeId], float] = {}

    def update(self) -> None:
        """Update which nodes reach each other."""
        now = self._world.now
        part_of = {
            site.place: number
            for number, part in enumerate(self._truth.components())
            for site in part.sites
        }
        for one, other in combinations(self._world.sites, 2):
            pair = _pair(one.state.id, other.state.id)
            part = part_of.get(one.place)
            together = part is not None and part == part_of.get(other.place)
            since, until = self._intervals.get(pair, (now, -FOREVER))
            if together:
                if until == FOREVER and now + self._detection_s >= since + self._lease_s:
                    self._lease_expired_until[pair] = now + self._detection_s
                self._intervals[pair] = (since, min(until, now))
            elif until + self._detection_s < now:
                self._intervals[pair] = (now, FOREVER)
            else:  # they may not have noticed that they were connected for a moment
                self._intervals[pair] = (since, FOREVER)

    def exceeds_lease(self, one: NodeId, other: NodeId) -> bool:
        """Whether two nodes are separated for at least a lease, as far as they know. The sum is
        rounded as that of the node, which may end the lease at that very moment."""
        since, until = self._intervals.get(_pair(one, other), (FOREVER, FOREVER))
        now = self._world.now
        return now >= since + self._lease_s and now <= until + self._detection_s

    def exceeded_lease_since(self, one: NodeId, other: NodeId, at: float) -> bool:
        """Whether two connected nodes were separated for at least a lease at that time or later."""
        return at <= self._lease_expired_until.get(_pair(one, other), -FOREVER)


def _pair(one: NodeId, other: NodeId) -> tuple[NodeId, NodeId]:
    return (one, other) if one < other else (other, one)
