"""The agent's own client at its broker: it takes what others want, and publishes what they sent.

Subscriptions have identifiers in the order in which they were made. Of a publication that several
of them match the broker sends one copy each; only the copy of the oldest one counts. Nothing here
knows who wants what, or why.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from hansa.agent.brokers.connection import Connection
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.vocabulary import REFUSED
from hansa.protocol.events import Denied, Event, Granted, Published
from hansa.protocol.topics import FilterTrie
from hansa.protocol.vocabulary import Publication

BUFFER_BYTES_MAX = 16 << 20
"""Bytes that may wait for the broker before publications are dropped."""

TOPICS_MAX = 65_536
"""Topics whose oldest subscription is remembered; when full, all are learned anew."""


class Subscriptions:
    """The filters that this client is subscribed to or about to be, by identifier."""

    def __init__(self) -> None:
        """Start with none."""
        self._trie: FilterTrie[int] = FilterTrie()
        self._last = 0
        self._oldest: dict[str, int] = {}
        self.by_filter: dict[str, int] = {}

    def add(self, topic_filter: str) -> int:
        """Give a filter its identifier, above all others."""
        self._last += 1
        self.by_filter[topic_filter] = self._last
        self._trie.put(topic_filter, self._last)
        self._oldest.clear()
        return self._last

    def remove(self, topic_filter: str) -> None:
        """Forget a filter."""
        if self.by_filter.pop(topic_filter, None) is not None:
            self._trie.remove(topic_filter)
            self._oldest.clear()

    def oldest(self, topic: str) -> int:
        """Return the identifier whose copy of a publication counts, 0 if there is none."""
        found = self._oldest.get(topic)
        if found is None:
            if len(self._oldest) >= TOPICS_MAX:
                self._oldest.clear()
            found = self._oldest[topic] = min(self._trie.match(topic), default=0)
        return found


class BrokerClient:
    """Subscribes, captures and injects through one connection."""

    def __init__(
        self,
        connection: Callable[[Callable[[effects.Effect], None]], Connection],
        feed: Callable[[Event], None],
        captured: Callable[[Iterable[Published]], None],
        status: Callable[[str], None],
    ) -> None:
        """`connection` makes the connection that reports to this client."""
        self.connection = connection(self._told)
        self.subscriptions = Subscriptions()
        self.counters: Counter[str] = Counter()
        self._feed = feed
        self._captured = captured
        self._status = status
        self._connected = False
        self._waiting: list[str] = []  # filters for which there was no packet id left
        self._identified = True

    # ------------------------------------------------------------ orders

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe; the answers are fed as they come."""
        for topic_filter in filters:
            self.subscriptions.add(topic_filter)
        if self._connected:
            self._waiting += filters
            self._send_waiting()

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Give filters up. The broker answers in order, so copies that are under way come first."""
        for topic_filter in filters:
            self.subscriptions.remove(topic_filter)
        self._waiting = [name for name in self._waiting if name in self.subscriptions.by_filter]
        if self._connected:
            self.connection.order(inputs.Unsubscribe(tuple(filters)))

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish to the broker's clients, with one write."""
        if not self._connected or self.connection.waiting_bytes > BUFFER_BYTES_MAX:
            reason = "broker away" if not self._connected else "broker slow"
            self.counters[f"dropped: {reason}"] += len(publications)
            return
        self.counters["injected"] += len(publications)
        batch = [
            packets.Publish(p.topic, p.payload, retain=p.retain, properties=p.properties)
            for p in publications
        ]
        self.connection.order(inputs.Publish(batch))

    # ------------------------------------------------------------ what the broker says

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._capture(batch)
            case effects.Connected():
                self._greet(effect)
            case effects.Subscribed(subscriptions=granted, reasons=reasons):
                self._note_answer(granted, reasons)
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._connected = False
                self._status(effect.text)
            case effects.NotSent(batch, reason):
                self.counters[f"dropped: {reason}"] += len(batch)
            case effects.OversizedReceived():
                self.counters["oversized publications"] += 1
            case _:
                pass

    def _greet(self, effect: effects.Connected) -> None:
        """The broker knows nothing of this clean session: subscribe to everything, oldest first."""
        self._connected = True
        self._identified = effect.limits.identifiers_available
        self._status("")
        self._waiting = sorted(
            self.subscriptions.by_filter, key=self.subscriptions.by_filter.__getitem__
        )
        self._send_waiting()

    def _send_waiting(self) -> None:
        session = self.connection.session
        while self._waiting and session is not None and session.requests_left:
            name = self._waiting.pop(0)
            wish = packets.Subscription(
                name, qos=0, no_local=True, retain_as_published=True, retain_handling=2
            )
            identifier = self.subscriptions.by_filter[name] if self._identified else None
            self.connection.order(inputs.Subscribe((wish,), identifier))

    def _note_answer(self, wishes: tuple[packets.Subscription, ...], reasons: bytes) -> None:
        """Tell the node; an answer for a filter that was given up meanwhile means nothing."""
        for wish, reason in zip(wishes, reasons, strict=True):
            name = wish.topic_filter
            if name not in self.subscriptions.by_filter:
                continue
            if reason >= REFUSED:
                self.counters["subscriptions denied"] += 1
                self._feed(Denied((name,), f"the broker refuses {name!r} (code {reason:#x})"))
            else:
                self._feed(Granted((name,)))
        self._send_waiting()

    def _capture(self, batch: Sequence[packets.Publish]) -> None:
        oldest = self.subscriptions.oldest
        taken = [
            Published(p.topic, p.payload, p.qos, p.retain, p.properties)
            for p in batch
            if not p.subscriptions or p.subscriptions[0] == oldest(p.topic)
        ]
        self.counters["captured"] += len(taken)
        self.counters["other copies"] += len(batch) - len(taken)
        self._captured(taken)
