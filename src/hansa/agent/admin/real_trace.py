"""A real trace: one marked publication, and the reports of all agents that met it.

Every reachable agent is asked to watch for the marker; then the agent of the origin publishes.
The copies are followed from report to report until each copy that was sent has been received, or
the time is over. Then the agents are told to end their watches, so that the next trace finds a
place.

Each agent measures on its own clock. Durations within one agent are exact. Times since the
publication compare two clocks: the asking agent estimates the difference from the time of its
questions, as NTP does, and says how large the error can be.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from hansa.agent.admin.status import format_node_id
from hansa.agent.admin.trace_watch import MARKER_CHARS, PAYLOAD_BEGIN
from hansa.agent.admin.tracing import Ask, name_of
from hansa.agent.queries import QueryFailed
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node

REPORTS_S = 3.0
"""Longest wait for the reports after the publication."""

POLL_S = 0.1
"""Seconds between two questions to the agents whose report is incomplete: less than the rate at
which they answer."""

ASKED_AT_ONCE_MAX = 64


class _Report(msgspec.Struct, frozen=True):
    """What an agent has noted; times in microseconds since its watch began."""

    now: int
    problem: str = ""
    published: int | None = None
    captured: int | None = None
    delivered: int | None = None
    broker_problem: str = ""
    received: tuple[tuple[NodeId | None, int, int], ...] = ()
    sent: tuple[tuple[NodeId | None, int], ...] = ()


_NO_REPORT = _Report(0)


class _RealTrace:
    def __init__(self, node: Node, ask: Ask, topic: str, origin: NodeId) -> None:
        self._node = node
        self._ask = ask
        self._topic = topic
        self._origin = origin
        self._marker = secrets.token_hex(MARKER_CHARS // 2)
        self._reports: dict[NodeId, _Report] = {}
        self._problems: dict[NodeId, str] = {}
        self._clocks: dict[NodeId, tuple[float, float]] = {}
        """Per agent: its clock at our time 0, and the largest error, in microseconds."""

    async def run(self) -> dict[str, object]:
        try:
            await _for_each(list(self._node.membership.reachable), self._watch)
            if self._origin not in self._problems:
                await self._question(self._origin, "trace_publish", topic=self._topic)
            if self._origin not in self._problems:
                await self._collect()
        finally:
            await _for_each(list(self._reports), self._end)
        return self._document()

    async def _watch(self, node: NodeId) -> None:
        await self._question(node, "trace_watch")

    async def _end(self, node: NodeId) -> None:
        with suppress(QueryFailed, ValueError):  # then the watch ends by itself
            await self._ask(node, {"ask": "trace_end", "marker": self._marker})

    async def _question(self, node: NodeId, ask: str, **more: str) -> None:
        """Ask a node, and keep its report and the difference of the clocks."""
        began = time.monotonic()
        try:
            answer = await self._ask(node, {"ask": ask, "marker": self._marker, **more})
            report = msgspec.convert(answer, _Report)
        except (QueryFailed, ValueError) as failed:  # also msgspec.ValidationError
            self._problems[node] = str(failed)
            return
        ended = time.monotonic()
        difference = report.now - 1e6 * (began + ended) / 2
        error = 1e6 * (ended - began) / 2 if node != self._node.id else 0.0
        if node not in self._clocks or error < self._clocks[node][1]:
            self._clocks[node] = (difference, error)
        self._reports[node] = report
        if report.problem:
            self._problems[node] = report.problem

    async def _collect(self) -> None:
        """Ask along the copies until all of them have arrived."""
        deadline = time.monotonic() + REPORTS_S
        while time.monotonic() < deadline and (waiting := self._incomplete()):
            await asyncio.gather(*(self._question(node, "trace_report") for node in waiting))
            await asyncio.sleep(POLL_S)

    def _incomplete(self) -> list[NodeId]:
        """Return the nodes whose report must still change: the origin until it has captured the
        publication, receivers of copies until they have received all."""
        if self._reports[self._origin].captured is None:
            found = [self._origin]
        else:
            found = [node for node, missing in self._copies_in_flight().items() if missing > 0]
        return [node for node in found if node not in self._problems]

    def _copies_in_flight(self) -> Counter[NodeId]:
        """Copies sent to each node less those received by it."""
        copies: Counter[NodeId] = Counter()
        for node, report in self._reports.items():
            copies.update(to for to, _ in report.sent if to is not None)
            copies.subtract({node: len(report.received)})
        return copies

    # ------------------------------------------------------------ the document

    def _document(self) -> dict[str, object]:
        origin = self._reports.get(self._origin, _NO_REPORT)
        hops = [self._first_hop(origin)] if origin.published is not None else []
        arrivals = [
            (hop, format_node_id(node), index, node)
            for node, report in self._reports.items()
            for index, (_, hop, _) in enumerate(report.received)
        ]
        hops += [self._hop(node, index) for _, _, index, node in sorted(arrivals)]
        return {
            "payload": (PAYLOAD_BEGIN.decode() + self._marker) if hops else "",
            "clock_of": name_of(self._node.membership.known, self._node.id),
            "hops": hops,
            "delivered": [
                self._named(node) for node, report in self._reports.items() if _is_delivered(report)
            ],
            "problems": [
                {**self._named(node), "reason": reason} for node, reason in self._all_problems()
            ],
        }

    def _all_problems(self) -> list[tuple[NodeId, str]]:
        origin = self._reports.get(self._origin, _NO_REPORT)
        found = list(self._problems.items())
        if origin.published is not None and origin.captured is None:
            reason = (
                "published, but the agent did not get it from its broker: no other node subscribes,"
                " the subscription is not granted yet, or the ACL of the broker forbids the topic"
            )
            found.append((self._origin, reason))
        for node, report in self._reports.items():
            if report.broker_problem:
                found.append((node, f"received, but not delivered: {report.broker_problem}"))
        found += [
            (node, f"{missing} of the copies sent to it did not arrive within {REPORTS_S:.0f} s")
            for node, missing in self._copies_in_flight().items()
            if missing > 0 and node not in self._problems
        ]
        return found

    def _first_hop(self, origin: _Report) -> dict[str, object]:
        assert origin.published is not None
        return {
            **self._named(self._origin),
            "hop": 0,
            "from_name": None,
            "at_ms": 0.0,
            "error_ms": 0.0,
            "captured_ms": _milliseconds(origin.published, origin.captured),
            "duplicate": False,
            **self._onward(origin, origin.captured),
        }

    def _hop(self, node: NodeId, index: int) -> dict[str, object]:
        """Return an arrival; the first of each node shows what the node did with it."""
        report = self._reports[node]
        sender, hop, received = report.received[index]
        known = self._node.membership.known
        onward = self._onward(report, received) if index == 0 else self._onward(_NO_REPORT, None)
        return {
            **self._named(node),
            "hop": hop,
            "from_name": "a link that has closed" if sender is None else name_of(known, sender),
            **self._since_publication(node, received),
            "captured_ms": None,
            "duplicate": index > 0,
            **onward,
        }

    def _onward(self, report: _Report, since: int | None) -> dict[str, object]:
        known = self._node.membership.known
        return {
            "to": [
                {
                    "name": "a link that has closed" if node is None else name_of(known, node),
                    "after_ms": _milliseconds(since, sent),
                }
                for node, sent in report.sent
            ],
            "delivered_ms": _milliseconds(since, report.delivered)
            if _is_delivered(report)
            else None,
        }

    def _since_publication(self, node: NodeId, at: int) -> dict[str, float]:
        origin = self._reports[self._origin]
        assert origin.published is not None
        (here, error), (there, origin_error) = self._clocks[node], self._clocks[self._origin]
        elapsed = (at - here) - (origin.published - there)
        both = error + origin_error if node != self._origin else 0.0
        return {"at_ms": round(elapsed / 1000, 3), "error_ms": round(both / 1000, 3)}

    def _named(self, node: NodeId) -> dict[str, object]:
        known = self._node.membership.known
        return {"node": format_node_id(node), "name": name_of(known, node)}


async def _for_each(nodes: Iterable[NodeId], ask: Callable[[NodeId], Awaitable[None]]) -> None:
    slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def ask_in_turn(node: NodeId) -> None:
        async with slots:
            await ask(node)

    await asyncio.gather(*map(ask_in_turn, nodes))


def _is_delivered(report: _Report) -> bool:
    return report.delivered is not None and not report.broker_problem


def _milliseconds(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else round((end - begin) / 1000, 3)


async def trace_publication(
    node: Node, ask: Ask, topic: str, origin: NodeId, dry: Mapping[str, Any]
) -> dict[str, object]:
    """Publish at `origin` and follow the publication; `dry` is the dry run, which says who is
    interested. Return both."""
    real = await _RealTrace(node, ask, topic, origin).run()
    reached = {each["node"] for each in real["delivered"]}  # type: ignore[attr-defined]
    interested = [*dry["delivered"], *dry["missed"]]
    real["missed"] = [
        {"node": each["node"], "name": each["name"]}
        for each in interested
        if each["node"] not in reached
    ]
    return {**dry, "real": real}
