"""MQTT clients as anybody has them, that note when they got what: for the demo and the doctor.

They keep connected, and know nothing of the federation. Their arrivals have the clock of this
process, so that a delay from one client to another is a difference on one clock.
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
"""Publications that a client keeps; it counts further ones."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One publication, as it came."""

    at: float
    topic: str
    payload: bytes


class RecordingClient:
    """One client at one broker."""

    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        *filters: str,
        version: Version = Version.V5,
        answer_timeout: float = 10.0,
    ) -> None:
        """Prepare; `start` connects."""
        self.client_id = client_id
        self.filters = filters
        self.arrivals: list[Arrival] = []
        self.arrival_count = 0
        self.limits: BrokerLimits | None = None
        """What the broker granted, once it has."""
        self.problem = ""
        """Why there is no connection."""
        self.granted: dict[str, bool] = {}
        """Per filter whether the broker accepted it."""
        options = ConnectOptions(
            client_id=client_id,
            clean_start=True,
            version=version,
            answer_timeout=answer_timeout,
        )
        self._address = address
        self._connection = Connection(address, options, self._on_effect, random.Random())

    async def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Connect and subscribe; raise UsageError if the broker does not let it."""
        self._connection.start()
        ready = await wait_until(lambda: self.is_ready or bool(self.problem), timeout_s)
        if not ready or self.problem:
            raise UsageError(f"broker {self._address}: {self.problem or 'no answer'}")

    @property
    def is_ready(self) -> bool:
        """Whether it is connected and has an answer for every filter."""
        return self.limits is not None and len(self.granted) == len(self.filters)

    def subscribe(self, *filters: str) -> None:
        """Ask for more; `granted` has the answers."""
        if not filters:
            return
        self.filters += filters
        subscriptions = tuple(packets.Subscription(name, qos=0) for name in filters)
        self._connection.submit(inputs.Subscribe(subscriptions))

    def unsubscribe(self, *filters: str) -> None:
        """Ask for less."""
        self._connection.submit(inputs.Unsubscribe(filters))

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 0; without a connection it is lost."""
        self._connection.submit(inputs.Publish([packets.PublishPacket(topic, payload)]))

    async def stop(self) -> None:
        """Leave."""
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
                for wish, reason in zip(subscriptions, reasons, strict=True):
                    self.granted[wish.topic_filter] = reason < REFUSAL_CODE_MIN
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
    """Publishes numbered payloads at a steady pace, and keeps when each left."""

    def __init__(
        self,
        client: RecordingClient,
        topic: str,
        interval_s: float,
        payload: Callable[[int], bytes] = _number,
    ) -> None:
        """Publish at this client, until stopped."""
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
        """Publish no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; return whether it came true in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
