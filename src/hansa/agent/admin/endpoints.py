"""The documents behind the HTTP endpoints of an agent: /status, /overview, /readyz and /metrics."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hansa import __version__
from hansa.agent.admin import status
from hansa.agent.admin.metrics import METRICS_CONTENT_TYPE, render_metrics
from hansa.agent.admin.overview import membership_overview
from hansa.agent.admin.server import Endpoints, HttpResponse, console_endpoints, json_response
from hansa.agent.alarms import Alarms
from hansa.agent.broker.client import BrokerClient
from hansa.agent.broker.observer_client import ObserverClient
from hansa.agent.broker.proxy import ProxyServer
from hansa.agent.delivery.service import DeliveryService
from hansa.agent.driver import Driver
from hansa.agent.event_log import EventLog
from hansa.agent.interest_reporter import InterestReporter
from hansa.agent.links.link_manager import LinkManager
from hansa.agent.telemetry.service import TelemetryService
from hansa.agent.topology.service import TopologyService
from hansa.protocol.model import NodeId

if TYPE_CHECKING:  # amqtt is an optional dependency
    from hansa.agent.broker.embedded import EmbeddedBroker

INCOMPLETE = "observer incomplete"
"""The alarm while subscriptions at the broker may be unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """The parts of an agent whose state the endpoints show."""

    name: str
    broker_address: str
    driver: Driver
    link_manager: LinkManager
    client: "BrokerClient | EmbeddedBroker"
    observer_client: ObserverClient
    interest_reporter: InterestReporter
    delivery: DeliveryService
    telemetry: TelemetryService
    topology: TopologyService
    alarms: Alarms
    event_log: EventLog
    proxy: ProxyServer | None


class AgentEndpoints:
    """Answers requests from the current state of the parts; changes nothing."""

    def __init__(self, parts: StatusSources) -> None:
        self._parts = parts

    def routes(self) -> Endpoints:
        """Return the handler of each path."""
        return {
            **console_endpoints(),
            "/overview": lambda: json_response(self.overview(), is_compact=True),
            "/status": lambda: json_response(self.status()),
            "/healthz": lambda: json_response({"ok": True}),
            "/readyz": self._readiness,
            "/metrics": lambda: HttpResponse(
                render_metrics(self.status()), content_type=METRICS_CONTENT_TYPE
            ),
        }

    def _problem(self) -> str:
        """Return why the agent is not ready; empty if it is."""
        if self._parts.client.connection.problem or self._parts.observer_client.complete:
            return self._parts.client.connection.problem
        return f"{INCOMPLETE}: {self._parts.observer_client.reason}"

    def _readiness(self) -> HttpResponse:
        problem = self._problem()
        return json_response({"ready": not problem, "problem": problem}, 503 if problem else 200)

    def overview(self) -> dict[str, object]:
        """Return the document of /overview, which the web page polls."""
        return {
            **membership_overview(self._parts.driver.node, self._parts.driver.links),
            "version": __version__,
            "name": self._parts.name,
            "problem": self._problem(),
            "broker": self._broker_status(),
            "interest": {
                "wide": list(self._parts.observer_client.wide),
                "installed": self._parts.driver.node.is_interest_installed(),
            },
            "delivery": self._parts.delivery.status(),
            "alarms": dict(self._parts.alarms.active),
            "sizes": self._parts.driver.node.sizes(),
            "counters": dict(self.all_counters()),
        }

    def _broker_status(self) -> dict[str, object]:
        return {
            "address": self._parts.broker_address,
            "connected": not self._parts.client.connection.problem,
            "problem": self._parts.client.connection.problem,
            "observer_complete": self._parts.observer_client.complete,
            "observer_problem": self._parts.observer_client.reason,
            **({"proxy": self._parts.proxy.status()} if self._parts.proxy is not None else {}),
        }

    def status(self) -> dict[str, object]:
        """Return the document of /status.

        Node ids are text, as in the log: many JSON parsers round numbers of that size.
        """
        view = self._parts.driver.node.status()
        return {
            "version": __version__,
            "name": self._parts.name,
            "node": status.format_node_id(view.node),
            "incarnation": view.incarnation,
            "link": self._parts.link_manager.address,
            "broker": self._broker_status(),
            "neighbours": {
                status.format_node_id(node): {
                    "rtt_ms": neighbour.rtt_ms,
                    **status.link_traffic(self._parts.driver.links.get(neighbour.link)),
                }
                for node, neighbour in view.neighbours.items()
            },
            "refused": self._parts.event_log.recent_refusals(),
            "reachable_nodes": status.format_node_ids(view.reachable),
            "names": self._names(view.reachable),
            "cores": {
                status.format_node_id(core): status.core_status(path)
                for core, path in view.cores.items()
            },
            "groups": {group: status.group_status(seen) for group, seen in view.groups.items()},
            "interest": {
                "local": list(self._parts.observer_client.subscribed_filters()),
                "wide": list(self._parts.observer_client.wide),
                "installed": view.installed and not self._parts.interest_reporter.is_busy,
                "remote": {
                    status.format_node_id(n): list(i.filters) for n, i in view.interest.items()
                },
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

    def all_counters(self) -> Counter[str]:
        """Return the sum of the counters of all parts."""
        return (
            self._parts.driver.node.counters
            + self._parts.driver.counters
            + self._parts.link_manager.counters
            + self._parts.client.counters
            + (Counter() if self._parts.proxy is None else self._parts.proxy.counters)
            + self._parts.alarms.counters
            + self._parts.delivery.all_counters()
            + self._parts.telemetry.counters
        )

    def _names(self, reachable: Iterable[NodeId]) -> dict[str, str]:
        """Return the names of reachable nodes and of those with pending publications."""
        pending = self._parts.driver.node.delivery.receivers
        return {
            status.format_node_id(node): status.node_name(self._parts.driver.node, node)
            for node in (*reachable, *pending)
        }
