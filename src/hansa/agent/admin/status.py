"""Formats a node's state for /status: ids become text, records become JSON values."""

from collections.abc import Iterable
from dataclasses import asdict

from hansa.agent.links.link import Link
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node
from hansa.protocol.routing.base import CoreStatus, GroupStatus


def format_node_id(node: NodeId) -> str:
    """Return a node id as text."""
    return f"{node:016x}"


def format_node_ids(nodes: Iterable[NodeId]) -> list[str]:
    """Return node ids as text."""
    return [format_node_id(node) for node in nodes]


def node_name(known_by: Node, node: NodeId) -> str:
    """Return the name of a node; empty until its record is known."""
    records = known_by.records_of(node)
    return next((each.name for each in records if isinstance(each, NodeRecord)), "")


def core_status(core_view: CoreStatus) -> dict[str, object]:
    """Return the path to a core."""
    return {**asdict(core_view), "parents": format_node_ids(core_view.parents)}


def group_status(group_view: GroupStatus) -> dict[str, object]:
    return {
        "core": None if group_view.core is None else format_node_id(group_view.core),
        "member": group_view.is_member,
        "interested_nodes": format_node_ids(group_view.interested_nodes),
        "parents": format_node_ids(group_view.parents),
        "children": format_node_ids(group_view.children),
    }


def link_traffic(link: Link | None) -> dict[str, int]:
    """Return the traffic of a link; empty if it has closed and the node does not know yet."""
    return {
        "bytes_in": link.bytes_in if link else 0,
        "bytes_out": link.bytes_out if link else 0,
        "frames_out": link.frames_out if link else 0,
        "outstanding_bytes": link.outstanding_bytes if link else 0,
        "dropped": link.dropped_publications if link else 0,
    }
