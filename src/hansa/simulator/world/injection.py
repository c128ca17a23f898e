"""How an agent puts other nodes' publications of QoS 1 and 2 into its broker: once, whatever dies.

The steps are those of `hansa.agent.delivery.injection`, in virtual time:

    QoS 1   bound on disk → PUBLISH → PUBACK → completed on disk
    QoS 2   bound on disk → PUBLISH → PUBREC → accepted on disk → PUBREL → PUBCOMP → completed

Retained publications to one topic keep their order whatever their QoS (`retained_order`).

What an agent has sent reaches the broker though the agent dies meanwhile, unless one of the two
has ended the connection; what the broker answers reaches nobody then.
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
"""Publications with their places in the agent's journal, which are their packet ids."""


class InjectionHandshakes:
    """What one agent has under way, over one connection to its broker."""

    __slots__ = ("has_begun", "connection", "process_run", "ready", "in_flight")

    def __init__(self, site: Site) -> None:
        """Start with nothing sent."""
        self.process_run = site.process_run
        self.connection = site.broker.connection_count
        self.has_begun = False
        """Whether the agent knows what the broker still knows."""
        self.ready: deque[int] = deque()
        """Places of what is bound and not published."""
        self.in_flight: dict[int, None] = {}
        """Places of what is published, and not known to be completed."""


class Order(RetainedOrder[int]):
    """The order of retained publications into one broker, in one incarnation of its agent."""

    def __init__(self, site: Site, publish: ReleaseToClients) -> None:
        """Start with those that are on the disk."""
        super().__init__(lambda publications: _publish_all(publish, site, publications))
        self.life = site.process_run
        self._completed: set[int] = set()
        for publication in site.state.disk.inbox.values():
            if publication.retain:
                self.add(publication.topic, version=0)

    def complete(self, topic: str, place: int) -> Sequence[int]:
        """The broker has one; it may say so again over another connection. Return the places of
        those that waited for it."""
        followers = self.on_completed(topic, place)
        if place not in self._completed:
            self._completed.add(place)
            self.remove(topic)
        return followers


def _publish_all(
    publish: ReleaseToClients, site: Site, publications: Sequence[Publication]
) -> None:
    for each in publications:
        publish(site, each)


