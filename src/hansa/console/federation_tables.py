"""Tables of nodes, links, topics, alarms and traces of a federation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hansa.console.federation import (
    CAPTURED,
    INJECTED,
    Federation,
    LinkInfo,
    NodeInfo,
    RealHop,
    RealTrace,
    Trace,
    shown_names,
    sorted_links,
)
from hansa.console.node_answers import NeighbourInfo, NodeSummary
from hansa.console.terminal import make_table

ROWS_MAX = 200
"""Rows of one table; `--json` prints all."""

FILTERS_SHOWN_MAX = 40
"""Filters of the clients of one node."""


class GroupInfo(msgspec.Struct, frozen=True):
    """A group in `/status`."""

    core: str | None
    interested_nodes: tuple[str, ...]


class TopicsDocument(msgspec.Struct, frozen=True):
    """The part of `/status` that describes groups."""

    groups: dict[str, GroupInfo]


Row = tuple[str | Text, ...]


def fill_table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """Return a table; texts are shown as they are."""
    made = make_table(*columns)
    made.title, made.title_justify, made.min_width = title, "left", len(title)
    for row in rows[:ROWS_MAX]:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    if len(rows) > ROWS_MAX:
        made.caption = f"{len(rows) - ROWS_MAX} more; --json has all"
        made.caption_justify = "left"
    return made


def status_tables(federation: Federation, topics: TopicsDocument, with_ids: bool) -> RenderableType:
    """Return all tables that have rows."""
    tables = (
        nodes_table(federation, with_ids),
        links_table(federation),
        topics_table(federation, topics),
        counters_table(federation),
        alarms_table(federation),
    )
    return Group(*(made for made in tables if made.row_count))


def nodes_table(federation: Federation, with_ids: bool = False) -> Table:
    columns = ["node", "state", "version", "broker", ">links", ">filters", ">pending", ">alarms"]
    names = federation.names()
    rows = []
    for node in federation.nodes:
        row = [names[node.id], _state(node), *_summary_cells(node.summary)]
        if with_ids:
            row.insert(1, node.id)
        rows.append(tuple(row))
    if with_ids:
        columns.insert(1, "id")
    return fill_table("Nodes", columns, rows)


def _state(node: NodeInfo) -> Text:
    return Text(node.state, "" if node.state == "up" else "red")


def _summary_cells(summary: NodeSummary | None) -> list[str | Text]:
    if summary is None:
        return [""] * 6
    filters = f"{summary.interest.filters:,}"
    if not summary.interest.installed:
        filters += " (pending)"
    alarms = len(summary.alarms)
    return [
        summary.version,
        summary.broker.address,
        str(len(summary.neighbours)),
        filters,
        f"{sum(summary.delivery.pending.values()):,}",
        Text(str(alarms), "red" if alarms else ""),
    ]


def links_table(federation: Federation) -> Table:
    names, summaries = federation.names(), federation.summaries()
    rows = []
    for link in sorted_links(federation):
        a, b = (_end(summaries, *ends) for ends in ((link.a, link.b), (link.b, link.a)))
        rows.append(
            (
                names[link.a],
                names[link.b],
                _link_state(link),
                "" if link.lost else f"{link.rtt_ms:.2f}",
                _traffic(a, b),
                _traffic(b, a),
                _sum(a, b, "outstanding_bytes"),
                _sum(a, b, "dropped"),
            )
        )
    columns = ("node", "node", "state", ">RTT ms", ">bytes →", ">bytes ←", ">waiting", ">dropped")
    return fill_table("Links", columns, rows)


def _end(summaries: Mapping[str, NodeSummary], node: str, other: str) -> NeighbourInfo | None:
    summary = summaries.get(node)
    return None if summary is None else summary.neighbours.get(other)


def _link_state(link: LinkInfo) -> Text:
    return Text(link.state, "" if link.state == "up" else "red")


def _traffic(sender: NeighbourInfo | None, receiver: NeighbourInfo | None) -> str:
    if sender is not None:
        return f"{sender.bytes_out:,}"
    return "" if receiver is None else f"{receiver.bytes_in:,}"


def _sum(a: NeighbourInfo | None, b: NeighbourInfo | None, field: str) -> str:
    return f"{sum(getattr(end, field) for end in (a, b) if end is not None):,}"


def topics_table(federation: Federation, topics: TopicsDocument) -> Table:
    names, summaries = federation.names(), federation.summaries()
    rows = []
    for topic, group in sorted(topics.groups.items()):
        if not topic:
            continue
        pending = [
            node
            for node in group.interested_nodes
            if node in summaries and not summaries[node].interest.installed
        ]
        rows.append(
            (
                topic,
                shown_names(group.interested_nodes, names),
                "none yet" if group.core is None else shown_names((group.core,), names),
                Text(f"pending: {shown_names(pending, names)}", "yellow") if pending else "yes",
            )
        )
    return fill_table("Topics", ("filter", "subscribers at", "core", "installed"), rows)


def counters_table(federation: Federation) -> Table:
    """Return the sum of each counter over all nodes, and the node with the largest count."""
    names, summaries = federation.names(), federation.summaries()
    totals: Counter[str] = Counter()
    for summary in summaries.values():
        totals.update(summary.counters)
    rows = []
    for counter, total in sorted(totals.items()):
        most = max(summaries, key=lambda node: summaries[node].counters.get(counter, 0))
        rows.append((counter, f"{total:,}", names[most] if total else ""))
    return fill_table("Counters", ("counter", ">count", "most at"), rows)


def alarms_table(federation: Federation) -> Table:
    names = federation.names()
    rows: list[Row] = []
    for node in federation.nodes:
        if not node.reachable:
            rows.append(
                (names[node.id], "unreachable", f"the asked node has no path to it: {node.state}")
            )
        rows += [(names[node.id], *_alarm_cells(text)) for text in node.problems()]
    return fill_table("Alarms", ("node", "alarm", "text"), rows)


def _alarm_cells(text: str) -> tuple[str, str]:
    name, colon, rest = text.partition(": ")
    return (name, rest) if colon else ("no answer", text)


def node_tables(details: NodeSummary, names: Mapping[str, str]) -> RenderableType:
    """Return everything about one node."""
    facts = [
        ("id", details.node),
        ("version", details.version),
        ("broker", f"{details.broker.address} {_broker_state(details)}"),
        ("links listen on", details.link),
        ("certificate", _certificate(details.security)),
        ("interest", "installed" if details.interest.installed else "not installed everywhere yet"),
        ("captured, injected", _counts(details, CAPTURED, INJECTED)),
        ("dropped", f"{details.dropped:,}"),
        ("inbox", f"{details.delivery.inbox:,} publications wait for the broker"),
    ]
    tables = [
        fill_table(f"Node {details.name}", ("", ""), facts),
        fill_table(
            "Neighbours",
            ("node", ">RTT ms", ">bytes in", ">bytes out", ">waiting", ">dropped"),
            [
                (
                    shown_names((node,), names),
                    "" if link.rtt_ms is None else f"{link.rtt_ms:.2f}",
                    f"{link.bytes_in:,}",
                    f"{link.bytes_out:,}",
                    f"{link.outstanding_bytes:,}",
                    f"{link.dropped:,}",
                )
                for node, link in sorted(
                    details.neighbours.items(), key=lambda item: shown_names((item[0],), names)
                )
            ],
        ),
        fill_table(
            "Neighbours not reached", ("address", "why"), sorted(details.not_reached.items())
        ),
        fill_table(
            "Filters of clients",
            ("filter",),
            [(name,) for name in details.local_filters[:FILTERS_SHOWN_MAX]],
        ),
        fill_table(
            "Pending at receivers",
            ("receiver", ">publications"),
            [
                (shown_names((node,), names), f"{count:,}")
                for node, count in sorted(details.delivery.pending.items())
                if count
            ],
        ),
        fill_table(
            "Gaps",
            ("origin", "positions", "reason"),
            [_gap(g, names) for g in details.delivery.gaps],
        ),
        fill_table(
            "Counters",
            ("counter", ">count"),
            [(name, f"{count:,}") for name, count in sorted(details.counters.items())],
        ),
        fill_table("Alarms", ("alarm", "text"), sorted(details.alarms.items())),
    ]
    filters = tables[3]
    if details.interest.filters > filters.row_count:
        filters.caption = f"{details.interest.filters - filters.row_count:,} more"
        filters.caption_justify = "left"
    return Group(*(made for made in tables if made.row_count))


def _broker_state(details: NodeSummary) -> str:
    if not details.broker.connected:
        return f"not connected: {details.broker.problem}"
    if not details.broker.observer_complete:
        return f"connected; some subscriptions may be unknown: {details.broker.observer_problem}"
    return "connected"


def _certificate(security: Mapping[str, Any] | None) -> str:
    if security is None:
        return "none: links are neither authenticated nor encrypted"
    return f"federation {security.get('federation')}, valid until {security.get('valid_until')}"


def _counts(details: NodeSummary, *counters: str) -> str:
    return ", ".join(f"{details.counters.get(name, 0):,}" for name in counters)


def _gap(gap: Mapping[str, Any], names: Mapping[str, str]) -> Row:
    origin = str(gap.get("origin", ""))
    positions = f"{gap.get('first')} to {gap.get('last')}"
    return shown_names((origin,), names), positions, str(gap.get("reason", ""))


def trace_table(trace: Trace) -> RenderableType:
    rows: list[Row] = []
    for hop in trace.hops:
        style = "green" if hop.delivered else "dim" if hop.duplicate else ""
        arrow = "published" if hop.from_name is None else f"from {hop.from_name}"
        rows.append((str(hop.hop), Text(hop.name, style), arrow, "\n".join(hop.reasons)))
    made = fill_table(
        f"{trace.topic} published at {trace.origin_name} (dry run)",
        (">hop", "node", "copy", "decision"),
        rows,
    )
    names = ", ".join(node.name for node in trace.delivered)
    lines = [Text(f"delivered at: {names}" if names else "delivered at no other broker", "bold")]
    lines += [
        Text(
            f"not at {node.name}, which subscribes to {', '.join(node.filters)}: {node.reason}",
            "red",
        )
        for node in trace.missed
    ]
    if not trace.is_complete:
        lines.append(Text("incomplete: a node gave no answer", "red"))
    return Group(made, *lines)


def real_trace_table(trace: Trace, real: RealTrace) -> RenderableType:
    rows: list[Row] = []
    for hop in real.hops:
        style = "green" if hop.delivered_ms is not None else "dim" if hop.duplicate else ""
        arrow = "published" if hop.from_name is None else f"from {hop.from_name}"
        since = f"{hop.at_ms:.2f}" + (f" ± {hop.error_ms:.2f}" if hop.error_ms else "")
        rows.append((str(hop.hop), Text(hop.name, style), arrow, since, _inside(hop)))
    made = fill_table(
        f"{trace.topic} published at {trace.origin_name} (real message)",
        (">hop", "node", "copy", ">ms since publication", "ms within the node, on its own clock"),
        rows,
    )
    names = ", ".join(node.name for node in real.delivered)
    lines = [Text(f"delivered at: {names}" if names else "delivered at no other broker", "bold")]
    lines += [Text(f"not at {node.name}", "red") for node in real.missed]
    lines += [Text(f"{node.name}: {node.reason}", "red") for node in real.problems]
    if real.payload:
        lines.append(Text(f"Subscribers of {trace.topic} received {real.payload!r}."))
        lines.append(
            Text(
                f"Times since publication compare clocks by questions of {real.clock_of}; ± is the"
                " largest error.",
                "dim",
            )
        )
    return Group(made, *lines)


def _inside(hop: RealHop) -> str:
    """Return what a node did with a copy, and how long after it arrived."""
    if hop.duplicate:
        return "another copy came before"
    found = [] if hop.captured_ms is None else [f"from the broker {hop.captured_ms:.2f}"]
    found += [
        f"to {copy.name}" + ("" if copy.after_ms is None else f" {copy.after_ms:.2f}")
        for copy in hop.to
    ]
    if hop.delivered_ms is not None:
        found.append(f"to the broker {hop.delivered_ms:.2f}")
    return ", ".join(found) or "no copy sent, not delivered"
