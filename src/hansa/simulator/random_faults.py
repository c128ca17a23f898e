"""Random faults: turns fault counts and a seed into scheduled actions.

Each kind has its own random stream, so one more crash does not change the partitions. All faults
begin and end within the traffic phase; its last action heals the rest.
"""

import random
from collections.abc import Callable, Iterator

from hansa.simulator.actions import (
    AddLink,
    BackUpState,
    CloneNode,
    CrashAgent,
    CutLink,
    CutOneWay,
    CutSilently,
    FailDisk,
    FlapLink,
    FreezeAgent,
    HealAll,
    Partition,
    PlayAttack,
    PowerOff,
    RefuseAgent,
    RemoveLink,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
    ScheduledAction,
    SetClock,
    SimulatedAction,
    StallDisk,
)
from hansa.simulator.byzantine.attacks import RANDOM_ATTACKS
from hansa.simulator.options import SimulationOptions
from hansa.simulator.workload import random_client_actions

FLAP_HZ = (1.0, 10.0)
BROKER_RETURN_S = (0.1, 2.0)
CLOCK_JUMP_S = 3_600.0
ATTACKS_PER_MEMBER = (4, 12)


def all_actions(options: SimulationOptions) -> list[ScheduledAction]:
    """Return everything that happens in a run: clients, random faults, and its schedule."""
    return [*random_client_actions(options), *random_faults(options), *options.schedule]


def random_faults(options: SimulationOptions) -> list[ScheduledAction]:
    """Return the actions of all random faults, ending with the one that heals everything."""
    faults = options.faults
    # Each name seeds a random stream: renaming one would change every recorded seed.
    kinds: dict[str, tuple[int, Callable[[_FaultSampler], Iterator[ScheduledAction]]]] = {
        "cuts": (faults.cuts, _cut),
        "silent cuts": (faults.silent_cuts, _silent_cut),
        "one-way cuts": (faults.one_way_cuts, _one_way_cut),
        "partitions": (faults.partitions, _partition),
        "flaps": (faults.flaps, _flap),
        "crashes": (faults.crashes, _crash),
        "vanishings": (faults.power_offs, _power_off),
        "freezes": (faults.freezes, _freeze),
        "stalls": (faults.stalls, _stall),
        "disk failures": (faults.disk_failures, _fail_disk),
        "clock jumps": (faults.clock_jumps, _set_clock),
        "refusals": (faults.refusals, _refuse),
        "lossy restarts": (faults.lossy_restarts, _lossy_restart),
        "broker restarts": (faults.broker_restarts, _restart_broker),
        "link changes": (faults.link_changes, _change_links),
        "clones": (faults.clones, _clone),
        "roll-backs": (faults.roll_backs, _roll_back),
        "byzantine": (faults.byzantine, _attack),
    }
    steps: list[ScheduledAction] = []
    for name, (count, make) in kinds.items():
        sampler = _FaultSampler(options, name)
        for _ in range(count):
            steps += make(sampler)
    if steps:
        end = options.phases.warm_up_s + options.phases.traffic_s
        steps.append(ScheduledAction(end, HealAll()))
    return steps


class _FaultSampler:
    """Draws times and targets for one kind of fault."""

    def __init__(self, options: SimulationOptions, name: str) -> None:
        self.rng = random.Random(f"{options.seed} faults {name}")
        self.topology = options.topology
        self._outage_s = options.faults.outage_s
        self.start = options.phases.warm_up_s
        self._end = self.start + options.phases.traffic_s

    def random_time(self) -> float:
        """Return a time in the traffic phase."""
        return self.rng.uniform(self.start, self._end)

    def random_outage(self) -> tuple[float, float]:
        """Return start and end of an outage within the traffic phase."""
        start = self.random_time()
        return start, min(start + self.rng.uniform(*self._outage_s), self._end)

    def random_node(self) -> int:
        return self.rng.randrange(self.topology.nodes)

    def random_link(self) -> tuple[int, int] | None:
        """Return a random link in a random direction; None if there are none."""
        if not self.topology.links:
            return None
        a, b = self.rng.choice(self.topology.links)
        return (a, b) if self.rng.random() < 0.5 else (b, a)


def _outage_of_link(
    sampler: _FaultSampler, make: Callable[[int, int], SimulatedAction]
) -> Iterator[ScheduledAction]:
    start, end = sampler.random_outage()
    link = sampler.random_link()
    if link:
        yield ScheduledAction(start, make(*link))
        yield ScheduledAction(end, RestoreLink(*link))


