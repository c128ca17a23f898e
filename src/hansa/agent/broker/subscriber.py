"""Asks the broker for the agent's subscriptions, and for their ends, in the order of the wishes.

The session takes a few hundred requests at a time; what to do is decided when a filter's turn
comes. A request leaves when what it changes is on disk (`subscription_log`); meanwhile others
gather.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from hansa.agent import tasks
from hansa.agent.broker.connection import Connection
from hansa.agent.broker.subscription_log import ENDED, LEAVING, SubscriptionLog
from hansa.agent.broker.subscriptions import Subscriptions
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.fields import VARIABLE_MAX, may_be_refused
from hansa.mqtt.limits import Limits
from hansa.mqtt.types import REFUSED, Version
from hansa.protocol.events import Denied, Event, Granted

RETRY_S = 1.0
"""Seconds until the disk is tried again."""


class Subscriber:
    """Brings the broker's subscriptions in line with what is wanted."""

    def __init__(
        self,
        connection: Connection,
        subscriptions: Subscriptions,
        feed: Callable[[Event], None],
        counters: Counter[str],
        log: SubscriptionLog | None,
    ) -> None:
        """Without a log no session lasts, and all is of QoS 0."""
        self._connection = connection
        self._subscriptions = subscriptions
        self._feed = feed
        self._counters = counters
        self._log = log
        if log is not None:
            if log.has_session:
                connection.expect_session()
            for name, identifier in log.held.items():
                if identifier != LEAVING:
                    subscriptions.restore(name, identifier)
            subscriptions.recall(log.last, log.ends)
        self._limits: Limits | None = None
        """What the broker grants; None while it is away."""
        self._is_old = False
        """Whether it only speaks MQTT 3.1.1."""
        self._doubtful: set[str] = set()
        """Filters of the session of which the broker has to confirm the state."""
        self._wishes: deque[str] = deque()
        """Filters whose subscription may have to be made or ended."""
        self._decided: list[inputs.Subscribe | inputs.Unsubscribe] = []
        """What leaves when the log is written."""
        self._writing: asyncio.Task[None] | None = None

    def ask(self, filters: Iterable[str]) -> None:
        """Filters are wanted, or no more."""
        self._wishes.extend(filters)
        self._go_on()

    def connected(self, session_present: bool, limits: Limits) -> bool:
        """The broker is there: know what it has; return whether it should have something."""
        self._limits = limits
        self._is_old = limits.version is Version.V311
        log, subscriptions = self._log, self._subscriptions
        held = log.held if log is not None else {}
        # Whatever version is spoken now, and without a filter, too: handshakes may be under way.
        is_expected = log is not None and log.has_session
        if session_present:
            self._doubtful = set(held) | set(subscriptions.held)
            subscriptions.resume()
        else:
            subscriptions.start_over()
            if log is not None:
                log.start_over()
            self._doubtful = set()
        if log is not None:
            log.has_session = not self._is_old
        return is_expected

    def begin(self) -> None:
        """Subscribe to everything, oldest first. A broker with a session of before is told again
        what it should have, then what not: between two filters of one topic nothing is missed."""
        held, new = self._subscriptions.held, self._subscriptions.newest + 1
        wanted = sorted(self._subscriptions.wanted, key=lambda name: held.get(name, new))
        self._wishes = deque(dict.fromkeys([*wanted, *sorted(self._doubtful)]))
        self._go_on()

    def disconnected(self) -> None:
        """The broker is gone; `begin` starts from all that is wanted."""
        self._limits = None
        self._wishes.clear()
        self._decided.clear()

    def answered(self, told: effects.Subscribed) -> None:
        """Tell the node; an answer for a filter that was given up meanwhile means nothing, not even
        if it is wanted again: its end is under way."""
        subscriptions = self._subscriptions
        for wish, reason in zip(told.subscriptions, told.reasons, strict=True):
            name = wish.topic_filter
            subscriptions.confirm(name)
            if reason >= REFUSED:
                self._counters["subscriptions denied"] += 1
                subscriptions.exclude(name)
                self._note(name, ENDED)
            if name not in subscriptions or subscriptions.is_leaving(name):
                continue
            if reason >= REFUSED:
                self._feed(Denied((name,), f"the broker refuses {name!r} (code {reason:#x})"))
            else:
                self._feed(Granted((name,)))
        self._go_on()

    def ended(self, filters: Sequence[str]) -> None:
        """The broker has confirmed the end of filters."""
        for name in filters:
            self._note(name, ENDED)
        self.ask([name for name in filters if self._subscriptions.leave(name)])

    # ------------------------------------------------------------ one after the other

    def _go_on(self) -> None:
        session = self._connection.session
        if self._limits is None or session is None:
            self._wishes.clear()
            return
        while self._wishes and not self._waits and len(self._decided) < session.requests_left:
            self._decided += self._decide(self._wishes.popleft())
        if self._log is not None and self._log.is_behind and self._writing is None:
            self._writing = tasks.start(self._write(self._log))
        if not self._waits:
            self._send()

    @property
    def _waits(self) -> bool:
        """Whether something has to be on disk before the broker hears of more. None of 3.1.1 has:
        there no session lasts, and echoes are counted from when a request leaves."""
        return self._writing is not None and not self._is_old

    async def _write(self, log: SubscriptionLog) -> None:
        try:
            is_written = await log.write()
        finally:
            self._writing = None
        self._send()
        if is_written:
            self._go_on()
        else:
            asyncio.get_running_loop().call_later(RETRY_S, self._go_on)

    def _send(self) -> None:
        decided, self._decided = self._decided, []
        for order in decided:
            self._connection.order(order)

    def _decide(self, name: str) -> list[inputs.Subscribe | inputs.Unsubscribe]:
        """Return what to ask of the broker, and note what that changes."""
        subscriptions = self._subscriptions
        wanted, held = name in subscriptions, subscriptions.holds(name)
        doubtful = name in self._doubtful
        self._doubtful.discard(name)
        if wanted and held:  # doubtful, or given up for a moment, when its answer was ignored
            return [self._request(name, subscriptions.identifier(name))]
        if wanted and (reason := self._hindrance(name)):
            self._counters["subscriptions denied"] += 1
            self._feed(Denied((name,), reason))
            return []
        if wanted and not subscriptions.is_leaving(name):
            identifier = subscriptions.enter(name)
            self._note(name, identifier)
            return [self._request(name, identifier)]
        if not wanted and (held or doubtful):
            subscriptions.part(name)
            self._note(name, LEAVING)
            return [inputs.Unsubscribe((name,))]
        return []

    def _hindrance(self, name: str) -> str:
        """Return why the broker is not asked for a new filter; empty if it is."""
        if may_be_refused(name):  # the broker might end the connection instead
            return f"a broker may refuse the characters of {name!r}"
        if self._subscriptions.newest >= VARIABLE_MAX:
            # Their order tells copies apart, so none is given again while the session lasts.
            return "all subscription identifiers were given; only a new session at the broker helps"
        return ""

    def _note(self, name: str, identifier: int) -> None:
        if self._log is not None and not self._is_old:
            self._log.note(name, identifier)

    def _request(self, name: str, identifier: int) -> inputs.Subscribe:
        # Retained values travel in their own way: a replay must not look like news.
        assert self._limits is not None
        is_old = self._is_old  # 3.1.1 has none of these options
        wish = packets.Subscription(
            name,
            qos=2 if self._log is not None else 0,
            no_local=not is_old,
            retain_as_published=not is_old,
            retain_handling=0 if is_old else 2,
        )
        return inputs.Subscribe((wish,), identifier if self._limits.identifiers_available else None)
