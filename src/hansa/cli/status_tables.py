"""The console of Machado 2023 as tables: federation, neighbours, topics with their core. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hansa.cli.status_client import AgentStatus, StatusResponse
from hansa.terminal import make_table

ROWS_MAX = 60
"""Rows of one table; `--json` has them all."""
FILTERS_SHOWN_MAX = 6
"""Filters in one cell."""
ID_DIGITS = 6
"""Of a node's id that is not among the pages: enough to tell nodes apart, and to find its log."""
INCOMPLETE = "observer incomplete"
"""The alarm of an agent that may not know every subscription at its broker."""
ROOT_NAME = "(federation)"
"""What the group that every node is a member of is called."""

Rates = Mapping[tuple[str, str], float]
"""Per page and counter: how much a second."""


def render_tables(
    responses: Sequence[StatusResponse], rates: Rates | None = None
) -> RenderableType:
    """Return all tables."""
    statuses = [page.status for page in responses if page.status is not None]
    names = {node: name for status in statuses for node, name in status.names.items()}
    names |= {status.node: status.name for status in statuses}
    tables = (
        _nodes(responses, names),
        _links(statuses, names),
        _topics(statuses, names),
        _interest(statuses),
        _counters(statuses, rates),
    )
    return Group(*(made for made in tables if made.row_count))


def _nodes(pages: Sequence[StatusResponse], names: Mapping[str, str]) -> Table:
    made = make_table("node", "id", "broker", ">members", "interest", "trouble")
    made.title, made.title_justify = "Federation", "left"
    for page in pages:
        if page.status is None:
            made.add_row("?", "", "", "", "", Text(f"{page.url}: {page.problem}", "red"))
            continue
        status = page.status
        made.add_row(
            Text(status.name),
            Text(_short(status.node)),
            Text(status.broker.address),
            str(len(status.members)),
            "in force everywhere" if status.interest.installed else "on its way",
            Text("\n".join(_problems(status)), "red"),
        )
    statuses = [page.status for page in pages if page.status is not None]
    members = {member for status in statuses for member in status.members}
    unseen = sorted(members - {status.node for status in statuses})
    if unseen:
        made.caption = Text(f"also members: {_names(unseen, names)}")
        made.caption_justify = "left"
    return made


def _problems(status: AgentStatus) -> Iterator[str]:
    if not status.broker.connected:
        yield f"broker: {status.broker.problem or 'not connected'}"
    elif not status.broker.observed and INCOMPLETE not in status.alarms:
        yield f"{INCOMPLETE}: {status.broker.unobserved}"
    yield from (f"link refused: {reason}" for reason in status.refused)
    alarms = status.alarms.items()
    yield from (f"{name}: {text}" for name, text in alarms if text != status.broker.problem)


def _links(statuses: Sequence[AgentStatus], names: Mapping[str, str]) -> Table:
    made = make_table("node", "neighbour", ">RTT ms", ">bytes in", ">bytes out")
    made.title, made.title_justify = "Neighbours", "left"
    rows = [
        (
            status.name,
            _name(node, names),
            "" if link.rtt_ms is None else f"{link.rtt_ms:.2f}",
            f"{link.bytes_in:,}",
            f"{link.bytes_out:,}",
        )
        for status in statuses
        for node, link in sorted(status.neighbours.items(), key=lambda i: _name(i[0], names))
    ]
    return _fill_table(made, rows)


def _topics(statuses: Sequence[AgentStatus], names: Mapping[str, str]) -> Table:
    made = make_table("topic", "core", "wanted at", "node", ">distance", "parents", "children")
    made.title, made.title_justify = "Topics", "left"
    rows = []
    for topic in sorted({topic for status in statuses for topic in status.groups}):
        seeing = [status for status in statuses if topic in status.groups]
        members = [status for status in seeing if status.groups[topic].member]
        rows += [_topic(topic, status, names) for status in members or seeing[:1]]
    return _fill_table(made, rows)


def _topic(topic: str, status: AgentStatus, names: Mapping[str, str]) -> tuple[str, ...]:
    seen = status.groups[topic]
    way = status.cores.get(seen.core) if seen.core is not None else None
    return (
        topic or ROOT_NAME,
        "none yet" if seen.core is None else _name(seen.core, names),
        _names(seen.interested_nodes, names),
        status.name if seen.member else f"{status.name}, no member",
        "" if way is None else str(way.distance),
        _names(seen.parents, names),
        _names(seen.children, names),
    )


def _interest(statuses: Sequence[AgentStatus]) -> Table:
    made = make_table("node", ">filters", "wanted by clients here", "in force elsewhere")
    made.title, made.title_justify = "Interest", "left"
    rows = []
    for status in statuses:
        local = status.interest.local
        more = f" … {len(local) - FILTERS_SHOWN_MAX} more" if len(local) > FILTERS_SHOWN_MAX else ""
        wide = ", ".join(status.interest.wide)
        unknown = f"; others may be unknown: asks for {wide}" if wide else ""
        shown = ", ".join(local[:FILTERS_SHOWN_MAX]) + more + unknown
        rows.append(
            (status.name, f"{len(local):,}", shown, "yes" if status.interest.installed else "no")
        )
    return _fill_table(made, rows)


def _counters(statuses: Sequence[AgentStatus], rates: Rates | None) -> Table:
    """Return one row per counter, all nodes together, and where most of it was counted."""
    columns = ("counter", ">count", ">per second", "most at")
    made = make_table(*(c for c in columns if rates is not None or c != ">per second"))
    made.title, made.title_justify = "Counters", "left"
    totals: Counter[str] = Counter()
    for status in statuses:
        totals.update(status.counters)
    rows = []
    for counter, total in sorted(totals.items()):
        most = max(statuses, key=lambda s: s.counters.get(counter, 0))
        row = [counter, f"{total:,}", most.name if total else ""]
        if rates is not None:
            grown = sum(rate for (_, name), rate in rates.items() if name == counter)
            row.insert(2, f"{grown:,.0f}")
        rows.append(tuple(row))
    return _fill_table(made, rows)


def _fill_table(made: Table, rows: Sequence[tuple[str, ...]]) -> Table:
    for row in rows[:ROWS_MAX]:
        made.add_row(*(Text(cell) for cell in row))
    if len(rows) > ROWS_MAX:
        made.caption = f"{len(rows) - ROWS_MAX} more; --json has all"
        made.caption_justify = "left"
    return made


def _name(node: str, names: Mapping[str, str]) -> str:
    return names.get(node) or _short(node)


def _names(nodes: Iterable[str], names: Mapping[str, str]) -> str:
    return " ".join(sorted(_name(node, names) for node in nodes))


def _short(node: str) -> str:
    return node[:ID_DIGITS]
