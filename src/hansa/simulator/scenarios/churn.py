"""Nodes join, leave and fail at random for a long time, with links made at run time.

Required: the federation is connected again soon after every fault, and no QoS 1 publication is
lost, duplicated or reordered, whatever the manager does.
"""

import random
from dataclasses import dataclass, field

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    CrashAgent,
    PowerOff,
    RestartAgent,
    ScheduledAction,
)
from hansa.simulator.checkers import AtMostOnce, GuaranteedDelivery, NoPhantom
from hansa.simulator.options import DiskOptions, Phases, SimulationOptions
from hansa.simulator.run import Simulation
from hansa.simulator.topologies import make_topology
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.managed_links import ManagedLinks, ManagerMode
from hansa.topology.planner import PlannerLimits

TOPIC = "plant/temp"
SAMPLE_S = 1.0
QUIET_PERIOD_S = 120.0
"""Seconds at the end without faults: then the federation must be connected and everything
delivered."""


@dataclass(frozen=True, slots=True)
class ChurnOptions:
    nodes: int = 12
    seconds: float = 600.0
    """Virtual seconds with faults."""
    fault_interval_s: float = 10.0
    """Mean seconds between two faults."""
    manager_modes: tuple[ManagerMode, ...] = (ManagerMode.UP, ManagerMode.ABSENT, ManagerMode.WRONG)
    """The modes of the manager, in turn, for equal times."""
    degree_max: int = 5
    publishers: int = 2
    subscribers: int = 3
    rate: float = 1.0
    """Publications per second of each publisher."""
    heartbeat_s: float = 1.0
    seed: int = 1


@dataclass(slots=True)
class ChurnResult:
    virtual_s: float
    joined: int = 0
    failed: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    """Links added and removed, by cause."""
    splits: int = 0
    """How often the running nodes were not connected."""
    split_s_max: float = 0.0
    """The longest such time."""
    parts_at_end: int = 0
    degree_max: int = 0
    promised: int = 0
    delivered: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def changes_per_hour(self) -> float:
        """Return the links added and removed per hour of virtual time."""
        return sum(self.changes.values()) * 3600 / self.virtual_s


def run_churn(options: ChurnOptions) -> ChurnResult:
    rng = random.Random(f"{options.seed} churn")
    end = options.seconds + QUIET_PERIOD_S
    settings = ProtocolSettings(
        heartbeat_interval=options.heartbeat_s, heartbeat_limit=3 * options.heartbeat_s
    )
    simulation = Simulation(
        SimulationOptions(
            make_topology(f"churn-{options.nodes}", options.nodes, []),
            settings,
            options.seed,
            schedule=(
                *_clients(options, rng),
                ScheduledAction(end, ClientPublish(0, "end", qos=0)),
            ),
            phases=Phases(warm_up_s=end),
            start_spread_s=min(30.0, options.seconds / 10),
            disk=DiskOptions(),
            check_invariants=False,
        )
    )
    world = simulation.world
    result = ChurnResult(end)
    managed_links = ManagedLinks(world, PlannerLimits(degree_max=options.degree_max), options.seed)
    guaranteed = GuaranteedDelivery(world, result.violations, simulation.tracker)
    hooks: list[Hooks] = [
        managed_links,
        guaranteed,
        NoPhantom(world, result.violations),
        AtMostOnce(world, result.violations),
    ]
    world.set_hooks([simulation.tracker, *hooks])
    driver = _ChurnDriver(simulation, managed_links, options, rng, result)
    driver.schedule_all()
    simulation.run_until(end)
    for call in world.hooks.on_run_finished:
        call()
    summary = guaranteed.summarize()
    result.promised, result.delivered = summary.promised, summary.delivered
    result.changes = dict(sorted(managed_links.change_counts.items()))
    driver.finish()
    return result


def _clients(options: ChurnOptions, rng: random.Random) -> list[ScheduledAction]:
    """Publish at sites that do not fail, so that every publication is accepted."""
    count = int(options.seconds * options.rate)
    places = rng.sample(range(options.nodes), options.subscribers)
    steps = [ScheduledAction(0.0, ClientSubscribe(place, TOPIC)) for place in places]
    for place in range(options.publishers):
        burst = ClientPublish(place, TOPIC, count=count, interval_s=1 / options.rate, qos=1)
        steps.append(ScheduledAction(5.0, burst))
    return steps


class _ChurnDriver:
    """Stops and starts nodes, changes the manager's mode, and checks connectivity."""

    def __init__(
        self,
        simulation: Simulation,
        managed_links: ManagedLinks,
        options: ChurnOptions,
        rng: random.Random,
        result: ChurnResult,
    ) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._managed_links = managed_links
        self._options = options
        self._rng = rng
        self._result = result
        self._split_since: float | None = None

    def schedule_all(self) -> None:
        scheduler, options = self._world.scheduler, self._options
        turn = options.seconds / len(options.manager_modes)
        for number, mode in enumerate(options.manager_modes):
            scheduler.at(number * turn, self._set_manager_mode, mode)
        scheduler.at(options.seconds / 10, self._inject_fault)
        scheduler.at(SAMPLE_S, self._sample)

    def _set_manager_mode(self, mode: ManagerMode) -> None:
        self._managed_links.manager_mode = mode

    def _inject_fault(self) -> None:
        if self._world.now >= self._options.seconds:
            self._restart_all()
            return
        pause = self._rng.expovariate(1 / self._options.fault_interval_s)
        self._world.scheduler.after(pause, self._inject_fault)
        down = [site.place for site in self._world.sites if site.node is None]
        up = [site.place for site in self._world.sites if site.is_active]
        if down and (len(up) < 0.7 * len(self._world.sites) or self._rng.random() < 0.5):
            self._result.joined += 1
            self._simulation.executor.perform(RestartAgent(self._rng.choice(down)))
        elif len(up) > 3:
            self._result.failed += 1
            action = self._rng.choice((CrashAgent, PowerOff))
            self._simulation.executor.perform(action(self._rng.choice(up)))

    def _restart_all(self) -> None:
        """Restart all stopped nodes for the quiet period, so that they get what they missed."""
        for site in self._world.sites:
            if site.node is None:
                self._simulation.executor.perform(RestartAgent(site.place))

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
        """Check once more."""
        self._sample()
        parts = self._simulation.tracker.truth.components()
        self._result.parts_at_end = len(parts)
        if self._split_since is not None:
            split = self._world.now - self._split_since
            self._result.split_s_max = max(self._result.split_s_max, split)
        self._result.degree_max = max(
            (len(near) for part in parts for near in part.neighbours.values()), default=0
        )
