"""What a person types to say when what happens: `--at "2 crash 3"`.

So whatever a random run (`--faults crashes=2,cuts=1`) has shown can be written down as a script.
"""

import difflib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hansa.errors import UsageError
from hansa.protocol.topics import check_filter, check_name
from hansa.simulator import actions
from hansa.simulator.actions import Action, Step
from hansa.simulator.options import Faults
from hansa.simulator.topologies import Topology

EXAMPLES = {
    "crash": "crash 3",
    "vanish": "vanish 3",
    "restart": "restart 3",
    "freeze": "freeze 3 2.5",
    "cut": "cut 0-1",
    "silence": "silence 0-1",
    "mend": "mend 0-1",
    "link": "link 0-2",
    "unlink": "unlink 0-1",
    "partition": "partition 0,1|2,3",
    "heal": "heal",
    "subscribe": "subscribe 3 plant/#",
    "unsubscribe": "unsubscribe 3 plant/#",
    "publish": "publish 3 plant/temp",
}
"""One valid action of each kind."""

SECONDS_MAX = 1_000_000.0

_NODES: dict[str, Callable[[int], Action]] = {
    "crash": actions.Crash,
    "vanish": actions.Vanish,
    "restart": actions.Restart,
}
_LINKS: dict[str, Callable[[int, int], Action]] = {
    "cut": actions.Cut,
    "silence": actions.CutSilently,
    "mend": actions.Mend,
    "link": actions.AddLink,
    "unlink": actions.RemoveLink,
}


def parse_step(text: str, topology: Topology, start_s: float, length_s: float) -> Step:
    """Return the step that a text like `2.5 cut 0-1` describes, within so long after `start_s`."""
    words = text.split()
    seconds = _seconds(words[0]) if words else None
    if seconds is None or len(words) < 2:
        raise UsageError(f"step {text!r}: write seconds and an action, as in '2 crash 3'")
    if seconds > length_s:
        raise UsageError(f"step {text!r} comes after the end; give --duration {seconds:g} or more")
    return Step(start_s + seconds, _action(text, words[1], words[2:], topology))


def _action(text: str, verb: str, rest: list[str], topology: Topology) -> Action:
    match verb, rest:
        case verb, [node] if verb in _NODES:
            return _NODES[verb](topology.node(node))
        case verb, [link] if verb in _LINKS and link.count("-") == 1:
            a, b = (topology.node(end) for end in link.split("-"))
            return _LINKS[verb](a, b)
        case "freeze", [node, seconds] if _seconds(seconds) is not None:
            return actions.Freeze(topology.node(node), float(seconds))
        case "partition", [sides]:
            return actions.Partition(
                tuple(tuple(topology.node(n) for n in side.split(",")) for side in sides.split("|"))
            )
        case "heal", []:
            return actions.Heal()
        case "subscribe", [node, name]:
            return actions.Subscribe(topology.node(node), check_filter(name))
        case "unsubscribe", [node, name]:
            return actions.Unsubscribe(topology.node(node), check_filter(name))
        case "publish", [node, name]:
            return actions.Publish(topology.node(node), check_name(name))
    if verb in EXAMPLES:
        raise UsageError(f"step {text!r}: write it as in '2 {EXAMPLES[verb]}'")
    raise UsageError(f"step {text!r}: {_near(verb, list(EXAMPLES))}")


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= SECONDS_MAX else None


def parse_faults(text: str) -> Faults:
    """Return the faults that a text like `crashes=2,silent-cuts=1` asks for."""
    kinds = {field.name.replace("_", "-"): field.name for field in fields(Faults)}
    del kinds["outage-s"]
    counts: dict[str, Any] = {}
    for word in text.split(","):
        kind, equals, count = word.partition("=")
        if kind not in kinds:
            raise UsageError(f"faults {text!r}: {_near(kind, list(kinds))}")
        if equals and not (count.isascii() and count.isdecimal() and len(count) < 6):
            raise UsageError(f"faults {text!r}: {count!r} is not a count; write {kind}=2")
        counts[kinds[kind]] = int(count) if equals else 1
    return Faults(**counts)


def _near(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(words)}"
    return f"there is no {word!r}; {hint}"
