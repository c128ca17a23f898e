"""Compares strategies: the cost of each on the same trial."""

from collections import Counter
from dataclasses import dataclass, replace

from hansa.protocol.model import Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import Heartbeat
from hansa.simulator.result import SimulationResult
from hansa.simulator.run import Simulation
from hansa.simulator.scenarios.trials import StrategyTrial
from hansa.simulator.topologies import Topology, hop_distances
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.network import LinkEnd
from hansa.simulator.world.site import Site


@dataclass(frozen=True, slots=True)
class StrategyMeasurement:
    """One strategy on one trial. Per-publication values count publications that left their
    broker."""

    trial: str
    strategy: str
    redundancy: int
    publications: int
    copies: float
    """Per publication, over all links."""
    bytes: float
    """The same in bytes of frames."""
    busiest: float
    """Copies per publication sent by the busiest node."""
    stretch: float | None
    """Hops of a delivery divided by those of the shortest path, on average; None where faults
    change the shortest path, or if nothing was delivered."""
    delay_ms: float | None
    delay_p99_ms: float | None
    control_frames: int
    """In the whole run, without heartbeats, which are the same for all."""
    control_bytes: int
    recovered_s: float | None
    """The longest measured time from a fault to convergence."""
    expected: int
    """Pairs of a publication and another interested broker."""
    lost: int
    notices: int
    """What Antonielli's subscription tables would cost: n·(N-1) for each filter with interest at n
    of N brokers."""
    violations: tuple[str, ...]


def measure_strategy(
    trial: StrategyTrial, settings: ProtocolSettings, strategy: str, seed: int
) -> StrategyMeasurement:
    """Run a trial with a strategy, with all checkers."""
    options = trial.make_options(replace(settings, strategy=strategy), seed)
    meter = _TrafficMeter(trial.topology)
    simulation = Simulation(options, extra_hooks=[meter])
    result = simulation.run()
    sent = sum(entry.is_captured for entry in simulation.world.ledger.entries)
    control_frames, control_bytes = _control_traffic(result)
    delay = result.delay_ms
    return StrategyMeasurement(
        trial=trial.name,
        strategy=strategy,
        redundancy=settings.redundancy,
        publications=sent,
        copies=_per_publication(result.data_frames, sent),
        bytes=_per_publication(result.data_bytes, sent),
        busiest=_per_publication(max(meter.sent_by_place.values(), default=0), sent),
        stretch=None if trial.has_faults else meter.mean_stretch(),
        delay_ms=delay.mean if delay else None,
        delay_p99_ms=delay.p99 if delay else None,
        control_frames=control_frames,
        control_bytes=control_bytes,
        recovered_s=_longest_recovery(result),
        expected=result.expected,
        lost=result.lost,
        notices=_subscription_table_cost(simulation),
        violations=result.violations,
    )


class _TrafficMeter(Hooks):
    """Counts the copies each node sends, and the hops of deliveries."""

    def __init__(self, topology: Topology) -> None:
        self.sent_by_place: Counter[int] = Counter()
        self._distances = [hop_distances(topology, place) for place in range(topology.nodes)]
        self._ratios: list[float] = []

    def on_copy_sent(self, end: LinkEnd, publication: Publication) -> None:
        self.sent_by_place[end.host.place] += 1

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        if entry is not None:
            shortest = self._distances[entry.place][site.place]
            self._ratios.append((publication.hops + 1) / shortest)

    def mean_stretch(self) -> float | None:
        """Return the mean ratio of path length to shortest path."""
        return round(sum(self._ratios) / len(self._ratios), 3) if self._ratios else None


def _per_publication(amount: int, publications: int) -> float:
    return round(amount / publications, 3) if publications else 0.0


def _control_traffic(result: SimulationResult) -> tuple[int, int]:
    heartbeat = Heartbeat.__name__
    counts = (result.control_frames, result.control_bytes)
    frames, size = (sum(n for kind, n in c.items() if kind != heartbeat) for c in counts)
    return frames, size


def _longest_recovery(result: SimulationResult) -> float | None:
    """Return the longest recovery except that of the start."""
    times = [record.converged_s for record in result.converged_s if record.after != "start"]
    return max((time for time in times if time is not None), default=None)


def _subscription_table_cost(simulation: Simulation) -> int:
    sites = simulation.world.sites
    return sum(len(site.broker.subscriber_counts) for site in sites) * (len(sites) - 1)
