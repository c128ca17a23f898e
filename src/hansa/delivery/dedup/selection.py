"""Decides which copies of received publications count: one of each publication of a client.

Overlap copies are decided by `overlap` at QoS 1 and 2, and by the oldest subscription at QoS 0.
Echoes and replayed retained values, which only brokers of MQTT 3.1.1 send, never count.
"""

from collections.abc import Callable, Iterable, Sequence

from hansa.delivery.context import Context
from hansa.delivery.dedup.echo import EchoFilter, SavedEchoes
from hansa.delivery.dedup.injected_echoes import InjectedEchoes
from hansa.delivery.dedup.overlap import CopyDecisions, OverlapDedup
from hansa.delivery.effects import Effect, PublicationDropped
from hansa.delivery.inbox import InboxEntry, InboxLog
from hansa.delivery.subscriptions.table import TOPIC_TOO_DEEP, SubscriptionTable
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import Version

TOO_MANY_LEVELS = "topic with too many levels"
"""Reason for which a publication is not forwarded."""

ECHOES_IN_DOUBT = "echoes in doubt"
"""Counter of echoes that are forwarded if the broker sends them."""

OVERLAP_WAIT_S = 0.1
"""Seconds that a copy waits for the copy that decides about it."""


class CopySelection:
    """The decisions of one connection."""

    def __init__(
        self,
        context: Context,
        subscriptions: SubscriptionTable,
        captured_subscription: Callable[[PublishPacket], int],
        sends_overlap_copies: bool,
        is_redelivery: Callable[[PublishPacket], bool] = lambda _: False,
        saved_echoes: SavedEchoes | None = None,
    ) -> None:
        """`captured_subscription` returns, for the first copy on a connection, the subscription
        whose copy of the same publication was captured before; 0 if there is none.
        `sends_overlap_copies` says whether a broker of MQTT 3.1.1 sends one copy for each matching
        subscription. `is_redelivery` returns whether a publication was captured before.
        `saved_echoes` are those of the previous incarnation."""
        self._context = context
        self._subscriptions = subscriptions
        self._sends_overlap_copies = sends_overlap_copies
        self._is_redelivery = is_redelivery
        self._overlap = OverlapDedup(subscriptions, captured_subscription, is_redelivery)
        self._saved_echoes = saved_echoes
        """Until the first connection."""
        self._injected: InjectedEchoes | None = None
        self._echo_filter: EchoFilter | None = None
        self.expects_echoes = False
        """Whether the broker sends this node's own publications back."""
        self.deadline: float | None = None
        """When waiting copies are decided."""

    def track_injected(
        self,
        inbox: InboxLog,
        find_in_flight: Callable[[int], InboxEntry | None],
        in_flight_max: int,
    ) -> None:
        """Expect the echoes of injected publications of QoS 1 and 2 once."""
        saved = self._saved_echoes
        self._injected = InjectedEchoes(
            inbox, find_in_flight, in_flight_max, saved.injected if saved else None
        )

    @property
    def is_echo_filter_full(self) -> bool:
        """Whether no more should be published before some echoes have arrived."""
        return self._echo_filter is not None and self._echo_filter.is_full

    def on_connected(self, session_present: bool, limits: BrokerLimits) -> None:
        """Start a connection."""
        if self._injected is not None:
            in_doubt = self._injected.on_connected(session_present, limits)
            self._context.counters[ECHOES_IN_DOUBT] += in_doubt
        self._overlap.on_connected(session_present)
        self.expects_echoes = limits.version is not Version.V5
        saved, self._saved_echoes = self._saved_echoes, None
        if not self.expects_echoes:
            self._echo_filter = None
        elif session_present and self._echo_filter is not None:
            self._echo_filter.on_session_resumed()
        else:
            self._echo_filter = EchoFilter(
                lambda: self._context.now, saved if session_present else None
            )
        self.deadline = None

    def save_echoes(self) -> SavedEchoes | None:
        """Return the echoes for the next incarnation; None if the broker sends none."""
        if self._echo_filter is None:
            return self._saved_echoes
        saved = self._echo_filter.save()
        saved.injected = self._injected.indexes() if self._injected else []
        return saved

    def on_released(self, packet_ids: Iterable[int]) -> None:
        """PUBREL arrived for these packet ids."""
        if self._echo_filter is not None:
            for packet_id in packet_ids:
                self._echo_filter.on_released(packet_id)

    def on_disconnected(self) -> None:
        """End a connection: the broker sends waiting copies again."""
        self.deadline = None

    def expect_echo(self, topic: str, payload: bytes, qos: int) -> None:
        """This node publishes this itself."""
        if self._echo_filter is not None:
            copies = self._expected_copies(topic)
            in_doubt = self._echo_filter.expect(topic, payload, copies, qos)
            self._context.counters[ECHOES_IN_DOUBT] += in_doubt

    def expect_injected(self, effects: Iterable[Effect]) -> None:
        """Expect the echoes of injected publications."""
        assert self._injected is not None
        for publish in self._injected.sent_first(effects):
            self.expect_echo(publish.topic, publish.payload, publish.qos)

    def select_guaranteed(self, batch: Sequence[PublishPacket]) -> CopyDecisions:
        """Decide for each copy of QoS 1 and 2 whether it counts; all of them are acknowledged. A
        copy that waits for another one is returned later."""
        decided: CopyDecisions = []
        for copy in batch:
            if (
                self._echo_filter is None
                or self._is_redelivery(copy)
                or self._is_from_client(self._echo_filter, copy)
            ):
                decided += self._count_decisions(self._overlap.receive_copy(copy))
            else:
                decided.append((copy, False))
        self.deadline = self._context.now + OVERLAP_WAIT_S if self._overlap.has_undecided else None
        return decided

    def decide_waiting(self) -> CopyDecisions:
        """Decide about waiting copies if they have waited long enough."""
        if self.deadline is None or self._context.now < self.deadline:
            return []
        self.deadline = None
        return self._count_decisions(self._overlap.decide_waiting())

    def _count_decisions(self, decided: CopyDecisions) -> CopyDecisions:
        counters = self._context.counters
        for copy, is_selected in decided:
            is_unfit = self._subscriptions.deciding_identifier(copy.topic) == TOPIC_TOO_DEEP
            counters["captured"] += is_selected
            if is_unfit:
                dropped = PublicationDropped(TOO_MANY_LEVELS, copy.topic, copy.qos)
                self._context.effects.append(dropped)
            counters["overlap copies"] += not is_selected and not is_unfit
        return decided

    def select_qos0(self, batch: Sequence[PublishPacket]) -> Sequence[PublishPacket]:
        """Return the copies of QoS 0 that count."""
        if self._echo_filter is not None:
            batch = [p for p in batch if self._is_from_client(self._echo_filter, p)]
        oldest = self._subscriptions.deciding_identifier
        selected = [
            p
            for p in batch
            if (
                oldest(p.topic) in p.subscription_ids if p.subscription_ids else oldest(p.topic) > 0
            )
        ]
        counters = self._context.counters
        counters["captured"] += len(selected)
        if len(selected) < len(batch):
            unfit = sum(oldest(p.topic) == TOPIC_TOO_DEEP for p in batch)
            counters[f"dropped: {TOO_MANY_LEVELS}"] += unfit
            counters["overlap copies"] += len(batch) - len(selected) - unfit
        return selected

    def _is_from_client(self, echo_filter: EchoFilter, copy: PublishPacket) -> bool:
        """Whether a client published it just now. MQTT 3.1.1 also delivers stored retained values,
        marked by the retain flag, and this node's own publications."""
        counters = self._context.counters
        if copy.retain:
            counters["retained replays ignored"] += 1
            return False
        is_echo = echo_filter.consume_echo(copy)
        counters["echoes"] += is_echo
        counters["echoes missed"] = echo_filter.missed_count
        if not is_echo:  # then its other copies are echoes, too
            others = self._expected_copies(copy.topic) - 1
            echo_filter.expect(copy.topic, copy.payload, others, copy.qos)
        return not is_echo

    def _expected_copies(self, topic: str) -> int:
        """Return how many copies a broker of MQTT 3.1.1 sends of a publication."""
        count = self._subscriptions.count_matching(topic)
        return count if self._sends_overlap_copies else min(count, 1)
