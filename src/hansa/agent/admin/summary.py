"""The parts of an agent whose state is shown, and the summary that other agents learn."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from hansa.agent.admin.setup_status import describe_broker_limits, describe_setup
from hansa.agent.admin.status import disk_status, drop_reasons, format_node_id, link_traffic
from hansa.agent.alarms import Alarms
from hansa.agent.broker.client import BrokerClient
from hansa.agent.broker.observer_choice import ObserverSource
from hansa.agent.broker.observer_client import ObserverClient
from hansa.agent.delivery.service import DeliveryService
from hansa.agent.driver import Driver
from hansa.agent.event_log import EventLog
from hansa.agent.interest_reporter import InterestReporter
from hansa.agent.links.link_manager import LinkManager
from hansa.agent.settings import AgentSettings
from hansa.agent.telemetry.service import TelemetryService
from hansa.agent.topology.service import TopologyService

if TYPE_CHECKING:  # amqtt is an optional dependency
    from hansa.agent.broker.embedded import EmbeddedBroker

FILTERS_MAX = 500
"""Filters of clients in the details of an agent; its own /status has all."""

INCOMPLETE = "observer incomplete"
"""The alarm while subscriptions at the broker may be unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """The parts of an agent whose state the endpoints show."""

    name: str
    broker_address: str
    state_directory: str
    settings: AgentSettings
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
    observer_source: ObserverSource
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


def readiness_problem(parts: StatusSources) -> str:
    """Return why the agent is not ready; empty if it is."""
    if parts.client.connection.problem or parts.observer_client.complete:
        return parts.client.connection.problem
    return f"{INCOMPLETE}: {parts.observer_client.reason}"


def broker_status(parts: StatusSources) -> dict[str, object]:
    return {
        "address": parts.broker_address,
        "connected": not parts.client.connection.problem,
        "problem": parts.client.connection.problem,
        "observer_complete": parts.observer_client.complete,
        "observer_problem": parts.observer_client.reason,
        **parts.observer_source.status(),
        **describe_broker_limits(parts.settings.broker, parts.client.limits),
    }


def make_summary(parts: StatusSources, counters: Mapping[str, int]) -> dict[str, object]:
    """Return what other agents learn about this one: a few kilobytes, whatever the number of
    filters."""
    node = parts.driver.node
    return {
        **describe_setup(parts.settings),
        "name": parts.name,
        "node": format_node_id(node.id),
        "incarnation": node.membership.known[node.id].incarnation,
        "clock_ms": time.time_ns() // 1_000_000,
        "link": parts.link_manager.address,
        "security": parts.link_manager.security_status(),
        "problem": readiness_problem(parts),
        "broker": broker_status(parts),
        "neighbours": {
            format_node_id(each): {
                "rtt_ms": None if link.rtt is None else link.rtt * 1000,
                **link_traffic(parts.driver.links.get(link.id)),
                "drop_reasons": drop_reasons(parts.driver.links.get(link.id)),
            }
            for each, link in node.membership.neighbours.items()
        },
        "refused": parts.event_log.recent_refusals(),
        "not_reached": parts.event_log.not_reached(),
        "interest": {
            "filters": len(parts.observer_client.subscribed_filters()),
            "wide": list(parts.observer_client.wide),
            "installed": node.is_interest_installed() and not parts.interest_reporter.is_busy,
        },
        "topology": parts.topology.status(),
        "delivery": parts.delivery.status(),
        "disk": disk_status(parts.state_directory),
        "alarms": dict(parts.alarms.active),
        "sizes": node.sizes(),
        "counters": dict(counters),
    }


def make_details(parts: StatusSources, counters: Mapping[str, int]) -> dict[str, object]:
    """Return the summary with filters of clients."""
    return {
        **make_summary(parts, counters),
        "local_filters": list(islice(parts.observer_client.subscribed_filters(), FILTERS_MAX)),
    }
