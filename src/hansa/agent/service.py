"""Assembles one agent and runs it until it is stopped: state, node, links, broker, endpoints."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hansa.agent import tasks
from hansa.agent.admin import status
from hansa.agent.admin.endpoints import INCOMPLETE, AgentEndpoints, StatusSources
from hansa.agent.admin.server import serve
from hansa.agent.alarms import Alarms
from hansa.agent.broker.access import tls_context
from hansa.agent.broker.client import BrokerClient
from hansa.agent.broker.connection import LOGIN_REFUSED, Connection, ConnectionFactory
from hansa.agent.broker.observer_choice import choose_histories, choose_observer
from hansa.agent.broker.observer_client import ObserverClient
from hansa.agent.broker.proxy import ProxyServer
from hansa.agent.broker.retained_store import RetainedStore, load_retained
from hansa.agent.broker.subscription_log import SubscriptionLog
from hansa.agent.clock_monitor import ClockMonitor
from hansa.agent.delivery.service import DeliveryService
from hansa.agent.driver import Driver
from hansa.agent.error_text import listen_error_text
from hansa.agent.event_log import EventLog
from hansa.agent.interest_reporter import InterestReporter
from hansa.agent.links.link import Address
from hansa.agent.links.link_manager import LinkManager, own_link_address
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.settings import AgentSettings, broker_address, link_access
from hansa.agent.shutdown import Shutdown
from hansa.agent.storage.state_directory import (
    JOURNAL_DIRECTORY,
    SUBSCRIPTIONS_FILE,
    StateDirectory,
)
from hansa.agent.telemetry.endpoints import LogEndpoints
from hansa.agent.telemetry.service import TelemetryService
from hansa.agent.topology.service import TopologyService
from hansa.errors import UsageError, install_extra
from hansa.mqtt import effects
from hansa.mqtt.options import NEVER_EXPIRES, ConnectOptions
from hansa.observers.base import (
    BrokerDroppedPublications,
    Observer,
    ObserverFinding,
    OversizedPublicationSkipped,
)
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import Effect, Ignored, IncarnationRaised
from hansa.protocol.events import ClockRead
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node
from hansa.protocol.topics import is_local_only, split_share
from hansa.protocol.wire.codec import HEADER_BYTES_MAX

if TYPE_CHECKING:  # amqtt is an optional dependency
    from hansa.agent.broker.embedded import EmbeddedBroker

log = logging.getLogger("hansa.agent")

FAULT_EXIT_CODE = 70
"""Exit code after a fault of Hansa."""

CONTESTED = (
    "another record with this node's id was met and outranked: a copy of this agent runs elsewhere"
    " and must be stopped, somebody forged the record, or the clock was set back"
)

FILTERS_REFUSED = {
    "filters_max": "of all other nodes together",
    "filters_per_neighbour_max": "of the nodes behind a neighbour that dialled this agent",
    "filters_per_node_max": "of one node",
}
"""Settings that bound filters, and what each bounds."""


class Agent:
    """One agent with all its parts."""

    def __init__(self, settings: AgentSettings, state: StateDirectory) -> None:
        """Build the parts, each after those it needs; nothing runs before `run`.

        Node and broker need each other, so the driver gets its ports (broker, delivery, retained
        values) last.
        """
        self._settings = settings
        self._state = state
        self._rng = random.Random()  # for back-off, not for secrets
        self._stop_requested: asyncio.Event = asyncio.Event()
        self._shutdown = Shutdown()
        self._alarms = Alarms()
        self._event_log = EventLog(self._name_of)
        self._filters_refused: dict[str, None] = {}  # the bounds that the alarm names

        # The node with its links.
        broker = broker_address(settings.broker)
        addresses = (settings.topology.advertised_link or own_link_address(settings.link, broker),)
        self.identity = state.start_incarnation(
            settings.display_name, addresses, settings.total_capacity
        )
        topics = RecordedTopics(settings.record)
        self._delivery = DeliveryService(
            state, self.identity, settings.delivery, self._alarms, topics
        )
        self.driver = Driver(
            Node(self.identity, settings.protocol, self._restored_state()),
            on_notification=self._on_notification,
            on_link_closed=self._event_log.log_link_closed,
        )
        access = link_access(settings, self._client_id(""), self.identity.node)
        frame_bytes_max = settings.protocol.packet_bytes_max + HEADER_BYTES_MAX
        self.link_manager = LinkManager(
            self.driver, self._rng, settings.link, access, frame_bytes_max
        )

        # The clients at the broker.
        self._telemetry = TelemetryService(self.driver, self.identity, topics)
        self._subscription_log = SubscriptionLog(
            state.path / SUBSCRIPTIONS_FILE, self._alarms.setter("subscriptions")
        )
        self._proxy = self._make_proxy()
        self.client, observer = self._make_broker_client()
        self._interest_reporter = InterestReporter(
            lambda: self.observer_client.snapshot(), self._save_interest, self.driver.feed
        )
        self.observer_client = self._make_observer_client(observer)
        reader = self._make_reader_connection if isinstance(self.client, BrokerClient) else None
        self._retained = RetainedStore(
            *(state, self.driver, self._delivery, self.client, reader),
            self._alarms.setter("retained"),
        )
        if isinstance(self.client, BrokerClient):
            self.client.on_session_lost = self._retained.on_session_lost
            self.client.on_session_taken_over = self._alarms.setter("broker session taken over")
        else:
            self.client.on_observer_output = self.observer_client.apply_output

        # The ports of the driver. Telemetry may put a recorder before the broker client.
        self.driver.broker = self.client
        self.driver.delivery = self._delivery
        self.driver.retained = self._retained
        self._telemetry.enable(state.path, settings.telemetry, self._all_counters, self._alarms)
        self._delivery.attach(self.driver, self.client, self._telemetry.on_injected)
        self._telemetry.attach(self.client, self._delivery)

        # Management.
        self._topology = TopologyService(
            settings,
            state,
            self.identity,
            self.driver,
            self.link_manager,
            self._connection_factory("probe"),
        )
        self.admin_address = Address(settings.admin.host, settings.admin.port)
        self._endpoints = AgentEndpoints(
            StatusSources(
                name=settings.display_name,
                broker_address=self._broker_address,
                driver=self.driver,
                link_manager=self.link_manager,
                client=self.client,
                observer_client=self.observer_client,
                interest_reporter=self._interest_reporter,
                delivery=self._delivery,
                telemetry=self._telemetry,
                topology=self._topology,
                alarms=self._alarms,
                event_log=self._event_log,
                proxy=self._proxy,
            )
        )

    def _all_counters(self) -> Counter[str]:
        return self._endpoints.all_counters()

    def _restored_state(self) -> RestoredState:
        return replace(self._delivery.restored_state(), retained=load_retained(self._state))

    def _make_broker_client(self) -> "tuple[BrokerClient | EmbeddedBroker, Observer]":
        callbacks = (self._telemetry.feed, self._telemetry.on_captured, self._on_broker_status)
        if self._settings.broker.observer != "embedded":
            observer = (
                self._proxy.observer
                if self._proxy is not None
                else choose_observer(self._settings.broker, self._client_id(""))
            )
            # Messages to the agent itself are not forwarded; topics with $ never are.
            own = (*observer.topics_to_subscribe(), f"{self._settings.link.mqtt.prefix}/#")
            local_topics = [name for name in own if not is_local_only(name)]
            session_options, delivery = (
                self._session_options(),
                (self._delivery, self._subscription_log),
            )
            client = BrokerClient(
                self._connection_factory("agent", session_options),
                *callbacks,
                local_topics,
                delivery,
            )
            client.connection.connect_hooks = self._delivery.connect_marker
            client.sends_overlap_copies = self._settings.broker.overlap_copies == "each"
            return client, observer
        try:
            from hansa.agent.broker.embedded import EmbeddedBroker
        except ImportError as error:
            hint = f"the embedded broker is amqtt: {install_extra('embedded')}"
            raise UsageError(f'[broker] observer = "embedded": {hint}') from error
        broker = EmbeddedBroker(self._broker_address, *callbacks)
        broker.delivery = self._delivery
        return broker, broker.observer

    def _make_proxy(self) -> ProxyServer | None:
        broker = self._settings.broker
        if broker.observer != "proxy":
            return None
        return ProxyServer(
            self._settings.proxy,
            Address(broker.host, broker.port),
            tls_context("broker", broker),
            self._state.path,
            self._alarms.setter("proxy sessions"),
        )

    def _make_observer_client(self, observer: Observer) -> ObserverClient:
        made = ObserverClient(
            observer,
            self._connection_factory("observer"),
            feed=self._interest_reporter.report,
            on_finding=self._on_finding,
            histories=choose_histories(self._settings.broker),
            is_private=self._is_link_filter,
        )
        made.filters_when_unknown = self._settings.broker.filters_when_unknown
        made.incomplete = self._note_incomplete
        if self._proxy is not None:
            self._proxy.on_observer_output = made.apply_output
        return made

    def _is_link_filter(self, topic_filter: str) -> bool:
        """Whether a filter is that of a link through this broker."""
        return split_share(topic_filter)[1].startswith(f"{self._settings.link.mqtt.prefix}/")

    def _client_id(self, role: str) -> str:
        base = self._settings.broker.client_id or f"hansa-{self.identity.node:016x}"
        return f"{base}-{role}"

    def _session_options(self) -> ConnectOptions:
        """Return options for a session that the broker keeps while the agent is disconnected."""
        return ConnectOptions(
            client_id=self._client_id("agent"),
            clean_start=False,
            session_expiry=min(round(self._settings.protocol.interest_lease), NEVER_EXPIRES),
            receive_maximum=self._settings.delivery.in_flight_max,
            packet_bytes_max=self._settings.protocol.packet_bytes_max,
        )

    def _connection_factory(
        self, role: str, options: ConnectOptions | None = None
    ) -> ConnectionFactory:
        address = broker_address(self._settings.broker)
        options = options or ConnectOptions(client_id=self._client_id(role), clean_start=True)
        return lambda on_effect: Connection(address, options, on_effect, self._rng)

    def _make_reader_connection(self, on_effect: Callable[[effects.Effect], None]) -> Connection:
        """Return a connection for reading retained values, in the version of the main client."""
        assert isinstance(self.client, BrokerClient)
        options = ConnectOptions(
            client_id=self._client_id("reader"),
            version=self.client.connection.version,
            clean_start=True,
            packet_bytes_max=self._settings.protocol.packet_bytes_max,
        )
        return self._connection_factory("reader", options)(on_effect)

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Run until a signal or `stop` ends it."""
        loop = asyncio.get_running_loop()
        self._shutdown.handle_signals(self._request_stop)
        loop.set_exception_handler(self._alarms.on_loop_exception)
        self._feed_clock(time.time_ns() // 1_000_000)
        server = await self._listen()
        self._alarms.set("insecure", self._settings.exposure_text)
        log.info(
            "agent up node=%016x name=%r links=%s endpoints=http://%s",
            self.identity.node,
            self._settings.display_name,
            self.link_manager.address,
            self.admin_address,
        )
        had_session = self._subscription_log.has_session
        self.observer_client.restore(self._state.load_interest(), had_session)
        self.observer_client.start()
        if self._proxy is not None:
            await self._proxy.start()
            log.info("proxy for clients at %s", self._proxy.address)
        clock = ClockMonitor(
            self._state.clock_behind_s, self._alarms.setter("clock set back"), self._feed_clock
        )
        connection_tasks = [
            asyncio.create_task(w) for w in (self.client.connection.run(), clock.run())
        ]
        if self.observer_client.observer.topics_to_subscribe():
            connection_tasks.append(asyncio.create_task(self.observer_client.connection.run()))
        self.link_manager.dial_configured(self._event_log.log_dial_failed)
        self._telemetry.start()
        topology_task = tasks.start_task(self._topology.run())
        stop_task = asyncio.create_task(self._stop_requested.wait())
        ended, _ = await asyncio.wait(
            [stop_task, *connection_tasks], return_when=asyncio.FIRST_COMPLETED
        )
        await self._stop(server, [stop_task, topology_task, *connection_tasks])
        for task in ended:
            task.result()  # without a broker connection an agent is useless: let it fail

    async def _listen(self) -> asyncio.Server:
        """Listen for links and HTTP requests; return the HTTP server."""
        place, admin, section = self.link_manager.address, self.admin_address, "link"
        try:
            await self.link_manager.listen(self._event_log.log_dial_failed)
            place, section = str(admin), "admin"
            names = self._settings.admin.names
            logs = self._log_endpoints().handle_request
            server = await serve(admin.host, admin.port, self._endpoints.routes(), logs, names)
            if self._proxy is not None:
                place, section = str(self._proxy.address), "proxy"
                await self._proxy.listen()
        except (OSError, UnicodeError) as error:
            await self.link_manager.stop()
            raise UsageError(listen_error_text(place, section, error)) from error
        port: int = server.sockets[0].getsockname()[1]
        self.admin_address = Address(admin.host, port)
        return server

    def _log_endpoints(self) -> LogEndpoints:
        path, settings = self._state.path, self._settings
        return LogEndpoints(
            settings.admin.token, path / JOURNAL_DIRECTORY, settings.telemetry.path(path)
        )

    def _request_stop(self, exit_code: int = 0) -> None:
        self._shutdown.begin(exit_code)
        self._stop_requested.set()

    async def _stop(
        self, server: asyncio.Server, running_tasks: Sequence[asyncio.Task[Any]]
    ) -> None:
        """Stop all parts, each within its time limit."""
        self._request_stop(FAULT_EXIT_CODE)  # unless requested before: a part has failed
        log.info("agent stops")
        part = self._shutdown.stop_part
        server.close()
        if self._proxy is not None:
            self._proxy.stop()
        await part("links", self.link_manager.stop())
        self.driver.close_links("stopping")
        self.observer_client.stop()
        clients = (self.client.connection, self.observer_client.connection)
        for task in running_tasks:
            task.cancel()
        leaving = [client.disconnect() for client in clients]
        await part("broker", asyncio.gather(*running_tasks, *leaving, return_exceptions=True))
        for client in clients:
            client.abort()
        await part("telemetry", self._telemetry.stop())
        await part("retained values", self._retained.stop())
        await part("delivery", self._delivery.stop())
        await part("subscriptions", self._subscription_log.stop())
        self._interest_reporter.stop()
        snapshot = self.observer_client.snapshot()
        await part("interest", asyncio.to_thread(self._save_interest, snapshot))
        self._shutdown.end()

    # ------------------------------------------------------------ callbacks of the parts

    def _save_interest(self, snapshot: object) -> bool:
        return self._save_state(lambda: self._state.save_interest(snapshot))

    def _save_state(self, write: Callable[[], None]) -> bool:
        """Write to the state directory; return whether that succeeded. A full disk raises an alarm
        and does not stop the agent."""
        problem = ""
        try:
            write()
        except UsageError as error:
            problem = f"a restart will lose recent state: {error}"
        self._alarms.set("state not saved", problem)
        return not problem

    def _note_incomplete(self, reason: str) -> None:
        """Raise the alarm while subscriptions may be unknown, with the consequence."""
        filters = ", ".join(self._settings.broker.filters_when_unknown)
        remedy = (
            f"asks other brokers for {filters}"
            if filters
            else "asks for nothing, and clients may miss messages"
        )
        self._alarms.set(INCOMPLETE, f"{reason}; meanwhile the agent {remedy}" if reason else "")

    def _on_finding(self, finding: ObserverFinding) -> None:
        match finding:
            case OversizedPublicationSkipped():
                self._delivery.report_dropped("larger than packet_bytes_max")
            case BrokerDroppedPublications(count, total):
                self.client.counters["dropped: by the broker, its queue was full"] += count
                text = f"it has dropped {total} messages for slow clients: if the"
                text += " agent is one of them, publications are lost; raise max_queued_messages"
                self._alarms.set("broker dropped messages", text)
        self._event_log.log_finding(finding)

    def _on_notification(self, effect: Effect) -> None:
        if isinstance(effect, IncarnationRaised):
            incarnation = effect.incarnation
            self._alarms.set("incarnation raised", CONTESTED)
            self._save_state(lambda: self._state.save_incarnation(incarnation))
        elif isinstance(effect, Ignored) and effect.reason in FILTERS_REFUSED:
            self._note_refused_filters(effect.reason)
        self._delivery.on_notification(effect)
        self._event_log.log_notification(effect)

    def _note_refused_filters(self, reason: str) -> None:
        self._filters_refused[reason] = None
        bounds = [f"{each} ({FILTERS_REFUSED[each]})" for each in sorted(self._filters_refused)]
        text = f"filters beyond {', '.join(bounds)} were refused: what they match is not carried;"
        text += " raise the setting, or find the node that announces so many"
        self._alarms.set("filters refused", text)

    def _feed_clock(self, wall_ms: int) -> None:
        self.driver.feed(ClockRead(wall_ms))

    def _on_broker_status(self, problem: str) -> None:
        if not self._stop_requested.is_set():  # the agent itself disconnects
            self._event_log.log_broker_status(self._broker_address, problem)
            if not problem or problem.startswith(LOGIN_REFUSED):
                self._alarms.set("broker login", problem)

    def _name_of(self, node: NodeId) -> str:
        return status.node_name(self.driver.node, node)

    @property
    def _broker_address(self) -> str:
        return str(Address(self._settings.broker.host, self._settings.broker.port))
