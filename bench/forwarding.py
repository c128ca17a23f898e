"""Cost of one forwarding decision, by number of filters."""

import time
from collections.abc import Callable

from bench.console import say
from hansa.protocol.clock import WallClock
from hansa.protocol.forwarding.dedup import DuplicateFilter
from hansa.protocol.forwarding.table import Forwarder, ForwardingTable, GroupEntry
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.settings import NonMemberForwarding
from hansa.protocol.topics import FilterTrie

SECONDS = 0.5
SENDER = LinkId(1)


def measure() -> dict[str, object]:
    """Forwarding decisions per second, compared with one dictionary look-up in the same run."""
    bare = _bare_look_up()
    say("a bare dictionary look-up", f"{bare:12,.0f} /s")
    answers: dict[str, object] = {"dictionary_look_ups_per_s": round(bare)}
    for filters in (1, 1_000, 100_000):
        table = _table(filters)
        cached = _decisions(table, topics=1)
        uncached = _decisions(table, topics=filters, forget=True)
        answers[f"cached_{filters}_per_s"] = round(cached)
        answers[f"uncached_{filters}_per_s"] = round(uncached)
        say(f"{filters:>7,} filters, topic seen before", _rate(cached, bare))
        say(f"{filters:>7,} filters, topic new", _rate(uncached, bare))
    return answers


def _rate(rate: float, bare: float) -> str:
    return f"{rate:12,.0f} /s  {1e6 / rate:6.2f} µs  {rate / bare:.3f} of a look-up"


def _table(filters: int) -> ForwardingTable:
    table = ForwardingTable(FilterTrie(), plans_max=1 << 20, drain_changes=list)
    for number in range(filters):
        table.put(GroupEntry(_filter(number), True, mesh_links=(LinkId(1), LinkId(2), LinkId(3))))
    return table


def _filter(number: int) -> str:
    return f"site/{number % 100}/line/{number // 100 % 100}/sensor/{number}"


def _records(node: NodeId) -> dict[NodeId, NodeRecord]:
    return {node: NodeRecord(node, 1, 1, 1, b"", "", (), 1.0, ())}


def _decisions(table: ForwardingTable, topics: int, forget: bool = False) -> float:
    """Decide for copies that arrive from a neighbour, each new, over so many topics."""
    forwarder = Forwarder(
        table, DuplicateFilter(4096, _records(NodeId(7)), WallClock(1)), NonMemberForwarding.ONE
    )
    copies = [_copy(1 + n, _filter(n % topics)) for n in range(20_000)]

    def decide() -> int:
        if forget:
            for copy in copies[:2_000]:
                table.clear_plans()
                forwarder.copies_of_received(copy, SENDER)
            return 2_000
        for copy in copies:
            forwarder.copies_of_received(copy, SENDER)
        return len(copies)

    return _per_second(decide)


def _copy(number: int, topic: str) -> Publication:
    return Publication(NodeId(7), 1, number, 0, topic, b"x" * 64)


def _bare_look_up() -> float:
    table = {_filter(n): n for n in range(1_000)}
    names = [_filter(n % 1_000) for n in range(20_000)]

    def look_up() -> int:
        for name in names:
            table.get(name)
        return len(names)

    return _per_second(look_up)


def _per_second(work: Callable[[], int]) -> float:
    work()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        done += work()
    return done / (time.perf_counter() - began)
