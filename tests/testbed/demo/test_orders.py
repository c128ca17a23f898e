import asyncio

from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.clients import wait_until
from hansa.testbed.demo.healing import OutageMeasurement
from hansa.testbed.demo.orders import OrderStream


def test_orders_are_counted_at_each_subscriber(broker):
    async def run() -> tuple[int, list[OutageMeasurement]]:
        host, _, port = broker("allow_anonymous true").rpartition(":")
        address = BrokerAddress(host, int(port))
        stream = OrderStream(address, {1: address, 2: address})
        await stream.connect(10.0)
        stream.start()
        assert await wait_until(lambda: stream.measure(1).arrived >= 5, 10.0)
        await stream.finish(10.0, 0.0)
        await stream.stop()
        return stream.measure(1).published, [stream.measure(sink) for sink in (1, 2)]

    published, seen = asyncio.run(run())
    assert published >= 5
    assert seen == [OutageMeasurement(None, published, lost=0, duplicates=0)] * 2
