"""Random faults: a fault mix and a seed become steps of a schedule.

Each kind draws from a stream of its own, so that one more crash does not move the partitions. All
faults begin and end within the traffic phase; its last step heals what is left.
"""

import random
from collections.abc import Callable, Iterator

from hansa.simulator.actions import (
    Action,
    AddLink,
    BackUp,
    Clone,
    Crash,
    Cut,
    CutOneWay,
    CutSilently,
    FailDisk,
    Flap,
    Freeze,
    Heal,
    Mend,
    Partition,
    Refuse,
    RemoveLink,
    Restart,
    RestartBroker,
    RollBack,
    SetClock,
    Stall,
    Step,
    Vanish,
)
from hansa.simulator.options import Options

FLAP_HZ = (1.0, 10.0)
BROKER_RETURN_S = (0.1, 2.0)
CLOCK_JUMP_S = 3_600.0


def random_faults(options: Options) -> list[Step]:
    """Return the steps of all random faults, the one that heals everything last."""
    faults = options.faults
    kinds: dict[str, tuple[int, Callable[[_Chance], Iterator[Step]]]] = {
        "cuts": (faults.cuts, _cut),
        "silent cuts": (faults.silent_cuts, _silent_cut),
        "one-way cuts": (faults.one_way_cuts, _one_way_cut),
        "partitions": (faults.partitions, _partition),
        "flaps": (faults.flaps, _flap),
        "crashes": (faults.crashes, _crash),
        "vanishings": (faults.vanishings, _vanish),
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
    }
    steps: list[Step] = []
    for name, (count, make) in kinds.items():
        chance = _Chance(options, name)
        for _ in range(count):
            steps += make(chance)
    if steps:
        end = options.phases.warm_up_s + options.phases.traffic_s
        steps.append(Step(end, Heal()))
    return steps


class _Chance:
    """Draws times and victims for one kind of fault."""

    def __init__(self, options: Options, name: str) -> None:
        self.random = random.Random(f"{options.seed} faults {name}")
        self.topology = options.topology
        self._outage_s = options.faults.outage_s
        self.start = options.phases.warm_up_s
        self._end = self.start + options.phases.traffic_s

    def time(self) -> float:
        """Return a moment in the traffic phase."""
        return self.random.uniform(self.start, self._end)

    def outage(self) -> tuple[float, float]:
        """Return beginning and end of an outage within the traffic phase."""
        start = self.time()
        return start, min(start + self.random.uniform(*self._outage_s), self._end)

    def node(self) -> int:
        """Return any node."""
        return self.random.randrange(self.topology.nodes)

    def link(self) -> tuple[int, int] | None:
        """Return any link, in any direction; None if there are none."""
        if not self.topology.links:
            return None
        a, b = self.random.choice(self.topology.links)
        return (a, b) if self.random.random() < 0.5 else (b, a)


def _outage_of_link(chance: _Chance, make: Callable[[int, int], Action]) -> Iterator[Step]:
    start, end = chance.outage()
    link = chance.link()
    if link:
        yield Step(start, make(*link))
        yield Step(end, Mend(*link))


def _cut(chance: _Chance) -> Iterator[Step]:
    return _outage_of_link(chance, Cut)


def _silent_cut(chance: _Chance) -> Iterator[Step]:
    return _outage_of_link(chance, CutSilently)


def _one_way_cut(chance: _Chance) -> Iterator[Step]:
    return _outage_of_link(chance, CutOneWay)


def _partition(chance: _Chance) -> Iterator[Step]:
    start, end = chance.outage()
    nodes = chance.random.sample(range(chance.topology.nodes), chance.topology.nodes)
    place = chance.random.randint(1, max(1, len(nodes) - 1))
    sides = (tuple(sorted(nodes[:place])), tuple(sorted(nodes[place:])))
    yield Step(start, Partition(sides))
    for a, b in chance.topology.links:
        if (a in sides[0]) != (b in sides[0]):
            yield Step(end, Mend(a, b))


def _flap(chance: _Chance) -> Iterator[Step]:
    start, end = chance.outage()
    link = chance.link()
    hz = chance.random.uniform(*FLAP_HZ)
    if link:
        yield Step(start, Flap(*link, hz, end - start))
        yield Step(end, Mend(*link))


def _outage_of_node(chance: _Chance, with_state: bool, tell: bool) -> Iterator[Step]:
    start, end = chance.outage()
    node = chance.node()
    yield Step(start, Crash(node) if tell else Vanish(node))
    yield Step(end, Restart(node, with_state))


def _crash(chance: _Chance) -> Iterator[Step]:
    return _outage_of_node(chance, with_state=True, tell=True)


def _vanish(chance: _Chance) -> Iterator[Step]:
    return _outage_of_node(chance, with_state=True, tell=False)


def _lossy_restart(chance: _Chance) -> Iterator[Step]:
    return _outage_of_node(chance, with_state=False, tell=chance.random.random() < 0.5)


def _freeze(chance: _Chance) -> Iterator[Step]:
    start, end = chance.outage()
    yield Step(start, Freeze(chance.node(), end - start))


def _stall(chance: _Chance) -> Iterator[Step]:
    start, end = chance.outage()
    yield Step(start, Stall(chance.node(), end - start))


def _fail_disk(chance: _Chance) -> Iterator[Step]:
    start, end = chance.outage()
    node = chance.node()
    yield Step(start, FailDisk(node))
    yield Step(end, Restart(node))


def _set_clock(chance: _Chance) -> Iterator[Step]:
    """It counts when an agent starts, so its machine starts it again."""
    start, end = chance.outage()
    node = chance.node()
    yield Step(start, SetClock(node, chance.random.uniform(-CLOCK_JUMP_S, CLOCK_JUMP_S)))
    yield Step(end, Restart(node))


def _refuse(chance: _Chance) -> Iterator[Step]:
    start, end = chance.outage()
    yield Step(start, Refuse(chance.node(), end - start))


def _restart_broker(chance: _Chance) -> Iterator[Step]:
    start = chance.time()
    yield Step(start, RestartBroker(chance.node(), chance.random.uniform(*BROKER_RETURN_S)))


def _change_links(chance: _Chance) -> Iterator[Step]:
    """Add a link between any two nodes, or remove one of the first links."""
    start = chance.time()
    link = chance.link()
    if link and chance.random.random() < 0.5:
        yield Step(start, RemoveLink(*link))
    elif chance.topology.nodes > 1:
        yield Step(start, AddLink(*chance.random.sample(range(chance.topology.nodes), 2)))


def _clone(chance: _Chance) -> Iterator[Step]:
    yield Step(chance.time(), Clone(chance.node(), chance.node()))


def _roll_back(chance: _Chance) -> Iterator[Step]:
    """Every other copy is from before the first publication."""
    node, put_back = chance.node(), chance.time()
    newest = put_back if chance.random.random() < 0.5 else chance.start
    yield Step(chance.random.uniform(0.0, newest), BackUp(node))
    yield Step(put_back, RollBack(node))
