"""The inputs and effects of nodes as readable lines.

      1.010  2  ← 3  CoreAnnouncement(core=3, sequence=1, distance=0, claims=+plant/+)
                     CoreElected(group=plant/+, core=3)
                → 1  CoreAnnouncement(core=3, sequence=1, distance=1, parents=3, claims=+plant/+)

At 1.01 s node 2 received this from 3, accepted 3 as the core, and informed 1. Heartbeats, first
incarnations, empty fields and irrelevant fields such as keys are left out.
"""

from collections.abc import Iterator

from tests.protocol.wire_of_nodes import Step, Wire

from hansa.protocol.effects import Deliver, Effect, Send
from hansa.protocol.events import (
    ClientPublished,
    Event,
    FrameReceived,
    InterestChanged,
    LinkClosed,
    LinkOpened,
    SubscriptionsGranted,
)
from hansa.protocol.membership.records import ClaimsRecord, NodeRecord, SetRecord
from hansa.protocol.model import MANAGEMENT_GROUP, Publication, group_id
from hansa.protocol.wire.frames import UNREACHABLE, Heartbeat, Hello, Summary

GROUP = "plant/+"
NUMBERS = {
    UNREACHABLE: "unreachable",
    group_id(GROUP): GROUP,
    group_id(MANAGEMENT_GROUP): "management",
}
UNSAID = {"digest", "epoch", "link"}
DEFAULTS = {("incarnation", 1), ("via", ()), ("mac", b"")}
PAUSE = 0.2
"""Seconds without events after which a new paragraph begins."""


def transcript(wire: Wire) -> Iterator[str]:
    """Return the log of a wire as lines."""
    last = -PAUSE - 1  # the first event begins a paragraph
    for step in wire.log:
        effects = [
            _effect(wire, step.place, item) for item in step.effects if not _is_heartbeat(item)
        ]
        event = _event(wire, step)
        if effects or (event and not _is_heartbeat(step.event)):
            if step.at > last + PAUSE:
                yield ""
            yield f"{step.at:7.3f}  {step.place}  {event or 'timer'}"
            yield from (f"{'':12}{line}" for line in effects)
            last = step.at


def _is_heartbeat(item: Event | Effect) -> bool:
    return isinstance(item, Send | FrameReceived) and isinstance(item.frame, Heartbeat)


def _event(wire: Wire, step: Step) -> str:
    match step.event:
        case FrameReceived(link, frame):
            return f"← {wire.peers[step.place, link]}  {_text(frame)}"
        case LinkOpened(link, dialled):
            return f"link {'to' if dialled else 'from'} {wire.peers[step.place, link]} opened"
        case LinkClosed(link, reason):
            return f"link to {wire.peers[step.place, link]} closed: {reason}"
        case InterestChanged(added, removed):
            return f"interest changes: {_signed(added, removed)}"
        case ClientPublished(topic, payload):
            return f"a client publishes {payload.decode()} to {topic}"
        case SubscriptionsGranted(filters):
            return f"the broker grants {_text(filters)}"
    return ""


def _effect(wire: Wire, place: int, effect: Effect) -> str:
    if isinstance(effect, Send):
        return f"→ {wire.peers[place, effect.link]}  {_text(effect.frame)}"
    if isinstance(effect, Deliver):
        return f"     Deliver({effect.publication.payload.decode()} to {effect.publication.topic})"
    return f"     {_text(effect)}"


def _text(value: object) -> str:
    match value:
        case str():
            return value or "management"
        case int():
            return NUMBERS.get(value, str(value))
        case tuple():
            return " ".join(map(_text, value))
        case Hello(node=node, incarnation=incarnation):
            return f"Hello(node={node}{_incarnation(incarnation)})"
        case Summary(rows):
            return f"Summary({len(rows)} rows)"
        case NodeRecord(node=node, incarnation=incarnation, links=links):
            neighbours = " ".join(str(n) for n, _ in links) or "-"
            return f"Node({node}{_incarnation(incarnation)}, links={neighbours})"
        case SetRecord(node=node, incarnation=incarnation, added=added, removed=removed):
            kind = type(value).__name__.removesuffix("Record")
            return f"{kind}({node}{_incarnation(incarnation)}, {_signed(added, removed)})"
        case Publication(
            origin=origin,
            epoch=incarnation,
            sequence=sequence,
            hops=hops,
            target_groups=target_groups,
        ):
            towards = f", towards {_text(target_groups)}" if target_groups else ""
            return f"Publication({origin}/{incarnation}/{sequence}, hops={hops}{towards})"
    return f"{type(value).__name__}({', '.join(_fields(value))})"


def _fields(value: object) -> Iterator[str]:
    for name in type(value).__match_args__:  # type: ignore[attr-defined]
        item = getattr(value, name)
        if isinstance(item, ClaimsRecord):
            yield f"{name}={_signed(item.added, item.removed)}"
        elif name not in UNSAID and item not in ((), None, b"") and (name, item) not in DEFAULTS:
            yield f"{name}={_text(item)}"


def _incarnation(incarnation: int) -> str:
    return "" if incarnation == 1 else f", incarnation={incarnation}"


def _signed(added: tuple[str, ...], removed: tuple[str, ...]) -> str:
    return (
        " ".join([*(f"+{name}" for name in added), *(f"-{name}" for name in removed)]) or "nothing"
    )
