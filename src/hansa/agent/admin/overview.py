"""The federation as one agent knows it, small enough to be asked for every second: `/overview`.

Unlike `/status` it holds no filters and groups: its size grows with nodes and links only.
"""

from collections.abc import Mapping

from hansa.agent.admin.status import format_node_id, link_traffic
from hansa.agent.links.link import Link
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.node import Node


def membership_overview(node: Node, links: Mapping[LinkId, Link]) -> dict[str, object]:
    """Return nodes, links and the traffic of this agent's own links."""
    membership = node.membership
    known, reachable = membership.known, membership.reachable
    return {
        "node": format_node_id(node.id),
        "incarnation": known[node.id].incarnation,
        "nodes": [
            {
                "id": format_node_id(each),
                "name": record.name,
                "addresses": list(record.addresses),
                "capacity": record.capacity,
                "reachable": each in reachable,
            }
            for each, record in sorted(known.items(), key=lambda item: (item[1].name, item[0]))
        ],
        "links": _links(node),
        "neighbours": {
            format_node_id(each): {
                "rtt_ms": None if link.rtt is None else link.rtt * 1000,
                **link_traffic(links.get(link.id)),
            }
            for each, link in membership.neighbours.items()
        },
    }


def _links(node: Node) -> list[dict[str, object]]:
    """Return each link that a reachable node reports, once; it stands if both ends report it."""
    membership = node.membership
    rtt_us: dict[tuple[NodeId, NodeId], list[int]] = {}
    for each in membership.reachable:
        for other, micros in membership.known[each].links:
            rtt_us.setdefault((min(each, other), max(each, other)), []).append(micros)
    return [
        {
            "a": format_node_id(a),
            "b": format_node_id(b),
            "rtt_ms": max(found) / 1000,
            "two_way": len(found) == 2,
        }
        for (a, b), found in sorted(rtt_us.items())
        if b in membership.known and a in membership.known
    ]
