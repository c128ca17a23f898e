"""Ordinary MQTT clients that record arrivals, for the demo and the doctor.

They reconnect, and know nothing of the federation. All arrivals have times of this process's clock,
so delays between clients need no clock synchronisation.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.errors import UsageError
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.types import REFUSAL_CODE_MIN, Version

READY_TIMEOUT_S = 10.0
POLL_S = 0.002
ARRIVALS_MAX = 1_000_000
"""Publications that a client stores; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    topic: str
    payload: bytes


class RecordingClient:
    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        *filters: str,
        version: Version = Version.V5,
        answer_timeout: float = 10.0,
    ) -> None:
        self.client_id = client_id
        self.filters = filters
        self.arrivals: list[Arrival] = []
        self.arrival_count = 0
        self.limits: BrokerLimits | None = None
        """Limits of the CONNACK; None while there is no connection."""
        self.problem = ""
        """Why there is no connection."""
        self.granted: dict[str, bool] = {}
        """Whether the broker accepted a subscription, by filter."""
        options = ConnectOptions(
            client_id=client_id,
            clean_start=True,
            version=version,
            answer_timeout=answer_timeout,
        )
        self._address = address
        self._connection = Connection(address, options, self._on_effect, random.Random())

    async def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Connect and subscribe; raise UsageError if the broker refuses or does not answer."""
        self._connection.start()
        ready = await wait_until(lambda: self.is_ready or bool(self.problem), timeout_s)
        if not ready or self.problem:
            raise UsageError(f"broker {self._address}: {self.problem or 'no answer'}")

    @property
    def is_ready(self) -> bool:
        """Whether the client is connected and every subscription is answered."""
        return self.limits is not None and len(self.granted) == len(self.filters)

    def subscribe(self, *filters: str) -> None:
        """Subscribe to more filters; the results appear in `granted`."""
        if not filters:
            return
        self.filters += filters
        subscriptions = tuple(packets.Subscription(name, qos=0) for name in filters)
        self._connection.submit(inputs.Subscribe(subscriptions))

    def unsubscribe(self, *filters: str) -> None:
        self._connection.submit(inputs.Unsubscribe(filters))

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 0; without a connection the publication is lost."""
        self._connection.submit(inputs.Publish([packets.PublishPacket(topic, payload)]))

    async def stop(self) -> None:
        await self._connection.stop()

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._record_arrivals(batch)
            case effects.Connected(broker_limits=limits):
                self.limits, self.problem = limits, ""
                self.granted.clear()
                if self.filters:
                    subscriptions = tuple(
                        packets.Subscription(name, qos=0) for name in self.filters
                    )
                    self._connection.submit(inputs.Subscribe(subscriptions))
            case effects.Subscribed(subscriptions=subscriptions, reasons=reasons):
                for subscription, reason in zip(subscriptions, reasons, strict=True):
                    self.granted[subscription.topic_filter] = reason < REFUSAL_CODE_MIN
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self.limits, self.problem = None, effect.text

    def _record_arrivals(self, batch: Sequence[packets.PublishPacket]) -> None:
        now = asyncio.get_running_loop().time()
        self.arrival_count += len(batch)
        if len(self.arrivals) < ARRIVALS_MAX:
            self.arrivals += [Arrival(now, p.topic, bytes(p.payload)) for p in batch]


def _number(number: int) -> bytes:
    return b"%d" % number


class NumberedStream:
    """Publishes numbered payloads at a constant rate until stopped, and records their times."""

    def __init__(
        self,
        client: RecordingClient,
        topic: str,
        interval_s: float,
        payload: Callable[[int], bytes] = _number,
    ) -> None:
        self.sent_at: list[float] = []
        self._client, self._topic, self._payload = client, topic, payload
        self._task = asyncio.create_task(self._run(interval_s))

    async def _run(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        for number in count():
            self.sent_at.append(loop.time())
            self._client.publish(self._topic, self._payload(number))
            await asyncio.sleep(interval_s)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; return whether it became true before the timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
