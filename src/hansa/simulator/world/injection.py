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
from hansa.simulator.world.disk import Accepted, Completed, SessionLost, Taken, Write
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

Save = Callable[[Site, Write], None]
Release = Callable[[Site, Publication], None]
Step = Callable[[Site, Any], None]
Batch = list[tuple[int, Publication]]
"""Publications with their places in the agent's journal, which are their packet ids."""


class Handshakes:
    """What one agent has under way, over one connection to its broker."""

    __slots__ = ("begun", "connection", "life", "ready", "sent")

    def __init__(self, site: Site) -> None:
        """Start with nothing sent."""
        self.life = site.life
        self.connection = site.broker.connections
        self.begun = False
        """Whether the agent knows what the broker still knows."""
        self.ready: deque[int] = deque()
        """Places of what is bound and not published."""
        self.sent: dict[int, None] = {}
        """Places of what is published, and not known to be completed."""


class Order(RetainedOrder[int]):
    """The order of retained publications into one broker, in one incarnation of its agent."""

    def __init__(self, site: Site, publish: Release) -> None:
        """Start with those that are on the disk."""
        super().__init__(lambda publications: _publish_all(publish, site, publications))
        self.life = site.life
        self._completed: set[int] = set()
        for publication in site.memory.disk.bound.values():
            if publication.retain:
                self.enter(publication.topic, version=0)

    def complete(self, topic: str, place: int) -> Sequence[int]:
        """The broker has one; it may say so again over another connection. Return the places of
        those that waited for it."""
        followers = self.note_ended(topic, place)
        if place not in self._completed:
            self._completed.add(place)
            self.leave(topic)
        return followers


def _publish_all(publish: Release, site: Site, publications: Sequence[Publication]) -> None:
    for each in publications:
        publish(site, each)


