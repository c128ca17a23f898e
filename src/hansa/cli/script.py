"""What a person types to say when what happens: `--at "2 crash 3"`.

Every action has its words, the same that a run reports. So whatever a random run
(`--faults crashes=2,cuts=1`) has shown can be written down as a script.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from hansa.cli.rehearsal import ScriptCheck
from hansa.errors import UsageError
from hansa.protocol.topics import check_filter, check_name
from hansa.simulator import actions
from hansa.simulator.actions import ScheduledAction, SimulatedAction
from hansa.simulator.options import FaultCounts
from hansa.simulator.topologies import Topology

ACTION_EXAMPLES = {
    "crash": "crash 3",
    "vanish": "vanish 3",
    "freeze": "freeze 3 2.5 s",
    "stall": "stall 3 2.5 s",
    "fail-disk": "fail-disk 3",
    "back-up": "back-up 3",
    "roll-back": "roll-back 3",
    "set-clock": "set-clock 3 -3600 s",
    "refuse": "refuse 3 2.5 s",
    "restart": "restart 3",
    "restart-broker": "restart-broker 3 2 s",
    "clone": "clone 3 near 0",
    "cut": "cut 0-1",
    "silence": "silence 0-1",
    "flap": "flap 0-1 5 Hz 2 s",
    "mend": "mend 0-1",
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
"""Times that one step may cut a link."""

_NODE_ACTIONS: dict[str, Callable[[int], SimulatedAction]] = {
    "crash": actions.CrashAgent,
    "vanish": actions.PowerOff,
    "restart": actions.RestartAgent,
    "restart-broker": actions.RestartBroker,
    "fail-disk": actions.FailDisk,
    "back-up": actions.BackUpState,
    "roll-back": actions.RollBackState,
}
_DURATION_ACTIONS: dict[str, Callable[[int, float], SimulatedAction]] = {
    "freeze": actions.FreezeAgent,
    "stall": actions.StallDisk,
    "refuse": actions.RefuseAgent,
}
_COPY_ACTIONS: dict[str, Callable[[int, int], SimulatedAction]] = {
    "clone": actions.CloneNode,
}
_LINK_ACTIONS: dict[str, Callable[[int, int], SimulatedAction]] = {
    "cut": actions.CutLink,
    "silence": actions.CutSilently,
    "mend": actions.RestoreLink,
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
    """Return the steps that texts like `2.5 cut 0-1` describe, within so long after `start_s`."""
    rehearsal = ScriptCheck(topology, length_s)
    steps: list[ScheduledAction] = []
    for text in texts:
        seconds, action = _parse(text, topology)
        rehearsal.add(text, seconds, action)
        steps.append(ScheduledAction(start_s + seconds, action))
        if isinstance(action, actions.FlapLink):  # it may end with a cut
            end_s = start_s + seconds + action.seconds
            steps.append(ScheduledAction(end_s, actions.RestoreLink(action.a, action.b)))
    rehearsal.check()
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
    """Return the seconds of `2.5 s` or `2.5`; None if it is no time above 0."""
    match words:
        case [number] | [number, "s"]:
            return _number(number, SECONDS_MAX) or None
    return None


def _signed_duration(words: list[str]) -> float | None:
    """Return the seconds of `2.5 s` or `-2.5 s`; None if it is no time."""
    back = bool(words) and words[0].startswith("-")
    seconds = _duration([words[0][1:], *words[1:]] if back else words)
    return -seconds if back and seconds else seconds


def _number(text: str, most: float) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= most else None


def parse_faults(text: str) -> FaultCounts:
    """Return the faults that a text like `crashes=2,silent-cuts=1` asks for."""
    kinds = {field.name.replace("_", "-"): field.name for field in fields(FaultCounts)}
    del kinds["outage-s"]
    counts: dict[str, Any] = {}
    for word in text.split(","):
        kind, equals, count = word.partition("=")
        if kind not in kinds:
            raise UsageError(f"faults {text!r}: {_suggest(kind, list(kinds))}")
        if kinds[kind] in counts:
            raise UsageError(f"faults {text!r}: {kind} is there twice; write it once")
        if equals and not (count.isascii() and count.isdecimal() and len(count) < 6):
            raise UsageError(f"faults {text!r}: {count!r} is not a count; write {kind}=2")
        counts[kinds[kind]] = int(count) if equals else 1
    return FaultCounts(**counts)


def _suggest(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(words)}"
    return f"there is no {word!r}; {hint}"
