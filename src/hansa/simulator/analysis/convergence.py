"""How long the federation takes to be right again after each disturbance, and whether it must be.

The truth is compared when something relevant happened, at most once per `interval` of virtual time,
so a run with many nodes stays fast. What is reported is when the last relevant thing happened
before all was right, which no interval blurs.
"""

from hansa.protocol.effects import NeighbourDown, Notification
from hansa.simulator.analysis.structure import Problem, StructureCheck
from hansa.simulator.options import SimulationOptions
from hansa.simulator.result import ConvergenceRecord
from hansa.simulator.topologies import Topology, hop_distances
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.network import REORDER_FACTOR
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

COMPARE_INTERVAL_S = 0.005
"Least virtual seconds between two comparisons of up to ten nodes; more nodes are compared less."

RECHECK_S = 0.1
"While something is wrong, it is compared at least this often: timers change things silently."


class ConvergenceTracker(Hooks):
    """Follows one world."""

    def __init__(self, world: World, structure: StructureCheck, always_compare: bool) -> None:
        """Start with nothing disturbed. If `always`, `holds` is known at all times; else only
        while something is measured, which saves most comparisons of a large federation."""
        self._world = world
        self._structure = structure
        self._always_compare = always_compare
        self.truth = structure.truth
        nodes = len(world.sites)
        self._lossy = world.options.links.loss > 0
        self._interval = COMPARE_INTERVAL_S * max(1.0, nodes / 10) * max(1.0, nodes / 200)
        self._measurements: list[ConvergenceRecord] = []
        self._measuring: tuple[str, float] | None = None
        self._converged_since: float | None = None
        self._changed_at = 0.0
        self._compared_at = -1.0
        self._is_scheduled = False
        self._is_stale = True
        self.problem: Problem = "not compared yet"
        """What was wrong at the last comparison."""
        self.disturbance_count = 0

    @property
    def is_converged(self) -> bool:
        """Whether all is right now, as far as can be known without comparing again."""
        return self._converged_since is not None and not self._is_stale

    def path_fingerprint(self) -> object:
        """Return what differs at two moments if ways may have changed between them."""
        return self._structure.path_fingerprint()

    def measurements(self) -> tuple[ConvergenceRecord, ...]:
        """Return what was measured, the last disturbance included."""
        self._finish_measurement()
        return tuple(self._measurements)

    def on_disturbance(self, what: str, fault: bool, places: tuple[int, ...]) -> None:
        """Start a new measurement. Interest that changes before all was right belongs to it."""
        self.disturbance_count += 1
        if fault or self._converged_since is not None:
            self._finish_measurement()
            self._measuring = (what, self._world.now) if fault else None
        self._converged_since = None
        self._mark_stale()

    def on_state_changed(self, site: Site) -> None:
        """Something relevant happened at a node."""
        self._mark_stale()

    def on_notification(self, site: Site, notification: Notification) -> None:
        """Where frames are lost, a whole row of heartbeats may be: that is a disturbance, too."""
        if self._lossy and isinstance(notification, NeighbourDown):
            self._world.report_disturbance(f"n{site.place} misses {notification.node}", fault=False)

    def find_problem(self) -> Problem:
        """Compare now; return what is wrong."""
        self._compared_at = self._world.now
        self._is_stale = False
        self.problem = self._structure.find_problem()
        if self.problem:
            self._converged_since = None
        elif self._converged_since is None:
            self._converged_since = self._changed_at
        return self.problem

    def _mark_stale(self) -> None:
        self._changed_at = self._world.scheduler.now
        self._is_stale = True
        if not self._is_scheduled and self._is_needed():
            self._schedule_compare(max(self._changed_at, self._compared_at + self._interval))

    def _is_needed(self) -> bool:
        return self._always_compare or self._measuring is not None

    def _schedule_compare(self, at: float) -> None:
        self._is_scheduled = True
        self._world.scheduler.at(at, self._run_scheduled_compare)

    def _run_scheduled_compare(self) -> None:
        self._is_scheduled = False
        if not self._is_needed():
            return
        if not self._is_stale:
            self.truth.clear_statuses()
        if self.find_problem():
            self._schedule_compare(self._world.now + max(RECHECK_S, self._interval))

    def _finish_measurement(self) -> None:
        """Write down the measurement that ends here."""
        if self._measuring is None:
            return
        what, at = self._measuring
        took = (
            None
            if self._converged_since is None
            else round(max(0.0, self._converged_since - at), 9)
        )
        self._measurements.append(ConvergenceRecord(what, round(at, 9), took))
        self._measuring = None


def convergence_limit_s(options: SimulationOptions) -> float:
    """Return how many seconds the federation may take, after the last disturbance, to be right.

    A silent death takes the heartbeat limit to be noticed and a lost core the patience to be
    replaced; then links are dialled and news crosses the federation a few times.
    """
    protocol, links = options.protocol, options.links
    slowest = max([links.delay_ms, *(delay for _, _, delay in links.delays_ms)]) + links.jitter_ms
    hop = slowest / 1000 + protocol.relay_delay
    if not links.is_ordered:
        hop = REORDER_FACTOR * hop + links.loss  # what is lost is sent again, later and later
    crossing = hop * _hop_bound(options.topology)
    waits_s = (
        2 * protocol.change_delay
        + 4 * protocol.announcement_interval_min
        + 4 * protocol.announcement_request_interval_max
        + protocol.management_claim_delay
        + 2 * protocol.interest_ack_retry_interval
        + 2 * protocol.linger
    )
    detection = protocol.heartbeat_limit + protocol.heartbeat_interval
    takeover = protocol.takeover_delay + protocol.takeover_fallback_delay
    return detection + takeover + 2 * links.redial_wait_s[1] + waits_s + 6 * crossing


def _hop_bound(topology: Topology) -> int:
    """Return how many hops news may need: the diameter, twice for links that are cut."""
    reach = hop_distances(topology, 0)
    return min(2 * 2 * max(reach.values()), topology.nodes) + 2
