"""Trials for comparing strategies: the papers' topologies and localities, and larger random ones.

A trial leaves the settings open; clients and faults are the same for all strategies.
"""

from dataclasses import dataclass
from random import Random

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import ClientPublish, ClientSubscribe, ScheduledAction
from hansa.simulator.analysis.convergence import convergence_limit_s
from hansa.simulator.options import FaultCounts, LinkOptions, Phases, SimulationOptions, Workload
from hansa.simulator.papers.bevilaqua import TWELVE
from hansa.simulator.papers.machado import TWENTY_FIVE
from hansa.simulator.papers.spohn import GRID, SIX
from hansa.simulator.topologies import Topology, make_topology, parse_topology

TOPIC = "plant/temp"
FILTERS = ("plant/#", "plant/+", "city/park", "+/temp", "a/b/c")
TOPICS = (TOPIC, "city/park", "a/b/c")
PUBLICATIONS = 50
INTERVAL_S = 0.1
FAULTS = FaultCounts(crashes=6, power_offs=6, cuts=6, silent_cuts=6, outage_s=(4.0, 8.0))
FAULTS_DURATION_S = 120.0
"""Long enough for the federation to converge between most faults."""


@dataclass(frozen=True, slots=True)
class StrategyTrial:
    """Clients, and possibly faults, on a topology."""

    name: str
    title: str
    topology: Topology
    subscribers: tuple[int, ...] = ()
    """Places with a client subscribed to `TOPIC`."""
    publishers: tuple[int, ...] = ()
    """Places that publish to it, `PUBLICATIONS` in all; if empty, random clients publish."""
    root: int = 0
    """The place with the largest capacity."""
    faults: FaultCounts = FaultCounts()
    links: LinkOptions = LinkOptions()

    def make_options(self, settings: ProtocolSettings, seed: int) -> SimulationOptions:
        workload = Workload(publish_finally=False) if self.publishers else self._random_clients()
        subscriptions = [
            ScheduledAction(0.0, ClientSubscribe(place, TOPIC)) for place in self.subscribers
        ]
        count = PUBLICATIONS // len(self.publishers) if self.publishers else 0
        warm_up_s = (
            convergence_limit_s(SimulationOptions(self.topology, settings, links=self.links)) + 1
        )
        publications = [
            ScheduledAction(
                warm_up_s, ClientPublish(place, TOPIC, count=count, interval_s=INTERVAL_S)
            )
            for place in self.publishers
        ]
        traffic_s = (
            FAULTS_DURATION_S
            if self.has_faults
            else count * INTERVAL_S or PUBLICATIONS * INTERVAL_S
        )
        return SimulationOptions(
            self.topology,
            settings,
            seed,
            links=self.links,
            workload=workload,
            faults=self.faults,
            schedule=(*subscriptions, *publications),
            phases=Phases(warm_up_s, traffic_s, settle_s=warm_up_s if self.has_faults else 1.0),
            capacities=tuple(2.0 if n == self.root else 1.0 for n in range(self.topology.nodes)),
        )

    @property
    def has_faults(self) -> bool:
        return self.faults != FaultCounts()

    def _random_clients(self) -> Workload:
        return Workload(
            subscribers=self.topology.nodes // 2,
            filters=FILTERS,
            publishers=5,
            topics=TOPICS,
            rate=10.0 if self.has_faults else 2.0,
            publish_finally=False,
        )


_A, _B, _C, _D, _E = EVERYBODY = range(5)

_SHAPES = {
    "tree": make_topology("antonielli-tree", 5, [(_A, _C), (_B, _C), (_C, _D), (_D, _E)]),
    "star": make_topology("antonielli-star", 5, [(_A, _C), (_B, _C), (_D, _C), (_E, _C)]),
    "line": make_topology("antonielli-line", 5, [(_C, _A), (_A, _B), (_B, _D), (_D, _E)]),
}


def _antonielli() -> list[StrategyTrial]:
    """Publisher and subscriber at A; publisher at A, subscriber at E; all nodes both."""
    places = {
        "100": ("all at A", (_A,), (_A,)),
        "0": ("from A to E", (_E,), (_A,)),
        "n": ("from all to all", tuple(EVERYBODY), tuple(EVERYBODY)),
    }
    return [
        StrategyTrial(
            f"antonielli-{shape}-{locality}",
            f"Antonielli 2020, {shape}, locality {locality} %: {title}",
            topology,
            subscribers,
            publishers,
            root=_C,
        )
        for shape, topology in _SHAPES.items()
        for locality, (title, subscribers, publishers) in places.items()
    ]


def _unequal_delays(topology: Topology, seed: int) -> LinkOptions:
    """Delays so unequal that the nearest by hops is often not the nearest by time."""
    rng = Random(seed)
    return LinkOptions(
        delays_ms=tuple((a, b, round(rng.uniform(1, 40), 1)) for a, b in topology.links)
    )


def make_trials(seed: int) -> list[StrategyTrial]:
    """Return all trials; the seed draws the random topologies."""
    sparse, wide = parse_topology("random:25,4", seed), parse_topology("random:50,4", seed)
    found = [
        StrategyTrial("spohn-2020", "Spohn 2020, six brokers", SIX, (1, 5), (4, 0)),
        StrategyTrial("spohn-2021", "Spohn 2021, grid of nine", GRID, (2, 7), (6,)),
        StrategyTrial("bevilaqua-12", "Bevilaqua 2023, twelve brokers", TWELVE, (0, 5), (11,)),
        StrategyTrial("machado-25", "Machado 2023, 25 brokers, random clients", TWENTY_FIVE),
        StrategyTrial("random-25", "25 brokers of degree 4, random clients", sparse),
        StrategyTrial("random-50", "50 brokers of degree 4, random clients", wide),
        StrategyTrial(
            "random-25-unequal",
            "the same 25, links of 1 to 40 ms: compare --metric hops and rtt",
            sparse,
            links=_unequal_delays(sparse, seed),
        ),
        StrategyTrial(
            "machado-25-faults", "the same 25 with 24 faults", TWENTY_FIVE, faults=FAULTS
        ),
        StrategyTrial("random-25-faults", "25 of degree 4 with 24 faults", sparse, faults=FAULTS),
    ]
    return [*_antonielli(), *found]
