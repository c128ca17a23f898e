"""One agent, put together and run: state, node, links, broker, pages; until told to stop."""

import asyncio
import logging
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hansa import __version__
from hansa.agent import tasks, views
from hansa.agent.admin import Answer, Pages, as_json, serve
from hansa.agent.alarms import Alarms
from hansa.agent.brokers.choice import choose_histories, choose_observer
from hansa.agent.brokers.connection import Connection
from hansa.agent.brokers.observer import (
    Finding,
    Observer,
    PublicationsDropped,
    PublicationWithheld,
)
from hansa.agent.brokers.session import BrokerClient
from hansa.agent.brokers.subscription_log import SubscriptionLog
from hansa.agent.brokers.watcher import Watcher
from hansa.agent.chronicle import Chronicle
from hansa.agent.clock import ClockWatch
from hansa.agent.custody.safekeeping import Safekeeping
from hansa.agent.driver import Driver
from hansa.agent.links.exchange import Exchange, listening_at
from hansa.agent.links.link import Address
from hansa.agent.metrics import METRICS_KIND, as_metrics
from hansa.agent.reasons import explain
from hansa.agent.records.bookkeeping import Bookkeeping
from hansa.agent.records.pages import LogPages
from hansa.agent.records.topics import Topics
from hansa.agent.retained import RetainedValues, known
from hansa.agent.settings import AgentSettings, broker_address, link_access
from hansa.agent.state import JOURNAL, SUBSCRIPTIONS, StateDirectory
from hansa.agent.topology.guidance import Guidance
from hansa.errors import UsageError
from hansa.mqtt import effects
from hansa.mqtt.options import NEVER_EXPIRES, Options
from hansa.protocol.custody import Remembered
from hansa.protocol.effects import Effect, Halt, IncarnationRaised, Rekey
from hansa.protocol.events import InterestChanged
from hansa.protocol.node import Node
from hansa.protocol.records import NodeRecord
from hansa.protocol.topics import is_local_only, split_share
from hansa.protocol.vocabulary import NodeId
from hansa.protocol.wire import HEADER_BYTES_MAX

if TYPE_CHECKING:  # amqtt is not there unless asked for
    from hansa.agent.brokers.embedded import EmbeddedBroker

log = logging.getLogger("hansa.agent")

RETRY_S = 1.0
"""Seconds until the disk is tried again."""

OUTRANKED = "and outranked: a copy of it runs elsewhere, or the clock was set back"


