"""Mode mqtt-fed: assembles and runs one node of `mqtt-fed`.

It has a client at its own broker and one at each neighbour's. Clients announce their interest with
beacons, as `mqtt-fed` requires; with an observer they need not: a subscription to
`federated/<topic>` counts.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

from hansa import __version__
from hansa.agent.admin.metrics import METRICS_CONTENT_TYPE, render_federator_metrics
from hansa.agent.admin.server import Endpoints, HttpResponse, json_response, serve
from hansa.agent.broker.connection import BrokerAddress, Connection, ConnectionFactory
from hansa.agent.broker.observer_choice import choose_histories, choose_observer
from hansa.agent.broker.observer_client import ObserverClient
from hansa.agent.error_text import listen_error_text, quote_text
from hansa.agent.event_log import EventLog
from hansa.agent.links.link import Address
from hansa.agent.links.mqtt import MqttLinkAccess
from hansa.agent.mqttfed.qos2_client import Qos2Client
from hansa.agent.mqttfed.settings import parse_neighbours
from hansa.agent.mqttfed.subscribed_topics import SubscribedTopics
from hansa.agent.security import admin_protection
from hansa.agent.settings import AgentSettings, link_access
from hansa.agent.shutdown import Shutdown
from hansa.errors import UsageError
from hansa.mqtt import packets
from hansa.mqtt.options import ConnectOptions
from hansa.mqttfed.effects import (
    MessageIgnored,
    PublishAtNeighbour,
    PublishToClients,
    TopicCoreChanged,
)
from hansa.mqttfed.events import (
    BrokerMessageReceived,
    FedEvent,
    FedTimerFired,
    TopicInterestChanged,
)
from hansa.mqttfed.messages import FEDERATED_PREFIX, PREFIXES, encode_message
from hansa.mqttfed.node import FedNode
from hansa.mqttfed.settings import FedSettings
from hansa.protocol import events
from hansa.protocol.model import NodeId

log = logging.getLogger("hansa.agent")


class FedAgent:
    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._rng = random.Random()  # for back-off, not for secrets
        self._event_log = EventLog(lambda node: "")
        self._counters: Counter[str] = Counter()
        self._subscribed_topics = SubscribedTopics()
        self._stop_requested = asyncio.Event()
        self._shutdown = Shutdown()
        self._timer: asyncio.TimerHandle | None = None
        self._client_id_prefix = settings.broker.client_id or f"hansa-fed-{settings.mqtt_fed.id}"
        own = settings.broker.address()
        filters = [f"{prefix}#" for prefix in PREFIXES]
        on_status = partial(self._on_broker_status, Address(own.host, own.port))
        self._own_client = Qos2Client(
            self._connection_factory(own, "agent"), on_status, filters, self._receive
        )
        self._neighbour_clients = self._make_neighbour_clients(
            link_access(settings, self._client_id_prefix, NodeId(0))
        )
        self._node = FedNode(self._node_settings(), time.time_ns() // 10**9, self._now())
        self._observer_client = self._make_observer_client(own)

    def _node_settings(self) -> FedSettings:
        given = self._settings.mqtt_fed
        return FedSettings(
            node=given.id,
            neighbours=tuple(sorted(self._neighbour_clients)),
            redundancy=given.redundancy,
            announce_interval=given.announce_interval,
            beacon_interval=self._settings.broker.beacon_interval,
        )

    def _make_neighbour_clients(self, access: MqttLinkAccess) -> dict[int, Qos2Client]:
        clients: dict[int, Qos2Client] = {}
        configured = parse_neighbours(self._settings.mqtt_fed)
        access = replace(access, trusted_brokers=frozenset(configured.values()))
        for number, address in configured.items():
            connecting = self._connection_factory(access.broker_at(address), f"to-{number}")
            clients[number] = Qos2Client(connecting, partial(self._on_broker_status, address))
        return clients

    def _make_observer_client(self, own: BrokerAddress) -> ObserverClient | None:
        """The node handles beacons itself; any other observer gets a client."""
        broker = self._settings.broker
        if broker.observer == "beacon":
            return None
        return ObserverClient(
            choose_observer(broker, f"{self._client_id_prefix}-"),
            self._connection_factory(own, "observer"),
            feed=self._on_interest_changed,
            on_finding=self._event_log.log_finding,
            histories=choose_histories(broker),
        )

    def _connection_factory(self, address: BrokerAddress, role: str) -> ConnectionFactory:
        options = ConnectOptions(client_id=f"{self._client_id_prefix}-{role}", clean_start=True)
        return lambda on_effect: Connection(address, options, on_effect, self._rng)

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Run until a signal or `stop` ends it."""
        self._shutdown.handle_signals(self._request_stop)
        admin = self._settings.admin
        if exposed := self._settings.exposure_text:
            log.warning("insecure: %s", exposed)
        try:
            server = await serve(
                admin.host, admin.port, self._endpoints(), None, admin_protection(admin)
            )
        except (OSError, UnicodeError) as error:
            place = Address(admin.host, admin.port)
            raise UsageError(listen_error_text(place, "admin", error)) from error
        place = Address(admin.host, server.sockets[0].getsockname()[1])
        log.info(
            "agent up mode=mqtt-fed id=%d endpoints=%s://%s",
            self._settings.mqtt_fed.id,
            admin.scheme,
            place,
        )
        connections = [
            each.connection for each in (self._own_client, *self._neighbour_clients.values())
        ]
        if self._observer_client is not None:
            self._observer_client.start()
            if self._observer_client.observer.topics_to_subscribe():
                connections.append(self._observer_client.connection)
        for connection in connections:
            connection.start()
        await self._stop_requested.wait()
        log.info("agent stops")
        server.close()
        if self._observer_client is not None:
            self._observer_client.stop()
        if self._timer is not None:
            self._timer.cancel()
        leaving = asyncio.gather(*(connection.stop() for connection in connections))
        await self._shutdown.stop_part("brokers", leaving)
        for connection in connections:
            connection.abort()
        self._shutdown.end()

    def _request_stop(self) -> None:
        self._shutdown.begin()
        self._stop_requested.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ------------------------------------------------------------ the loop around the node

    def _receive(self, batch: Sequence[packets.PublishPacket]) -> None:
        for each in batch:
            self._feed(BrokerMessageReceived(each.topic, each.payload))

    def _feed(self, event: FedEvent) -> None:
        for effect in self._node.handle(event, self._now()):
            match effect:
                case PublishAtNeighbour(neighbour, topic, message):
                    self._counters[f"sent: {type(message).__name__}"] += 1
                    self._neighbour_clients[neighbour].publish(*encode_message(topic, message))
                case PublishToClients(topic, payload):
                    self._counters["delivered"] += 1
                    self._own_client.publish(FEDERATED_PREFIX + topic, payload)
                case TopicCoreChanged(topic, core):
                    log.info("core changed topic=%r core=%s", topic, core)
                case MessageIgnored(reason, detail):
                    self._counters[f"ignored: {reason}"] += 1
                    log.debug("message ignored reason=%r detail=%s", reason, quote_text(detail))
        self._update_timer()

    def _update_timer(self) -> None:
        due = self._node.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._feed, FedTimerFired())

    def _on_interest_changed(self, event: events.InterestChanged) -> None:
        added, removed = self._subscribed_topics.apply_change(event.added, event.removed)
        self._feed(TopicInterestChanged(added, removed))

    def _on_broker_status(self, address: Address, problem: str) -> None:
        if not self._stop_requested.is_set():
            self._event_log.log_broker_status(str(address), problem)

    # ------------------------------------------------------------ endpoints

    def _endpoints(self) -> Endpoints:
        return {
            "/status": lambda: json_response(self.status()),
            "/healthz": lambda: json_response({"ok": True}),
            "/readyz": self._readiness,
            "/metrics": lambda: HttpResponse(
                render_federator_metrics(self.status()), content_type=METRICS_CONTENT_TYPE
            ),
        }

    def _readiness(self) -> HttpResponse:
        problem = self._own_client.problem
        return json_response({"ready": not problem, "problem": problem}, 503 if problem else 200)

    def status(self) -> dict[str, object]:
        clients = {
            "own": self._own_client,
            **{str(n): c for n, c in self._neighbour_clients.items()},
        }
        counters = sum((client.counters for client in clients.values()), self._counters)
        return {
            "version": __version__,
            "mode": "mqtt-fed",
            "node": self._settings.mqtt_fed.id,
            "brokers": {name: client.problem for name, client in clients.items()},
            "topics": {
                topic: asdict(view) for topic, view in self._node.status(self._now()).items()
            },
            "unsupported_filters": sorted(self._subscribed_topics.unsupported_filters),
            "counters": dict(counters),
        }