class Injection:
    """The handshakes of all agents, and the brokers' part in them."""

    def __init__(
        self,
        scheduler: Scheduler,
        broker_s: float,
        window: int,
        save: Save,
        release: Release,
        finished: Callable[[Site], None],
    ) -> None:
        """`broker_s`: one way; `window`: how many may be under way into one broker; `save` writes
        to an agent's disk, `release` hands a publication to the clients of a broker; `finished`
        is told when a broker has something for good. A publication of QoS 0 that had to wait goes
        to `release`, too."""
        self._scheduler = scheduler
        self._broker_s = broker_s
        self._window = window
        self._save = save
        self._release = release
        self._finished = finished
        self._agents: dict[int, Handshakes] = {}
        self._orders: dict[int, Order] = {}

    # ------------------------------------------------------------ the agent

    def connect(self, site: Site) -> None:
        """The broker lets the agent in: end what was begun, begin again what it may not have. That
        it has forgotten the agent must be safe first: after a crash the agent would ask it to
        release what it does not have."""
        self.order(site).disconnected()
        present = site.broker.connect()
        agent = self._agents[site.place] = Handshakes(site)
        if present:
            self._begin(site, agent)
        else:
            self._save(site, SessionLost())

    def saved(self, site: Site, writes: Iterable[Write]) -> None:
        """These are safe on the agent's disk."""
        agent = self._agent(site)
        if agent is None:
            return
        if any(type(what) is SessionLost for what in writes):
            self._begin(site, agent)
            return
        for what in writes:
            if type(what) is Completed:
                agent.sent.pop(what.place, None)
        if agent.begun:
            self._send_release(site, [what.place for what in writes if type(what) is Accepted])
            agent.ready += [what.place for what in writes if type(what) is Taken]
            self._publish(site, agent)

    def _agent(self, site: Site) -> Handshakes | None:
        """Return what is under way, if agent and broker are connected."""
        agent = self._agents.get(site.place)
        now = (site.life, site.broker.connections)
        return agent if agent and (agent.life, agent.connection) == now else None

    def _begin(self, site: Site, agent: Handshakes) -> None:
        disk = site.memory.disk
        agent.begun = True
        agent.sent = dict.fromkeys(place for place in disk.bound if place in disk.accepted)
        agent.ready = deque(place for place in disk.bound if place not in disk.accepted)
        for place in agent.sent:
            if disk.bound[place].retain:
                self.order(site).note_in_flight(disk.bound[place].topic, place)
        self._send_release(site, list(agent.sent))
        self._publish(site, agent)

    def _publish(self, site: Site, agent: Handshakes) -> None:
        """Publish what is ready, as far as the window lets it."""
        batch: Batch = []
        while agent.ready and len(agent.sent) < self._window:
            place = agent.ready.popleft()
            publication = site.memory.disk.bound.get(place)
            if publication is None:  # it was completed over the connection before
                continue
            topic, qos = publication.topic, publication.qos
            if publication.retain and self.order(site).must_wait(place, topic, place, qos):
                continue
            agent.sent[place] = None
            batch.append((place, publication))
        if batch:
            self._send(site, self._take, batch)

    def _send_release(self, site: Site, places: list[int]) -> None:
        """PUBREL."""
        if places:
            self._send(site, self._let_go, places)

    def _hear_puback(self, site: Site, places: list[int]) -> None:
        for place in places:  # under way until it is safe, so that a crash brings no more copies
            self._leave(site, place)
            self._save(site, Completed(place))

    def _hear_pubrec(self, site: Site, places: list[int]) -> None:
        for place in places:
            self._save(site, Accepted(place))

    def _hear_pubcomp(self, site: Site, places: list[int]) -> None:
        agent = self._agents[site.place]
        for place in places:
            agent.sent.pop(place, None)
            followers = self._leave(site, place)
            if followers:
                agent.ready = deque(sorted((*agent.ready, *followers)))
            site.memory.disk.finish(place)
        self._publish(site, agent)
        self._finished(site)

    def order(self, site: Site) -> "Order":
        """Return which retained publications wait for others at a place, in this incarnation."""
        order = self._orders.get(site.place)
        if order is None or order.life != site.life:
            order = self._orders[site.place] = Order(site, self._release)
        return order

    def _leave(self, site: Site, place: int) -> Sequence[int]:
        """The broker has a publication; return the places of those that waited for it."""
        publication = site.memory.disk.bound.get(place)
        if publication is None or not publication.retain:
            return ()
        return self.order(site).complete(publication.topic, place)

    # ------------------------------------------------------------ the broker

    def _take(self, site: Site, batch: Batch) -> None:
        """PUBLISH: QoS 1 goes to the clients at once, QoS 2 is held until it is released."""
        held = site.broker.held
        for place, publication in batch:
            if publication.qos == 1:
                self._release(site, publication)
            else:
                held.setdefault(place, publication)
        self._answer(site, self._hear_puback, [at for at, item in batch if item.qos == 1])
        self._answer(site, self._hear_pubrec, [at for at, item in batch if item.qos == 2])

    def _let_go(self, site: Site, places: list[int]) -> None:
        """PUBREL: what is held goes to the clients; what is not has gone before."""
        for place in places:
            publication = site.broker.held.pop(place, None)
            if publication is not None:
                self._release(site, publication)
        self._answer(site, self._hear_pubcomp, places)

    # ------------------------------------------------------------ the way between them

    def _send(self, site: Site, step: Step, what: Any) -> None:
        connection = site.broker.connections
        self._scheduler.after(self._broker_s, self._arrive, site, connection, step, what)

    def _arrive(self, site: Site, connection: int, step: Step, what: Any) -> None:
        if site.broker.connections == connection:
            step(site, what)

    def _answer(self, site: Site, step: Step, places: list[int]) -> None:
        if places:
            connection = site.broker.connections
            self._scheduler.after(self._broker_s, self._hear, site, connection, step, places)

    def _hear(self, site: Site, connection: int, step: Step, places: list[int]) -> None:
        if self._agent(site) is None or site.broker.connections != connection:
            return
        if site.frozen:
            site.backlog.append(partial(self._hear, site, connection, step, places))
        else:
            step(site, places)