class Agent:
    """Everything that one agent consists of."""

    def __init__(self, settings: AgentSettings, state: StateDirectory) -> None:
        """Put the parts together; nothing happens before `run`."""
        self._settings = settings
        self._state = state
        self._chance = random.Random()  # for back-off, not for secrets
        self._ending: asyncio.Event = asyncio.Event()
        self._end_reason, self._rekeys = "", False
        broker = broker_address(settings.broker)
        addresses = (settings.topology.advertised_link or listening_at(settings.link, broker),)
        self.identity = state.identity(settings.title, addresses, settings.total_capacity)
        self._chronicle = Chronicle(self._name_of)
        self._alarms = Alarms()
        topics = Topics(settings.record)
        self._safekeeping = Safekeeping(
            state, self.identity, settings.delivery, self._alarms, topics
        )
        self.driver = Driver(
            Node(self.identity, settings.protocol, self._past()),
            news=self._note_news,
            stop=self._give_way,
            closed=self._chronicle.link_closed,
        )
        access = link_access(settings, self._client_id(""))
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
        self.watcher = Watcher(
            observer,
            self._connecting("watcher"),
            feed=self._interest_changed,
            found=self._note_finding,
            histories=choose_histories(settings.broker),
            is_private=self._is_of_links,
        )
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
            from hansa.agent.brokers.embedded import EmbeddedBroker
        except ImportError as error:
            wanted = "the embedded broker is amqtt: pip install 'hansa[embedded]'"
            raise UsageError(f'[broker] observer = "embedded": {wanted}') from error
        broker = EmbeddedBroker(self._broker_address, *told)
        broker.guarantees = self._safekeeping
        return broker, broker.observer

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

    async def run(self) -> str:
        """Run until told to stop; return why it ended if that was not a wish of the operator's."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ending.set)
        loop.set_exception_handler(self._alarms.note_fault)
        server = await self._listen()
        log.info(
            "agent up node=%016x name=%r links=%s pages=http://%s",
            self.identity.node,
            self._settings.title,
            self.exchange.address,
            self.admin_address,
        )
        self.watcher.restore(self._state.interest())
        self.watcher.start()
        clock = ClockWatch(self._state.clock_behind_s, self._alarms.named("clock"))
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
        return self._end_reason

    async def _listen(self) -> asyncio.Server:
        """Open the port for links and the one for pages; return the latter's server."""
        place, admin = self.exchange.address, self.admin_address
        try:
            await self.exchange.listen(self._chronicle.dialling_failed)
            place = str(admin)
            server = await serve(admin.host, admin.port, self._pages(), self._logs().answer)
        except (OSError, UnicodeError) as error:
            await self.exchange.stop()
            raise UsageError(f"cannot listen on {place}: {explain(error)}") from error
        port: int = server.sockets[0].getsockname()[1]
        self.admin_address = Address(admin.host, port)
        return server

    async def _stop(self, server: asyncio.Server, tasks: Sequence[asyncio.Task[Any]]) -> None:
        log.info("agent stops")
        server.close()
        await self.exchange.stop()
        self.driver.close_links("stopping")
        self.watcher.stop()
        clients = (self.client.connection, self.watcher.connection)
        for task in tasks:
            task.cancel()
        leaving = [client.leave() for client in clients]
        await asyncio.gather(*tasks, *leaving, return_exceptions=True)
        for client in clients:
            client.cut()
        await self._books.stop(self._end_reason)
        await self._retained.stop()
        await self._safekeeping.stop()
        await self._subscription_log.stop()
        if self._telling is not None:
            self._telling.cancel()
        self._save_interest(self.watcher.observer.snapshot())
        if self._rekeys:
            self._state.rekey()

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
            snapshot = self.watcher.observer.snapshot()
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
            self._alarms.set("identity", f"another life of this node is known, {OUTRANKED}")
            self._keep(lambda: self._state.remember_incarnation(incarnation))
        self._safekeeping.told(effect)
        self._chronicle.news(effect)

    def _give_way(self, effect: Halt | Rekey) -> None:
        self._end_reason = effect.reason
        if isinstance(effect, Rekey):
            self._rekeys = True  # in the end: until then the parts save what they know
            self._end_reason += "; start again to run with a new identity"
        log.error("%s", self._end_reason)
        self._ending.set()

    def _note_broker(self, problem: str) -> None:
        if not self._ending.is_set():  # then it is we who leave
            self._chronicle.broker(self._broker_address, problem)

    def _name_of(self, node: NodeId) -> str:
        """Return what a node is called; empty until its record is there."""
        records = self.driver.node.records_of(node)
        return next((each.name for each in records if isinstance(each, NodeRecord)), "")

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
        return as_json({"ready": not problem, "problem": problem}, 503 if problem else 200)

    def status(self) -> dict[str, object]:
        """Return everything that an operator may want to see.

        Ids of nodes are texts, as in the log: to many readers of JSON so large a number is another.
        """
        view = self.driver.node.view()
        return {
            "version": __version__,
            "name": self._settings.title,
            "node": views.text(view.node),
            "incarnation": view.incarnation,
            "link": self.exchange.address,
            "broker": {
                "address": self._broker_address,
                "connected": not self.client.connection.problem,
                "problem": self.client.connection.problem,
                "observed": self.watcher.observer.complete,
                "unobserved": self.watcher.observer.reason,
            },
            "neighbours": {
                views.text(node): {
                    "rtt_ms": neighbour.rtt_ms,
                    **views.traffic(self.driver.links.get(neighbour.link)),
                }
                for node, neighbour in view.neighbours.items()
            },
            "refused": self._chronicle.refusals(),
            "members": views.texts(view.reachable),
            "names": {views.text(node): self._name_of(node) for node in view.reachable},
            "cores": {views.text(core): views.core(way) for core, way in view.cores.items()},
            "groups": {group: views.group(seen) for group, seen in view.groups.items()},
            "interest": {
                "local": list(self.watcher.wanted()),
                "installed": view.installed and not tasks.is_running(self._telling),
                "remote": {views.text(n): list(i.filters) for n, i in view.interest.items()},
                "in_force": {views.text(n): list(stamp) for n, stamp in view.in_force.items()},
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
