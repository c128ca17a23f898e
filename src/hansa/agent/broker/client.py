"""The agent's own client at its broker: it takes what others want, and publishes what they sent.

Subscriptions have identifiers, so that of a publication that several of them match only one copy is
taken (`subscriptions`). Publications of QoS 0 go straight through; those of QoS 1 and 2, and their
handshakes, are the business of `hansa.agent.delivery`. Nothing here knows who wants what, or why.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from time import monotonic

from hansa.agent.broker.connection import Connection
from hansa.agent.broker.echo_filter import Echoes
from hansa.agent.broker.overlap_dedup import Copies, Decided
from hansa.agent.broker.ports import Guarantees
from hansa.agent.broker.subscriber import Subscriber
from hansa.agent.broker.subscription_log import SubscriptionLog
from hansa.agent.broker.subscriptions import UNFIT, Subscriptions
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import Reason, Version
from hansa.protocol.events import Event
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import Plain, Publication

BUFFER_BYTES_MAX = 16 << 20
"""Bytes that may wait for the broker, besides one publication of the largest, before others are
dropped."""

WITHHELD_MAX = 1_024
"""Retained values of QoS 0 that wait for the broker, the newest of each topic; their payload has at
most BUFFER_BYTES_MAX."""

SLOW_S = 1.0
"""Seconds until a broker that was slow is offered again what was withheld from it."""

TOO_DEEP = "topic with too many levels"
"""Why some publications stay at their broker."""

COPY_PATIENCE_S = 0.1
"""Seconds that a copy waits for the one that decides about it."""

TAKEN_OVER = (
    "another client has the agent's client id, and may have got publications that are now lost: "
    "every client needs an id of its own"
)


class BrokerClient:
    """Subscribes, captures and injects through one connection."""

    def __init__(
        self,
        connection: Callable[[Callable[[effects.Effect], None]], Connection],
        feed: Callable[[Event], None],
        captured: Callable[[Iterable[packets.Publish]], None],
        status: Callable[[str], None],
        staying: Iterable[str] = (),
        guarantees: tuple[Guarantees, SubscriptionLog] | None = None,
    ) -> None:
        """`connection` makes the connection that reports to this client; `status` is told why it
        is lost, and an empty text when it stands; publications to `staying` stay here. Without
        `guarantees` all is of QoS 0."""
        self.connection = connection(self._told)
        self._staying = tuple(staying)
        self.subscriptions = Subscriptions(self._staying)
        self.forgotten: Callable[[], None] | None = None
        """Is told that the broker has no session of before."""
        self.displaced: Callable[[str], None] | None = None
        """Is told that another client has taken the session over."""
        self.counters: Counter[str] = Counter()
        self.sends_each = True
        """Whether a broker of 3.1.1 sends a copy for each subscription that matches."""
        self._captured = captured
        self._status = status
        self._guarantees: Guarantees | None = guarantees[0] if guarantees else None
        self._subscriber = Subscriber(
            self.connection,
            self.subscriptions,
            feed,
            self.counters,
            guarantees[1] if guarantees else None,
        )
        self._connected = False
        self._copies = Copies(
            self.subscriptions, guarantees[0].rest_of if guarantees else lambda _: 0
        )
        self._settling: asyncio.TimerHandle | None = None
        self._echoes: Echoes | None = None
        """What comes back of our own at a broker that only speaks MQTT 3.1.1."""
        self._withheld: dict[str, Publication] = {}
        self._withheld_bytes = 0
        self._offering: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ what the node orders

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe, now or when the broker is back; `Granted` or `Denied` will be fed."""
        for name in filters:
            self.subscriptions.want(name)
        self._subscriber.ask(filters)

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Give filters up."""
        for name in filters:
            self.subscriptions.drop(name)
        self._subscriber.ask(filters)

    def publish(self, publications: Sequence[Plain | Publication]) -> None:
        """Publish to the broker's clients, with one write."""
        if self._guarantees is not None and self._guarantees.is_storing:
            publications = self._guarantees.hold_back(publications)
        reason = self._hindrance()
        if reason:
            self.counters[f"dropped: {reason}"] += len(publications) - self._withhold(publications)
            if self._withheld and self._connected and self._offering is None:
                self._offering = asyncio.get_running_loop().call_later(SLOW_S, self._offer)
            return
        if self._withheld:
            withheld, self._withheld, self._withheld_bytes = self._withheld, {}, 0
            publications = [*withheld.values(), *publications]
        if self._staying:
            publications = self._foreign(publications)
        self.counters["injected"] += len(publications)
        if self._echoes is not None:
            for each in publications:
                topic, payload = each if isinstance(each, tuple) else (each.topic, each.payload)
                self._echoes.expect(topic, payload, self._copies_of(topic))
        batch = [
            p
            if isinstance(p, tuple)
            else packets.Publish(p.topic, p.payload, 0, p.retain, False, 0, (), p.properties)
            for p in publications
        ]
        self.connection.order(inputs.Publish(batch))

    def _withhold(self, publications: Sequence[Plain | Publication]) -> int:
        """Keep retained values until the broker takes them: it has to hold the newest."""
        count = 0
        for each in publications:
            if isinstance(each, tuple) or not each.retain:
                continue
            before = self._withheld.get(each.topic)
            size = self._withheld_bytes + len(each.payload) - (len(before.payload) if before else 0)
            is_known = before is not None or len(self._withheld) < WITHHELD_MAX
            if is_known and size <= BUFFER_BYTES_MAX:
                self._withheld[each.topic] = each
                self._withheld_bytes = size
                count += 1
        return count

    def _offer(self) -> None:
        self._offering = None
        if self._withheld:
            self.publish(())

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
        room = BUFFER_BYTES_MAX + self.connection.packet_bytes_max
        return self.connection.waiting_bytes > room

    # ------------------------------------------------------------ what guaranteed delivery orders

    def inject(self, batch: Sequence[packets.Publish]) -> None:
        """Publish at QoS 1 and 2, with the packet ids that are given."""
        if self._echoes is not None:
            for each in batch:
                self._echoes.expect(each.topic, each.payload, self._copies_of(each.topic))
        self.connection.order(inputs.Publish(batch))

    def supersede(self, topics: Iterable[str]) -> None:
        """Newer values of these topics have come at QoS 1 or 2: older ones that wait must not
        follow them."""
        for topic in topics:
            if (older := self._withheld.pop(topic, None)) is not None:
                self._withheld_bytes -= len(older.payload)

    def answer(self, batch: Sequence[packets.Handshake]) -> None:
        """Write steps of handshakes."""
        if self._connected:
            self.connection.order(inputs.Answer(batch))

    def stays(self, topic: str) -> bool:
        """Whether publications to a topic never enter."""
        return bool(self._staying) and self.subscriptions.stays(topic)

    @property
    def newest_subscription(self) -> int:
        """The last identifier of a subscription that can have brought something."""
        return self.subscriptions.confirmed

    # ------------------------------------------------------------ what the broker says

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._capture(batch)
            case effects.Connected():
                self._greet(effect)
            case effects.Subscribed():
                self._subscriber.answered(effect)
            case effects.Unsubscribed(filters=filters):
                self._subscriber.ended(filters)
            case effects.Answered(steps) if self._guarantees:
                self._guarantees.answered(steps)
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._part(effect.text)
                if self.displaced and effect.reason == Reason.SESSION_TAKEN_OVER:
                    self.displaced(TAKEN_OVER)
            case effects.NotSent():
                self._note_unsent(effect)
            case effects.OversizedReceived(publication):
                self._note_oversized(publication)
            case _:
                pass

    def _part(self, reason: str) -> None:
        self._connected = False
        self._subscriber.disconnected()
        if self._settling is not None:
            self._settling.cancel()
        if self._guarantees:
            self._guarantees.disconnected()
        self._status(reason)

    def _note_oversized(self, publication: packets.Oversized) -> None:
        """It is lost, and acknowledged: it would come again after every reconnection."""
        if publication.qos and self._guarantees:
            self._guarantees.dropped(TOO_LARGE, publication.topic, publication.qos)
            rest = packets.Publish("", b"", publication.qos, packet_id=publication.packet_id)
            self._guarantees.received([(rest, False)])
        else:
            self.counters[f"dropped: {TOO_LARGE}"] += 1

    def _note_unsent(self, effect: effects.NotSent) -> None:
        """QoS 1 and 2 wait for the next session, if it is only that this one is over: we hear so
        after what came with the broker's last words."""
        batch, reason = effect.batch, effect.reason
        numbered = [p for p in batch if not isinstance(p, tuple) and p.qos]
        if len(numbered) < len(batch):
            self.counters[f"dropped: {reason}"] += len(batch) - len(numbered)
        if numbered and self._guarantees and not effect.is_over:
            self._guarantees.not_sent(numbered, reason)

    def _greet(self, effect: effects.Connected) -> None:
        self._connected = True
        self._echoes = None if effect.limits.version is Version.V5 else Echoes(monotonic)
        self._status("")
        self._copies.connected(effect.session_present)
        expected = self._subscriber.connected(effect.session_present, effect.limits)
        if self._guarantees:
            self._guarantees.connected(effect.session_present, expected, effect.limits)
        self._subscriber.begin()
        self._offer()
        if self.forgotten and not effect.session_present:
            self.forgotten()

    def _capture(self, batch: Sequence[packets.Publish]) -> None:
        if self._guarantees is None or not any([p.qos for p in batch]):
            self._captured(self._take(batch))
            return
        for is_sure, some in groupby(batch, lambda p: p.qos > 0):  # in order: values may replace
            if is_sure:
                self._guarantees.received(self._take_surely(list(some)))
            else:
                self._captured(self._take(list(some)))
        if self._settling is not None:
            self._settling.cancel()
        if self._copies.are_waiting:
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(COPY_PATIENCE_S, self._settle, self._guarantees)

    def _settle(self, guarantees: Guarantees) -> None:
        guarantees.received(self._counted(self._copies.settle()))

    def _take_surely(self, batch: Sequence[packets.Publish]) -> Decided:
        """Say of each copy of QoS 1 and 2 whether it counts; all of them want an answer."""
        decided: Decided = []
        for copy in batch:
            if self._echoes is None or self._is_news(self._echoes, copy):
                decided += self._counted(self._copies.sort(copy))
            else:
                decided.append((copy, False))
        return decided

    def _counted(self, decided: Decided) -> Decided:
        for copy, is_taken in decided:
            is_unfit = self.subscriptions.oldest(copy.topic) == UNFIT
            self.counters["captured"] += is_taken
            if is_unfit and self._guarantees:
                self._guarantees.dropped(TOO_DEEP, copy.topic, copy.qos)
            self.counters["other copies"] += not is_taken and not is_unfit
        return decided

    def _take(self, batch: Sequence[packets.Publish]) -> list[packets.Publish]:
        """Leave out copies that do not count."""
        if self._echoes is not None:
            batch = [p for p in batch if self._is_news(self._echoes, p)]
        oldest = self.subscriptions.oldest
        taken = [
            p
            for p in batch
            if (oldest(p.topic) in p.subscriptions if p.subscriptions else oldest(p.topic) > 0)
        ]
        self.counters["captured"] += len(taken)
        if len(taken) < len(batch):
            unfit = sum(oldest(p.topic) == UNFIT for p in batch)
            self.counters[f"dropped: {TOO_DEEP}"] += unfit
            self.counters["other copies"] += len(batch) - len(taken) - unfit
        return taken

    def _is_news(self, echoes: Echoes, copy: packets.Publish) -> bool:
        """Tell news from what MQTT 3.1.1 sends besides: stored values, which only there have the
        flag, and what we published ourselves."""
        if copy.retain:
            self.counters["stored values left out"] += 1
            return False
        is_echo = echoes.take(copy.topic, copy.payload)
        self.counters["own echoes"] += is_echo
        self.counters["own echoes that did not come"] = echoes.missed
        if not is_echo:  # then its other copies are none, either
            echoes.expect(copy.topic, copy.payload, self._copies_of(copy.topic) - 1)
        return not is_echo

    def _copies_of(self, topic: str) -> int:
        """Return how many copies a broker of 3.1.1 sends of what is published."""
        count = self.subscriptions.count(topic)
        return count if self.sends_each else min(count, 1)
