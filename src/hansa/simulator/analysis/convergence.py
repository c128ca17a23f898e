"""How long the federation takes to be right again after each disturbance, and whether it must be.

The truth is compared when something relevant happened, at most once per `interval` of virtual time,
so a run with many nodes stays fast. What is reported is when the last relevant thing happened
before all was right, which no interval blurs.
"""

from hansa.protocol.effects import NeighbourDown, News
from hansa.simulator.analysis.structure import Problem, Structure
from hansa.simulator.options import Options
from hansa.simulator.result import Convergence
from hansa.simulator.topologies import Topology, distances
from hansa.simulator.world.hooks import Watcher
from hansa.simulator.world.network import REORDER_FACTOR
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

INTERVAL_S = 0.005
"Least virtual seconds between two comparisons of up to ten nodes; more nodes are compared less."

RECHECK_S = 0.1
"While something is wrong, it is compared at least this often: timers change things silently."


class Tracker(Watcher):
    """Follows one world."""

    def __init__(self, world: World, structure: Structure, always: bool) -> None:
        """Start with nothing disturbed. If `always`, `holds` is known at all times; else only
        while something is measured, which saves most comparisons of a large federation."""
        self._world = world
        self._structure = structure
        self._always = always
        self.truth = structure.truth
        nodes = len(world.sites)
        self._lossy = world.options.links.loss > 0
        self._interval = INTERVAL_S * max(1.0, nodes / 10) * max(1.0, nodes / 200)
        self._records: list[Convergence] = []
        self._after: tuple[str, float] | None = None
        self._since: float | None = None
        self._changed_at = 0.0
        self._compared_at = -1.0
        self._planned = False
        self._stale = True
        self.problem: Problem = "not compared yet"
        """What was wrong at the last comparison."""
        self.disturbances = 0

    @property
    def holds(self) -> bool:
        """Whether all is right now, as far as can be known without comparing again."""
        return self._since is not None and not self._stale

    def ways_mark(self) -> object:
        """Return what differs at two moments if ways may have changed between them."""
        return self._structure.ways_mark()

    def records(self) -> tuple[Convergence, ...]:
        """Return what was measured, the last disturbance included."""
        self._close()
        return tuple(self._records)

    def disturbed(self, what: str, fault: bool, places: tuple[int, ...]) -> None:
        """Start a new measurement. Interest that changes before all was right belongs to it."""
        self.disturbances += 1
        if fault or self._since is not None:
            self._close()
            self._after = (what, self._world.now) if fault else None
        self._since = None
        self._note()

    def changed(self, site: Site) -> None:
        """Something relevant happened at a node."""
        self._note()

    def told(self, site: Site, news: News) -> None:
        """Where frames are lost, a whole row of heartbeats may be: that is a disturbance, too."""
        if self._lossy and isinstance(news, NeighbourDown):
            self._world.disturb(f"n{site.place} misses {news.node}", fault=False)

    def compare(self) -> Problem:
        """Compare now; return what is wrong."""
        self._compared_at = self._world.now
        self._stale = False
        self.problem = self._structure.converged()
        if self.problem:
            self._since = None
        elif self._since is None:
            self._since = self._changed_at
        return self.problem

    def _note(self) -> None:
        self._changed_at = self._world.scheduler.now
        self._stale = True
        if not self._planned and self._is_asked():
            self._plan(max(self._changed_at, self._compared_at + self._interval))

    def _is_asked(self) -> bool:
        return self._always or self._after is not None

    def _plan(self, at: float) -> None:
        self._planned = True
        self._world.scheduler.at(at, self._compare_as_planned)

    def _compare_as_planned(self) -> None:
        self._planned = False
        if not self._is_asked():
            return
        if not self._stale:
            self.truth.forget_views()
        if self.compare():
            self._plan(self._world.now + max(RECHECK_S, self._interval))

    def _close(self) -> None:
        """Write down the measurement that ends here."""
        if self._after is None:
            return
        what, at = self._after
        took = None if self._since is None else round(max(0.0, self._since - at), 9)
        self._records.append(Convergence(what, round(at, 9), took))
        self._after = None


def allowance(options: Options) -> float:
    """Return how many seconds the federation may take, after the last disturbance, to be right.

    A silent death takes the heartbeat limit to be noticed and a lost core the patience to be
    replaced; then links are dialled and news crosses the federation a few times.
    """
    protocol, links = options.protocol, options.links
    slowest = max([links.delay_ms, *(delay for _, _, delay in links.delays_ms)]) + links.jitter_ms
    hop = slowest / 1000 + protocol.relay_delay
    if not links.ordered:
        hop = REORDER_FACTOR * hop + links.loss  # what is lost is sent again, later and later
    crossing = hop * _width(options.topology)
    waits = (
        2 * protocol.change_delay
        + 4 * protocol.announce_gap
        + 4 * protocol.solicit_interval
        + protocol.settle_delay
        + 2 * protocol.confirm_patience
        + 2 * protocol.linger
    )
    detection = protocol.heartbeat_limit + protocol.heartbeat_interval
    takeover = protocol.takeover_delay + protocol.takeover_patience
    return detection + takeover + 2 * links.redial_s[1] + waits + 6 * crossing


def _width(topology: Topology) -> int:
    """Return how many hops news may need: the diameter, twice for links that are cut."""
    reach = distances(topology, 0)
    return min(2 * 2 * max(reach.values()), topology.nodes) + 2
