"""The agent's second client at its broker: it watches who subscribes, and nothing else.

It reads at QoS 0 on a clean connection of its own: at higher levels a burst of subscriptions
overflows the broker's queue. What arrives goes through a pure observer, what that concludes goes to
the node.

While the observer does not know every subscription, the watcher announces a *wide interest* besides
those that are known: the filters of `[broker] filters_when_unknown`. An unneeded copy costs
bandwidth, a missing one is a lost message.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence

from hansa.agent import tasks
from hansa.agent.broker.connection import Connection
from hansa.errors import UsageError
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import REFUSED
from hansa.observers.contract import (
    Change,
    Drifted,
    Finding,
    Incomplete,
    Observer,
    ResyncFailed,
    Snapshot,
)
from hansa.observers.history import History
from hansa.protocol.events import InterestChanged

LOG_TOPICS = "$SYS/broker/log/"
COUNT_TOPICS = ("$SYS/broker/subscriptions/", "$SYS/broker/shared_subscriptions/")
"""An observer can do without counts, if it has to."""
RESYNC_DELAY_S = 1.0
"""Seconds from a sign that something was missed to the look at what the broker kept: signs come in
bursts, and a broker writes its files when it has time."""

RETAINED_DELAY_S = 0.05
"""Seconds from the subscription to the first look at what the broker kept: its retained counts
arrive meanwhile, and may confirm at once that everything is known."""

SETTLE_MAX_S = 2.0
"""Seconds after a connection for which the interest of before stays as it is, until the broker's
history was read. A history that takes longer is not waited for."""

SILENCE_S = 2.0
"""Seconds without a line after a broker was asked for its log. The very request should make one."""


class Watcher:
    """Feeds an observer from a connection, and the node from the observer."""

    def __init__(
        self,
        observer: Observer,
        connection: Callable[[Callable[[effects.Effect], None]], Connection],
        feed: Callable[[InterestChanged], None],
        found: Callable[[Finding], None],
        histories: Sequence[History] = (),
        is_private: Callable[[str], bool] = lambda topic_filter: False,
    ) -> None:
        """`found` is told what the operator should know; `histories` are asked in turn until one
        makes the picture whole; private filters are those of agents, not of clients."""
        self.observer = observer
        self.connection = connection(self._told)
        self._feed = feed
        self._found = found
        self._histories = histories
        self._is_private = is_private
        self._catching_up: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_told_node = False
        self._silence: asyncio.TimerHandle | None = None
        self._extra: tuple[str, ...] = ()
        """What was subscribed to besides, on this connection."""
        self.filters_when_unknown: tuple[str, ...] = ()
        self.incomplete: Callable[[str], None] = lambda reason: None
        """Is told why subscriptions may be unknown, and an empty text when none are."""
        self._told_reason = ""
        self._deafness = ""
        """Why the observer does not hear the broker, whatever it believes; empty if it does."""
        self._is_settling = True
        """Whether the history of a new connection is being read: until then nothing widens."""
        self._settling: asyncio.TimerHandle | None = None
        self.wide: tuple[str, ...] = ()
        """Filters that are announced only because subscriptions may be unknown."""

    @property
    def complete(self) -> bool:
        """Whether every subscription at the broker is known."""
        return self.observer.complete and not self._deafness

    @property
    def reason(self) -> str:
        """Why not; empty if they are."""
        return self._deafness or self.observer.reason

    def snapshot(self) -> Snapshot:
        """Return what must survive a restart of the agent."""
        return {**self.observer.snapshot(), "wide": list(self.wide)}

    def restore(self, saved: object) -> None:
        """Start from what a former life had learned; until the broker confirms it, it stands. So
        does a wide interest: other nodes may hold publications for it."""
        if not isinstance(saved, dict):
            return
        try:
            change = self.observer.restore(saved, self._now())
        except UsageError as error:  # another observer was configured then
            self._found(ResyncFailed(f"what was learned before cannot be used: {error}"))
        else:
            wide = saved.get("wide")
            self._apply([change], wide=tuple(map(str, wide)) if isinstance(wide, list) else ())

    def start(self) -> None:
        """Tell the node what is known already, be it nothing, if the broker has nothing to add."""
        if not self.observer.subscriptions():
            change = self.observer.reconnected(session_lost=True, now=self._now())
            self._is_settling = False
            self._apply([change], known=True)

    def wanted(self) -> tuple[str, ...]:
        """Return, sorted, what clients want now."""
        return tuple(name for name in self.observer.wanted() if not self._is_private(name))

    def learned(self, change: Change) -> None:
        """The observer found out something by itself."""
        self._apply([change])

    def stop(self) -> None:
        """Expect nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._settling is not None:
            self._settling.cancel()
        self._end_silence()
        self._end_catching_up()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(session_present=present):
                self._subscribe(present)
            case effects.Subscribed(subscriptions=asked) if asked[0].topic_filter in self._extra:
                pass
            case effects.Subscribed(subscriptions=asked, reasons=reasons):
                self._note_refusals(asked, reasons)
                self._catch_up(RETAINED_DELAY_S)
                if not self._histories:
                    self._settle()
            case effects.PublishReceived(batch):
                now = self._now()
                is_silent = self._silence or self._deafness
                if is_silent and any(p.topic.startswith(LOG_TOPICS) for p in batch):
                    self._end_silence()
                    self._deafness = ""
                self._apply([self.observer.take(p.topic, p.payload, now) for p in batch])
            case _:
                pass

    def _subscribe(self, session_present: bool) -> None:
        loop = asyncio.get_running_loop()
        self._is_settling = True
        if self._settling is not None:
            self._settling.cancel()
        self._settling = loop.call_later(SETTLE_MAX_S, self._settle)
        self._deafness = ""
        self._extra = ()
        self._apply([self.observer.reconnected(not session_present, self._now())])
        self._end_catching_up()
        names = self.observer.subscriptions()
        self._end_silence()
        if any(name.startswith(LOG_TOPICS) for name in names):
            self._silence = loop.call_later(SILENCE_S, self._note_silence)
        self.connection.order(inputs.Subscribe(tuple(map(packets.Subscription, names))))

    def _settle(self) -> None:
        """The history of this connection was read, as far as it will be waited for."""
        self._is_settling = False
        self._apply([], known=True)

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _note_silence(self) -> None:
        self._silence = None
        reason = (
            "the broker sends no log: it needs log_dest topic and log_type subscribe, or an ACL"
        )
        self._note_deafness(f"{reason} forbids {LOG_TOPICS}#; see hansa doctor")

    def _note_deafness(self, reason: str) -> None:
        self._deafness = reason
        self._found(Incomplete(reason))
        self._apply([])

    def _note_refusals(self, asked: Sequence[packets.Subscription], reasons: bytes) -> None:
        refused = [
            wish.topic_filter
            for wish, reason in zip(asked, reasons, strict=True)
            if reason >= REFUSED and not wish.topic_filter.startswith(COUNT_TOPICS)
        ]
        if refused:
            names = ", ".join(refused)
            self._note_deafness(f"the broker does not let the agent subscribe to {names}")

    def _catch_up(self, delay_s: float) -> None:
        """Learn what went by unseen, unless that is under way."""
        if self._histories and not tasks.is_running(self._catching_up):
            self._catching_up = tasks.start(self._read_histories(delay_s))

    def _end_catching_up(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None

    async def _read_histories(self, delay_s: float) -> None:
        """Read what the broker told before we listened; the node may then rely on the picture."""
        await asyncio.sleep(delay_s)
        for history in self._histories:
            self.observer.begin_resync(self._now())
            try:
                text = await history.read()
            except UsageError as error:
                self._found(ResyncFailed(str(error)))
                continue
            change = self.observer.resync(text, self._now())
            self._apply([change], known=self.observer.complete)
            if self.observer.complete:
                break
        self._settle()

    def _apply(
        self,
        changes: Iterable[Change],
        known: bool = False,
        wide: tuple[str, ...] | None = None,
    ) -> None:
        """Tell the node the sum of some changes: a burst of subscriptions is one event."""
        net: dict[str, bool] = {}
        for change in changes:
            for finding in change.findings:
                self._found(finding)
                if isinstance(finding, Incomplete | Drifted):
                    self._catch_up(RESYNC_DELAY_S)
            for names, is_wanted in ((change.removed, False), (change.added, True)):
                for name in itertools.filterfalse(self._is_private, names):
                    if net.pop(name, is_wanted) == is_wanted:
                        net[name] = is_wanted
        self._widen(net, self._wide_now() if wide is None else wide)
        if net or (known and not self._has_told_node):
            self._has_told_node |= known
            added = tuple(name for name, is_wanted in net.items() if is_wanted)
            removed = tuple(name for name, is_wanted in net.items() if not is_wanted)
            self._feed(InterestChanged(added, removed))
        self._subscribe_besides()
        self._rearm()

    def _subscribe_besides(self) -> None:
        new = tuple(n for n in self.observer.extra_subscriptions() if n not in self._extra)
        if new:
            self._extra += new
            self.connection.order(inputs.Subscribe(tuple(map(packets.Subscription, new))))

    def _wide_now(self) -> tuple[str, ...]:
        """Return what to announce besides the known interest; say why if that has changed."""
        if self._is_settling:
            return self.wide
        if self.reason != self._told_reason:
            self._told_reason = self.reason
            self.incomplete(self.reason)
        return () if self.complete else self.filters_when_unknown

    def _widen(self, net: dict[str, bool], wide: tuple[str, ...]) -> None:
        """Announce these filters besides what clients want, and those of before no more."""
        before, self.wide = self.wide, wide
        wanted = set(self.wanted()) if before != wide else set()
        for name in dict.fromkeys((*before, *wide)):
            is_wanted = name in wanted
            was_wanted = not net.pop(name) if name in net else is_wanted
            was_announced, is_announced = was_wanted or name in before, is_wanted or name in wide
            if was_announced != is_announced:
                net[name] = is_announced

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.observer.next_deadline()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._expire)

    def _expire(self) -> None:
        self._apply([self.observer.expire(self._now())])
