"""What an agent is subscribed to at its own broker: asked for, granted, lost, and made again."""

from collections.abc import Callable

from hansa.protocol import effects as orders
from hansa.protocol import events
from hansa.protocol.effects import Effect
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

AGAIN_S = 0.01
"Seconds until the agent of a restarted broker has its own subscriptions again."

Hear = Callable[[Site, int, events.Event], None]


class Subscriptions:
    """Performs what nodes want of their brokers. A broker that refuses its agent is asked later."""

    def __init__(self, scheduler: Scheduler, broker_s: float, hear: Hear) -> None:
        """`broker_s`: one way; `hear` tells an agent, in one of its lives, what its broker says."""
        self._scheduler = scheduler
        self._broker_s = broker_s
        self._hear = hear
        self.orders: dict[type, Callable[[Site, Effect], None]] = {
            orders.Subscribe: self._subscribe,
            orders.Unsubscribe: self._unsubscribe,
        }

    def make_again(self, site: Site, then: Callable[[Site], None]) -> None:
        """A broker has lost its agent's subscriptions: soon the agent, if it is there, makes them
        again, and is told so."""
        granted = list(site.broker.granted)
        site.broker.withdraw(granted)
        self._scheduler.after(AGAIN_S, self._make, site, site.life, granted, then)

    def _make(
        self, site: Site, life: int, filters: list[str], then: Callable[[Site], None]
    ) -> None:
        if site.life != life or site.node is None:
            return  # it will when it starts
        if not self._waits(site, self._make, life, filters, then):
            site.broker.grant(filters)
            then(site)

    def _subscribe(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Subscribe
        self._scheduler.after(self._broker_s, self._grant, site, site.life, effect.filters)

    def _grant(self, site: Site, life: int, filters: tuple[str, ...]) -> None:
        if site.life == life and not self._waits(site, self._grant, life, filters):
            site.broker.grant(filters)
            told = events.Granted(filters)
            self._scheduler.after(self._broker_s, self._hear, site, life, told)

    def _unsubscribe(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Unsubscribe
        self._scheduler.after(self._broker_s, self._withdraw, site, site.life, effect.filters)

    def _withdraw(self, site: Site, life: int, filters: tuple[str, ...]) -> None:
        if site.life == life and not self._waits(site, self._withdraw, life, filters):
            site.broker.withdraw(filters)

    def _waits(self, site: Site, ask: Callable[..., None], *arguments: object) -> bool:
        """Ask again when the broker lets its agent in; say whether it does not yet."""
        waits = self._scheduler.now < site.broker.refuses_until
        if waits:
            self._scheduler.at(site.broker.refuses_until, ask, site, *arguments)
        return waits
