"""The federation as one agent knows it, small enough to be sent every second: `/overview`.

Unlike `/status` it holds no filters and groups: its size grows with nodes and links only.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from hansa.agent.admin.status import format_node_id, link_traffic
from hansa.agent.links.link import Link
from hansa.agent.queries import QueryFailed
from hansa.console.node_answers import UNREADABLE, NodeSummary, RememberedEvent, has_form
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.node import Node


def membership_overview(node: Node, links: Mapping[LinkId, Link]) -> dict[str, object]:
    """Return nodes, links and the traffic of this agent's own links."""
    membership = node.membership
    known = membership.known
    return {
        "node": format_node_id(node.id),
        "incarnation": known[node.id].incarnation,
        "nodes": [
            node_overview(membership, each)
            for each in sorted(known, key=lambda node: (known[node].name, node))
        ],
        "links": overview_links(membership),
        "neighbours": {
            format_node_id(each): {
                "rtt_ms": None if link.rtt is None else link.rtt * 1000,
                **link_traffic(links.get(link.id)),
            }
            for each, link in membership.neighbours.items()
        },
    }


BRIEF_FIELDS = ("version", "clock_ms", "problem", "broker", "interest", "delivery", "alarms")
"""Fields of a summary that the page shows of every node."""

BRIEF_COUNTERS = ("captured", "injected", "duplicates", "links lost")


def brief_federation(document: dict[str, Any]) -> dict[str, object]:
    """Return the document of /federation without what the page does not show: with 200 nodes it is
    sent every other second."""
    return {
        **document,
        "nodes": [{**node, "summary": _brief(node["summary"])} for node in document["nodes"]],
    }


def _brief(summary: dict[str, Any] | None) -> dict[str, object] | None:
    if summary is None:
        return None
    # The page needs all fields, also those that an agent of another version has left out.
    complete = msgspec.to_builtins(msgspec.convert(summary, NodeSummary))
    counters = {
        name: count
        for name, count in complete["counters"].items()
        if name in BRIEF_COUNTERS or name.startswith(("dropped: ", "refused: "))
    }
    brief = {name: complete[name] for name in BRIEF_FIELDS}
    return {**brief, "counters": counters, "neighbours": complete["neighbours"]}


ANSWER_FORMS: Mapping[str, Any] = {"summary": NodeSummary, "events": list[RememberedEvent]}


def describe_answer(name: str, answer: tuple[Any, float] | QueryFailed) -> dict[str, object]:
    """Return an answer under its name, with its time, or the problem. One node whose answer has
    another form must not make those of all others unreadable."""
    if isinstance(answer, QueryFailed):
        return {"problem": str(answer)}
    if not has_form(answer[0], ANSWER_FORMS[name]):
        return {"problem": UNREADABLE}
    return {name: answer[0], "asked_ms": round(1000 * answer[1], 3)}


def node_overview(membership: MembershipView, node: NodeId) -> dict[str, object]:
    """Return what every node knows about one node."""
    record = membership.known[node]
    return {
        "id": format_node_id(node),
        "name": record.name,
        "addresses": list(record.addresses),
        "capacity": record.capacity,
        "reachable": node in membership.reachable,
    }


def overview_links(membership: MembershipView) -> list[dict[str, object]]:
    """Return each link that a node reports, once. It stands if both ends report it; it is lost if
    only a node reports it that cannot be reached any more."""
    rtt_us: dict[tuple[NodeId, NodeId], list[int]] = {}
    lost: dict[tuple[NodeId, NodeId], list[int]] = {}
    for each, record in membership.known.items():
        found = rtt_us if each in membership.reachable else lost
        for other, micros in record.links:
            found.setdefault((min(each, other), max(each, other)), []).append(micros)
    return [
        {
            "a": format_node_id(a),
            "b": format_node_id(b),
            "rtt_ms": max(rtt_us.get((a, b), lost.get((a, b), [0]))) / 1000,
            "two_way": len(rtt_us.get((a, b), ())) == 2,
            "lost": (a, b) not in rtt_us,
        }
        for a, b in sorted({*rtt_us, *lost})
        if b in membership.known and a in membership.known
    ]
