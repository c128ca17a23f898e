"""What an agent is subscribed to at its own broker: asked for, granted, lost, and made again."""

from collections.abc import Callable

from hansa.protocol import effects as orders
from hansa.protocol import events
from hansa.protocol.effects import Effect
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

RESUBSCRIBE_DELAY_S = 0.01
"Seconds until the agent of a restarted broker has its own subscriptions again."

HandleBrokerEvent = Callable[[Site, int, events.Event], None]


class SimulatedSubscriptions:
    """Performs what nodes want of their brokers. A broker that refuses its agent is asked later."""

    def __init__(
        self, scheduler: Scheduler, broker_s: float, handle_broker_event: HandleBrokerEvent
    ) -> None:
        """`broker_s`: one way; `hear` tells an agent, in one of its lives, what its broker says."""
        self._scheduler = scheduler
        self._broker_s = broker_s
        self._handle_broker_event = handle_broker_event
        self.handlers: dict[type, Callable[[Site, Effect], None]] = {
            orders.SubscribeAtBroker: self._subscribe,
            orders.UnsubscribeAtBroker: self._unsubscribe,
        }

    def restore_all(self, site: Site, then: Callable[[Site], None]) -> None:
        """A broker has lost its agent's subscriptions: soon the agent, if it is there, makes them
        again, and is told so."""
        granted = list(site.broker.granted)
        site.broker.withdraw(granted)
        self._scheduler.after(
            RESUBSCRIBE_DELAY_S, self._restore_granted, site, site.process_run, granted, then
        )

    def _restore_granted(
        self, site: Site, process_run: int, filters: list[str], then: Callable[[Site], None]
    ) -> None:
        if site.process_run != process_run or site.node is None:
            return  # it will when it starts
        if not self._postpone_if_refused(site, self._restore_granted, process_run, filters, then):
            site.broker.grant(filters)
            then(site)

    def _subscribe(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.SubscribeAtBroker
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
        assert type(effect) is orders.UnsubscribeAtBroker
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
        """Ask again when the broker lets its agent in; say whether it does not yet."""
        waits = self._scheduler.now < site.broker.refuses_until
        if waits:
            self._scheduler.at(site.broker.refuses_until, retry, site, *arguments)
        return waits
