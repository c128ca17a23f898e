"""A client at QoS 2, with a real broker."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.agent.waiting import until

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.mqttfed import qos2_client
from hansa.agent.mqttfed.qos2_client import Qos2Client
from hansa.mqtt import effects, packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.types import Version
from hansa.testbed.mosquitto import Mosquitto, free_port


class Pair:
    """Two clients of one broker; the second one subscribes."""

    def __init__(self, broker: Mosquitto) -> None:
        self.broker = broker
        self.received: list[bytes] = []
        self.said: list[str] = []
        self.one = Qos2Client(self._connecting("one"), self.said.append)
        self.two = Qos2Client(self._connecting("two"), self.said.append, ("t/#",), self._receive)

    def _connecting(self, name: str) -> Callable[[Any], Connection]:
        address = BrokerAddress("127.0.0.1", self.broker.port)
        options = ConnectOptions(client_id=name, clean_start=True)
        return lambda on_effect: Connection(address, options, on_effect, random.Random(1))

    def _receive(self, batch: Any) -> None:
        publications: list[packets.PublishPacket] = [*batch]
        self.received += [each.payload for each in publications]

    async def start(self) -> None:
        for client in (self.one, self.two):
            client.connection.start()
        await until(lambda: self.said == ["", ""], "both connected")

    async def stop(self) -> None:
        for client in (self.one, self.two):
            await client.connection.stop()


@pytest.fixture
def run(mosquitto: str, tmp_path: Path) -> Callable[..., Pair]:
    def play(work: Callable[[Pair], Coroutine[Any, Any, None]], *lines: str) -> Pair:
        async def whole() -> Pair:
            broker = Mosquitto(tmp_path, free_port(), lines)
            await broker.start()
            pair = Pair(broker)
            try:
                await pair.start()
                await work(pair)
                await pair.stop()
            finally:
                await broker.stop()
            return pair

        return asyncio.run(whole())

    return play


def test_publications_arrive_once_without_echoes(run):
    payloads = [b"%d" % number for number in range(1_000)]

    async def work(pair: Pair) -> None:
        for payload in payloads:
            pair.one.publish("t/a", payload)
        pair.two.publish("t/a", b"echo")
        await until(lambda: len(pair.received) == len(payloads), "all of them")

    pair = run(work)
    assert pair.received == payloads
    assert +pair.one.counters == {}


def test_publication_for_a_slow_broker_is_dropped_and_counted(run, monkeypatch):
    monkeypatch.setattr(qos2_client, "QUEUE_MAX", 5)
    monkeypatch.setattr(qos2_client, "IN_FLIGHT_MAX", 2)

    async def work(pair: Pair) -> None:
        for _ in range(10):
            pair.one.publish("t/a", b"x")
        await until(lambda: len(pair.received) == 7, "what was not dropped")
        await pair.broker.stop()
        await until(lambda: len(pair.said) == 4, "both reported")
        pair.one.publish("t/a", b"x")

    pair = run(work)
    assert pair.one.counters["dropped: broker buffer full"] == 3
    assert pair.one.counters["dropped: broker disconnected"] == 1


def test_publication_too_large_for_the_broker_is_counted_and_the_next_arrives(run):
    async def work(pair: Pair) -> None:
        pair.one.publish("t/a", bytes(3_000))
        pair.one.publish("t/a", b"end")
        await until(lambda: pair.received == [b"end"], "the next one")

    counted = +run(work, "max_packet_size 2000").one.counters
    assert counted == {"dropped: the broker cannot take it": 1}


def test_unsendable_publication_makes_room_for_waiting_ones(run, monkeypatch):
    monkeypatch.setattr(qos2_client, "IN_FLIGHT_MAX", 1)

    async def work(pair: Pair) -> None:
        for payload in (bytes(3_000), bytes(3_000), b"end"):
            pair.one.publish("t/a", payload)
        await until(lambda: pair.received == [b"end"], "the last one")

    run(work, "max_packet_size 2000")


def test_unusable_broker_is_reported_even_if_it_accepts_connection(run):
    async def work(pair: Pair) -> None:
        assert [pair.one.problem, pair.two.problem] == ["", ""]
        on_effect = pair.two._on_effect  # noqa: SLF001
        on_effect(effects.Subscribed((packets.Subscription("t/#"),), bytes([0x87])))
        assert pair.two.problem == "the broker refuses 't/#'"
        old = BrokerLimits(version=Version.V311, client_id="two", keep_alive=60, session_expiry=0)
        on_effect(effects.Connected(False, old))
        assert pair.two.problem.startswith("mqtt-fed needs a broker with MQTT 5")

    run(work)
