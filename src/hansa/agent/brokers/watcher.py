"""The agent's second client at its broker: it watches who subscribes, and nothing else.

It reads at QoS 0 on a clean connection of its own: at higher levels a burst of subscriptions
overflows the broker's queue. What arrives goes through a pure observer, what that concludes goes to
the node.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence

from hansa.agent import tasks
from hansa.agent.brokers.connection import Connection
from hansa.agent.brokers.history import History
from hansa.agent.brokers.observer import (
    Change,
    Drifted,
    Finding,
    Incomplete,
    Observer,
    ResyncFailed,
)
from hansa.errors import UsageError
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.vocabulary import REFUSED
from hansa.protocol.events import InterestChanged

LOG_TOPICS = "$SYS/broker/log/"
RESYNC_DELAY_S = 1.0
"""Seconds from a sign that something was missed to the look at what the broker kept: signs come in
bursts, and a broker writes its files when it has time."""

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

    def restore(self, saved: object) -> None:
        """Start from what a former life had learned; until the broker confirms it, it stands."""
        if not isinstance(saved, dict):
            return
        try:
            change = self.observer.restore(saved, self._now())
        except UsageError as error:  # another observer was configured then
            self._found(ResyncFailed(f"what was learned before cannot be used: {error}"))
        else:
            self._apply([change])

    def start(self) -> None:
        """Tell the node what is known already, be it nothing, if the broker has nothing to add."""
        if not self.observer.subscriptions():
            change = self.observer.reconnected(session_lost=True, now=self._now())
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
        self._end_silence()
        self._end_catching_up()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(session_present=present):
                self._subscribe(present)
            case effects.Subscribed(subscriptions=asked, reasons=reasons):
                self._note_refusals(asked, reasons)
                self._catch_up(0.0)
                if not self._histories:
                    self._apply([], known=True)
            case effects.PublishReceived(batch):
                now = self._now()
                if self._silence and any(p.topic.startswith(LOG_TOPICS) for p in batch):
                    self._end_silence()
                self._apply([self.observer.take(p.topic, p.payload, now) for p in batch])
            case _:
                pass

    def _subscribe(self, session_present: bool) -> None:
        self._apply([self.observer.reconnected(not session_present, self._now())])
        self._end_catching_up()
        names = self.observer.subscriptions()
        self._end_silence()
        if any(name.startswith(LOG_TOPICS) for name in names):
            loop = asyncio.get_running_loop()
            self._silence = loop.call_later(SILENCE_S, self._note_silence)
        self.connection.order(inputs.Subscribe(tuple(map(packets.Subscription, names))))

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _note_silence(self) -> None:
        self._silence = None
        reason = (
            "the broker sends no log: it needs log_dest topic and log_type subscribe, or an ACL"
        )
        self._found(Incomplete(f"{reason} forbids {LOG_TOPICS}#; see hansa doctor"))

    def _note_refusals(self, asked: Sequence[packets.Subscription], reasons: bytes) -> None:
        refused = [
            wish.topic_filter
            for wish, reason in zip(asked, reasons, strict=True)
            if reason >= REFUSED
        ]
        if refused:
            names = ", ".join(refused)
            self._found(Incomplete(f"the broker does not let the agent subscribe to {names}"))

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
        self._apply([], known=True)

    def _apply(self, changes: Iterable[Change], known: bool = False) -> None:
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
        if net or (known and not self._has_told_node):
            self._has_told_node |= known
            added = tuple(name for name, is_wanted in net.items() if is_wanted)
            removed = tuple(name for name, is_wanted in net.items() if not is_wanted)
            self._feed(InterestChanged(added, removed))
        self._rearm()

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.observer.next_deadline()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._expire)

    def _expire(self) -> None:
        self._apply([self.observer.expire(self._now())])
