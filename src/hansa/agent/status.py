"""A node's state for its status page: ids become texts, records become what JSON can hold."""

from collections.abc import Iterable
from dataclasses import asdict

from hansa.agent.links.link import Link
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node
from hansa.protocol.status import CoreView, GroupView


def text(node: NodeId) -> str:
    """Return an id of a node as people see it."""
    return f"{node:016x}"


def texts(nodes: Iterable[NodeId]) -> list[str]:
    """Return ids as people see them."""
    return [text(node) for node in nodes]


def name_of(known_by: Node, node: NodeId) -> str:
    """Return what a node is called; empty until its record is there."""
    records = known_by.records_of(node)
    return next((each.name for each in records if isinstance(each, NodeRecord)), "")


def core(way: CoreView) -> dict[str, object]:
    """Return the way to a core."""
    return {**asdict(way), "parents": texts(way.parents)}


def group(seen: GroupView) -> dict[str, object]:
    """Return a group."""
    return {
        "core": None if seen.core is None else text(seen.core),
        "member": seen.member,
        "wanted_by": texts(seen.wanted_by),
        "parents": texts(seen.parents),
        "children": texts(seen.children),
    }


def traffic(link: Link | None) -> dict[str, int]:
    """What a link has carried; nothing if it is gone and the node does not believe it yet."""
    return {
        "bytes_in": link.bytes_in if link else 0,
        "bytes_out": link.bytes_out if link else 0,
        "frames_out": link.frames_out if link else 0,
        "outstanding_bytes": link.outstanding if link else 0,
        "dropped": link.dropped if link else 0,
    }
