"""Assembles one agent and runs it until it is stopped: state, node, links, broker, endpoints."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hansa.agent import tasks
from hansa.agent.admin import status
from hansa.agent.admin.service import AdminService
from hansa.agent.admin.summary import StatusSources
from hansa.agent.alarm_rules import AlarmRules
from hansa.agent.alarms import Alarms, SetAlarm
from hansa.agent.broker.client import BrokerClient
from hansa.agent.broker.connections import BrokerConnections
from hansa.agent.broker.observer_choice import (
    ObserverSource,
    SourceChooser,
    choose_histories,
    choose_source,
    import_embedded,
)
from hansa.agent.broker.observer_client import ObserverClient
from hansa.agent.broker.retained_store import RetainedStore, load_retained
from hansa.agent.clock_monitor import ClockMonitor
from hansa.agent.delivery.service import DeliveryService
from hansa.agent.driver import Driver
from hansa.agent.error_text import listen_error_text
from hansa.agent.event_log import EventLog
from hansa.agent.interest_reporter import InterestReporter
from hansa.agent.links.link import Address
from hansa.agent.links.link_manager import LinkManager, own_link_address
from hansa.agent.links.security import LinkSecurity
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.renewal import CertificateRenewer
from hansa.agent.security import load_security, make_authenticator, watch_peers
from hansa.agent.settings import AgentSettings, link_access
from hansa.agent.shutdown import Shutdown
from hansa.agent.storage.state_directory import StateDirectory
from hansa.agent.telemetry.service import TelemetryService
from hansa.agent.topology.service import TopologyService
from hansa.delivery.core import BrokerTraits
from hansa.errors import UsageError
from hansa.observers.base import (
    BrokerDroppedPublications,
    ObserverFinding,
    OversizedPublicationSkipped,
)
from hansa.protocol.effects import (
    Effect,
    IncarnationRaised,
    QueryReceived,
    QueryResponseReceived,
)
from hansa.protocol.events import CertificatesChanged, ClockRead
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node
from hansa.protocol.topics import is_local_only, split_share
from hansa.protocol.wire.codec import HEADER_BYTES_MAX

if TYPE_CHECKING:  # amqtt is an optional dependency
    from hansa.agent.broker.embedded import EmbeddedBroker

log = logging.getLogger("hansa.agent")

FAULT_EXIT_CODE = 70
"""Exit code after a fault of Hansa."""


class Agent:
    def __init__(
        self,
        settings: AgentSettings,
        state: StateDirectory,
        choose_source: SourceChooser = choose_source,
    ) -> None:
        """Build the parts, each after those it needs; nothing runs before `run`.

        Node and broker need each other, so the driver gets its ports (broker, delivery, retained
        values) last.
        """
        self._alarms = Alarms()
        settings, security = load_security(settings, state, self._alarms)
        self._settings = settings
        self._state = state
        self._rng = random.Random()  # for back-off, not for secrets
        self._stop_requested: asyncio.Event = asyncio.Event()
        self._shutdown = Shutdown()
        self._event_log = EventLog(self._name_of)
        self._alarm_rules = AlarmRules(
            *(self._alarms, settings.broker.filters_when_unknown, self._name_of),
            has_core=self._has_core,
        )

        # The node with its links.
        self.identity = state.start_incarnation(
            settings.display_name, (self._advertised_address(),), settings.total_capacity
        )
        topics = RecordedTopics(settings.record)
        connections = BrokerConnections(settings, self.identity.node, self._rng)
        own_prefix = connections.client_id_prefix
        self._observer_source = choose_source(
            *(settings, connections, state.path, self._alarms),
            is_agent_subscribed=lambda: (
                isinstance(self.client, BrokerClient) and self.client.is_subscribed
            ),
        )
        retained = load_retained(state)  # before anything is open that another attempt needs
        self._delivery = DeliveryService(
            state,
            self.identity,
            settings.delivery,
            self._alarms,
            topics,
            self._broker_traits(),
        )
        self.driver = self._make_driver(security, retained)
        watch_peers(self.driver, state, self._alarms, self._event_log, security)
        self.link_manager = LinkManager(
            *(self.driver, self._rng, settings.link),
            link_access(settings, own_prefix, self.identity.node),
            frame_bytes_max=settings.protocol.packet_bytes_max + HEADER_BYTES_MAX,
            security=security,
        )

        # The clients at the broker.
        self._telemetry = TelemetryService(self.driver, self.identity, topics)
        self.client = self._make_broker_client(connections)
        self._interest_reporter = InterestReporter(
            lambda: self.observer_client.snapshot(), self._save_interest, self.driver.feed
        )
        self.observer_client = self._make_observer_client(connections)
        # The embedded broker has no other clients of the agent.
        make_reader = connections.make_reader if isinstance(self.client, BrokerClient) else None
        self._retained = RetainedStore(
            *(state, self.driver, self._delivery, self.client),
            partial(make_reader, "reader") if make_reader else None,
            self._alarms.setter("retained values not readable"),
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
        self._delivery.attach(self.driver, self.client, self._telemetry)
        self._telemetry.attach(self.client, self._delivery)

        # Management.
        self._topology = TopologyService(
            settings,
            state,
            self.identity,
            self.driver,
            self.link_manager,
            connections.factory("probe"),
        )
        parts = StatusSources(
            name=settings.display_name,
            broker_address=self._broker_address,
            state_directory=str(state.path),
            settings=settings,
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
            observer_source=self._observer_source,
        )
        self.admin = AdminService(settings, state.path, parts, make_reader)

    def _advertised_address(self) -> str:
        own_address = own_link_address(self._settings.link, self._settings.broker.address())
        return self._settings.topology.advertised_link or own_address

    def _all_counters(self) -> Counter[str]:
        return self.admin.all_counters()

    def _make_driver(self, security: LinkSecurity | None, retained: dict[str, Any]) -> Driver:
        restored = replace(self._delivery.restored_state(), retained=retained)
        node = Node(
            self.identity,
            self._settings.protocol,
            restored,
            security.make_exchange_keys() if security else None,
            make_authenticator(security),
        )
        driver = Driver(node, self._on_notification, self._event_log.log_link_closed)
        driver.guard.limits = self._settings.link.limits
        return driver

    def _broker_traits(self) -> BrokerTraits:
        """Messages to the agent itself are not forwarded; topics with $ never are."""
        topics = self._observer_source.observer.topics_to_subscribe()
        own = (*topics, f"{self._settings.link.mqtt.prefix}/#")
        return BrokerTraits(
            tuple(name for name in own if not is_local_only(name)),
            self._settings.broker.overlap_copies == "each",
        )

    def _make_broker_client(
        self, connections: BrokerConnections
    ) -> "BrokerClient | EmbeddedBroker":
        callbacks = (self._telemetry.capture_qos0, self._on_broker_status)
        if self._settings.broker.observer != "embedded":
            return BrokerClient(connections.make_main, self._delivery, *callbacks)
        make_broker, observer_class = import_embedded()
        observer = self._observer_source.observer
        assert isinstance(observer, observer_class)
        return make_broker(
            self._broker_address, observer, self._delivery, self._telemetry.feed, *callbacks
        )

    def _make_observer_client(self, connections: BrokerConnections) -> ObserverClient:
        made = ObserverClient(
            self._observer_source.observer,
            connections.factory("observer"),
            feed=self._interest_reporter.report,
            on_finding=self._on_finding,
            histories=choose_histories(self._settings.broker),
            is_private=self._is_link_filter,
        )
        made.filters_when_unknown = self._settings.broker.filters_when_unknown
        made.on_incomplete = self._alarm_rules.on_observer_incomplete
        self._observer_source.on_observer_output = made.apply_output
        return made

    def _is_link_filter(self, topic_filter: str) -> bool:
        """Whether a filter is that of a link through this broker."""
        return split_share(topic_filter)[1].startswith(f"{self._settings.link.mqtt.prefix}/")

    # ------------------------------------------------------------ running

    async def run(
        self, handle_reload: Callable[[ObserverSource, SetAlarm], None] | None = None
    ) -> None:
        """Run until a signal or `stop` ends it. `handle_reload` lets settings of the observer
        change meanwhile."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._alarms.on_loop_exception)
        self._record_history()
        self._feed_clock(time.time_ns() // 1_000_000)
        try:
            await self._listen()
        except Exception:
            loop.set_exception_handler(None)
            await self._release()
            raise
        # From now on: an agent that could not start must not handle the signals of its process.
        self._shutdown.handle_signals(self._request_stop)
        if handle_reload is not None:
            handle_reload(self._observer_source, self._alarms.setter("settings not reloaded"))
        self._alarms.set("insecure", self._settings.exposure_text)
        log.info(
            "agent up node=%016x name=%r links=%s tls=%s endpoints=%s://%s",
            self.identity.node,
            self._settings.display_name,
            self.link_manager.address,
            "yes" if self.link_manager.security else "no",
            self._settings.admin.scheme,
            self.admin.address,
        )
        self.observer_client.restore(self._state.load_interest(), self._delivery.had_session)
        self.observer_client.start()
        clock = ClockMonitor(
            self._state.clock_behind_s, self._alarms.setter("clock set back"), self._feed_clock
        )
        connection_tasks = [
            asyncio.create_task(each)
            for each in (
                self.client.connection.run(),
                clock.run(),
                self._alarm_rules.run(),
                self._observer_source.run(),
                self._event_log.audit.run(),
            )
        ]
        if self.observer_client.observer.topics_to_subscribe():
            connection_tasks.append(asyncio.create_task(self.observer_client.connection.run()))
        self.link_manager.dial_configured(self._event_log.log_dial_failed)
        self._telemetry.start()
        background_tasks = [
            tasks.start_task(self._topology.run()),
            tasks.start_task(self.admin.publish_state()),
            tasks.start_task(
                self.link_manager.check_broker_ports(self._alarms.setter("neighbour is a broker"))
            ),
        ]
        if self.link_manager.security is not None:
            connection_tasks += self._keep_certificates(self.link_manager.security)
        stop_task = asyncio.create_task(self._stop_requested.wait())
        ended, _ = await asyncio.wait(
            [stop_task, *connection_tasks], return_when=asyncio.FIRST_COMPLETED
        )
        await self._stop([stop_task, *background_tasks, *connection_tasks])
        for task in ended:
            task.result()  # without a broker connection an agent is useless: let it fail

    def _keep_certificates(self, security: LinkSecurity) -> list[asyncio.Task[None]]:
        """Check and renew certificates."""
        security.links = self.driver.links.values
        security.on_checked = lambda: self.driver.feed(CertificatesChanged())
        security.known_certificates = self._certificates_of
        renewer = CertificateRenewer(
            security,
            self._settings.security.issuer,
            self._alarms.setter("certificate not renewed"),
            self._event_log.audit.record,
            self._rng,
        )
        return [asyncio.create_task(each) for each in (security.run(), renewer.run())]

    def _record_history(self) -> None:
        """Record alarms in history and telemetry, also those raised so far."""
        for name, text in self._alarms.active.items():
            self._record_alarm(name, text, "raised")
        self._alarms.on_changed = self._record_alarm

    def _record_alarm(self, name: str, text: str, change: str) -> None:
        self._event_log.history.add_alarm(name, text, change)
        self._telemetry.record_alarm(name, text, change)

    async def _listen(self) -> None:
        """Listen for links, HTTP requests and clients of the proxy."""
        place, section = self.link_manager.address, "link"
        try:
            await self.link_manager.listen(
                self._event_log.log_dial_failed,
                self._event_log.log_unauthenticated,
                self._event_log.audit_dialled_refusal,
            )
            place, section = str(self.admin.address), "admin"
            await self.admin.listen(self._request_stop)
            await self._observer_source.listen()
        except UsageError:
            raise
        except (OSError, UnicodeError) as error:
            raise UsageError(listen_error_text(place, section, error)) from error

    async def _release(self) -> None:
        """Release ports, files and timers of an agent that could not start: another attempt in
        the same process needs them."""
        part = self._shutdown.stop_part
        self.admin.close()
        await part("links", self.link_manager.stop())
        self.driver.close_links()
        await part("telemetry", self._telemetry.stop())
        await part("audit log", self._event_log.audit.stop())
        await part("delivery", self._delivery.stop())

    def _request_stop(self, exit_code: int = 0) -> None:
        self._shutdown.begin(exit_code)
        self._stop_requested.set()

    async def _stop(self, running_tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Stop all parts, each within its time limit."""
        self._request_stop(FAULT_EXIT_CODE)  # unless requested before: a part has failed
        log.info("agent stops")
        part = self._shutdown.stop_part
        self.admin.close()
        self._observer_source.stop()
        await part("links", self.link_manager.stop())
        self.driver.close_links()
        self.observer_client.stop()
        clients = (self.client.connection, self.observer_client.connection)
        for task in running_tasks:
            task.cancel()
        leaving = [client.disconnect() for client in clients]
        await part("broker", asyncio.gather(*running_tasks, *leaving, return_exceptions=True))
        for client in clients:
            client.abort()
        await part("telemetry", self._telemetry.stop())
        await part("audit log", self._event_log.audit.stop())
        await part("retained values", self._retained.stop())
        await part("delivery", self._delivery.stop())
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

    def _on_finding(self, finding: ObserverFinding) -> None:
        match finding:
            case OversizedPublicationSkipped():
                self._delivery.report_dropped("larger than packet_bytes_max")
            case BrokerDroppedPublications(count):
                self.client.counters["dropped: by the broker, its queue was full"] += count
        self._alarm_rules.on_finding(finding)
        self._event_log.log_finding(finding)

    def _on_notification(self, effect: Effect) -> None:
        if isinstance(effect, (QueryReceived, QueryResponseReceived)):
            self.admin.perform_query(effect)
            return
        if isinstance(effect, IncarnationRaised):
            incarnation = effect.incarnation
            self._save_state(lambda: self._state.save_incarnation(incarnation))
        self._alarm_rules.on_notification(effect)
        self._delivery.on_notification(effect)
        self._event_log.log_notification(effect)

    def _feed_clock(self, wall_ms: int) -> None:
        self.driver.feed(ClockRead(wall_ms))

    def _on_broker_status(self, problem: str) -> None:
        if not self._stop_requested.is_set():  # the agent itself disconnects
            self._event_log.log_broker_status(self._broker_address, problem)
            self._alarm_rules.on_broker_status(problem)

    def _certificates_of(self, node: NodeId) -> tuple[bytes, ...]:
        record = self.driver.node.membership.known.get(node)
        return record.certificates if record else ()

    def _name_of(self, node: NodeId) -> str:
        return status.node_name(self.driver.node, node)

    def _has_core(self) -> bool:
        return status.has_core(self.driver.node, self._settings.protocol.strategy)

    @property
    def _broker_address(self) -> str:
        return str(Address(self._settings.broker.host, self._settings.broker.port))
