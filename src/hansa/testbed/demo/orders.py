"""A stream of orders at QoS 2 beside the readings: each must arrive once, whatever is killed."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation
from hansa.testbed.clients import wait_until
from hansa.testbed.demo.healing import OutageMeasurement

TOPIC = "plant/line1/orders"
RATE = 100.0
"""Orders per second."""


class OrderStream:
    """A publisher at one broker, and subscribers with persistent sessions at others."""

    def __init__(self, source: BrokerAddress, sinks: Mapping[int, BrokerAddress]) -> None:
        self._deliveries: dict[str, Counter[int]] = {}
        self._publisher = HistoryPublisher(source, "orders", {TOPIC: 2}, RATE, self._record)
        self._subscribers = {
            number: HistorySubscriber(address, f"orders-{number}", (TOPIC,), self._record)
            for number, address in sinks.items()
        }

    def _record(self, event: HistoryEvent) -> None:
        if event.op is HistoryOperation.DELIVER:
            self._deliveries.setdefault(event.subscriber, Counter())[event.counter] += 1

    async def connect(self, timeout_s: float) -> None:
        subscribers = self._subscribers.values()
        for client in (self._publisher, *subscribers):
            await client.start()
        await wait_until(lambda: all(each.is_subscribed for each in subscribers), timeout_s)

    def start(self) -> None:
        """Publish; the interest of all subscribers must be installed."""
        self._publisher.start_publishing()

    async def finish(self, timeout_s: float, second_copy_s: float) -> None:
        """Publish no more, and wait until all orders have arrived, and for duplicates."""
        await self._publisher.stop_publishing()
        await wait_until(
            lambda: all(not self.measure(number).lost for number in self._subscribers), timeout_s
        )
        await asyncio.sleep(second_copy_s)

    async def stop(self) -> None:
        for client in (self._publisher, *self._subscribers.values()):
            await client.stop()

    def measure(self, sink: int) -> OutageMeasurement:
        """Return the deliveries to the subscriber at a broker."""
        arrived = self._deliveries.get(f"orders-{sink}", Counter())
        published = self._publisher.count
        lost = published - len(arrived)
        return OutageMeasurement(None, published, lost, arrived.total() - len(arrived))
