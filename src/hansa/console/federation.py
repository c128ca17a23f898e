"""The documents of `/federation` and `/trace`, checked once; unknown fields are ignored."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from hansa.console.admin_client import AdminClient
from hansa.console.node_answers import NodeSummary
from hansa.errors import UsageError
from hansa.printable import printable_json

ID_DIGITS = 6
"""Shown digits of the id of a node."""

CAPTURED, INJECTED = "captured", "injected"
"""Counters of publications taken from and given to a broker."""


class NodeInfo(msgspec.Struct, frozen=True):
    """One node, as the asked agent knows it."""

    id: str
    name: str
    reachable: bool
    addresses: tuple[str, ...] = ()
    absent_s: float | None = None
    problem: str = ""
    """Why there is no summary."""
    summary: NodeSummary | None = None
    asked_ms: float = 0.0
    """How long its answer took."""

    @property
    def state(self) -> str:
        if not self.reachable:
            return f"down {_duration(self.absent_s)}".strip()
        if self.summary is None:
            return "no answer"
        return "up" if self.summary.broker.connected else "no broker"

    def problems(self) -> list[str]:
        """Return everything that is wrong, in one line each."""
        summary = self.summary
        if summary is None:
            return [self.problem] if self.reachable and self.problem else []
        found = [f"{name}: {text}" for name, text in summary.alarms.items()]
        if summary.problem and not any(summary.problem in text for text in found):
            found.insert(0, f"broker: {summary.problem}")
        if not summary.neighbours:  # otherwise the nodes that are not reached are listed themselves
            found += (f"not reached: {to}: {why}" for to, why in summary.not_reached.items())
        return [*found, *(f"link refused: {reason}" for reason in summary.refused)]


class LinkInfo(msgspec.Struct, frozen=True):
    a: str
    b: str
    rtt_ms: float
    two_way: bool
    lost: bool = False
    """Whether only nodes report it that cannot be reached any more."""

    @property
    def state(self) -> str:
        if self.lost:
            return "down"
        return "up" if self.two_way else "one side only"


class Federation(msgspec.Struct, frozen=True):
    """All nodes and links."""

    asked: str
    nodes: tuple[NodeInfo, ...]
    links: tuple[LinkInfo, ...]

    def names(self) -> dict[str, str]:
        """Return the shown name of each node: its name, with some digits of its id if another node
        has the same one."""
        counts = Counter(node.name for node in self.nodes)
        return {
            node.id: node.name
            if node.name and counts[node.name] == 1
            else f"{node.name} ({node.id[:ID_DIGITS]})".strip()
            for node in self.nodes
        }

    def summaries(self) -> dict[str, NodeSummary]:
        return {node.id: node.summary for node in self.nodes if node.summary is not None}


class TraceNode(msgspec.Struct, frozen=True):
    node: str
    name: str
    reason: str = ""
    filters: tuple[str, ...] = ()


class TraceHop(msgspec.Struct, frozen=True):
    node: str
    name: str
    hop: int
    reasons: tuple[str, ...]
    delivered: bool
    duplicate: bool
    to: tuple[TraceNode, ...]
    from_name: str | None = None


class SentCopy(msgspec.Struct, frozen=True):
    name: str
    after_ms: float | None = None


class RealHop(msgspec.Struct, frozen=True):
    """One arrival of a marked publication; times in milliseconds."""

    name: str
    hop: int
    at_ms: float
    error_ms: float
    duplicate: bool
    to: tuple[SentCopy, ...]
    from_name: str | None = None
    captured_ms: float | None = None
    delivered_ms: float | None = None


class RealTrace(msgspec.Struct, frozen=True):
    payload: str
    clock_of: str
    hops: tuple[RealHop, ...]
    delivered: tuple[TraceNode, ...]
    missed: tuple[TraceNode, ...]
    problems: tuple[TraceNode, ...]


class Trace(msgspec.Struct, frozen=True):
    topic: str
    origin_name: str
    hops: tuple[TraceHop, ...]
    delivered: tuple[TraceNode, ...]
    missed: tuple[TraceNode, ...]
    is_complete: bool
    real: RealTrace | None = None


def fetch_federation(client: AdminClient) -> tuple[Any, Federation]:
    """Return the document of all nodes, raw and checked."""
    document = client.get("/federation")
    return document, check(document, Federation)


def start_fetching(client: AdminClient) -> Future[Federation]:
    """Fetch in a thread that does not keep the process from ending, as those of an executor do."""
    fetched: Future[Federation] = Future()

    def fetch() -> None:
        try:
            fetched.set_result(fetch_federation(client)[1])
        except BaseException as error:  # noqa: BLE001  raised again by `result`
            fetched.set_exception(error)

    threading.Thread(target=fetch, daemon=True).start()
    return fetched


T = TypeVar("T")


def check(document: Any, kind: type[T]) -> T:
    """Return a document as values with printable texts; raise UsageError if it has another form."""
    try:
        return msgspec.convert(printable_json(document), kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(
            f"the answer of the agent cannot be read ({error}): does it run another version?"
        ) from error


def sorted_links(federation: Federation) -> list[LinkInfo]:
    """Return the links, and the two ends of each, in the order of the nodes' names."""
    names = federation.names()

    def in_order(link: LinkInfo) -> LinkInfo:
        a, b = sorted((link.a, link.b), key=names.__getitem__)
        return msgspec.structs.replace(link, a=a, b=b)

    links = map(in_order, federation.links)
    return sorted(links, key=lambda link: (names[link.a], names[link.b]))


def shown_names(nodes: Iterable[str], names: Mapping[str, str]) -> str:
    return " ".join(sorted(names.get(node) or node[:ID_DIGITS] for node in nodes))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
