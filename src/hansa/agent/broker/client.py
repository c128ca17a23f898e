"""The agent's main client at its broker: subscribes for other nodes and publishes their messages.

Subscriptions have identifiers, so that the agent forwards one copy of a publication that several of
them match (`subscription_table`). QoS 0 passes straight through; QoS 1 and 2 and their handshakes
belong to `hansa.agent.delivery`. When the broker is disconnected or too slow, QoS 0 publications
are dropped and counted, except the newest retained value of each topic.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from time import monotonic

from hansa.agent.broker.connection import ConnectionFactory
from hansa.agent.broker.echo_filter import EchoFilter
from hansa.agent.broker.overlap_dedup import CopyDecisions, OverlapDedup
from hansa.agent.broker.ports import GuaranteedDeliveryPort
from hansa.agent.broker.subscription_log import SubscriptionLog
from hansa.agent.broker.subscription_reconciler import SubscriptionReconciler
from hansa.agent.broker.subscription_table import TOPIC_TOO_DEEP, SubscriptionTable
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import Reason, Version
from hansa.protocol.events import Event
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import PlainMessage, Publication

BUFFER_BYTES_MAX = 16 << 20
"""Bytes that may wait for the broker, in addition to one publication of the largest size. Above
this, QoS 0 publications are dropped."""

DELAYED_RETAINED_MAX = 1_024
"""Topics whose newest retained value of QoS 0 waits for the broker. Their payloads together are at
most BUFFER_BYTES_MAX."""

RETAINED_RETRY_S = 1.0
"""Seconds until delayed retained values are offered again to a slow broker."""

TOO_MANY_LEVELS = "topic with too many levels"
"""Reason for which a publication is not forwarded."""

OVERLAP_WAIT_S = 0.1
"""Seconds that a copy waits for the copy that decides about it."""

SESSION_TAKEN_OVER = (
    "another client has the agent's client id, and may have got publications that are now lost: "
    "every client needs an id of its own"
)


class BrokerClient:
    """Subscribes, captures and injects through one connection."""

    def __init__(
        self,
        connection: ConnectionFactory,
        feed: Callable[[Event], None],
        on_captured: Callable[[Iterable[packets.PublishPacket]], None],
        on_status: Callable[[str], None],
        local_topics: Iterable[str] = (),
        delivery: tuple[GuaranteedDeliveryPort, SubscriptionLog] | None = None,
    ) -> None:
        """`connection` makes the connection that reports to this client. `on_status` is called with
        the reason when the connection is lost and with an empty text when it is up. Publications to
        `local_topics` are neither captured nor injected. Without `delivery` everything is QoS 0."""
        self.connection = connection(self._on_effect)
        self._local_topics = tuple(local_topics)
        self.subscriptions = SubscriptionTable(self._local_topics)
        self.on_session_lost: Callable[[], None] | None = None
        """Called when the broker has lost the previous session."""
        self.on_session_taken_over: Callable[[str], None] | None = None
        """Called when another client has taken over the session."""
        self.counters: Counter[str] = Counter()
        self.sends_overlap_copies = True
        """Whether a broker of MQTT 3.1.1 sends one copy for each matching subscription."""
        self._on_captured = on_captured
        self._on_status = on_status
        self._delivery: GuaranteedDeliveryPort | None = delivery[0] if delivery else None
        self._subscriber = SubscriptionReconciler(
            self.connection,
            self.subscriptions,
            feed,
            self.counters,
            delivery[1] if delivery else None,
        )
        self._is_connected = False
        self._overlap_dedup = OverlapDedup(
            self.subscriptions, delivery[0].captured_subscription if delivery else lambda _: 0
        )
        self._overlap_timer: asyncio.TimerHandle | None = None
        self._echo_filter: EchoFilter | None = None
        """Filter for the agent's own publications, for brokers that only support MQTT 3.1.1."""
        self._delayed_retained: dict[str, Publication] = {}
        self._delayed_bytes = 0
        self._retry_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ commands of the node

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe now or at the next connection; the node gets SubscriptionsGranted or
        SubscriptionsDenied."""
        for name in filters:
            self.subscriptions.require(name)
        self._subscriber.reconcile(filters)

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe from filters."""
        for name in filters:
            self.subscriptions.stop_requiring(name)
        self._subscriber.reconcile(filters)

    def publish(self, publications: Sequence[PlainMessage | Publication]) -> None:
        """Publish QoS 0 to the broker's clients, with one write."""
        if self._delivery is not None and self._delivery.has_pending_retained:
            publications = self._delivery.hold_back(publications)
        reason = self._blocked_reason()
        if reason:
            self.counters[f"dropped: {reason}"] += len(publications) - self._delay_retained(
                publications
            )
            if self._delayed_retained and self._is_connected and self._retry_timer is None:
                self._retry_timer = asyncio.get_running_loop().call_later(
                    RETAINED_RETRY_S, self._retry_delayed
                )
            return
        if self._delayed_retained:
            delayed, self._delayed_retained, self._delayed_bytes = self._delayed_retained, {}, 0
            publications = [*delayed.values(), *publications]
        if self._local_topics:
            publications = self._without_local_topics(publications)
        self.counters["injected"] += len(publications)
        if self._echo_filter is not None:
            for each in publications:
                topic, payload = each if isinstance(each, tuple) else (each.topic, each.payload)
                self._echo_filter.expect(topic, payload, self._expected_copies(topic))
        batch = [
            p
            if isinstance(p, tuple)
            else packets.PublishPacket(p.topic, p.payload, 0, p.retain, False, 0, (), p.properties)
            for p in publications
        ]
        self.connection.submit(inputs.Publish(batch))

    def _delay_retained(self, publications: Sequence[PlainMessage | Publication]) -> int:
        """Keep the newest retained value of each topic until the broker accepts it."""
        count = 0
        for each in publications:
            if isinstance(each, tuple) or not each.retain:
                continue
            before = self._delayed_retained.get(each.topic)
            size = self._delayed_bytes + len(each.payload) - (len(before.payload) if before else 0)
            is_known = before is not None or len(self._delayed_retained) < DELAYED_RETAINED_MAX
            if is_known and size <= BUFFER_BYTES_MAX:
                self._delayed_retained[each.topic] = each
                self._delayed_bytes = size
                count += 1
        return count

    def _retry_delayed(self) -> None:
        self._retry_timer = None
        if self._delayed_retained:
            self.publish(())

    def _without_local_topics(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        is_local = self.subscriptions.is_local_topic
        found = [p for p in publications if not is_local(p[0] if isinstance(p, tuple) else p.topic)]
        self.counters["dropped: local topic"] += len(publications) - len(found)
        return found

    def _blocked_reason(self) -> str:
        """Return why nothing can be published now; empty if it can."""
        if not self._is_connected:
            return "broker disconnected"
        is_behind = self._echo_filter is not None and self._echo_filter.is_full
        return "broker buffer full" if is_behind or self._is_buffer_full() else ""

    def _is_buffer_full(self) -> bool:
        room = BUFFER_BYTES_MAX + self.connection.packet_bytes_max
        return self.connection.waiting_bytes > room

    # ------------------------------------------------------------ commands of guaranteed delivery

    def inject(self, batch: Sequence[packets.PublishPacket]) -> None:
        """Publish QoS 1 and 2 with the given packet ids."""
        if self._echo_filter is not None:
            for each in batch:
                self._echo_filter.expect(
                    each.topic, each.payload, self._expected_copies(each.topic)
                )
        self.connection.submit(inputs.Publish(batch))

    def discard_delayed(self, topics: Iterable[str]) -> None:
        """Discard delayed QoS 0 values of these topics: newer ones have arrived at QoS 1 or 2."""
        for topic in topics:
            if (older := self._delayed_retained.pop(topic, None)) is not None:
                self._delayed_bytes -= len(older.payload)

    def send_handshake_steps(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        """Send acknowledgements of QoS 1 and 2."""
        if self._is_connected:
            self.connection.submit(inputs.Answer(batch))

    def is_local_topic(self, topic: str) -> bool:
        """Whether publications to a topic stay at this broker."""
        return bool(self._local_topics) and self.subscriptions.is_local_topic(topic)

    @property
    def newest_subscription(self) -> int:
        """The newest subscription identifier of which a publication can have arrived."""
        return self.subscriptions.last_confirmed

    # ------------------------------------------------------------ effects of the connection

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._receive_publications(batch)
            case effects.Connected():
                self._on_connected(effect)
            case effects.Subscribed():
                self._subscriber.on_subscribed(effect)
            case effects.Unsubscribed(filters=filters):
                self._subscriber.on_unsubscribed(filters)
            case effects.HandshakePacketsReceived(steps) if self._delivery:
                self._delivery.on_handshake_steps(steps)
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._on_disconnected(effect.text)
                if self.on_session_taken_over and effect.reason == Reason.SESSION_TAKEN_OVER:
                    self.on_session_taken_over(SESSION_TAKEN_OVER)
            case effects.PublishNotSent():
                self._on_not_sent(effect)
            case effects.OversizedPublishReceived(publication):
                self._drop_oversized(publication)
            case _:
                pass

    def _on_disconnected(self, reason: str) -> None:
        self._is_connected = False
        self._subscriber.on_disconnected()
        if self._overlap_timer is not None:
            self._overlap_timer.cancel()
        if self._delivery:
            self._delivery.on_disconnected()
        self._on_status(reason)

    def _drop_oversized(self, publication: packets.OversizedPublish) -> None:
        """Drop and acknowledge it: otherwise the broker sends it again after every reconnection."""
        if publication.qos and self._delivery:
            self._delivery.report_dropped(TOO_LARGE, publication.topic, publication.qos)
            placeholder = packets.PublishPacket(
                "", b"", publication.qos, packet_id=publication.packet_id
            )
            self._delivery.on_publications([(placeholder, False)])
        else:
            self.counters[f"dropped: {TOO_LARGE}"] += 1

    def _on_not_sent(self, effect: effects.PublishNotSent) -> None:
        """Report publications that cannot be sent. QoS 1 and 2 wait for the next session if only
        this connection has ended; the session reports that after the broker's last packets."""
        batch, reason = effect.batch, effect.reason
        guaranteed = [p for p in batch if not isinstance(p, tuple) and p.qos]
        if len(guaranteed) < len(batch):
            self.counters[f"dropped: {reason}"] += len(batch) - len(guaranteed)
        if guaranteed and self._delivery and not effect.connection_ended:
            self._delivery.on_not_sent(guaranteed, reason)

    def _on_connected(self, effect: effects.Connected) -> None:
        self._is_connected = True
        self._echo_filter = (
            None if effect.broker_limits.version is Version.V5 else EchoFilter(monotonic)
        )
        self._on_status("")
        self._overlap_dedup.on_connected(effect.session_present)
        expected = self._subscriber.on_connected(effect.session_present, effect.broker_limits)
        if self._delivery:
            self._delivery.on_connected(effect.session_present, expected, effect.broker_limits)
        self._subscriber.reconcile_all()
        self._retry_delayed()
        if self.on_session_lost and not effect.session_present:
            self.on_session_lost()

    def _receive_publications(self, batch: Sequence[packets.PublishPacket]) -> None:
        if self._delivery is None or not any([p.qos for p in batch]):
            self._on_captured(self._select_qos0(batch))
            return
        # In order: a value may replace an earlier one.
        for is_guaranteed, some in groupby(batch, lambda p: p.qos > 0):
            if is_guaranteed:
                self._delivery.on_publications(self._select_guaranteed(list(some)))
            else:
                self._on_captured(self._select_qos0(list(some)))
        if self._overlap_timer is not None:
            self._overlap_timer.cancel()
        if self._overlap_dedup.has_undecided:
            loop = asyncio.get_running_loop()
            self._overlap_timer = loop.call_later(
                OVERLAP_WAIT_S, self._decide_waiting, self._delivery
            )

    def _decide_waiting(self, delivery: GuaranteedDeliveryPort) -> None:
        delivery.on_publications(self._count_decisions(self._overlap_dedup.decide_waiting()))

    def _select_guaranteed(self, batch: Sequence[packets.PublishPacket]) -> CopyDecisions:
        """Decide for each copy of QoS 1 and 2 whether it counts; all of them are acknowledged."""
        decided: CopyDecisions = []
        for copy in batch:
            if self._echo_filter is None or self._is_from_client(self._echo_filter, copy):
                decided += self._count_decisions(self._overlap_dedup.receive_copy(copy))
            else:
                decided.append((copy, False))
        return decided

    def _count_decisions(self, decided: CopyDecisions) -> CopyDecisions:
        for copy, is_selected in decided:
            is_unfit = self.subscriptions.deciding_identifier(copy.topic) == TOPIC_TOO_DEEP
            self.counters["captured"] += is_selected
            if is_unfit and self._delivery:
                self._delivery.report_dropped(TOO_MANY_LEVELS, copy.topic, copy.qos)
            self.counters["overlap copies"] += not is_selected and not is_unfit
        return decided

    def _select_qos0(self, batch: Sequence[packets.PublishPacket]) -> list[packets.PublishPacket]:
        """Return the copies of QoS 0 that count."""
        if self._echo_filter is not None:
            batch = [p for p in batch if self._is_from_client(self._echo_filter, p)]
        oldest = self.subscriptions.deciding_identifier
        selected = [
            p
            for p in batch
            if (
                oldest(p.topic) in p.subscription_ids if p.subscription_ids else oldest(p.topic) > 0
            )
        ]
        self.counters["captured"] += len(selected)
        if len(selected) < len(batch):
            unfit = sum(oldest(p.topic) == TOPIC_TOO_DEEP for p in batch)
            self.counters[f"dropped: {TOO_MANY_LEVELS}"] += unfit
            self.counters["overlap copies"] += len(batch) - len(selected) - unfit
        return selected

    def _is_from_client(self, echo_filter: EchoFilter, copy: packets.PublishPacket) -> bool:
        """Whether a client published it just now. MQTT 3.1.1 also delivers stored retained values,
        marked by the retain flag, and the agent's own publications."""
        if copy.retain:
            self.counters["retained replays ignored"] += 1
            return False
        is_echo = echo_filter.consume_echo(copy.topic, copy.payload)
        self.counters["echoes"] += is_echo
        self.counters["echoes missed"] = echo_filter.missed_count
        if not is_echo:  # then its other copies are echoes, too
            echo_filter.expect(copy.topic, copy.payload, self._expected_copies(copy.topic) - 1)
        return not is_echo

    def _expected_copies(self, topic: str) -> int:
        """Return how many copies a broker of MQTT 3.1.1 sends of a publication."""
        count = self.subscriptions.count_matching(topic)
        return count if self.sends_overlap_copies else min(count, 1)
