"""Reads the retained values that a broker holds, with a short-lived client.

The agent's main client never requests stored values. This one subscribes, receives what is stored,
and disconnects. Most brokers answer in order, so an UNSUBACK that follows the acknowledgement of
everything means that there is no more. Some brokers that only support MQTT 3.1.1 send stored values
later; from those, nothing must arrive for a while, either.
"""

import asyncio
from collections.abc import Callable, Sequence

from hansa.agent.broker.connection import ConnectionFactory
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import REFUSAL_CODE_MIN, Version

READ_TIMEOUT_S = 30.0
FILTERS_MAX = 200
"""Filters in one SUBSCRIBE."""

OLD_BROKER_WAIT_S = 0.3
"""Seconds without a message after which a broker of MQTT 3.1.1 has sent everything."""

FENCE_FILTERS = ("hansa/fence",)
"""Filters to unsubscribe from, never subscribed to, to get an answer."""

OnRetained = Callable[[packets.PublishPacket], None]


class _RetainedReader:
    def __init__(
        self, make_connection: ConnectionFactory, filters: Sequence[str], on_retained: OnRetained
    ) -> None:
        self.connection = make_connection(self._on_effect)
        self.done = asyncio.Event()
        self.is_complete = False
        self._filters = filters
        self._on_retained = on_retained
        self.refused_filters: set[str] = set()
        self._unreleased: set[int] = set()  # packet ids of QoS 2 that are not released yet
        self._is_fence_clean = True
        self._is_mqtt311 = False
        self._must_wait = False

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(broker_limits=limits):
                self._is_mqtt311 = limits.version is Version.V311
                self._subscribe()
            case effects.PublishReceived(batch):
                self._receive_publications(batch)
            case effects.HandshakePacketsReceived(batch):
                self._release([step for step in batch if isinstance(step, packets.PubRelPacket)])
            case effects.Subscribed(subscriptions=asked, reasons=reasons):
                answers = zip(asked, reasons, strict=True)
                self.refused_filters |= {
                    each.topic_filter for each, code in answers if code >= REFUSAL_CODE_MIN
                }
                self._send_fence()
            case effects.Unsubscribed():
                self._on_fence_answered()
            case effects.Disconnected() | effects.ProtocolViolation():
                self.done.set()  # the result is incomplete
            case _:
                pass

    def _subscribe(self) -> None:
        some, self._filters = self._filters[:FILTERS_MAX], self._filters[FILTERS_MAX:]
        self._must_wait = self._is_mqtt311
        subscriptions = tuple(packets.Subscription(name, qos=2) for name in some)
        self.connection.submit(inputs.Subscribe(subscriptions))

    def _receive_publications(self, batch: Sequence[packets.PublishPacket]) -> None:
        self._is_fence_clean = False
        self._must_wait = self._is_mqtt311
        for each in batch:
            if each.retain and each.packet_id not in self._unreleased:
                self._on_retained(each)
            if each.qos == 2:
                self._unreleased.add(each.packet_id)
        for qos, kind in ((1, packets.PubAckPacket), (2, packets.PubRecPacket)):
            answers = [kind(each.packet_id) for each in batch if each.qos == qos]
            if answers:
                self.connection.submit(inputs.SendHandshakePackets(answers))

    def _release(self, steps: Sequence[packets.PubRelPacket]) -> None:
        if steps:
            self._is_fence_clean = False
            self._unreleased.difference_update(step.packet_id for step in steps)
            self.connection.submit(
                inputs.SendHandshakePackets([packets.PubCompPacket(s.packet_id) for s in steps])
            )

    def _send_fence(self) -> None:
        self._is_fence_clean = True
        self.connection.submit(inputs.Unsubscribe(FENCE_FILTERS))

    def _on_fence_answered(self) -> None:
        if self._unreleased or not self._is_fence_clean:
            self._send_fence()
        elif self._must_wait:
            self._must_wait = False
            asyncio.get_running_loop().call_later(OLD_BROKER_WAIT_S, self._send_fence)
        elif self._filters:
            self._subscribe()
        else:
            self.is_complete = True
            self.done.set()


async def read_retained(
    make_connection: ConnectionFactory, filters: Sequence[str], on_retained: OnRetained
) -> tuple[str, ...] | None:
    """Pass every retained value for these filters to `on_retained`, some more than once if filters
    overlap. Return the filters whose values are complete, None after a timeout or a lost
    connection."""
    reader = _RetainedReader(make_connection, filters, on_retained)
    reader.connection.start()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            await reader.done.wait()
    except TimeoutError:
        pass
    finally:
        await reader.connection.stop()
    if not reader.is_complete:
        return None
    return tuple(name for name in filters if name not in reader.refused_filters)
