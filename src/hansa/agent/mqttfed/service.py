"""One node of `mqtt-fed`, put together and run: the pure node, a client at the own broker, one at
each neighbour's, whoever learns what clients want, and pages; until told to stop.

Clients say with beacons what they want, as `mqtt-fed` asks of them; with an observer they need not:
whoever subscribes to `federated/<topic>` wants the topic.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial

from hansa import __version__
from hansa.agent.admin import Answer, Pages, as_json, serve
from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.broker.observer_choice import choose_histories, choose_observer
from hansa.agent.broker.observer_client import Watcher
from hansa.agent.error_text import cannot_listen, quoted
from hansa.agent.event_log import Chronicle
from hansa.agent.links.link import Address
from hansa.agent.links.mqtt import Access
from hansa.agent.metrics import METRICS_KIND, fed_as_metrics
from hansa.agent.mqttfed.qos2_client import ExactClient
from hansa.agent.mqttfed.settings import parse_neighbours
from hansa.agent.mqttfed.subscribed_topics import Wishes
from hansa.agent.settings import AgentSettings, broker_address, link_access
from hansa.agent.stopping import Stopping
from hansa.errors import UsageError
from hansa.mqtt import effects, packets
from hansa.mqtt.options import Options
from hansa.mqttfed.effects import CoreChanged, Deliver, LeftAside, Send
from hansa.mqttfed.messages import FEDERATED, PREFIXES, write
from hansa.mqttfed.node import Event, FedNode, InterestChanged, Received, TimerFired
from hansa.mqttfed.settings import FedSettings
from hansa.protocol import events
from hansa.protocol.model import NodeId

log = logging.getLogger("hansa.agent")


class FedAgent:
    """Everything that one node consists of."""

    def __init__(self, settings: AgentSettings) -> None:
        """Put the parts together; nothing happens before `run`."""
        self._settings = settings
        self._chance = random.Random()  # for back-off, not for secrets
        self._chronicle = Chronicle(lambda node: "")
        self._counters: Counter[str] = Counter()
        self._wishes = Wishes()
        self._ending = asyncio.Event()
        self._stopping = Stopping()
        self._timer: asyncio.TimerHandle | None = None
        self._prefix = settings.broker.client_id or f"hansa-fed-{settings.mqtt_fed.id}"
        own = broker_address(settings.broker)
        filters = [f"{prefix}#" for prefix in PREFIXES]
        told = partial(self._note_broker, Address(own.host, own.port))
        self._own = ExactClient(self._connecting(own, "agent"), told, filters, self._receive)
        self._neighbours = self._neighbour_clients(link_access(settings, self._prefix, NodeId(0)))
        self._node = FedNode(self._node_settings(), time.time_ns() // 10**9, self._now())
        self._watcher = self._make_watcher(own)

    def _node_settings(self) -> FedSettings:
        given = self._settings.mqtt_fed
        return FedSettings(
            node=given.id,
            neighbours=tuple(sorted(self._neighbours)),
            redundancy=given.redundancy,
            announce_interval=given.announce_interval,
            beacon_interval=self._settings.broker.beacon_interval,
        )

    def _neighbour_clients(self, access: Access) -> dict[int, ExactClient]:
        clients: dict[int, ExactClient] = {}
        configured = parse_neighbours(self._settings.mqtt_fed)
        access = replace(access, trusted=frozenset(configured.values()))
        for number, address in configured.items():
            connecting = self._connecting(access.broker_at(address), f"to-{number}")
            clients[number] = ExactClient(connecting, partial(self._note_broker, address))
        return clients

    def _make_watcher(self, own: BrokerAddress) -> Watcher | None:
        """Beacons are the node's own business; whoever else knows what is wanted is asked."""
        broker = self._settings.broker
        if broker.observer == "beacon":
            return None
        return Watcher(
            choose_observer(broker, f"{self._prefix}-"),
            self._connecting(own, "watcher"),
            feed=self._note_interest,
            found=self._chronicle.finding,
            histories=choose_histories(broker),
        )

    def _connecting(
        self, address: BrokerAddress, role: str
    ) -> Callable[[Callable[[effects.Effect], None]], Connection]:
        options = Options(client_id=f"{self._prefix}-{role}", clean_start=True)
        return lambda told: Connection(address, options, told, self._chance)

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Run until told to stop."""
        self._stopping.handle_signals(self._begin_to_end)
        admin = self._settings.admin
        if exposed := self._settings.exposed:
            log.warning("insecure: %s", exposed)
        try:
            server = await serve(admin.host, admin.port, self._pages(), names=admin.names)
        except (OSError, UnicodeError) as error:
            place = Address(admin.host, admin.port)
            raise UsageError(cannot_listen(place, "admin", error)) from error
        place = Address(admin.host, server.sockets[0].getsockname()[1])
        log.info("agent up mode=mqtt-fed id=%d pages=http://%s", self._settings.mqtt_fed.id, place)
        connections = [each.connection for each in (self._own, *self._neighbours.values())]
        if self._watcher is not None:
            self._watcher.start()
            if self._watcher.observer.subscriptions():
                connections.append(self._watcher.connection)
        for connection in connections:
            connection.keep()
        await self._ending.wait()
        log.info("agent stops")
        server.close()
        if self._watcher is not None:
            self._watcher.stop()
        if self._timer is not None:
            self._timer.cancel()
        leaving = asyncio.gather(*(connection.stop() for connection in connections))
        await self._stopping.part("brokers", leaving)
        for connection in connections:
            connection.cut()
        self._stopping.end()

    def _begin_to_end(self) -> None:
        self._stopping.begin()
        self._ending.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ------------------------------------------------------------ the loop around the node

    def _receive(self, batch: Sequence[packets.Publish]) -> None:
        for each in batch:
            self._feed(Received(each.topic, each.payload))

    def _feed(self, event: Event) -> None:
        for effect in self._node.handle(event, self._now()):
            match effect:
                case Send(neighbour, topic, message):
                    self._counters[f"sent: {type(message).__name__}"] += 1
                    self._neighbours[neighbour].publish(*write(topic, message))
                case Deliver(topic, payload):
                    self._counters["delivered"] += 1
                    self._own.publish(FEDERATED + topic, payload)
                case CoreChanged(topic, core):
                    log.info("core changed topic=%r core=%s", topic, core)
                case LeftAside(reason, detail):
                    self._counters[f"left aside: {reason}"] += 1
                    log.debug("message ignored reason=%r detail=%s", reason, quoted(detail))
        self._rearm()

    def _rearm(self) -> None:
        due = self._node.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._feed, TimerFired())

    def _note_interest(self, event: events.InterestChanged) -> None:
        added, removed = self._wishes.change(event.added, event.removed)
        self._feed(InterestChanged(added, removed))

    def _note_broker(self, address: Address, problem: str) -> None:
        if not self._ending.is_set():
            self._chronicle.broker(str(address), problem)

    # ------------------------------------------------------------ pages

    def _pages(self) -> Pages:
        return {
            "/status": lambda: as_json(self.status()),
            "/healthz": lambda: as_json({"ok": True}),
            "/readyz": self._ready,
            "/metrics": lambda: Answer(fed_as_metrics(self.status()), kind=METRICS_KIND),
        }

    def _ready(self) -> Answer:
        problem = self._own.problem
        return as_json({"ready": not problem, "problem": problem}, 503 if problem else 200)

    def status(self) -> dict[str, object]:
        """Return everything that an operator may want to see."""
        clients = {"own": self._own, **{str(n): c for n, c in self._neighbours.items()}}
        counters = sum((client.counters for client in clients.values()), self._counters)
        return {
            "version": __version__,
            "mode": "mqtt-fed",
            "node": self._settings.mqtt_fed.id,
            "brokers": {name: client.problem for name, client in clients.items()},
            "topics": {topic: asdict(view) for topic, view in self._node.view(self._now()).items()},
            "left_out": sorted(self._wishes.left_out),
            "counters": dict(counters),
        }
