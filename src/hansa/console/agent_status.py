"""The status of agents: fetched from `/status`, parsed, and rendered as tables.

A response is parsed and checked once, into an `AgentStatus`; unknown fields are ignored. An agent
without an answer becomes a `StatusResponse` with a problem; if no agent answers: UsageError.
The tables are those of the console of Machado 2023: federation, neighbours, topics with their core.
"""

import json
import urllib.error
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hansa import web
from hansa.console.terminal import make_table
from hansa.errors import UsageError
from hansa.printable import printable_json

ANSWER_TIMEOUT_S = 5.0
RESPONSE_BYTES_MAX = 64 << 20
READERS_MAX = 16
ROWS_MAX = 60
"""Rows of one table; `--json` prints all."""
FILTERS_SHOWN_MAX = 6
"""Filters in one cell."""
ID_DIGITS = 6
"""Shown digits of the id of a node without a known name."""
INCOMPLETE = "observer incomplete"
"""The alarm of an agent that may not know every subscription at its broker."""
ROOT_NAME = "(federation)"
"""Shown name of the management group, whose topic is empty."""

Rates = Mapping[tuple[str, str], float]
"""Growth per second, by URL and counter."""


class BrokerInfo(msgspec.Struct, frozen=True):
    address: str
    connected: bool
    problem: str = ""
    observer_complete: bool = True
    observer_problem: str = ""
    """Why subscriptions may be unknown; empty if none are."""


class NeighbourInfo(msgspec.Struct, frozen=True):
    rtt_ms: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0


class CoreInfo(msgspec.Struct, frozen=True):
    distance: int


class GroupInfo(msgspec.Struct, frozen=True):
    core: str | None
    member: bool
    interested_nodes: tuple[str, ...]
    parents: tuple[str, ...]
    children: tuple[str, ...]


class InterestInfo(msgspec.Struct, frozen=True):
    local: tuple[str, ...]
    installed: bool
    """Whether every reachable node has acknowledged it."""
    wide: tuple[str, ...] = ()
    """Filters announced because some subscriptions may be unknown."""


class AgentStatus(msgspec.Struct, frozen=True):
    """The fields of `/status` that the tables show."""

    name: str
    node: str
    incarnation: int
    broker: BrokerInfo
    neighbours: dict[str, NeighbourInfo]
    reachable_nodes: tuple[str, ...]
    cores: dict[str, CoreInfo]
    groups: dict[str, GroupInfo]
    interest: InterestInfo
    counters: dict[str, int]
    names: dict[str, str] = {}
    """Names of members by id, also of those whose status was not fetched."""
    version: str = ""
    refused: tuple[str, ...] = ()
    """Reasons of recently refused links."""
    alarms: dict[str, str] = {}


class StatusResponse(msgspec.Struct, frozen=True):
    """The response of one agent, or why there is none."""

    url: str
    body: str = ""
    status: AgentStatus | None = None
    problem: str = ""


def status_urls(target: str) -> tuple[str, ...]:
    """Return the admin URLs that a target names: a URL, host:port, or a ready file."""
    path = Path(target)
    if path.is_file():
        return _from_ready_file(path)
    url = target if "://" in target else f"http://{target}"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UsageError(
            f"{target!r} is neither a ready file of `hansa up` nor the admin address of an agent,"
            " such as http://127.0.0.1:8080"
        )
    return (url.removesuffix("/").removesuffix("/status"),)


def fetch_all(urls: Sequence[str]) -> tuple[StatusResponse, ...]:
    """Fetch all statuses in parallel; raise UsageError if no agent answers."""
    with ThreadPoolExecutor(min(len(urls), READERS_MAX)) as readers:
        responses = tuple(readers.map(_fetch, urls))
    if all(response.problem for response in responses):
        raise UsageError(f"{responses[0].url}: {responses[0].problem}")
    return responses


def _from_ready_file(path: Path) -> tuple[str, ...]:
    try:
        urls = tuple(str(node["admin"]) for node in json.loads(path.read_text())["nodes"])
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a ready file of `hansa up`") from error
    if not urls:
        raise UsageError(f"{path} names no nodes")
    return urls


def _fetch(url: str) -> StatusResponse:
    try:
        # Agents are on the local network, which an HTTP proxy usually does not reach.
        data, _ = web.fetch(f"{url}/status", ANSWER_TIMEOUT_S, RESPONSE_BYTES_MAX, proxies=False)
        fields = json.loads(data)
        body = json.dumps(fields, indent=1, sort_keys=True) + "\n"  # ASCII, so safe to print
        fields = printable_json(fields)
        if isinstance(fields, dict) and fields.get("mode") == "mqtt-fed":
            return StatusResponse(
                url, problem=f'mode = "mqtt-fed": no tables for it, see {url}/status'
            )
        return StatusResponse(url, body, msgspec.convert(fields, AgentStatus, strict=False))
    except (ValueError, RecursionError, msgspec.ValidationError, HTTPException):
        return StatusResponse(url, problem="this is not the status of an agent")
    except urllib.error.HTTPError as error:
        return StatusResponse(
            url, problem=f"this is not the status of an agent (HTTP {error.code})"
        )
    except OSError as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason) or "unknown error"
        return StatusResponse(url, problem=f"no answer ({text}); is the agent running?")


