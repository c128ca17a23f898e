"""The documents behind the HTTP endpoints of an agent: /status, /overview, /readyz, /metrics, and
what /stream sends."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from urllib.parse import parse_qs

from hansa import __version__
from hansa.agent.admin import status
from hansa.agent.admin.actions import AgentActions
from hansa.agent.admin.federation import EVENTS_PER_NODE, FederationView
from hansa.agent.admin.metrics import METRICS_CONTENT_TYPE, render_metrics
from hansa.agent.admin.overview import brief_federation, membership_overview
from hansa.agent.admin.server import (
    Endpoints,
    EventStream,
    HttpResponse,
    RequestHandler,
    StreamedResponse,
    console_endpoints,
    json_response,
)
from hansa.agent.admin.state_topics import StateTopics
from hansa.agent.admin.streams import DocumentStreams
from hansa.agent.admin.summary import (
    StatusSources,
    broker_status,
    make_details,
    make_summary,
    readiness_problem,
)
from hansa.agent.admin.tail import MessageTails
from hansa.agent.admin.trace_watch import TraceWatches
from hansa.agent.broker.connection import NamedConnectionFactory
from hansa.agent.topic_counter import TopicCounter
from hansa.agent.topology.proposals import ManagerProposals
from hansa.protocol.model import NodeId

CHANGE_CHECK_S = 0.2
"""Seconds between two looks for changes while a page is open: a fault is shown after this time."""

OVERVIEW_S = 1.0
"""Seconds between two overviews without a change of nodes, links and alarms."""

FEDERATION_S = 2.0
TOPICS_S = 1.0
TOPICS_SHOWN_MAX = 500
"""Topics with rates that the page gets, the busiest ones."""


class AgentEndpoints:
    """Answers requests from the current state of the parts."""

    def __init__(
        self,
        parts: StatusSources,
        make_connection: NamedConnectionFactory | None = None,
        answers_observers: bool = False,
    ) -> None:
        """`make_connection` makes clients of the broker, for messages and state topics."""
        self._parts = parts
        history = parts.event_log.history
        describers = {
            "summary": self.summary,
            "details": self.details,
            "history": lambda: history.newest(EVENTS_PER_NODE),
        }
        self._trace_watches = TraceWatches(
            parts.driver,
            make_connection,
            lambda: parts.client.connection.problem,
            parts.event_log.audit,
        )
        self.federation = FederationView(
            parts.driver.node,
            parts.driver.feed,
            describers,
            self._trace_watches,
            answers_observers,
        )
        """Answers for all nodes; asks them over the overlay."""
        self.connection_counters: Counter[str] = Counter()
        """Connections that the server closed before a request, by reason."""
        self._streams = DocumentStreams(
            {
                "overview": self._follow_overview,
                "federation": self._follow_federation,
                "history": self._follow_history,
                "topics": self._follow_topics,
            }
        )
        self._make_connection = make_connection
        self._tails = MessageTails(make_connection)

    async def publish_state(self, prefix: str) -> None:
        """Publish the state as retained topics until cancelled."""
        assert self._make_connection is not None  # the settings exclude the embedded broker
        await StateTopics(prefix, self._parts, self._make_connection).run()

    def close_streams(self) -> None:
        """End everything that clients follow: the agent stops."""
        self._streams.close()
        self._tails.close()

    def routes(self) -> Endpoints:
        """Return the handler of each path."""
        return {
            **console_endpoints(),
            "/overview": lambda: json_response(self.overview(), is_compact=True),
            "/status": self._stream_status,
            "/quarantine": self._quarantined,
            "/healthz": lambda: json_response({"ok": True}),
            "/readyz": self._readiness,
            "/metrics": lambda: HttpResponse(
                render_metrics(self.status()), content_type=METRICS_CONTENT_TYPE
            ),
        }

    def _stream_status(self) -> StreamedResponse:
        node = self._parts.driver.node
        return StreamedResponse(status.stream_document(self.status(), node))

    def handlers(self, request_stop: Callable[[], None]) -> dict[str, RequestHandler]:
        """Return the handlers of requests with parameters, commands included; `request_stop` stops
        the agent."""
        actions = AgentActions(self._parts, request_stop)
        topology = self._parts.topology
        proposals = ManagerProposals(topology.settings, topology.contexts)
        return {
            **self.federation.routes(),
            "/stream": self._open_stream,
            "/tail": self._tails.handle,
            "/proposals": proposals.handle_list,
            "POST /proposals/apply": proposals.handle_apply,
            "POST /quarantine/release": self._release,
            "POST /links": actions.change_links,
            "POST /leave": actions.leave,
        }

    # ------------------------------------------------------------ streams

    async def _open_stream(
        self, path: str, query: str, headers: Mapping[str, str]
    ) -> HttpResponse | EventStream:
        """Handle `GET /stream?documents=overview,federation`."""
        names = parse_qs(query).get("documents", ["overview"])[-1].split(",")
        if refused := self._streams.refusal(names):
            return json_response({"error": refused[1]}, refused[0])
        return EventStream(self._streams.open(names))

    async def _follow_overview(self) -> AsyncGenerator[object, None]:
        """Yield the overview once a second, and as soon as nodes, links or alarms change."""
        loop = asyncio.get_running_loop()
        membership, history = self._parts.driver.node.membership, self._parts.event_log.history
        before, due = None, 0.0
        while True:
            state = (membership.digest, history.number, len(membership.reachable))
            if state != before or loop.time() >= due:
                before, due = state, loop.time() + OVERVIEW_S
                yield self.overview()
            await asyncio.sleep(CHANGE_CHECK_S)

    async def _follow_federation(self) -> AsyncGenerator[object, None]:
        while True:
            yield brief_federation(await self.federation.collect())
            await asyncio.sleep(FEDERATION_S)

    async def _follow_history(self) -> AsyncGenerator[object, None]:
        while True:
            yield await self.federation.collect_history()
            await asyncio.sleep(FEDERATION_S)

    async def _follow_topics(self) -> AsyncGenerator[object, None]:
        """Yield what passed the broker in the last second, per topic; it is counted only while
        this runs."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                counter = self._parts.driver.topic_counter = TopicCounter()
                began = loop.time()
                await asyncio.sleep(TOPICS_S)
                busiest = sorted(counter.counts.items(), key=lambda item: -sum(item[1]))
                yield {
                    "seconds": loop.time() - began,
                    "counts": dict(busiest[:TOPICS_SHOWN_MAX]),
                    "topics": len(counter.counts),
                }
        finally:
            self._parts.driver.topic_counter = None

    # ------------------------------------------------------------ documents

    def _quarantined(self) -> HttpResponse:
        return json_response({"quarantined": self._parts.driver.guard.quarantined()})

    async def _release(self, path: str, query: str, headers: Mapping[str, str]) -> HttpResponse:
        node = parse_qs(query).get("node", [""])[-1]
        if problem := self._parts.driver.guard.release(node):
            return json_response({"error": problem}, 400)
        return json_response({"released": node})

    def _readiness(self) -> HttpResponse:
        problem = readiness_problem(self._parts)
        return json_response({"ready": not problem, "problem": problem}, 503 if problem else 200)

    def overview(self) -> dict[str, object]:
        """Return the document of /overview, which the web page follows."""
        return {
            **membership_overview(self._parts.driver.node, self._parts.driver.links),
            "version": __version__,
            "name": self._parts.name,
            "problem": readiness_problem(self._parts),
            "broker": broker_status(self._parts),
            "interest": {
                "wide": list(self._parts.observer_client.wide),
                "installed": self._parts.driver.node.is_interest_installed(),
                "not_installed_at": self._not_installed_at(),
            },
            "topology": self._parts.topology.status(),
            "delivery": self._parts.delivery.status(),
            "alarms": dict(self._parts.alarms.active),
            "sizes": self._parts.driver.node.sizes(),
            "counters": dict(self.all_counters()),
        }

    def summary(self) -> dict[str, object]:
        """Return what other agents learn about this one."""
        return make_summary(self._parts, self.all_counters())

    def details(self) -> dict[str, object]:
        """Return the summary with filters of clients."""
        return make_details(self._parts, self.all_counters())

    def status(self) -> dict[str, object]:
        """Return the document of /status; `stream_document` adds groups and remote filters.

        Node ids are text, as in the log: many JSON parsers round numbers of that size.
        """
        view = self._parts.driver.node.status(is_brief=True)
        return {
            "version": __version__,
            "name": self._parts.name,
            "node": status.format_node_id(view.node),
            "incarnation": view.incarnation,
            "started_ms": self._parts.started_ms,
            "link": self._parts.link_manager.address,
            "security": self._parts.link_manager.security_status(),
            "broker": broker_status(self._parts),
            "neighbours": {
                status.format_node_id(node): {
                    "rtt_ms": neighbour.rtt_ms,
                    **status.link_traffic(self._parts.driver.links.get(neighbour.link)),
                }
                for node, neighbour in view.neighbours.items()
            },
            "refused": self._parts.event_log.recent_refusals(),
            "not_reached": self._parts.event_log.not_reached(),
            "quarantined": self._parts.driver.guard.quarantined(),
            "reachable_nodes": status.format_node_ids(view.reachable),
            "unreachable_nodes": self._unreachable_nodes(),
            "names": self._names(view.reachable),
            "cores": {
                status.format_node_id(core): status.core_status(path)
                for core, path in view.cores.items()
            },
            "groups": {},
            "interest": {
                "local": list(self._parts.observer_client.subscribed_filters()),
                "wide": list(self._parts.observer_client.wide),
                "installed": view.installed and not self._parts.interest_reporter.is_busy,
                "remote": list(view.interest),
                "in_force": {
                    status.format_node_id(n): list(stamp) for n, stamp in view.in_force.items()
                },
            },
            "topology": self._parts.topology.status(),
            "delivery": self._parts.delivery.status(),
            "alarms": dict(self._parts.alarms.active),
            "sizes": view.sizes,
            "counters": dict(self.all_counters()),
        }

    def _not_installed_at(self) -> list[str]:
        """Return the reachable nodes that have not acknowledged this node's newest interest."""
        node = self._parts.driver.node
        if node.is_interest_installed():
            return []
        done = {node.id, *node.interest_acks()}
        return [status.format_node_id(n) for n in node.membership.reachable if n not in done]

    def _unreachable_nodes(self) -> list[str]:
        membership = self._parts.driver.node.membership
        return sorted(
            status.format_node_id(node)
            for node in membership.known
            if node not in membership.reachable
        )

    def all_counters(self) -> Counter[str]:
        """Return the sum of the counters of all parts."""
        return (
            self._parts.driver.node.counters
            + self._parts.driver.counters
            + self._parts.driver.guard.counters
            + self._parts.event_log.audit.counters
            + self._parts.link_manager.counters
            + self._parts.client.counters
            + self._parts.observer_source.counters
            + self._parts.alarms.counters
            + self._parts.delivery.all_counters()
            + self._parts.telemetry.counters
            + self.federation.counters
            + self._trace_watches.counters
            + self._streams.counters
            + self._tails.counters
            + self.connection_counters
        )

    def _names(self, reachable: Iterable[NodeId]) -> dict[str, str]:
        """Return the names of reachable nodes and of those with pending publications."""
        pending = self._parts.driver.node.delivery.receivers
        return {
            status.format_node_id(node): status.node_name(self._parts.driver.node, node)
            for node in (*reachable, *pending)
        }