class SimulatedInjection:
    """The handshakes of all agents, and the brokers' part in them."""

    def __init__(
        self,
        scheduler: Scheduler,
        broker_s: float,
        in_flight_max: int,
        write: WriteToDisk,
        release: ReleaseToClients,
        on_completed: Callable[[Site], None],
    ) -> None:
        """`broker_s`: one way; `window`: how many may be under way into one broker; `save` writes
        to an agent's disk, `release` hands a publication to the clients of a broker; `finished`
        is told when a broker has something for good. A publication of QoS 0 that had to wait goes
        to `release`, too."""
        self._scheduler = scheduler
        self._broker_s = broker_s
        self._in_flight_max = in_flight_max
        self._write = write
        self._release = release
        self._on_completed = on_completed
        self._handshakes: dict[int, InjectionHandshakes] = {}
        self._orders: dict[int, Order] = {}

    # ------------------------------------------------------------ the agent

    def start_connection(self, site: Site) -> None:
        """The broker lets the agent in: end what was begun, begin again what it may not have. That
        it has forgotten the agent must be safe first: after a crash the agent would ask it to
        release what it does not have."""
        self.order(site).on_disconnected()
        present = site.broker.connect_agent()
        agent = self._handshakes[site.place] = InjectionHandshakes(site)
        if present:
            self._resume_handshakes(site, agent)
        else:
            self._write(site, SessionLostWrite())

    def on_synced(self, site: Site, writes: Iterable[DiskWrite]) -> None:
        """These are safe on the agent's disk."""
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
        """Return what is under way, if agent and broker are connected."""
        agent = self._handshakes.get(site.place)
        now = (site.process_run, site.broker.connection_count)
        return agent if agent and (agent.process_run, agent.connection) == now else None

    def _resume_handshakes(self, site: Site, agent: InjectionHandshakes) -> None:
        disk = site.state.disk
        agent.has_begun = True
        agent.in_flight = dict.fromkeys(
            place for place in disk.inbox if place in disk.accepted_by_broker
        )
        agent.ready = deque(place for place in disk.inbox if place not in disk.accepted_by_broker)
        for place in agent.in_flight:
            if disk.inbox[place].retain:
                self.order(site).on_sent(disk.inbox[place].topic, place)
        self._send_release(site, list(agent.in_flight))
        self._publish(site, agent)

    def _publish(self, site: Site, agent: InjectionHandshakes) -> None:
        """Publish what is ready, as far as the window lets it."""
        batch: Batch = []
        while agent.ready and len(agent.in_flight) < self._in_flight_max:
            place = agent.ready.popleft()
            publication = site.state.disk.inbox.get(place)
            if publication is None:  # it was completed over the connection before
                continue
            topic, qos = publication.topic, publication.qos
            if publication.retain and self.order(site).wait_or_send(place, topic, place, qos):
                continue
            agent.in_flight[place] = None
            batch.append((place, publication))
        if batch:
            self._send_to_broker(site, self._receive_publish, batch)

    def _send_release(self, site: Site, places: list[int]) -> None:
        """PUBREL."""
        if places:
            self._send_to_broker(site, self._receive_pubrel, places)

    def _receive_puback(self, site: Site, places: list[int]) -> None:
        for place in places:  # under way until it is safe, so that a crash brings no more copies
            self._leave(site, place)
            self._write(site, CompletedWrite(place))

    def _receive_pubrec(self, site: Site, places: list[int]) -> None:
        for place in places:
            self._write(site, AcceptedWrite(place))

    def _receive_pubcomp(self, site: Site, places: list[int]) -> None:
        agent = self._handshakes[site.place]
        for place in places:
            agent.in_flight.pop(place, None)
            followers = self._leave(site, place)
            if followers:
                agent.ready = deque(sorted((*agent.ready, *followers)))
            site.state.disk.mark_completed(place)
        self._publish(site, agent)
        self._on_completed(site)

    def order(self, site: Site) -> "Order":
        """Return which retained publications wait for others at a place, in this incarnation."""
        order = self._orders.get(site.place)
        if order is None or order.life != site.process_run:
            order = self._orders[site.place] = Order(site, self._release)
        return order

    def _leave(self, site: Site, place: int) -> Sequence[int]:
        """The broker has a publication; return the places of those that waited for it."""
        publication = site.state.disk.inbox.get(place)
        if publication is None or not publication.retain:
            return ()
        return self.order(site).complete(publication.topic, place)

    # ------------------------------------------------------------ the broker

    def _receive_publish(self, site: Site, batch: Batch) -> None:
        """PUBLISH: QoS 1 goes to the clients at once, QoS 2 is held until it is released."""
        held = site.broker.unreleased
        for place, publication in batch:
            if publication.qos == 1:
                self._release(site, publication)
            else:
                held.setdefault(place, publication)
        self._send_to_agent(site, self._receive_puback, [at for at, item in batch if item.qos == 1])
        self._send_to_agent(site, self._receive_pubrec, [at for at, item in batch if item.qos == 2])

    def _receive_pubrel(self, site: Site, places: list[int]) -> None:
        """PUBREL: what is held goes to the clients; what is not has gone before."""
        for place in places:
            publication = site.broker.unreleased.pop(place, None)
            if publication is not None:
                self._release(site, publication)
        self._send_to_agent(site, self._receive_pubcomp, places)

    # ------------------------------------------------------------ the way between them

    def _send_to_broker(self, site: Site, step: HandshakeStep, what: Any) -> None:
        connection = site.broker.connection_count
        self._scheduler.after(self._broker_s, self._deliver_to_broker, site, connection, step, what)

    def _deliver_to_broker(
        self, site: Site, connection: int, step: HandshakeStep, what: Any
    ) -> None:
        if site.broker.connection_count == connection:
            step(site, what)

    def _send_to_agent(self, site: Site, step: HandshakeStep, places: list[int]) -> None:
        if places:
            connection = site.broker.connection_count
            self._scheduler.after(
                self._broker_s, self._deliver_to_agent, site, connection, step, places
            )

    def _deliver_to_agent(
        self, site: Site, connection: int, step: HandshakeStep, places: list[int]
    ) -> None:
        if self._current_handshakes(site) is None or site.broker.connection_count != connection:
            return
        if site.is_frozen:
            site.postponed_calls.append(
                partial(self._deliver_to_agent, site, connection, step, places)
            )
        else:
            step(site, places)
