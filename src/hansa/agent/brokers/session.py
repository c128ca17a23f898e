"""The agent's own client at its broker: it takes what others want, and publishes what they sent.

Subscriptions have identifiers, so that of a publication that several of them match only one copy is
taken (`subscriptions`). Nothing here knows who wants what, or why.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from hansa.agent.brokers.connection import Connection
from hansa.agent.brokers.echoes import Echoes
from hansa.agent.brokers.subscriptions import UNFIT, Subscriptions
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.vocabulary import REFUSED, Version
from hansa.protocol.events import Denied, Event, Granted
from hansa.protocol.vocabulary import Plain, Publication

BUFFER_BYTES_MAX = 16 << 20
"""Bytes that may wait for the broker before publications are dropped."""


class BrokerClient:
    """Subscribes, captures and injects through one connection."""

    def __init__(
        self,
        connection: Callable[[Callable[[effects.Effect], None]], Connection],
        feed: Callable[[Event], None],
        captured: Callable[[Iterable[packets.Publish]], None],
        status: Callable[[str], None],
        staying: Iterable[str] = (),
    ) -> None:
        """`connection` makes the connection that reports to this client; `status` is told why it
        is lost, and an empty text when it stands; publications to `staying` stay here."""
        self.connection = connection(self._told)
        self._staying = tuple(staying)
        self.subscriptions = Subscriptions(self._staying)
        self.counters: Counter[str] = Counter()
        self._feed = feed
        self._captured = captured
        self._status = status
        self._connected = False
        self._identified = False
        self._echoes: Echoes | None = None
        """What comes back of our own at a broker that only speaks MQTT 3.1.1."""
        self._requests: deque[str] = deque()
        """Filters whose subscription may have to be made or ended, in this order. The session takes
        a few hundred requests at a time; what to do is decided when its turn comes."""

    # ------------------------------------------------------------ what the node orders

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe, now or when the broker is back; `Granted` or `Denied` will be fed."""
        for name in filters:
            self.subscriptions.want(name)
        self._requests.extend(filters)
        self._send_requests()

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Give filters up."""
        for name in filters:
            self.subscriptions.drop(name)
        self._requests.extend(filters)
        self._send_requests()

    def publish(self, publications: Sequence[Plain | Publication]) -> None:
        """Publish to the broker's clients, with one write."""
        reason = self._hindrance()
        if reason:
            self.counters[f"dropped: {reason}"] += len(publications)
            return
        if self._staying:
            publications = self._foreign(publications)
        self.counters["injected"] += len(publications)
        if self._echoes is not None:
            for each in publications:
                topic, payload = each if isinstance(each, tuple) else (each.topic, each.payload)
                self._echoes.expect(topic, payload, self.subscriptions.count(topic))
        batch = [
            p
            if isinstance(p, tuple)
            else packets.Publish(p.topic, p.payload, 0, p.retain, False, 0, (), p.properties)
            for p in publications
        ]
        self.connection.order(inputs.Publish(batch))

    def _foreign(
        self, publications: Sequence[Plain | Publication]
    ) -> Sequence[Plain | Publication]:
        stays = self.subscriptions.stays
        found = [p for p in publications if not stays(p[0] if isinstance(p, tuple) else p.topic)]
        self.counters["dropped: topic stays at its broker"] += len(publications) - len(found)
        return found

    def _hindrance(self) -> str:
        """Return why nothing can be published now; empty if it can."""
        if not self._connected:
            return "broker away"
        is_behind = self._echoes is not None and self._echoes.is_full
        return "broker slow" if is_behind or self._is_clogged() else ""

    def _is_clogged(self) -> bool:
        return self.connection.waiting_bytes > BUFFER_BYTES_MAX

    def _send_requests(self) -> None:
        session = self.connection.session
        if not self._connected:
            self._requests.clear()  # `_greet` starts from all that is wanted
            return
        while self._requests and session is not None and session.requests_left:
            name = self._requests.popleft()
            wanted, held = name in self.subscriptions, self.subscriptions.holds(name)
            if wanted and not held and not self.subscriptions.is_leaving(name):
                self._request(name)
            elif held and not wanted:
                self.subscriptions.part(name)
                self.connection.order(inputs.Unsubscribe((name,)))

    def _request(self, name: str) -> None:
        # Retained values travel in their own way: a replay must not look like news.
        is_old = self._echoes is not None  # 3.1.1 has none of these options
        wish = packets.Subscription(
            name,
            qos=0,
            no_local=not is_old,
            retain_as_published=not is_old,
            retain_handling=0 if is_old else 2,
        )
        identifier = self.subscriptions.enter(name)
        self.connection.order(inputs.Subscribe((wish,), identifier if self._identified else None))

    # ------------------------------------------------------------ what the broker says

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._capture(batch)
            case effects.Connected():
                self._greet(effect)
            case effects.Subscribed(subscriptions=asked, reasons=reasons):
                self._note_answer(asked, reasons)
            case effects.Unsubscribed(filters=filters):
                self._note_end(filters)
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._connected = False
                self._status(effect.text)
            case effects.NotSent(batch, reason):
                self.counters[f"dropped: {reason}"] += len(batch)
            case effects.OversizedReceived():
                self.counters["dropped: larger than a packet may be"] += 1
            case _:
                pass

    def _greet(self, effect: effects.Connected) -> None:
        """The broker knows nothing of this clean session: subscribe to everything, oldest first."""
        self._connected = True
        self._identified = effect.limits.identifiers_available
        self._echoes = None if effect.limits.version is Version.V5 else Echoes(monotonic)
        self._status("")
        self.subscriptions.start_over()
        self._requests = deque(self.subscriptions.wanted)
        self._send_requests()

    def _note_answer(self, wishes: tuple[packets.Subscription, ...], reasons: bytes) -> None:
        """Tell the node; an answer for a filter that was given up meanwhile means nothing."""
        for wish, reason in zip(wishes, reasons, strict=True):
            name = wish.topic_filter
            if reason >= REFUSED:
                self.counters["subscriptions denied"] += 1
                self.subscriptions.exclude(name)
            if name not in self.subscriptions:
                continue
            if reason >= REFUSED:
                self._feed(Denied((name,), f"the broker refuses {name!r} (code {reason:#x})"))
            else:
                self._feed(Granted((name,)))
        self._send_requests()

    def _note_end(self, filters: tuple[str, ...]) -> None:
        self._requests.extend(name for name in filters if self.subscriptions.leave(name))
        self._send_requests()

    def _capture(self, batch: Sequence[packets.Publish]) -> None:
        if self._echoes is not None:
            batch = self._news(self._echoes, batch)
        oldest = self.subscriptions.oldest
        taken = [
            p
            for p in batch
            if (oldest(p.topic) in p.subscriptions if p.subscriptions else oldest(p.topic) > 0)
        ]
        self.counters["captured"] += len(taken)
        if len(taken) < len(batch):
            unfit = sum(oldest(p.topic) == UNFIT for p in batch)
            self.counters["dropped: topic with too many levels"] += unfit
            self.counters["other copies"] += len(batch) - len(taken) - unfit
        self._captured(taken)

    def _news(self, echoes: Echoes, batch: Sequence[packets.Publish]) -> list[packets.Publish]:
        """Leave out what MQTT 3.1.1 sends besides news: stored values, which only there have the
        flag, and what we published ourselves."""
        live = [p for p in batch if not p.retain]
        news = [p for p in live if not echoes.take(p.topic, p.payload)]
        self.counters["stored values left out"] += len(batch) - len(live)
        self.counters["own echoes"] += len(live) - len(news)
        self.counters["own echoes that did not come"] = echoes.missed
        return news
