"""Scripts of `hansa simulate`: `--at "2 crash 3"` and `--faults crashes=2,cuts=1`.

Every action is written as `describe_action` prints it, so a failing random run can be repeated as a
script. `ScriptCheck` refuses impossible steps, such as cutting a link that does not exist; the
simulator itself ignores them, because random faults may be drawn for stopped nodes.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from hansa.errors import UsageError
from hansa.protocol.topics import check_filter, check_name
from hansa.simulator import actions
from hansa.simulator.actions import ScheduledAction, SimulatedAction
from hansa.simulator.byzantine.attacks import ATTACKS
from hansa.simulator.options import FaultCounts
from hansa.simulator.topologies import Topology, TopologyLink

ACTION_EXAMPLES = {
    "crash": "crash 3",
    "power-off": "power-off 3",
    "freeze": "freeze 3 2.5 s",
    "stall": "stall 3 2.5 s",
    "fill-disk": "fill-disk 3 2.5 s",
    "fail-disk": "fail-disk 3",
    "back-up": "back-up 3",
    "roll-back": "roll-back 3",
    "set-clock": "set-clock 3 -3600 s",
    "refuse": "refuse 3 2.5 s",
    "restart": "restart 3",
    "restart-broker": "restart-broker 3 2 s",
    "clone": "clone 3 near 0",
    "byzantine": "byzantine 3 forge-receipts",
    "cut": "cut 0-1",
    "silence": "silence 0-1",
    "flap": "flap 0-1 5 Hz 2 s",
    "restore": "restore 0-1",
    "partition": "partition 0,1|2,3",
    "heal": "heal",
    "link": "link 0-3",
    "unlink": "unlink 0-1",
    "subscribe": "subscribe 3 plant/#",
    "unsubscribe": "unsubscribe 3 plant/#",
    "publish": "publish 3 plant/temp",
}
"""One valid action of each kind."""

SECONDS_MAX = 1_000_000.0
HZ_MAX = 1_000.0
FLAPS_MAX = 10_000
"""Largest number of cuts in one `flap` step."""

_NODE_ACTIONS: dict[str, Callable[[int], SimulatedAction]] = {
    "crash": actions.CrashAgent,
    "power-off": actions.PowerOff,
    "restart": actions.RestartAgent,
    "restart-broker": actions.RestartBroker,
    "fail-disk": actions.FailDisk,
    "back-up": actions.BackUpState,
    "roll-back": actions.RollBackState,
}
_DURATION_ACTIONS: dict[str, Callable[[int, float], SimulatedAction]] = {
    "freeze": actions.FreezeAgent,
    "stall": actions.StallDisk,
    "fill-disk": actions.FillDisk,
    "refuse": actions.RefuseAgent,
}
_COPY_ACTIONS: dict[str, Callable[[int, int], SimulatedAction]] = {
    "clone": actions.CloneNode,
}
_LINK_ACTIONS: dict[str, Callable[[int, int], SimulatedAction]] = {
    "cut": actions.CutLink,
    "silence": actions.CutSilently,
    "restore": actions.RestoreLink,
    "link": actions.AddLink,
    "unlink": actions.RemoveLink,
}
_CLIENT_ACTIONS: dict[str, Callable[[int, str], SimulatedAction]] = {
    "subscribe": lambda node, text: actions.ClientSubscribe(node, check_filter(text)),
    "unsubscribe": lambda node, text: actions.ClientUnsubscribe(node, check_filter(text)),
    "publish": lambda node, text: actions.ClientPublish(node, check_name(text)),
}


def parse_script(
    texts: Iterable[str], topology: Topology, start_s: float, length_s: float
) -> list[ScheduledAction]:
    """Parse steps like `2.5 cut 0-1`; all must end within `length_s` seconds after `start_s`."""
    check = ScriptCheck(topology, length_s)
    steps: list[ScheduledAction] = []
    for text in texts:
        seconds, action = _parse(text, topology)
        check.add(text, seconds, action)
        steps.append(ScheduledAction(start_s + seconds, action))
        if isinstance(action, actions.FlapLink):  # its last step may be a cut
            end_s = start_s + seconds + action.seconds
            steps.append(ScheduledAction(end_s, actions.RestoreLink(action.a, action.b)))
    check.check()
    return steps


def _parse(text: str, topology: Topology) -> tuple[float, SimulatedAction]:
    words = text.split()
    seconds = _number(words[0], SECONDS_MAX) if words else None
    if seconds is None or len(words) < 2:
        raise UsageError(f"step {text!r}: write seconds and an action, as in '2 crash 3'")
    verb, rest = words[1], words[2:]
    if verb not in ACTION_EXAMPLES:
        raise UsageError(f"step {text!r}: {_suggest(verb, list(ACTION_EXAMPLES))}")
    action = _on_nodes(verb, rest, topology) or _on_links(verb, rest, topology)
    if action is None:
        raise UsageError(f"step {text!r}: write it as in '2 {ACTION_EXAMPLES[verb]}'")
    return seconds, action


def _on_nodes(verb: str, rest: list[str], topology: Topology) -> SimulatedAction | None:
    match verb, rest:
        case _, [node] if verb in _NODE_ACTIONS:
            return _NODE_ACTIONS[verb](topology.find_node(node))
        case "restart", [node, "without", "state"]:
            return actions.RestartAgent(topology.find_node(node), with_state=False)
        case "restart-broker", [node, *duration] if seconds := _duration(duration):
            return actions.RestartBroker(topology.find_node(node), seconds)
        case _, [node, *duration] if verb in _DURATION_ACTIONS and (seconds := _duration(duration)):
            return _DURATION_ACTIONS[verb](topology.find_node(node), seconds)
        case "set-clock", [node, *jump] if (seconds := _signed_duration(jump)) is not None:
            return actions.SetClock(topology.find_node(node), seconds)
        case _, [node, "near", other] if verb in _COPY_ACTIONS:
            return _COPY_ACTIONS[verb](topology.find_node(node), topology.find_node(other))
        case "byzantine", [node, attack]:
            if attack not in ATTACKS:
                raise UsageError(_suggest(attack, list(ATTACKS)))
            return actions.PlayAttack(topology.find_node(node), attack)
        case _, [node, text] if verb in _CLIENT_ACTIONS:
            return _CLIENT_ACTIONS[verb](topology.find_node(node), text)
    return None


def _on_links(verb: str, rest: list[str], topology: Topology) -> SimulatedAction | None:
    match verb, rest:
        case _, [link] if verb in _LINK_ACTIONS and link.count("-") == 1:
            return _LINK_ACTIONS[verb](*_ends(link, "-", topology))
        case "silence", [link] if link.count(">") == 1:
            return actions.CutOneWay(*_ends(link, ">", topology))
        case "flap", [link, often, "Hz", *duration] if link.count("-") == 1:
            hz, seconds = _number(often, HZ_MAX), _duration(duration)
            if hz and seconds and 1 <= hz * seconds <= FLAPS_MAX:
                return actions.FlapLink(*_ends(link, "-", topology), hz, seconds)
        case "partition", [sides]:
            return actions.Partition(
                tuple(
                    tuple(topology.find_node(n) for n in side.split(","))
                    for side in sides.split("|")
                )
            )
        case "heal", []:
            return actions.HealAll()
    return None


def _ends(link: str, between: str, topology: Topology) -> tuple[int, int]:
    a, b = (topology.find_node(end) for end in link.split(between))
    return a, b


def _duration(words: list[str]) -> float | None:
    """Return the seconds of `2.5 s` or `2.5`; None if this is not a duration above 0."""
    match words:
        case [number] | [number, "s"]:
            return _number(number, SECONDS_MAX) or None
    return None


def _signed_duration(words: list[str]) -> float | None:
    """Return the seconds of `2.5 s` or `-2.5 s`; None if this is not a duration."""
    is_negative = bool(words) and words[0].startswith("-")
    seconds = _duration([words[0][1:], *words[1:]] if is_negative else words)
    return -seconds if is_negative and seconds else seconds


def _number(text: str, most: float) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= most else None


def parse_faults(text: str) -> FaultCounts:
    """Parse a text like `crashes=2,silent-cuts=1`; a kind without a count means 1."""
    kinds = {field.name.replace("_", "-"): field.name for field in fields(FaultCounts)}
    del kinds["outage-s"]
    counts: dict[str, Any] = {}
    for word in text.split(","):
        kind, equals, count = word.partition("=")
        if kind not in kinds:
            raise UsageError(f"faults {text!r}: {_suggest(kind, list(kinds))}")
        if kinds[kind] in counts:
            raise UsageError(f"faults {text!r}: {kind} is given twice")
        if equals and not (count.isascii() and count.isdecimal() and len(count) < 6):
            raise UsageError(f"faults {text!r}: {count!r} is not a count; write {kind}=2")
        counts[kinds[kind]] = int(count) if equals else 1
    return FaultCounts(**counts)


def _suggest(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(words)}"
    return f"there is no {word!r}; {hint}"


class ScriptCheck:
    """Checks whether the steps of a script are possible; they may be given in any order."""

    def __init__(self, topology: Topology, length_s: float) -> None:
        self._topology = topology
        self._length_s = length_s
        self._steps: list[tuple[float, str, SimulatedAction]] = []
        self._links = set(topology.links)
        self._down: set[int] = set()
        self._backed_up: set[int] = set()
        self._frozen_until: dict[int, float] = {}

    def add(self, text: str, seconds: float, action: SimulatedAction) -> None:
        """Add a step; raise UsageError if it ends after the run."""
        lasts = _duration_s(action)
        end = seconds + lasts
        if end > self._length_s:
            verb = "ends after" if lasts else "comes after"
            raise UsageError(f"step {text!r} {verb} the run; give --duration {end:g} or more")
        self._steps.append((seconds, text, action))

    def check(self) -> None:
        """Check all steps in order of time, simultaneous ones in the given order."""
        for seconds, text, action in sorted(self._steps, key=lambda step: step[0]):
            problem = self._check_node_action(seconds, action) or self._check_link_action(action)
            if problem:
                raise UsageError(f"step {text!r}: {problem}")

    def _check_node_action(self, seconds: float, action: SimulatedAction) -> str | None:
        match action:
            case actions.CrashAgent(node) | actions.PowerOff(node) | actions.FreezeAgent(node) if (
                node in self._down
            ):
                name = self._topology.node_label(node)
                return f"node {name} is not running then; restart it first"
            case actions.CrashAgent(node) | actions.PowerOff(node):
                self._down.add(node)
            case actions.BackUpState(node):
                self._backed_up.add(node)
            case actions.RollBackState(node) if node not in self._backed_up:
                name = self._topology.node_label(node)
                return f"nothing of node {name} is backed up then; 'back-up {name}' first"
            case actions.RestartAgent(node) | actions.RollBackState(node):
                self._down.discard(node)
                self._frozen_until.pop(node, None)
            case actions.FreezeAgent(node, lasts):
                if seconds < self._frozen_until.get(node, 0.0):
                    return f"node {self._topology.node_label(node)} is frozen already"
                self._frozen_until[node] = seconds + lasts
            case actions.HealAll():
                self._frozen_until.clear()
        return None

    def _check_link_action(self, action: SimulatedAction) -> str | None:
        match action:
            case actions.AddLink(a, b):
                return self._add(a, b)
            case (
                actions.CutLink(a, b)
                | actions.CutSilently(a, b)
                | actions.CutOneWay(a, b)
                | actions.RestoreLink(a, b)
                | actions.RemoveLink(a, b)
                | actions.FlapLink(a, b)
            ):
                link = (min(a, b), max(a, b))
                if link not in self._links:
                    return self._no_link(a, b)
                if isinstance(action, actions.RemoveLink):
                    self._links.remove(link)
            case actions.Partition(sides):
                return self._check_partition(sides)
        return None

    def _add(self, a: int, b: int) -> str | None:
        link: TopologyLink = (min(a, b), max(a, b))
        if a == b:
            return "a node cannot be linked to itself"
        if link in self._links:
            label = self._topology.node_label
            return f"{label(a)} and {label(b)} are linked already"
        self._links.add(link)
        return None

    def _no_link(self, a: int, b: int) -> str:
        label = self._topology.node_label
        near = sorted(set().union(*(link for link in self._links if a in link)) - {a})
        names = ", ".join(label(node) for node in near) or "no node"
        return f"{label(a)} and {label(b)} are not linked then; {label(a)} is linked to {names}"

    def _check_partition(self, sides: tuple[tuple[int, ...], ...]) -> str | None:
        named = [node for side in sides for node in side]
        if len(sides) < 2:
            return "name two sides or more, as in 'partition 0,1|2,3'"
        (node, times), *_ = Counter(named).most_common(1)
        if times > 1:
            return f"node {self._topology.node_label(node)} is named twice"
        side_of = {node: number for number, side in enumerate(sides) for node in side}
        named_links = [link for link in self._links if side_of.keys() >= set(link)]
        if all(side_of[a] == side_of[b] for a, b in named_links):
            return "no link connects these sides"
        return None


def _duration_s(action: SimulatedAction) -> float:
    match action:
        case actions.FreezeAgent(_, s) | actions.RefuseAgent(_, s):
            return s
        case actions.StallDisk(_, s) | actions.FillDisk(_, s):
            return s
        case actions.FlapLink(_, _, _, s) | actions.RestartBroker(_, float() as s):
            return s
    return 0.0