def _cut(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    return _outage_of_link(sampler, CutLink)


def _silent_cut(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    return _outage_of_link(sampler, CutSilently)


def _one_way_cut(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    return _outage_of_link(sampler, CutOneWay)


def _partition(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    start, end = sampler.random_outage()
    nodes = sampler.rng.sample(range(sampler.topology.nodes), sampler.topology.nodes)
    place = sampler.rng.randint(1, max(1, len(nodes) - 1))
    sides = (tuple(sorted(nodes[:place])), tuple(sorted(nodes[place:])))
    yield ScheduledAction(start, Partition(sides))
    for a, b in sampler.topology.links:
        if (a in sides[0]) != (b in sides[0]):
            yield ScheduledAction(end, RestoreLink(a, b))


def _flap(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    start, end = sampler.random_outage()
    link = sampler.random_link()
    hz = sampler.rng.uniform(*FLAP_HZ)
    if link:
        yield ScheduledAction(start, FlapLink(*link, hz, end - start))
        yield ScheduledAction(end, RestoreLink(*link))


def _outage_of_node(
    sampler: _FaultSampler, with_state: bool, notify_peers: bool
) -> Iterator[ScheduledAction]:
    start, end = sampler.random_outage()
    node = sampler.random_node()
    yield ScheduledAction(start, CrashAgent(node) if notify_peers else PowerOff(node))
    yield ScheduledAction(end, RestartAgent(node, with_state))


def _crash(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    return _outage_of_node(sampler, with_state=True, notify_peers=True)


def _power_off(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    return _outage_of_node(sampler, with_state=True, notify_peers=False)


def _lossy_restart(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    return _outage_of_node(sampler, with_state=False, notify_peers=sampler.rng.random() < 0.5)


def _freeze(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    start, end = sampler.random_outage()
    yield ScheduledAction(start, FreezeAgent(sampler.random_node(), end - start))


def _stall(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    start, end = sampler.random_outage()
    yield ScheduledAction(start, StallDisk(sampler.random_node(), end - start))


def _fail_disk(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    start, end = sampler.random_outage()
    node = sampler.random_node()
    yield ScheduledAction(start, FailDisk(node))
    yield ScheduledAction(end, RestartAgent(node))


def _set_clock(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    """Set the clock and restart the agent, which reads the clock only at its start."""
    start, end = sampler.random_outage()
    node = sampler.random_node()
    yield ScheduledAction(start, SetClock(node, sampler.rng.uniform(-CLOCK_JUMP_S, CLOCK_JUMP_S)))
    yield ScheduledAction(end, RestartAgent(node))


def _refuse(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    start, end = sampler.random_outage()
    yield ScheduledAction(start, RefuseAgent(sampler.random_node(), end - start))


def _restart_broker(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    start = sampler.random_time()
    yield ScheduledAction(
        start, RestartBroker(sampler.random_node(), sampler.rng.uniform(*BROKER_RETURN_S))
    )


def _change_links(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    """Add a link between any two nodes, or remove one of the initial links."""
    start = sampler.random_time()
    link = sampler.random_link()
    if link and sampler.rng.random() < 0.5:
        yield ScheduledAction(start, RemoveLink(*link))
    elif sampler.topology.nodes > 1:
        yield ScheduledAction(start, AddLink(*sampler.rng.sample(range(sampler.topology.nodes), 2)))


def _clone(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    yield ScheduledAction(
        sampler.random_time(), CloneNode(sampler.random_node(), sampler.random_node())
    )


def _roll_back(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    """Roll a state back; every other copy is older than the first publication."""
    node, put_back = sampler.random_node(), sampler.random_time()
    newest = put_back if sampler.rng.random() < 0.5 else sampler.start
    yield ScheduledAction(sampler.rng.uniform(0.0, newest), BackUpState(node))
    yield ScheduledAction(put_back, RollBackState(node))


def _attack(sampler: _FaultSampler) -> Iterator[ScheduledAction]:
    """Compromise a node, and play several attacks."""
    node = sampler.random_node()
    for _ in range(sampler.rng.randint(*ATTACKS_PER_MEMBER)):
        attack = sampler.rng.choice(RANDOM_ATTACKS)
        yield ScheduledAction(sampler.random_time(), PlayAttack(node, attack))
