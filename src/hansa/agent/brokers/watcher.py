"""The agent's second client at its broker: it watches who subscribes, and nothing else.

It reads at QoS 0 on a clean connection of its own: at higher levels a burst of subscriptions
overflows the broker's queue. What arrives goes through a pure observer, what that concludes goes to
the node.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from hansa.agent.brokers.connection import Connection
from hansa.agent.brokers.observer import Change, Finding, Observer
from hansa.mqtt import effects, inputs, packets
from hansa.protocol.events import InterestChanged


class Watcher:
    """Feeds an observer from a connection, and the node from the observer."""

    def __init__(
        self,
        observer: Observer,
        connection: Callable[[Callable[[effects.Effect], None]], Connection],
        feed: Callable[[InterestChanged], None],
        found: Callable[[Finding], None],
        log_file: Path | None,
    ) -> None:
        """`found` is told what the operator should know; `log_file` is the broker's, if any."""
        self.observer = observer
        self.connection = connection(self._told)
        self._feed = feed
        self._found = found
        self._log_file = log_file
        self._timer: asyncio.TimerHandle | None = None
        self._told_node = False

    def restore(self, saved: object) -> None:
        """Start from what a former life had learned; until the broker confirms it, it stands."""
        if isinstance(saved, dict):
            self._apply(self.observer.restore(saved, self._now()))

    def start(self) -> None:
        """Tell the node what is known already, be it nothing."""
        if not self.observer.subscriptions():
            self._apply(self.observer.reconnected(session_lost=True, now=self._now()), known=True)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(session_present=present):
                self._subscribe(present)
            case effects.Subscribed():
                self._resync()
            case effects.PublishReceived(batch):
                for publication in batch:
                    change = self.observer.take(publication.topic, publication.payload, self._now())
                    self._apply(change)
            case _:
                pass

    def _subscribe(self, session_present: bool) -> None:
        self._apply(self.observer.reconnected(not session_present, self._now()))
        self.observer.begin_resync(self._now())
        wishes = tuple(packets.Subscription(name) for name in self.observer.subscriptions())
        if wishes:
            self.connection.order(inputs.Subscribe(wishes))

    def _resync(self) -> None:
        """Read what the broker logged before we listened; the node may then rely on the picture."""
        if self._log_file is not None:
            try:
                text = self._log_file.read_text(errors="replace")
            except OSError:
                text = ""
            self._apply(self.observer.resync(text, self._now()))
        self._apply(Change(), known=True)

    def _apply(self, change: Change, known: bool = False) -> None:
        for finding in change.findings:
            self._found(finding)
        first = known and not self._told_node
        if change.added or change.removed or first:
            self._told_node |= known
            self._feed(InterestChanged(change.added, change.removed))
        self._rearm()

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.observer.next_deadline()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._expire)

    def _expire(self) -> None:
        self._apply(self.observer.expire(self._now()))
