"""One agent, put together and run: state, node, links, broker, pages; until told to stop."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hansa import __version__
from hansa.agent import status, tasks
from hansa.agent.admin import Answer, Pages, as_json, serve
from hansa.agent.alarms import Alarms
from hansa.agent.broker.client import BrokerClient
from hansa.agent.broker.connection import LOGIN_REFUSED, Connection
from hansa.agent.broker.observer_choice import choose_histories, choose_observer
from hansa.agent.broker.observer_client import Watcher
from hansa.agent.broker.subscription_log import SubscriptionLog
from hansa.agent.clock import ClockWatch
from hansa.agent.delivery.service import Safekeeping
from hansa.agent.driver import Driver
from hansa.agent.error_text import cannot_listen
from hansa.agent.event_log import Chronicle
from hansa.agent.links.link import Address
from hansa.agent.links.link_manager import Exchange, listening_at
from hansa.agent.metrics import METRICS_KIND, as_metrics
from hansa.agent.retained_store import RetainedValues, known
from hansa.agent.settings import AgentSettings, broker_address, link_access
from hansa.agent.state import JOURNAL, SUBSCRIPTIONS, StateDirectory
from hansa.agent.stopping import Stopping
from hansa.agent.telemetry.endpoints import LogPages
from hansa.agent.telemetry.recorded_topics import Topics
from hansa.agent.telemetry.service import Bookkeeping
from hansa.agent.topology.service import Guidance
from hansa.errors import UsageError, install_extra
from hansa.mqtt import effects
from hansa.mqtt.options import NEVER_EXPIRES, Options
from hansa.observers.contract import Finding, Observer, PublicationsDropped, PublicationWithheld
from hansa.protocol.delivery.state import Remembered
from hansa.protocol.effects import Effect, Ignored, IncarnationRaised
from hansa.protocol.events import ClockRead, InterestChanged
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node
from hansa.protocol.topics import is_local_only, split_share
from hansa.protocol.wire.codec import HEADER_BYTES_MAX

if TYPE_CHECKING:  # amqtt is not there unless asked for
    from hansa.agent.broker.embedded import EmbeddedBroker

log = logging.getLogger("hansa.agent")

RETRY_S = 1.0
"""Seconds until the disk is tried again."""

FAULT_EXIT_CODE = 70
"""Exit code of a process that ends by a fault of Hansa."""

CONTESTED = (
    "another record with this node's id was met and outranked: a copy of this agent runs elsewhere"
    " and must be stopped, somebody forged the record, or the clock was set back"
)

FILTERS_REFUSED = {
    "filters_max": "of all other nodes together",
    "filters_per_neighbour_max": "of the nodes behind a neighbour that dialled this agent",
    "filters_per_node_max": "of one node",
}
"""Reasons for which filters are refused: the setting, and what it bounds."""

INCOMPLETE = "observer incomplete"
"""The alarm while subscriptions at the broker may be unknown."""


class Agent:
    """Everything that one agent consists of."""

    def __init__(self, settings: AgentSettings, state: StateDirectory) -> None:
        """Put the parts together; nothing happens before `run`."""
        self._settings = settings
        self._state = state
        self._chance = random.Random()  # for back-off, not for secrets
        self._ending: asyncio.Event = asyncio.Event()
        self._stopping = Stopping()
        broker = broker_address(settings.broker)
        addresses = (settings.topology.advertised_link or listening_at(settings.link, broker),)
        self.identity = state.identity(settings.title, addresses, settings.total_capacity)
        self._chronicle = Chronicle(self._name_of)
        self._alarms = Alarms()
        self._filters_refused: dict[str, None] = {}  # the bounds that the alarm names
        topics = Topics(settings.record)
        self._safekeeping = Safekeeping(
            state, self.identity, settings.delivery, self._alarms, topics
        )
        self.driver = Driver(
            Node(self.identity, settings.protocol, self._past()),
            news=self._note_news,
            closed=self._chronicle.link_closed,
        )
        access = link_access(settings, self._client_id(""), self.identity.node)
        frame_bytes_max = settings.protocol.packet_bytes_max + HEADER_BYTES_MAX
        self.exchange = Exchange(self.driver, self._chance, settings.link, access, frame_bytes_max)
        self._books = Bookkeeping(self.driver, self.identity, topics)
        self._subscription_log = SubscriptionLog(
            state.path / SUBSCRIPTIONS, self._alarms.named("subscriptions")
        )
        self.client, observer = self._broker_side()
        self.driver.custody = self._safekeeping
        self.driver.broker = self.client
        self._books.tell(state.path, settings.telemetry, self._counts, self._alarms)
        self._safekeeping.attach(self.driver, self.client)
        self._books.attach(self.client, self._safekeeping)
        reader = self._reading if isinstance(self.client, BrokerClient) else None
        parts = (self.driver, self._safekeeping, self.client, reader)
        self._retained = RetainedValues(state, *parts, self._alarms.named("retained"))
        self.driver.stored = self._retained
        self.watcher = self._make_watcher(observer)
        if isinstance(self.client, BrokerClient):
            self.client.forgotten = self._retained.look_again
            self.client.displaced = self._alarms.named("broker session taken over")
        else:
            self.client.learned = self.watcher.learned
        self._guidance = Guidance(
            settings, state, self.identity, self.driver, self.exchange, self._connecting("probe")
        )
        self._untold: list[InterestChanged] = []
        self._telling: asyncio.Task[None] | None = None
        self.admin_address = Address(settings.admin.host, settings.admin.port)

    def _past(self) -> Remembered:
        return replace(self._safekeeping.past(), retained=known(self._state))

    def _broker_side(self) -> "tuple[BrokerClient | EmbeddedBroker, Observer]":
        told = (self._books.feed, self._books.captured, self._note_broker)
        if self._settings.broker.observer != "embedded":
            observer = choose_observer(self._settings.broker, self._client_id(""))
            # What clients tell their own agent is for it alone; topics with $ never cross anyway.
            own = (*observer.subscriptions(), f"{self._settings.link.mqtt.prefix}/#")
            staying = [name for name in own if not is_local_only(name)]
            lasting, sure = self._lasting(), (self._safekeeping, self._subscription_log)
            client = BrokerClient(self._connecting("agent", lasting), *told, staying, sure)
            client.connection.greeting = self._safekeeping.greeting
            client.sends_each = self._settings.broker.overlapping == "each"
            return client, observer
        try:
            from hansa.agent.broker.embedded import EmbeddedBroker
        except ImportError as error:
            wanted = f"the embedded broker is amqtt: {install_extra('embedded')}"
            raise UsageError(f'[broker] observer = "embedded": {wanted}') from error
        broker = EmbeddedBroker(self._broker_address, *told)
        broker.guarantees = self._safekeeping
        return broker, broker.observer

    def _make_watcher(self, observer: Observer) -> Watcher:
        made = Watcher(
            observer,
            self._connecting("watcher"),
            feed=self._interest_changed,
            found=self._note_finding,
            histories=choose_histories(self._settings.broker),
            is_private=self._is_of_links,
        )
        made.filters_when_unknown = self._settings.broker.filters_when_unknown
        made.incomplete = self._note_incomplete
        return made

    def _is_of_links(self, topic_filter: str) -> bool:
        """Whether only links match it: those of neighbours that are clients of our broker."""
        return split_share(topic_filter)[1].startswith(f"{self._settings.link.mqtt.prefix}/")

    def _client_id(self, role: str) -> str:
        base = self._settings.broker.client_id or f"hansa-{self.identity.node:016x}"
        return f"{base}-{role}"

    def _lasting(self) -> Options:
        """Return how to connect so that the broker keeps what comes while the agent is away."""
        return Options(
            client_id=self._client_id("agent"),
            clean_start=False,
            session_expiry=min(round(self._settings.protocol.interest_lease), NEVER_EXPIRES),
            receive_maximum=self._settings.delivery.window,
            packet_bytes_max=self._settings.protocol.packet_bytes_max,
        )

    def _connecting(
        self, role: str, options: Options | None = None
    ) -> Callable[[Callable[[effects.Effect], None]], Connection]:
        address = broker_address(self._settings.broker)
        options = options or Options(client_id=self._client_id(role), clean_start=True)
        return lambda told: Connection(address, options, told, self._chance)

    def _reading(self, told: Callable[[effects.Effect], None]) -> Connection:
        """Return a client that reads what is stored, in the version that is known to be spoken."""
        assert isinstance(self.client, BrokerClient)
        options = Options(
            client_id=self._client_id("reader"),
            version=self.client.connection.version,
            clean_start=True,
            packet_bytes_max=self._settings.protocol.packet_bytes_max,
        )
        return self._connecting("reader", options)(told)

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Run until told to stop."""
        loop = asyncio.get_running_loop()
        self._stopping.handle_signals(self._begin_to_end)
        loop.set_exception_handler(self._alarms.note_fault)
        self._tell_clock(time.time_ns() // 1_000_000)
        server = await self._listen()
        self._alarms.set("insecure", self._settings.exposed)
        log.info(
            "agent up node=%016x name=%r links=%s pages=http://%s",
            self.identity.node,
            self._settings.title,
            self.exchange.address,
            self.admin_address,
        )
        self.watcher.restore(self._state.interest())
        self.watcher.start()
        clock = ClockWatch(
            self._state.clock_behind_s, self._alarms.named("clock"), self._tell_clock
        )
        connecting = [asyncio.create_task(w) for w in (self.client.connection.run(), clock.run())]
        if self.watcher.observer.subscriptions():
            connecting.append(asyncio.create_task(self.watcher.connection.run()))
        self.exchange.dial(self._chronicle.dialling_failed)
        self._books.start()
        guiding = tasks.start(self._guidance.run())
        ending = asyncio.create_task(self._ending.wait())
        ended, _ = await asyncio.wait([ending, *connecting], return_when=asyncio.FIRST_COMPLETED)
        await self._stop(server, [ending, guiding, *connecting])
        for task in ended:
            task.result()  # without its broker's connection an agent is of no use: let it fail

    async def _listen(self) -> asyncio.Server:
        """Open the port for links and the one for pages; return the latter's server."""
        place, admin, section = self.exchange.address, self.admin_address, "link"
        try:
            await self.exchange.listen(self._chronicle.dialling_failed)
            place, section = str(admin), "admin"
            names = self._settings.admin.names
            logs = self._logs().answer
            server = await serve(admin.host, admin.port, self._pages(), logs, names)
        except (OSError, UnicodeError) as error:
            await self.exchange.stop()
            raise UsageError(cannot_listen(place, section, error)) from error
        port: int = server.sockets[0].getsockname()[1]
        self.admin_address = Address(admin.host, port)
        return server

    def _begin_to_end(self, exit_code: int = 0) -> None:
        self._stopping.begin(exit_code)
        self._ending.set()

    async def _stop(self, server: asyncio.Server, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Stop all parts, each within its time limit."""
        self._begin_to_end(FAULT_EXIT_CODE)  # if nobody has asked for it, a part has failed
        log.info("agent stops")
        part = self._stopping.part
        server.close()
        await part("links", self.exchange.stop())
        self.driver.close_links("stopping")
        self.watcher.stop()
        clients = (self.client.connection, self.watcher.connection)
        for task in tasks:
            task.cancel()
        leaving = [client.leave() for client in clients]
        await part("broker", asyncio.gather(*tasks, *leaving, return_exceptions=True))
        for client in clients:
            client.cut()
        await part("telemetry", self._books.stop())
        await part("retained values", self._retained.stop())
        await part("delivery", self._safekeeping.stop())
        await part("subscriptions", self._subscription_log.stop())
        if self._telling is not None:
            self._telling.cancel()
        snapshot = self.watcher.snapshot()
        await part("interest", asyncio.to_thread(self._save_interest, snapshot))
        self._stopping.end()

    # ------------------------------------------------------------ what the parts tell

    def _interest_changed(self, event: InterestChanged) -> None:
        self._untold.append(event)
        if not tasks.is_running(self._telling):
            self._telling = tasks.start(self._tell_interest())

    async def _tell_interest(self) -> None:
        """Save what clients want, then let the node announce it: what it is owed for that reason
        must still be wanted after a restart."""
        is_saved = True
        while self._untold or not is_saved:
            events, self._untold = self._untold, []
            snapshot = self.watcher.snapshot()
            is_saved = await asyncio.to_thread(self._save_interest, snapshot)
            self.driver.feed(*events)
            if not is_saved:
                await asyncio.sleep(RETRY_S)

    def _save_interest(self, snapshot: object) -> bool:
        return self._keep(lambda: self._state.remember_interest(snapshot))

    def _keep(self, write: Callable[[], None]) -> bool:
        """Write something to the state directory, and say whether that was possible; a full disk is
        no reason to stop working."""
        problem = ""
        try:
            write()
        except UsageError as error:
            problem = f"not kept, a restart will know less: {error}"
        self._alarms.set("state", problem)
        return not problem

    def _note_incomplete(self, reason: str) -> None:
        """Raise the alarm while subscriptions may be unknown, and say what is done about it."""
        filters = ", ".join(self._settings.broker.filters_when_unknown)
        remedy = (
            f"asks other brokers for {filters}"
            if filters
            else "asks for nothing, and clients may miss messages"
        )
        self._alarms.set(INCOMPLETE, f"{reason}; meanwhile the agent {remedy}" if reason else "")

    def _note_finding(self, finding: Finding) -> None:
        match finding:
            case PublicationWithheld():
                self._safekeeping.dropped("larger than a packet may be")
            case PublicationsDropped(count, total):
                self.client.counters["dropped: by the broker, its queue was full"] += count
                text = f"it has dropped {total} messages for clients that did not take them: if the"
                text += " agent is one of them, publications are lost; raise max_queued_messages"
                self._alarms.set("broker queue", text)
        self._chronicle.finding(finding)

    def _note_news(self, effect: Effect) -> None:
        if isinstance(effect, IncarnationRaised):
            incarnation = effect.incarnation
            self._alarms.set("identity", CONTESTED)
            self._keep(lambda: self._state.remember_incarnation(incarnation))
        elif isinstance(effect, Ignored) and effect.reason in FILTERS_REFUSED:
            self._note_refused_filters(effect.reason)
        self._safekeeping.told(effect)
        self._chronicle.news(effect)

    def _note_refused_filters(self, reason: str) -> None:
        self._filters_refused[reason] = None
        bounds = [f"{each} ({FILTERS_REFUSED[each]})" for each in sorted(self._filters_refused)]
        text = f"filters beyond {', '.join(bounds)} were refused: what they match is not carried;"
        text += " raise the setting, or find the node that announces so many"
        self._alarms.set("filters refused", text)

    def _tell_clock(self, wall_ms: int) -> None:
        self.driver.feed(ClockRead(wall_ms))

    def _note_broker(self, problem: str) -> None:
        if not self._ending.is_set():  # then it is we who leave
            self._chronicle.broker(self._broker_address, problem)
            if not problem or problem.startswith(LOGIN_REFUSED):
                self._alarms.set("broker login", problem)

    def _name_of(self, node: NodeId) -> str:
        return status.name_of(self.driver.node, node)

    def _names(self, reachable: Iterable[NodeId]) -> dict[str, str]:
        """Return the names of nodes in reach and of those that publications are pending for."""
        pending = self.driver.node.custody.outbox.debts
        return {status.text(node): self._name_of(node) for node in (*reachable, *pending)}

    @property
    def _broker_address(self) -> str:
        return str(Address(self._settings.broker.host, self._settings.broker.port))

    # ------------------------------------------------------------ pages

    def _pages(self) -> Pages:
        return {
            "/status": lambda: as_json(self.status()),
            "/healthz": lambda: as_json({"ok": True}),
            "/readyz": self._ready,
            "/metrics": lambda: Answer(as_metrics(self.status()), kind=METRICS_KIND),
        }

    def _logs(self) -> LogPages:
        path, settings = self._state.path, self._settings
        return LogPages(settings.admin.token, path / JOURNAL, settings.telemetry.path(path))

    def _ready(self) -> Answer:
        problem = self.client.connection.problem
        if not problem and not self.watcher.complete:
            problem = f"{INCOMPLETE}: {self.watcher.reason}"
        return as_json({"ready": not problem, "problem": problem}, 503 if problem else 200)

    def status(self) -> dict[str, object]:
        """Return everything that an operator may want to see.

        Ids of nodes are texts, as in the log: to many readers of JSON so large a number is another.
        """
        view = self.driver.node.view()
        return {
            "version": __version__,
            "name": self._settings.title,
            "node": status.text(view.node),
            "incarnation": view.incarnation,
            "link": self.exchange.address,
            "broker": {
                "address": self._broker_address,
                "connected": not self.client.connection.problem,
                "problem": self.client.connection.problem,
                "observed": self.watcher.complete,
                "unobserved": self.watcher.reason,
            },
            "neighbours": {
                status.text(node): {
                    "rtt_ms": neighbour.rtt_ms,
                    **status.traffic(self.driver.links.get(neighbour.link)),
                }
                for node, neighbour in view.neighbours.items()
            },
            "refused": self._chronicle.refusals(),
            "members": status.texts(view.reachable),
            "names": self._names(view.reachable),
            "cores": {status.text(core): status.core(way) for core, way in view.cores.items()},
            "groups": {group: status.group(seen) for group, seen in view.groups.items()},
            "interest": {
                "local": list(self.watcher.wanted()),
                "wide": list(self.watcher.wide),
                "installed": view.installed and not tasks.is_running(self._telling),
                "remote": {status.text(n): list(i.filters) for n, i in view.interest.items()},
                "in_force": {status.text(n): list(stamp) for n, stamp in view.in_force.items()},
            },
            "topology": self._guidance.status(),
            "delivery": self._safekeeping.status(),
            "alarms": dict(self._alarms.active),
            "sizes": view.sizes,
            "counters": dict(self._counts()),
        }

    def _counts(self) -> Counter[str]:
        return (
            self.driver.node.counters
            + self.driver.counters
            + self.exchange.counters
            + self.client.counters
            + self._alarms.counters
            + self._safekeeping.counts()
            + self._books.counters
        )
