"""Retained messages at the model brokers: reads, listings and writes of the nodes.

As in the live agent, a broker is read only after it has everything delivered before, and a response
takes a round trip. A run without retained publications reads nothing.
"""

from collections.abc import Callable

from hansa.protocol import effects as orders
from hansa.protocol import events
from hansa.protocol.effects import Effect
from hansa.protocol.model import Publication
from hansa.protocol.retained.digest import payload_digest
from hansa.protocol.topics import matches
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

POLL_S = 0.05
"""Seconds between two checks whether the broker has everything delivered before."""

Hear = Callable[[Site, int, events.Event], None]
Deliver = Callable[[Site, Publication], None]


class RetainedValues:
    """Performs the effects about retained messages, for all sites."""

    def __init__(
        self,
        scheduler: Scheduler,
        broker_s: float,
        hear: Hear,
        deliver: Deliver,
        tell: Callable[[Site, Effect], None],
    ) -> None:
        """`broker_s` is the one-way delay; `hear` passes a broker's response to an agent process,
        `deliver` a publication to a broker; `tell` adds an effect to the transcript."""
        self._scheduler = scheduler
        self._broker_s = broker_s
        self._hear = hear
        self._deliver = deliver
        self._tell = tell
        self.orders: dict[type, Callable[[Site, Effect], None]] = {
            orders.ListRetained: self._survey,
            orders.ReadRetained: self._read_for,
            orders.PublishRetained: self._store,
            orders.PersistRetained: self._memorise,
        }

    def _memorise(self, site: Site, effect: Effect) -> None:
        self._tell(site, effect)
        assert site.node is not None
        site.state.retained = dict(site.node.delivery.retained)

    def _store(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.PublishRetained
        self._tell(site, effect)
        self._deliver(site, effect.publication)

    def _survey(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.ListRetained
        self._tell(site, effect)
        assert site.node is not None
        if site.broker.stored or site.node.delivery.retained:
            mark = site.state.disk.next_index + len(site.unwritten)
            asked = (effect.filters, self._scheduler.now, mark)
            self._scheduler.after(POLL_S, self._try_survey, site, site.process_run, asked)

    def _try_survey(self, site: Site, life: int, asked: tuple[tuple[str, ...], float, int]) -> None:
        filters, since, mark = asked
        if site.process_run != life:
            return
        if site.is_frozen or not site.broker.is_connected or not site.state.disk.has_passed(mark):
            self._scheduler.after(POLL_S, self._try_survey, site, life, asked)
        else:
            self._scheduler.after(self._broker_s, self._look, site, life, filters, since)

    def _look(self, site: Site, life: int, filters: tuple[str, ...], since: float) -> None:
        """The broker sends its retained messages for some filters."""
        found = tuple(
            (topic, payload_digest(payload))
            for topic, (payload, _) in site.broker.stored.items()
            if any(matches(name, topic) for name in filters)
        )
        age = self._scheduler.now + self._broker_s - since
        answer = events.RetainedListed(filters, found, age)
        self._scheduler.after(self._broker_s, self._hear, site, life, answer)

    def _read_for(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.ReadRetained
        self._tell(site, effect)
        self._scheduler.after(self._broker_s, self._read, site, site.process_run, effect)

    def _read(self, site: Site, life: int, order: orders.ReadRetained) -> None:
        stored = site.broker.stored
        found = [(topic, *stored[topic]) for topic in order.topics if topic in stored]
        values = tuple(events.ClientPublished(t, payload, qos, True) for t, payload, qos in found)
        answer = events.RetainedRead(order.requester, values)
        self._scheduler.after(self._broker_s, self._hear, site, life, answer)
