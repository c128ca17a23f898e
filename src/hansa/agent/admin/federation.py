"""The whole federation, collected by one agent: `/federation`, `/nodes`, `/trace`, `/history` and
`/retained`.

Every node knows all nodes and links. Traffic, alarms, deliveries and counters are asked from each
node over the overlay when a client asks this agent, and are never older than `FRESH_S`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from hansa.agent.admin.overview import describe_answer, node_overview, overview_links
from hansa.agent.admin.real_trace import trace_publication
from hansa.agent.admin.retained import compare_retained, list_retained
from hansa.agent.admin.server import HttpResponse, json_response
from hansa.agent.admin.status import format_node_id
from hansa.agent.admin.trace_watch import TraceWatches, check_traceable
from hansa.agent.admin.tracing import answer_trace, name_of, trace_topic
from hansa.agent.queries import QueryFailed, QueryService, Question
from hansa.protocol.effects import QueryReceived, QueryResponseReceived
from hansa.protocol.events import QueryAnswered, QueryRequested
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node

FRESH_S = 0.5
"""Requests within this time get the same document, so that ten open pages cost as much as one."""

ASKED_AT_ONCE_MAX = 64
"""Nodes that are asked at the same time."""

EVENTS_PER_NODE = 100
"""Events of one node in the history of the federation."""

Describe = Callable[[], object]


class FederationView:
    """Answers about all nodes; and answers the questions of other agents about this one."""

    def __init__(
        self,
        node: Node,
        feed: Callable[[QueryRequested | QueryAnswered], None],
        describers: Mapping[str, Describe],
        trace_watches: TraceWatches,
        answers_observers: bool = False,
    ) -> None:
        """`feed` passes an event to the node. `describers` answer the questions without parameters:
        `summary` in a few kilobytes, `details` with filters, `history` with the last events.
        `answers_observers`: whether nodes with the role observe get answers."""
        self._node = node
        self._describers = describers
        self._trace_watches = trace_watches
        self._answers_observers = answers_observers
        self._queries = QueryService(feed, self._answer, time.monotonic, self._may_ask)
        self._collected: tuple[float, asyncio.Task[dict[str, object]]] | None = None

    @property
    def counters(self) -> Counter[str]:
        """Counters of questions of other agents."""
        return self._queries.counters

    def perform(self, effect: QueryReceived | QueryResponseReceived) -> None:
        """Answer a question of another agent, or take the answer to our question."""
        self._queries.perform(effect)

    def _answer(self, question: Question, source: NodeId) -> object:
        """Answer another agent; raise ValueError for a question that this version does not know."""
        match question.get("ask"):
            case "trace":
                return answer_trace(self._node, question)
            case "trace_watch" | "trace_publish" | "trace_report" | "trace_end":
                return self._trace_watches.answer(question, source)
            case "retained":
                return list_retained(self._node.delivery.retained, question)
            case str(other) if other in self._describers:
                return self._describers[other]()
            case other:
                raise ValueError(f"this agent does not know the question {str(other)[:32]!r}")

    def _may_ask(self, node: NodeId) -> bool:
        """Whether the role of a node allows it to ask: an observer only receives publications."""
        return self._answers_observers or self._node.membership.rights_of(node).may_relay

    # ------------------------------------------------------------ HTTP

    def routes(self) -> dict[str, Callable[[str, str, Mapping[str, str]], Any]]:
        """Return the handler of each path."""
        return {
            "/federation": self._handle_federation,
            "/nodes": self._handle_node,
            "/trace": self._handle_trace,
            "POST /trace": self._handle_real_trace,
            "/history": self._handle_history,
            "/retained": self._handle_retained,
        }

    async def _handle_federation(self, *_: object) -> HttpResponse:
        return json_response(await self.collect(), is_compact=True)

    async def _handle_node(self, path: str, query: str, _: object) -> HttpResponse:
        try:
            node = self._find(_only(query, "node"))
            return json_response(await self._ask(node, {"ask": "details"}))
        except (ValueError, QueryFailed) as error:
            return json_response(
                {"error": str(error)}, 400 if isinstance(error, ValueError) else 503
            )

    async def _handle_trace(self, path: str, query: str, _: object) -> HttpResponse:
        try:
            topic, origin = self._traced(query)
        except ValueError as error:
            return json_response({"error": str(error)}, 400)
        return json_response(await trace_topic(self._node, self._ask, topic, origin))

    async def _handle_real_trace(self, path: str, query: str, _: object) -> HttpResponse:
        """Handle `POST /trace`: as `GET /trace`, and publish."""
        try:
            topic, origin = self._traced(query)
        except ValueError as error:
            return json_response({"error": str(error)}, 400)
        dry = await trace_topic(self._node, self._ask, topic, origin)
        return json_response(await trace_publication(self._node, self._ask, topic, origin, dry))

    def _traced(self, query: str) -> tuple[str, NodeId]:
        """Return topic and origin of a trace; raise ValueError if there are none."""
        topic, origin = _only(query, "topic"), self._find(_only(query, "from", ""))
        check_traceable(topic)
        return topic, origin

    async def _handle_history(self, *_: object) -> HttpResponse:
        return json_response(await self.collect_history(), is_compact=True)

    async def _handle_retained(self, path: str, query: str, _: object) -> HttpResponse:
        try:
            prefix = _only(query, "prefix", "")
        except ValueError as error:
            return json_response({"error": str(error)}, 400)
        answers = await self._ask_all({"ask": "retained", "prefix": prefix})
        return json_response(compare_retained(answers), is_compact=True)

    def _find(self, text: str) -> NodeId:
        """Return the node with a name or an id, this node for an empty text; raise ValueError if
        there is not exactly one."""
        if not text:
            return self._node.id
        known = self._node.membership.known
        found = [node for node in known if format_node_id(node) == text]
        found = found or [node for node, record in known.items() if record.name == text]
        found = found or [node for node in known if format_node_id(node).startswith(text)]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(sorted(map(format_node_id, found)))
            raise ValueError(f"{len(found)} nodes are called {text!r}: use one of the ids {ids}")
        names = ", ".join(sorted({name_of(known, node) for node in known})[:20])
        raise ValueError(f"there is no node {text!r}; there are {names}")

    # ------------------------------------------------------------ other nodes

    async def _ask(self, node: NodeId, question: Question) -> Any:
        if node == self._node.id:
            return self._answer(question, node)
        if node not in self._node.membership.reachable:
            raise QueryFailed("the node is unreachable")
        return await self._queries.ask(node, question)

    async def collect(self) -> dict[str, object]:
        """Return the document of /federation; requests at the same time share one collection."""
        now = asyncio.get_running_loop().time()
        if self._collected is None or now - self._collected[0] > FRESH_S:
            self._collected = now, asyncio.ensure_future(self._collect())
        return await asyncio.shield(self._collected[1])

    async def _collect(self) -> dict[str, object]:
        membership = self._node.membership
        answers = await self._ask_all({"ask": "summary"})
        absent = membership.absent_seconds(time.monotonic())
        return {
            "asked": format_node_id(self._node.id),
            "nodes": [
                {
                    **node_overview(membership, node),
                    "absent_s": absent.get(node),
                    "summary": None,
                    "problem": "",
                    **describe_answer("summary", answer),
                }
                for node, answer in answers.items()
                if node in membership.known
            ],
            "links": overview_links(membership),
        }

    async def collect_history(self) -> dict[str, object]:
        """Return the last events of all nodes."""
        answers = await self._ask_all({"ask": "history"})
        known = self._node.membership.known
        return {
            "nodes": [
                {
                    "id": format_node_id(node),
                    "name": name_of(known, node),
                    "events": [],
                    "problem": "",
                    **describe_answer("events", answer),
                }
                for node, answer in answers.items()
            ]
        }

    async def _ask_all(self, question: Question) -> dict[NodeId, tuple[Any, float] | QueryFailed]:
        """Ask every node; return answers with the seconds that they took, or why there is none."""
        known = self._node.membership.known
        slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
        loop = asyncio.get_running_loop()

        async def answer_of(node: NodeId) -> tuple[Any, float] | QueryFailed:
            async with slots:
                began = loop.time()
                try:
                    return await self._ask(node, question), loop.time() - began
                except QueryFailed as failed:
                    return failed

        nodes = sorted(known, key=lambda node: (known[node].name, node))
        return dict(zip(nodes, await asyncio.gather(*map(answer_of, nodes)), strict=True))


def _only(query: str, name: str, default: str | None = None) -> str:
    """Return one parameter of a query; raise ValueError if it is missing or given twice."""
    found = parse_qs(query, keep_blank_values=True).get(name, [] if default is None else [default])
    if len(found) != 1:
        raise ValueError(f"the query needs one parameter {name}")
    return found[0]