def rates_between(
    before: Sequence[StatusResponse], after: Sequence[StatusResponse], seconds: float
) -> Rates:
    """Return the growth of each counter per second; a smaller value means a restarted agent."""
    old = {each.url: each.status.counters for each in before if each.status is not None}
    rates: dict[tuple[str, str], float] = {}
    for response in after:
        if response.status is None or response.url not in old or seconds <= 0:
            continue
        for counter, value in response.status.counters.items():
            was = old[response.url].get(counter, 0)
            rates[response.url, counter] = (value - was if value >= was else value) / seconds
    return rates


# ---------------------------------------------------------------- tables


def render_tables(
    responses: Sequence[StatusResponse], rates: Rates | None = None
) -> RenderableType:
    """Return all tables that have rows; `rates` adds a column to the counters."""
    statuses = [each.status for each in responses if each.status is not None]
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


def _nodes(responses: Sequence[StatusResponse], names: Mapping[str, str]) -> Table:
    made = make_table("node", "id", "broker", ">members", "interest", "problem")
    made.title, made.title_justify = "Federation", "left"
    for response in responses:
        status = response.status
        if status is None:
            made.add_row("?", "", "", "", "", Text(f"{response.url}: {response.problem}", "red"))
            continue
        made.add_row(
            Text(status.name),
            Text(_short(status.node)),
            Text(status.broker.address),
            str(len(status.reachable_nodes)),
            "installed" if status.interest.installed else "pending",
            Text("\n".join(_problems(status)), "red"),
        )
    statuses = [each.status for each in responses if each.status is not None]
    members = {member for status in statuses for member in status.reachable_nodes}
    unseen = sorted(members - {status.node for status in statuses})
    if unseen:
        made.caption = Text(f"also members: {_names(unseen, names)}")
        made.caption_justify = "left"
    return made


def _problems(status: AgentStatus) -> Iterator[str]:
    if not status.broker.connected:
        yield f"broker: {status.broker.problem or 'not connected'}"
    elif not status.broker.observer_complete and INCOMPLETE not in status.alarms:
        yield f"{INCOMPLETE}: {status.broker.observer_problem}"
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
    made = make_table(
        "topic", "core", "interested nodes", "node", ">distance", "parents", "children"
    )
    made.title, made.title_justify = "Topics", "left"
    rows = []
    for topic in sorted({topic for status in statuses for topic in status.groups}):
        knowing = [status for status in statuses if topic in status.groups]
        members = [status for status in knowing if status.groups[topic].member]
        rows += [_topic(topic, status, names) for status in members or knowing[:1]]
    return _fill_table(made, rows)


def _topic(topic: str, status: AgentStatus, names: Mapping[str, str]) -> tuple[str, ...]:
    group = status.groups[topic]
    core = status.cores.get(group.core) if group.core is not None else None
    return (
        topic or ROOT_NAME,
        "none yet" if group.core is None else _name(group.core, names),
        _names(group.interested_nodes, names),
        status.name if group.member else f"{status.name}, not a member",
        "" if core is None else str(core.distance),
        _names(group.parents, names),
        _names(group.children, names),
    )


def _interest(statuses: Sequence[AgentStatus]) -> Table:
    made = make_table("node", ">filters", "local filters", "installed elsewhere")
    made.title, made.title_justify = "Interest", "left"
    rows = []
    for status in statuses:
        local = status.interest.local
        more = f" … {len(local) - FILTERS_SHOWN_MAX} more" if len(local) > FILTERS_SHOWN_MAX else ""
        wide = ", ".join(status.interest.wide)
        unknown = f"; others may be unknown, so it announces {wide}" if wide else ""
        shown = ", ".join(local[:FILTERS_SHOWN_MAX]) + more + unknown
        rows.append(
            (status.name, f"{len(local):,}", shown, "yes" if status.interest.installed else "no")
        )
    return _fill_table(made, rows)


def _counters(statuses: Sequence[AgentStatus], rates: Rates | None) -> Table:
    """Return the sum of each counter over all nodes, and the node with the largest count."""
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
            rate = sum(rate for (_, name), rate in rates.items() if name == counter)
            row.insert(2, f"{rate:,.0f}")
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
