"""Injects other nodes' QoS 1 and 2 publications into the broker, exactly once at QoS 2.

The steps are those of `hansa.agent.delivery.injection`, in virtual time:

    QoS 1   assigned on disk → PUBLISH → PUBACK → completed on disk
    QoS 2   assigned on disk → PUBLISH → PUBREC → accepted on disk → PUBREL → PUBCOMP → completed

Retained publications to one topic keep their order whatever their QoS
(`protocol.retained.write_order`).

A packet that the agent has sent reaches the broker even if the agent dies, unless one side has
closed the connection; the response is then lost.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from hansa.protocol.model import Publication
from hansa.protocol.retained.write_order import RetainedOrder
from hansa.simulator.world.disk import (
    AcceptedWrite,
    CompletedWrite,
    DiskWrite,
    InboxWrite,
    SessionLostWrite,
)
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

WriteToDisk = Callable[[Site, DiskWrite], None]
ReleaseToClients = Callable[[Site, Publication], None]
HandshakeStep = Callable[[Site, Any], None]
Batch = list[tuple[int, Publication]]
"""Publications with their inbox indexes, which are their packet ids."""


class InjectionHandshakes:
    """The handshakes of one agent on one connection to its broker."""

    __slots__ = ("has_begun", "connection", "process_run", "ready", "in_flight")

    def __init__(self, site: Site) -> None:
        self.process_run = site.process_run
        self.connection = site.broker.connection_count
        self.has_begun = False
        """Whether the session state of the broker is known to the agent."""
        self.ready: deque[int] = deque()
        """Indexes assigned but not published."""
        self.in_flight: dict[int, None] = {}
        """Indexes published but not known to be completed."""


class SiteRetainedOrder(RetainedOrder[int]):
    """The order of retained publications into one broker, for one process of its agent."""

    def __init__(self, site: Site, publish: ReleaseToClients) -> None:
        """Start with the publications on the disk."""
        super().__init__(lambda publications: _publish_all(publish, site, publications))
        self.process_run = site.process_run
        self._completed: set[int] = set()
        for publication in site.state.disk.inbox.values():
            if publication.retain:
                self.add(publication.topic, version=0)

    def complete(self, topic: str, index: int) -> Sequence[int]:
        """Mark one as completed; the broker may report it again on another connection. Return the
        indexes of those that waited for it."""
        followers = self.on_completed(topic, index)
        if index not in self._completed:
            self._completed.add(index)
            self.remove(topic)
        return followers


def _publish_all(
    publish: ReleaseToClients, site: Site, publications: Sequence[Publication]
) -> None:
    for each in publications:
        publish(site, each)


class SimulatedInjection:
    """The handshakes of all agents, and the brokers' side of them."""

    def __init__(
        self,
        scheduler: Scheduler,
        broker_s: float,
        in_flight_max: int,
        write: WriteToDisk,
        release: ReleaseToClients,
        on_completed: Callable[[Site], None],
    ) -> None:
        """`broker_s` is the one-way delay, `in_flight_max` the publications in flight per broker;
        `write` writes to an agent's disk, `release` passes a publication to a broker's clients
        (also one of QoS 0 that had to wait); `on_completed` is called when a broker has completed
        one."""
        self._scheduler = scheduler
        self._broker_s = broker_s
        self._in_flight_max = in_flight_max
        self._write = write
        self._release = release
        self._on_completed = on_completed
        self._handshakes: dict[int, InjectionHandshakes] = {}
        self._retained_orders: dict[int, SiteRetainedOrder] = {}

    # ------------------------------------------------------------ the agent

    def start_connection(self, site: Site) -> None:
        """Resume after CONNACK: release what the broker has, publish again what it may not have. A
        lost session must be on disk first, or after a crash the agent would release publications
        that the broker does not have."""
        self.order(site).on_disconnected()
        present = site.broker.connect_agent()
        agent = self._handshakes[site.place] = InjectionHandshakes(site)
        if present:
            self._resume_handshakes(site, agent)
        else:
            self._write(site, SessionLostWrite())

    def on_synced(self, site: Site, writes: Iterable[DiskWrite]) -> None:
        """These writes are synced."""
        agent = self._current_handshakes(site)
        if agent is None:
            return
        if any(type(what) is SessionLostWrite for what in writes):
            self._resume_handshakes(site, agent)
            return
        for what in writes:
            if type(what) is CompletedWrite:
                agent.in_flight.pop(what.index, None)
        if agent.has_begun:
            self._send_release(site, [what.index for what in writes if type(what) is AcceptedWrite])
            agent.ready += [what.index for what in writes if type(what) is InboxWrite]
            self._publish(site, agent)

    def _current_handshakes(self, site: Site) -> InjectionHandshakes | None:
        """Return the handshakes if agent and broker are connected."""
        agent = self._handshakes.get(site.place)
        now = (site.process_run, site.broker.connection_count)
        return agent if agent and (agent.process_run, agent.connection) == now else None

    def _resume_handshakes(self, site: Site, agent: InjectionHandshakes) -> None:
        disk = site.state.disk
        agent.has_begun = True
        agent.in_flight = dict.fromkeys(
            index for index in disk.inbox if index in disk.accepted_by_broker
        )
        agent.ready = deque(index for index in disk.inbox if index not in disk.accepted_by_broker)
        for index in agent.in_flight:
            if disk.inbox[index].retain:
                self.order(site).on_sent(disk.inbox[index].topic, index)
        self._send_release(site, list(agent.in_flight))
        self._publish(site, agent)

    def _publish(self, site: Site, agent: InjectionHandshakes) -> None:
        """Publish assigned publications up to the window."""
        batch: Batch = []
        while agent.ready and len(agent.in_flight) < self._in_flight_max:
            index = agent.ready.popleft()
            publication = site.state.disk.inbox.get(index)
            if publication is None:  # completed on the previous connection
                continue
            topic, qos = publication.topic, publication.qos
            if publication.retain and self.order(site).wait_or_send(index, topic, index, qos):
                continue
            agent.in_flight[index] = None
            batch.append((index, publication))
        if batch:
            self._send_to_broker(site, self._receive_publish, batch)

    def _send_release(self, site: Site, indexes: list[int]) -> None:
        """Send PUBREL."""
        if indexes:
            self._send_to_broker(site, self._receive_pubrel, indexes)

    def _receive_puback(self, site: Site, indexes: list[int]) -> None:
        for (
            index
        ) in indexes:  # in flight until it is synced, so that a crash makes no further copies
            self._leave(site, index)
            self._write(site, CompletedWrite(index))

    def _receive_pubrec(self, site: Site, indexes: list[int]) -> None:
        for index in indexes:
            self._write(site, AcceptedWrite(index))

    def _receive_pubcomp(self, site: Site, indexes: list[int]) -> None:
        agent = self._handshakes[site.place]
        for index in indexes:
            agent.in_flight.pop(index, None)
            followers = self._leave(site, index)
            if followers:
                agent.ready = deque(sorted((*agent.ready, *followers)))
            site.state.disk.mark_completed(index)
        self._publish(site, agent)
        self._on_completed(site)

    def order(self, site: Site) -> SiteRetainedOrder:
        """Return the order of retained publications at a place, for the current process."""
        order = self._retained_orders.get(site.place)
        if order is None or order.process_run != site.process_run:
            order = self._retained_orders[site.place] = SiteRetainedOrder(site, self._release)
        return order

    def _leave(self, site: Site, index: int) -> Sequence[int]:
        """Mark a publication as completed; return the indexes of those that waited for it."""
        publication = site.state.disk.inbox.get(index)
        if publication is None or not publication.retain:
            return ()
        return self.order(site).complete(publication.topic, index)

    # ------------------------------------------------------------ the broker

    def _receive_publish(self, site: Site, batch: Batch) -> None:
        """Receive PUBLISH: pass QoS 1 to the clients, hold QoS 2 until it is released."""
        held = site.broker.unreleased
        for index, publication in batch:
            if publication.qos == 1:
                self._release(site, publication)
            else:
                held.setdefault(index, publication)
        self._send_to_agent(site, self._receive_puback, [at for at, item in batch if item.qos == 1])
        self._send_to_agent(site, self._receive_pubrec, [at for at, item in batch if item.qos == 2])

    def _receive_pubrel(self, site: Site, indexes: list[int]) -> None:
        """Receive PUBREL: pass the held publication to the clients, unless it was passed before."""
        for index in indexes:
            publication = site.broker.unreleased.pop(index, None)
            if publication is not None:
                self._release(site, publication)
        self._send_to_agent(site, self._receive_pubcomp, indexes)

    # ------------------------------------------------------------ delays

    def _send_to_broker(self, site: Site, step: HandshakeStep, what: Any) -> None:
        connection = site.broker.connection_count
        self._scheduler.after(self._broker_s, self._deliver_to_broker, site, connection, step, what)

    def _deliver_to_broker(
        self, site: Site, connection: int, step: HandshakeStep, what: Any
    ) -> None:
        if site.broker.connection_count == connection:
            step(site, what)

    def _send_to_agent(self, site: Site, step: HandshakeStep, indexes: list[int]) -> None:
        if indexes:
            connection = site.broker.connection_count
            self._scheduler.after(
                self._broker_s, self._deliver_to_agent, site, connection, step, indexes
            )

    def _deliver_to_agent(
        self, site: Site, connection: int, step: HandshakeStep, indexes: list[int]
    ) -> None:
        if self._current_handshakes(site) is None or site.broker.connection_count != connection:
            return
        if site.is_frozen:
            site.postponed_calls.append(
                partial(self._deliver_to_agent, site, connection, step, indexes)
            )
        else:
            step(site, indexes)
