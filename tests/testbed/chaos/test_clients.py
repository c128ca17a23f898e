"""Clients that record a history, at a real broker."""

import asyncio

import pytest

from hansa.agent.broker.connection import BrokerAddress
from hansa.mqtt import packets
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation, PublisherStream
from hansa.testbed.chaos.verdict import FaultContext, Interruption, judge_history
from hansa.testbed.mosquitto import Mosquitto, free_port

TOPICS = {"a/0": 0, "a/1": 1, "a/2": 2}


async def wait_for(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


pytestmark = pytest.mark.usefixtures("mosquitto")


def test_nothing_is_lost_at_one_broker_and_after_its_restart(tmp_path):
    async def run() -> list[HistoryEvent]:
        broker = Mosquitto(tmp_path, free_port(), is_persistent=True)
        address = BrokerAddress("127.0.0.1", broker.port)
        history: list[HistoryEvent] = []
        subscriber = HistorySubscriber(address, "sub", ("a/#",), history.append)
        publisher = HistoryPublisher(address, "pub", TOPICS, 300.0, history.append)
        publisher.has_properties = True
        await broker.start()
        try:
            await subscriber.start()
            await wait_for(lambda: subscriber.is_subscribed)
            await publisher.start()
            publisher.start_publishing()
            await wait_for(lambda: subscriber.arrival_count > 30)
            await broker.stop()
            await broker.start()
            before = subscriber.arrival_count
            await wait_for(lambda: subscriber.arrival_count > before + 30)
            await publisher.stop_publishing()
            await wait_for(lambda: publisher.is_idle)
            await wait_for(lambda: not judge_history(history, {"sub": TOPICS}).fates["lost"])
        finally:
            await publisher.stop()
            await subscriber.stop()
            await broker.stop()
        return history

    history = asyncio.run(run())
    restart = FaultContext(interruptions={"sub": (Interruption(history[0].at, 1, 100),)})
    assert {event.stream.qos for event in history if event.op is HistoryOperation.DELIVER} == {
        0,
        1,
        2,
    }
    assert judge_history(history, {"sub": TOPICS}, restart).violations == []


def test_refused_publication_is_not_acknowledged(tmp_path):
    async def run() -> list[HistoryEvent]:
        (tmp_path / "acl").write_text("topic write a/0\n")
        broker = Mosquitto(tmp_path, free_port(), (f"acl_file {tmp_path}/acl",))
        address = BrokerAddress("127.0.0.1", broker.port)
        history: list[HistoryEvent] = []
        publisher = HistoryPublisher(address, "pub", TOPICS, 300.0, history.append, count_max=9)
        await broker.start()
        try:
            await publisher.start()
            publisher.start_publishing()
            await wait_for(lambda: len(history) == 18)
        finally:
            await publisher.stop()
            await broker.stop()
        return history

    answers = [(event.op, event.stream.qos) for event in asyncio.run(run())]
    expected = {
        (HistoryOperation.INVOKE, 0),
        (HistoryOperation.INVOKE, 1),
        (HistoryOperation.INVOKE, 2),
        (HistoryOperation.OK, 0),
    }
    assert set(answers) == expected | {(HistoryOperation.REFUSED, 1), (HistoryOperation.REFUSED, 2)}


@pytest.mark.parametrize(
    "altered",
    [
        packets.PublishPacket("a/2", PublisherStream("pub", "a/1", 1).make_payload(0)),
        packets.PublishPacket("a/1", PublisherStream("pub", "a/1", 1).make_payload(0)[:-1]),
        packets.PublishPacket("a/1", PublisherStream("pub", "a/1", 0).make_payload(0), retain=True),
    ],
    ids=["another topic", "another payload", "retained"],
)
def test_altered_delivery_is_a_phantom(altered):
    history: list[HistoryEvent] = []

    async def take() -> None:
        subscriber = HistorySubscriber(
            BrokerAddress("127.0.0.1", 1), "sub", ("a/#",), history.append
        )
        subscriber.receive([altered])

    asyncio.run(take())
    attempt = HistoryEvent(0.0, HistoryOperation.INVOKE, PublisherStream("pub", "a/1", 1), 0, "", 1)
    assert judge_history([attempt, *history], {"sub": TOPICS}).phantoms == 1
