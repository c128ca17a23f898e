"""Clients that keep a history, at one real broker."""

import asyncio

import pytest

from hansa.agent.brokers.connection import BrokerAddress
from hansa.chaos.clients import Publisher, Subscriber
from hansa.chaos.history import Event, Op
from hansa.chaos.verdict import judge
from hansa.local.mosquitto import Mosquitto, free_port

TOPICS = {"a/0": 0, "a/1": 1, "a/2": 2}


async def wait_for(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("mosquitto")
def test_what_one_broker_carries_is_all_there_also_after_its_restart(tmp_path):
    async def play() -> list[Event]:
        broker = Mosquitto(tmp_path, free_port(), is_persistent=True)
        address = BrokerAddress("127.0.0.1", broker.port)
        history: list[Event] = []
        subscriber = Subscriber(address, "sub", ("a/#",), history.append)
        publisher = Publisher(address, "pub", TOPICS, 300.0, history.append)
        await broker.start()
        try:
            await subscriber.start()
            await publisher.start()
            publisher.go()
            await wait_for(lambda: subscriber.arrivals > 30)
            await broker.stop()
            await broker.start()
            before = subscriber.arrivals
            await wait_for(lambda: subscriber.arrivals > before + 30)
            await publisher.pause()
            await wait_for(lambda: publisher.is_quiet)
            await wait_for(lambda: not judge(history, {"sub": TOPICS}).fates["lost"])
        finally:
            await publisher.stop()
            await subscriber.stop()
            await broker.stop()
        return history

    history = asyncio.run(play())
    verdict = judge([event for event in history if event.counter >= 10], {"sub": TOPICS})
    assert {event.stream.qos for event in history if event.op is Op.DELIVER} == {0, 1, 2}
    assert verdict.broken(duplicates_allowed=1_000) == []
