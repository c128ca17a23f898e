"""Measures the time to convergence after each disturbance, and its allowed limit.

Nodes are compared with the truth after relevant events, at most once per `interval` of virtual
time, so that large runs stay fast. The reported time is that of the last relevant event before
convergence, so the interval does not blur it.
"""

from hansa.protocol.effects import Effect, NeighbourDown
from hansa.simulator.analysis.structure import Problem, StructureCheck
from hansa.simulator.options import SimulationOptions
from hansa.simulator.result import ConvergenceRecord
from hansa.simulator.topologies import Topology, hop_distances
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.network import REORDER_FACTOR
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

COMPARE_INTERVAL_S = 0.005
"""Shortest virtual time between two comparisons of up to ten nodes; larger federations are compared
less often."""

RECHECK_S = 0.1
"""While a problem persists it is compared at least this often: timers change state without an
event."""


class ConvergenceTracker(Hooks):
    def __init__(self, world: World, structure: StructureCheck, always_compare: bool) -> None:
        """With `always_compare`, `is_converged` is current at all times; otherwise only during a
        measurement, which saves most comparisons of a large federation."""
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
        """The problem found by the last comparison."""
        self.disturbance_count = 0

    @property
    def is_converged(self) -> bool:
        """Whether the federation was converged at the last comparison and nothing changed since."""
        return self._converged_since is not None and not self._is_stale

    def path_fingerprint(self) -> object:
        """Return a value that changes whenever paths may have changed."""
        return self._structure.path_fingerprint()

    def measurements(self) -> tuple[ConvergenceRecord, ...]:
        """Return all measurements, including that of the last disturbance."""
        self._finish_measurement()
        return tuple(self._measurements)

    def on_disturbance(self, description: str, is_fault: bool, places: tuple[int, ...]) -> None:
        """Start a measurement. Interest that changes before convergence belongs to the current
        one."""
        self.disturbance_count += 1
        if is_fault or self._converged_since is not None:
            self._finish_measurement()
            self._measuring = (description, self._world.now) if is_fault else None
        self._converged_since = None
        self._mark_stale()

    def on_state_changed(self, site: Site) -> None:
        self._mark_stale()

    def on_notification(self, site: Site, notification: Effect) -> None:
        """On lossy links many heartbeats in a row may be lost: that is a disturbance, too."""
        if self._lossy and isinstance(notification, NeighbourDown):
            self._world.report_disturbance(f"n{site.place} misses {notification.node}", fault=False)

    def find_problem(self) -> Problem:
        """Compare now and return the first problem."""
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
    """Return the seconds that the federation may take to converge after the last disturbance.

    Detecting a silent failure takes the heartbeat limit, and replacing a lost core the takeover
    delay; then links are dialled and updates cross the federation a few times.
    """
    protocol, links = options.protocol, options.links
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
    return detection + takeover + 2 * links.redial_wait_s[1] + waits_s + 6 * crossing_s(options)


def crossing_s(options: SimulationOptions) -> float:
    """Return the seconds that an update may need to reach all nodes."""
    protocol, links = options.protocol, options.links
    slowest = max([links.delay_ms, *(delay for _, _, delay in links.delays_ms)]) + links.jitter_ms
    hop = slowest / 1000 + protocol.relay_delay
    if not links.is_ordered:
        hop = REORDER_FACTOR * hop + links.loss  # lost frames are resent with growing delay
    return hop * _hop_bound(options.topology)


def _hop_bound(topology: Topology) -> int:
    """Return the number of hops that an update may need: the diameter, doubled for cut links."""
    reach = hop_distances(topology, 0)
    return min(2 * 2 * max(reach.values()), topology.nodes) + 2
