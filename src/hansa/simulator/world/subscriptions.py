"""The agents' subscriptions at their own brokers: requested, granted, lost and renewed."""

from collections.abc import Callable

from hansa.protocol import effects, events
from hansa.protocol.effects import Effect
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

RESUBSCRIBE_DELAY_S = 0.01
"""Seconds until the agent of a restarted broker has renewed its subscriptions."""

HandleBrokerEvent = Callable[[Site, int, events.Event], None]


class SimulatedSubscriptions:
    """Performs the subscription effects of nodes; waits while a broker refuses its agent."""

    def __init__(
        self, scheduler: Scheduler, broker_s: float, handle_broker_event: HandleBrokerEvent
    ) -> None:
        """`broker_s` is the one-way delay; `handle_broker_event` passes a broker's response to an
        agent."""
        self._scheduler = scheduler
        self._broker_s = broker_s
        self._handle_broker_event = handle_broker_event
        self.handlers: dict[type, Callable[[Site, Effect], None]] = {
            effects.SubscribeAtBroker: self._subscribe,
            effects.UnsubscribeAtBroker: self._unsubscribe,
        }

    def restore_all(self, site: Site, on_restored: Callable[[Site], None]) -> None:
        """Renew the agent's subscriptions after the broker lost them, and report it to the
        agent."""
        granted = list(site.broker.granted)
        site.broker.withdraw(granted)
        self._scheduler.after(
            RESUBSCRIBE_DELAY_S, self._restore_granted, site, site.process_run, granted, on_restored
        )

    def _restore_granted(
        self, site: Site, process_run: int, filters: list[str], on_restored: Callable[[Site], None]
    ) -> None:
        if site.process_run != process_run or site.node is None:
            return  # the agent subscribes when it starts
        if not self._postpone_if_refused(
            site, self._restore_granted, process_run, filters, on_restored
        ):
            site.broker.grant(filters)
            on_restored(site)

    def _subscribe(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.SubscribeAtBroker
        self._scheduler.after(self._broker_s, self._grant, site, site.process_run, effect.filters)

    def _grant(self, site: Site, process_run: int, filters: tuple[str, ...]) -> None:
        if site.process_run == process_run and not self._postpone_if_refused(
            site, self._grant, process_run, filters
        ):
            site.broker.grant(filters)
            event = events.SubscriptionsGranted(filters)
            self._scheduler.after(
                self._broker_s, self._handle_broker_event, site, process_run, event
            )

    def _unsubscribe(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.UnsubscribeAtBroker
        self._scheduler.after(
            self._broker_s, self._withdraw, site, site.process_run, effect.filters
        )

    def _withdraw(self, site: Site, process_run: int, filters: tuple[str, ...]) -> None:
        if site.process_run == process_run and not self._postpone_if_refused(
            site, self._withdraw, process_run, filters
        ):
            site.broker.withdraw(filters)

    def _postpone_if_refused(
        self, site: Site, retry: Callable[..., None], *arguments: object
    ) -> bool:
        """Retry when the broker accepts its agent; return whether it refuses it now."""
        waits = self._scheduler.now < site.broker.refuses_until
        if waits:
            self._scheduler.at(site.broker.refuses_until, retry, site, *arguments)
        return waits
