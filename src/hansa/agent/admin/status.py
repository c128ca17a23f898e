"""Formats a node's state for /status: ids become text, records become JSON values, in pieces."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice

import msgspec

from hansa.agent.links.link import Link
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node
from hansa.protocol.routing import elects_cores
from hansa.protocol.routing.base import CoreStatus, GroupStatus

ENTRIES_PER_PIECE = 200
"""Groups of one piece: about 10 ms on a slow machine."""


def format_node_id(node: NodeId) -> str:
    return f"{node:016x}"


def format_node_ids(nodes: Iterable[NodeId]) -> list[str]:
    return [format_node_id(node) for node in nodes]


def has_core(node: Node, strategy: str) -> bool:
    """Whether a reachable node may become core; a node alone needs none."""
    membership = node.membership
    return (
        not elects_cores(strategy)
        or len(membership.reachable) == 1
        or any(membership.rights_of(each).may_be_core for each in membership.reachable)
    )


def node_name(known_by: Node, node: NodeId) -> str:
    """Return the name of a node; empty until its record is known."""
    record = known_by.membership.known.get(node)
    return "" if record is None else record.name


def core_status(core_view: CoreStatus) -> dict[str, object]:
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
        "dropped": link.drop_reasons.total() if link else 0,
    }


def drop_reasons(link: Link | None) -> dict[str, int]:
    """Return why a link dropped publications, and how many."""
    return dict(link.drop_reasons) if link else {}


# ---------------------------------------------------------------- the document in pieces


def stream_document(document: dict[str, object], node: Node) -> Iterator[bytes]:
    """Yield the document of /status in pieces, each of which takes a few milliseconds: groups and
    filters may be 100,000, and the agent must forward meanwhile. `document` lacks groups, and its
    `remote` names only the nodes; each piece shows the state of its moment."""
    interest = document.pop("interest")
    assert isinstance(interest, dict)
    remote = interest.pop("remote")
    groups = ((group, group_status(seen)) for group, seen in node.groups())
    filters_of = node.membership.filters_of
    filters = ((format_node_id(each), list(filters_of(each))) for each in remote)
    yield b"{\n" + b"".join(
        json_member(name, document[name]) + b",\n" for name in sorted(document) if name != "groups"
    )
    yield from json_entries("groups", groups)
    yield b',\n "interest": {\n'
    yield b"".join(json_member(name, interest[name]) + b",\n" for name in sorted(interest))
    yield from json_entries("remote", filters, per_piece=1)
    yield b"}\n}\n"


def json_member(name: str, value: object) -> bytes:
    """Return one member of an object, indented for people."""
    text = msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1)
    return b" " + msgspec.json.encode(name) + b": " + text.replace(b"\n", b"\n ")


def json_entries(
    name: str, entries: Iterable[tuple[str, object]], per_piece: int = ENTRIES_PER_PIECE
) -> Iterator[bytes]:
    """Yield a member of an object that is an object itself, one line per entry."""
    yield b" " + msgspec.json.encode(name) + b": {"
    separator, source = b"\n  ", iter(entries)
    while some := list(islice(source, per_piece)):
        encoded = [msgspec.json.encode(key) + b": " + msgspec.json.encode(it) for key, it in some]
        yield separator + b",\n  ".join(encoded)
        separator = b",\n  "
    yield b"}"


def disk_status(directory: str) -> dict[str, int]:
    """Return the size of the disk that holds a directory; empty if it cannot be read."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return {}
    return {"free_bytes": usage.free, "total_bytes": usage.total}
