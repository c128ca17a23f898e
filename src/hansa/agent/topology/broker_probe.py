"""Measures the latency of the agent's own broker: the health check of Bevilaqua 2023."""

import asyncio
import itertools
from collections.abc import Callable
from time import monotonic

from hansa.agent.broker.connection import ConnectionFactory
from hansa.mqtt import effects, inputs, packets

PROBE_TIMEOUT_S = 2.0


class BrokerProbe:
    """A client that publishes to itself."""

    def __init__(self, connection: ConnectionFactory, topic: str) -> None:
        """A topic with $ in front matches no other client's wildcards."""
        self.connection = connection(self._on_effect)
        self._topic = topic
        self.topic_callbacks: dict[str, Callable[[], None]] = {}
        """Callbacks for publications to other topics."""
        self._numbers = itertools.count(1)
        self._pending_probes: dict[bytes, asyncio.Event] = {}
        self._subscribed = asyncio.Event()

    async def measure(self) -> float | None:
        """Return milliseconds from publishing to receiving; None after a timeout."""
        payload = str(next(self._numbers)).encode()
        arrived = self._pending_probes[payload] = asyncio.Event()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._subscribed.wait()
                began = monotonic()  # uvloop's clock has a resolution of 1 ms
                self.connection.submit(
                    inputs.Publish([packets.PublishPacket(self._topic, payload)])
                )
                await arrived.wait()
                return (monotonic() - began) * 1000
        except TimeoutError:
            return None
        finally:
            del self._pending_probes[payload]

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected():
                subscriptions = tuple(
                    map(packets.Subscription, (self._topic, *self.topic_callbacks))
                )
                self.connection.submit(inputs.Subscribe(subscriptions))
            case effects.Subscribed():
                self._subscribed.set()
            case effects.Disconnected():
                self._subscribed.clear()
            case effects.PublishReceived(batch):
                for each in batch:
                    if each.topic in self.topic_callbacks:
                        self.topic_callbacks[each.topic]()
                    elif (waiting := self._pending_probes.get(bytes(each.payload))) is not None:
                        waiting.set()
            case _:
                pass
