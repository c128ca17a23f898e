"""Nodes that join, leave and fail at random for a long time, with their links made at run time.

What must hold: the federation is one part again soon after every trouble, and no publication of QoS
1 is lost, doubled or out of order; whatever the manager does meanwhile.
"""

import random
from dataclasses import dataclass, field

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import Crash, Publish, Restart, Step, Subscribe, Vanish
from hansa.simulator.checkers import AtMostOnce, Guaranteed, NoPhantom
from hansa.simulator.faults.managed_links import Mode, Steered
from hansa.simulator.options import DiskOptions, Options, Phases
from hansa.simulator.run import Simulation
from hansa.simulator.topologies import graph
from hansa.simulator.world.hooks import Watcher
from hansa.topology.planner import Limits

TOPIC = "plant/temp"
SAMPLE_S = 1.0
CALM_S = 120.0
"""Seconds at the end without trouble: then all must be one part, and everything delivered."""


@dataclass(frozen=True, slots=True)
class ChurnOptions:
    """One run."""

    nodes: int = 12
    seconds: float = 600.0
    """Virtual seconds of trouble."""
    trouble_s: float = 10.0
    """Seconds between two troubles, on average."""
    modes: tuple[Mode, ...] = (Mode.UP, Mode.AWAY, Mode.LYING)
    """What the manager is, one after the other, for equal times."""
    degree_max: int = 5
    publishers: int = 2
    subscribers: int = 3
    rate: float = 1.0
    """Publications per second of each publisher."""
    heartbeat_s: float = 1.0
    seed: int = 1


@dataclass(slots=True)
class ChurnResult:
    """What became of it."""

    virtual_s: float
    joined: int = 0
    failed: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    """Links added and removed, by reason."""
    splits: int = 0
    """How often those that ran were not one part."""
    split_s_max: float = 0.0
    """The longest of these times."""
    parts_at_end: int = 0
    degree_max: int = 0
    promised: int = 0
    delivered: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def changes_per_hour(self) -> float:
        """Return how many links were added and removed per hour of virtual time."""
        return sum(self.changes.values()) * 3600 / self.virtual_s


def churn(options: ChurnOptions) -> ChurnResult:
    """Play one run."""
    chance = random.Random(f"{options.seed} churn")
    end = options.seconds + CALM_S
    settings = ProtocolSettings(
        heartbeat_interval=options.heartbeat_s, heartbeat_limit=3 * options.heartbeat_s
    )
    simulation = Simulation(
        Options(
            graph(f"churn-{options.nodes}", options.nodes, []),
            settings,
            options.seed,
            schedule=(*_clients(options, chance), Step(end, Publish(0, "end", qos=0))),
            phases=Phases(warm_up_s=end),
            start_spread_s=min(30.0, options.seconds / 10),
            disk=DiskOptions(),
            check=False,
        )
    )
    world = simulation.world
    result = ChurnResult(end)
    steered = Steered(world, Limits(degree_max=options.degree_max), options.seed)
    guaranteed = Guaranteed(world, result.violations, simulation.tracker)
    watching: list[Watcher] = [
        steered,
        guaranteed,
        NoPhantom(world, result.violations),
        AtMostOnce(world, result.violations),
    ]
    world.watch([simulation.tracker, *watching])
    trouble = _Trouble(simulation, steered, options, chance, result)
    trouble.begin()
    simulation.run_until(end)
    for call in world.watchers.finished:
        call()
    summary = guaranteed.summary()
    result.promised, result.delivered = summary.promised, summary.delivered
    result.changes = dict(sorted(steered.changes.items()))
    trouble.finish()
    return result


def _clients(options: ChurnOptions, chance: random.Random) -> list[Step]:
    """Publish from places that do not fail, so that every publication has been accepted."""
    count = int(options.seconds * options.rate)
    places = chance.sample(range(options.nodes), options.subscribers)
    steps = [Step(0.0, Subscribe(place, TOPIC)) for place in places]
    for place in range(options.publishers):
        burst = Publish(place, TOPIC, count=count, interval_s=1 / options.rate, qos=1)
        steps.append(Step(5.0, burst))
    return steps


class _Trouble:
    """Stops and starts nodes, changes what the manager is, and looks whether all hangs together."""

    def __init__(
        self,
        simulation: Simulation,
        steered: Steered,
        options: ChurnOptions,
        chance: random.Random,
        result: ChurnResult,
    ) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._steered = steered
        self._options = options
        self._chance = chance
        self._result = result
        self._split_since: float | None = None

    def begin(self) -> None:
        """Plan everything."""
        scheduler, options = self._world.scheduler, self._options
        turn = options.seconds / len(options.modes)
        for number, mode in enumerate(options.modes):
            scheduler.at(number * turn, self._switch, mode)
        scheduler.at(options.seconds / 10, self._strike)
        scheduler.at(SAMPLE_S, self._sample)

    def _switch(self, mode: Mode) -> None:
        self._steered.mode = mode

    def _strike(self) -> None:
        if self._world.now >= self._options.seconds:
            self._return_all()
            return
        pause = self._chance.expovariate(1 / self._options.trouble_s)
        self._world.scheduler.after(pause, self._strike)
        down = [site.place for site in self._world.sites if site.node is None]
        up = [site.place for site in self._world.sites if site.active]
        if down and (len(up) < 0.7 * len(self._world.sites) or self._chance.random() < 0.5):
            self._result.joined += 1
            self._simulation.director.act(Restart(self._chance.choice(down)))
        elif len(up) > 3:
            self._result.failed += 1
            action = self._chance.choice((Crash, Vanish))
            self._simulation.director.act(action(self._chance.choice(up)))

    def _return_all(self) -> None:
        """The calm: whoever is away comes back, for what it is owed."""
        for site in self._world.sites:
            if site.node is None:
                self._simulation.director.act(Restart(site.place))

    def _sample(self) -> None:
        self._world.scheduler.after(SAMPLE_S, self._sample)
        now, result = self._world.now, self._result
        whole = len(self._simulation.tracker.truth.components()) <= 1
        if whole and self._split_since is not None:
            result.split_s_max = max(result.split_s_max, now - self._split_since)
            self._split_since = None
        elif not whole and self._split_since is None:
            self._split_since = now
            result.splits += 1

    def finish(self) -> None:
        """Look one last time."""
        self._sample()
        parts = self._simulation.tracker.truth.components()
        self._result.parts_at_end = len(parts)
        if self._split_since is not None:
            split = self._world.now - self._split_since
            self._result.split_s_max = max(self._result.split_s_max, split)
        self._result.degree_max = max(
            (len(near) for part in parts for near in part.neighbours.values()), default=0
        )
