"""Clients that keep a history, at one real broker."""

import asyncio

import pytest

from hansa.agent.broker.connection import BrokerAddress
from hansa.mqtt import packets
from hansa.testbed.chaos.clients import Publisher, Subscriber
from hansa.testbed.chaos.history import Event, Op, Stream
from hansa.testbed.chaos.verdict import Circumstances, Hit, judge
from hansa.testbed.mosquitto import Mosquitto, free_port

TOPICS = {"a/0": 0, "a/1": 1, "a/2": 2}


async def wait_for(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


pytestmark = pytest.mark.usefixtures("mosquitto")


def test_what_one_broker_carries_is_all_there_also_after_its_restart(tmp_path):
    async def play() -> list[Event]:
        broker = Mosquitto(tmp_path, free_port(), is_persistent=True)
        address = BrokerAddress("127.0.0.1", broker.port)
        history: list[Event] = []
        subscriber = Subscriber(address, "sub", ("a/#",), history.append)
        publisher = Publisher(address, "pub", TOPICS, 300.0, history.append)
        publisher.has_properties = True
        await broker.start()
        try:
            await subscriber.start()
            await wait_for(lambda: subscriber.is_subscribed)
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
    under_way = Circumstances(hits={"sub": (Hit(history[0].at, 1, 100),)})
    assert {event.stream.qos for event in history if event.op is Op.DELIVER} == {0, 1, 2}
    assert judge(history, {"sub": TOPICS}, under_way).broken == []


def test_what_a_broker_refuses_is_not_acknowledged(tmp_path):
    async def play() -> list[Event]:
        (tmp_path / "acl").write_text("topic write a/0\n")
        broker = Mosquitto(tmp_path, free_port(), (f"acl_file {tmp_path}/acl",))
        address = BrokerAddress("127.0.0.1", broker.port)
        history: list[Event] = []
        publisher = Publisher(address, "pub", TOPICS, 300.0, history.append, count_max=9)
        await broker.start()
        try:
            await publisher.start()
            publisher.go()
            await wait_for(lambda: len(history) == 18)
        finally:
            await publisher.stop()
            await broker.stop()
        return history

    answers = [(event.op, event.stream.qos) for event in asyncio.run(play())]
    expected = {(Op.INVOKE, 0), (Op.INVOKE, 1), (Op.INVOKE, 2), (Op.OK, 0)}
    assert set(answers) == expected | {(Op.REFUSED, 1), (Op.REFUSED, 2)}


@pytest.mark.parametrize(
    "strange",
    [
        packets.Publish("a/2", Stream("pub", "a/1", 1).payload(0)),
        packets.Publish("a/1", Stream("pub", "a/1", 1).payload(0)[:-1]),
        packets.Publish("a/1", Stream("pub", "a/1", 0).payload(0), retain=True),
    ],
    ids=["another topic", "another payload", "retained"],
)
def test_what_did_not_come_as_it_was_published_is_a_phantom(strange):
    history: list[Event] = []

    async def take() -> None:
        subscriber = Subscriber(BrokerAddress("127.0.0.1", 1), "sub", ("a/#",), history.append)
        subscriber.take([strange])

    asyncio.run(take())
    attempt = Event(0.0, Op.INVOKE, Stream("pub", "a/1", 1), 0, "", 1)
    assert judge([attempt, *history], {"sub": TOPICS}).phantoms == 1
