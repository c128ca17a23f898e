"""Walks through a script before it is played, and refuses what could not be done.

The simulator leaves undone what it cannot do, so that random faults may strike blindly. A person
who cuts a link that is not there made a mistake, and should hear of it.
"""

from collections import Counter

from hansa.errors import UsageError
from hansa.simulator.actions import (
    AddLink,
    BackUpState,
    CrashAgent,
    CutLink,
    CutOneWay,
    CutSilently,
    FlapLink,
    FreezeAgent,
    HealAll,
    Partition,
    PowerOff,
    RefuseAgent,
    RemoveLink,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
    SimulatedAction,
    StallDisk,
)
from hansa.simulator.topologies import Topology, TopologyLink


class ScriptCheck:
    """One script, whose steps may be given in any order."""

    def __init__(self, topology: Topology, length_s: float) -> None:
        """Start with all nodes running and all links whole."""
        self._topology = topology
        self._length_s = length_s
        self._steps: list[tuple[float, str, SimulatedAction]] = []
        self._links = set(topology.links)
        self._down: set[int] = set()
        self._backed_up: set[int] = set()
        self._frozen_until: dict[int, float] = {}

    def add(self, text: str, seconds: float, action: SimulatedAction) -> None:
        """Note a step; refuse one that is not over when the run ends."""
        lasts = _duration_s(action)
        end = seconds + lasts
        if end > self._length_s:
            verb = "lasts beyond" if lasts else "comes after"
            raise UsageError(f"step {text!r} {verb} the end; give --duration {end:g} or more")
        self._steps.append((seconds, text, action))

    def check(self) -> None:
        """Go through all steps in the order of time; steps of one moment as they were given."""
        for seconds, text, action in sorted(self._steps, key=lambda step: step[0]):
            problem = self._check_node_action(seconds, action) or self._check_link_action(action)
            if problem:
                raise UsageError(f"step {text!r}: {problem}")

    def _check_node_action(self, seconds: float, action: SimulatedAction) -> str | None:
        match action:
            case CrashAgent(node) | PowerOff(node) | FreezeAgent(node) if node in self._down:
                name = self._topology.node_label(node)
                return f"node {name} is not running then; restart it first"
            case CrashAgent(node) | PowerOff(node):
                self._down.add(node)
            case BackUpState(node):
                self._backed_up.add(node)
            case RollBackState(node) if node not in self._backed_up:
                name = self._topology.node_label(node)
                return f"nothing of node {name} is backed up then; 'back-up {name}' first"
            case RestartAgent(node) | RollBackState(node):
                self._down.discard(node)
                self._frozen_until.pop(node, None)
            case FreezeAgent(node, lasts):
                if seconds < self._frozen_until.get(node, 0.0):
                    return f"node {self._topology.node_label(node)} is frozen already"
                self._frozen_until[node] = seconds + lasts
            case HealAll():
                self._frozen_until.clear()
        return None

    def _check_link_action(self, action: SimulatedAction) -> str | None:
        match action:
            case AddLink(a, b):
                return self._add(a, b)
            case (
                CutLink(a, b)
                | CutSilently(a, b)
                | CutOneWay(a, b)
                | RestoreLink(a, b)
                | RemoveLink(a, b)
                | FlapLink(a, b)
            ):
                link = (min(a, b), max(a, b))
                if link not in self._links:
                    return self._no_link(a, b)
                if isinstance(action, RemoveLink):
                    self._links.remove(link)
            case Partition(sides):
                return self._check_partition(sides)
        return None

    def _add(self, a: int, b: int) -> str | None:
        link: TopologyLink = (min(a, b), max(a, b))
        if a == b:
            return "a node cannot be linked to itself"
        if link in self._links:
            return f"{self._topology.node_label(a)} and {self._topology.node_label(b)} are linked already"
        self._links.add(link)
        return None

    def _no_link(self, a: int, b: int) -> str:
        label = self._topology.node_label
        near = sorted(set().union(*(link for link in self._links if a in link)) - {a})
        names = ", ".join(label(node) for node in near) or "nobody"
        return f"{label(a)} and {label(b)} are not linked then; {label(a)} is linked to {names}"

    def _check_partition(self, sides: tuple[tuple[int, ...], ...]) -> str | None:
        named = [node for side in sides for node in side]
        if len(sides) < 2:
            return "name two sides or more, as in 'partition 0,1|2,3'"
        (node, times), *_ = Counter(named).most_common(1)
        if times > 1:
            return f"node {self._topology.node_label(node)} is named twice"
        side_of = {node: number for number, side in enumerate(sides) for node in side}
        both = [link for link in self._links if side_of.keys() >= set(link)]
        if all(side_of[a] == side_of[b] for a, b in both):
            return "no link joins these sides, so there is nothing to cut"
        return None


def _duration_s(action: SimulatedAction) -> float:
    match action:
        case FreezeAgent(_, s) | StallDisk(_, s) | RefuseAgent(_, s) | FlapLink(_, _, _, s):
            return s
        case RestartBroker(_, float() as seconds):
            return seconds
    return 0.0
