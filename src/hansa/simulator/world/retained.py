"""Retained messages at the model brokers: reads, listings and writes of the nodes.

As in the live agent, a broker is read only after it has everything delivered before, and a response
takes a round trip. A run without retained publications reads nothing.
"""

from collections.abc import Callable

from hansa.protocol import effects, events
from hansa.protocol.effects import Effect
from hansa.protocol.model import Publication
from hansa.protocol.retained.digest import payload_digest
from hansa.protocol.topics import matches
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

POLL_S = 0.05
"""Seconds between two checks whether the broker has everything delivered before."""

HandleBrokerEvent = Callable[[Site, int, events.Event], None]
Deliver = Callable[[Site, Publication], None]


class RetainedValues:
    """Performs the effects about retained messages, for all sites."""

    def __init__(
        self,
        scheduler: Scheduler,
        broker_s: float,
        handle_broker_event: HandleBrokerEvent,
        deliver: Deliver,
        report: Callable[[Site, Effect], None],
    ) -> None:
        """`broker_s` is the one-way delay; `handle_broker_event` passes a broker's response to an
        agent, `deliver` a publication to a broker; `report` adds an effect to the transcript."""
        self._scheduler = scheduler
        self._broker_s = broker_s
        self._handle_broker_event = handle_broker_event
        self._deliver = deliver
        self._report = report
        self.handlers: dict[type, Callable[[Site, Effect], None]] = {
            effects.ListRetained: self._start_listing,
            effects.ReadRetained: self._start_reading,
            effects.PublishRetained: self._store,
            effects.PersistRetained: self._persist,
        }

    def _persist(self, site: Site, effect: Effect) -> None:
        self._report(site, effect)
        assert site.node is not None
        site.state.retained = dict(site.node.delivery.retained)

    def _store(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.PublishRetained
        self._report(site, effect)
        self._deliver(site, effect.publication)

    def _start_listing(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.ListRetained
        self._report(site, effect)
        assert site.node is not None
        if site.broker.stored or site.node.delivery.retained:
            assert site.delivery is not None
            mark = site.delivery.core.delivery_mark
            request = (effect.filters, self._scheduler.now, mark)
            self._scheduler.after(POLL_S, self._list_when_ready, site, site.process_run, request)

    def _list_when_ready(
        self, site: Site, process_run: int, request: tuple[tuple[str, ...], float, int]
    ) -> None:
        filters, since, mark = request
        if site.process_run != process_run:
            return
        assert site.delivery is not None
        has_passed = site.delivery.core.has_passed(mark)
        if site.is_frozen or not site.broker.is_connected or not has_passed:
            self._scheduler.after(POLL_S, self._list_when_ready, site, process_run, request)
        else:
            self._scheduler.after(
                self._broker_s, self._list_retained, site, process_run, filters, since
            )

    def _list_retained(
        self, site: Site, process_run: int, filters: tuple[str, ...], since: float
    ) -> None:
        """The broker sends its retained messages for some filters."""
        found = tuple(
            (topic, payload_digest(message.payload))
            for topic, message in site.broker.stored.items()
            if any(matches(name, topic) for name in filters)
        )
        age = self._scheduler.now + self._broker_s - since
        response = events.RetainedListed(filters, found, age)
        self._scheduler.after(
            self._broker_s, self._handle_broker_event, site, process_run, response
        )

    def _start_reading(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.ReadRetained
        self._report(site, effect)
        self._scheduler.after(self._broker_s, self._read, site, site.process_run, effect)

    def _read(self, site: Site, process_run: int, effect: effects.ReadRetained) -> None:
        stored = site.broker.stored
        found = [stored[topic] for topic in effect.topics if topic in stored]
        values = tuple(
            events.ClientPublished(each.topic, each.payload, each.qos, True) for each in found
        )
        response = events.RetainedRead(effect.requester, values)
        self._scheduler.after(
            self._broker_s, self._handle_broker_event, site, process_run, response
        )
