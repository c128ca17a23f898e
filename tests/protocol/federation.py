"""Small federations for tests of rules, and queries about them."""

from typing import Any, TypeVar

from tests.protocol.wire_of_nodes import Wire, key

from hansa.protocol.effects import Send
from hansa.protocol.model import MANAGEMENT_GROUP, Group, Identity, LinkId, NodeId
from hansa.protocol.status import NodeStatus
from hansa.protocol.wire.frames import Frame

F = TypeVar("F", bound=Frame)

LINE = "1-2 2-3 3-4"
RING = "1-2 2-3 3-4 4-5 5-1"
SQUARE = "1-2 2-3 3-4 4-1"
SIX_BROKERS = "0-1 0-2 1-3 1-4 2-3 3-4 3-5 4-5"  # Spohn 2020, figures 1 to 4


def grid(side: int) -> str:
    """Return the links of a square grid, its nodes numbered row by row from 0."""
    rows = [range(row * side, (row + 1) * side) for row in range(side)]
    across = [f"{a}-{b}" for row in rows for a, b in zip(row, row[1:], strict=False)]
    down = [f"{a}-{a + side}" for row in rows[:-1] for a in row]
    return " ".join(across + down)


def settled(links: str, *subscriptions: tuple[int, str], **settings: Any) -> Wire:
    """Return converged nodes whose clients subscribed one after the other, with an empty log."""
    wire = Wire(links, **settings)
    for place, topic_filter in subscriptions:
        wire.subscribe(place, topic_filter)
        wire.run(0.2)
    wire.log.clear()
    return wire


def restart(wire: Wire, place: int, links: str, incarnation: int = 2) -> None:
    """Restart a stopped node, which dials."""
    wire.start(place, Identity(NodeId(place), key(place), incarnation))
    wire.join(links)


def publish(wire: Wire, place: int, topic: str = "g", qos: int = 0) -> dict[int, list[bytes]]:
    """Publish `x`; return where it was delivered, and how often."""
    wire.log.clear()
    wire.publish(place, topic, b"x", qos)
    wire.run(0.2)
    return wire.deliveries()


# ---------------------------------------------------------------- queries


def sent(wire: Wire, kind: type[F]) -> list[tuple[int, int, F]]:
    """Return the frames of a kind in the log, in order: from, to, frame."""
    return [(source, target, frame) for _, source, target, frame in timed(wire, kind)]


def timed(wire: Wire, kind: type[F]) -> list[tuple[float, int, int, F]]:
    """Return the same with the time of each."""
    return [
        (step.at, step.place, wire.peers[step.place, effect.link], effect.frame)
        for step in wire.log
        for effect in step.effects
        if isinstance(effect, Send) and isinstance(effect.frame, kind)
    ]


def views(wire: Wire) -> dict[int, NodeStatus]:
    return {place: node.status() for place, node in sorted(wire.nodes.items())}


def cores(wire: Wire, group: Group = "g") -> dict[int, int | None]:
    """Return the core of a group as every node sees it."""
    return {place: view.groups[group].core for place, view in views(wire).items()}


def members(wire: Wire, group: Group = "g") -> list[int]:
    """Return the nodes in the mesh of a group."""
    return [place for place, view in views(wire).items() if view.groups[group].is_member]


def managers(wire: Wire) -> dict[int, int | None]:
    """Return the core of the management group as every node sees it."""
    return cores(wire, MANAGEMENT_GROUP)


def link_of(wire: Wire, place: int, neighbour: int) -> LinkId:
    return wire.nodes[place].status().neighbours[NodeId(neighbour)].link
