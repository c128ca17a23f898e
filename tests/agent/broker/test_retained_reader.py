"""Retained values read from a real Mosquitto."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from tests.agent.live import Client

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.broker.retained_reader import FILTERS_MAX, read_retained
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.options import ConnectOptions
from hansa.testbed.mosquitto import Mosquitto, free_port

TOPICS = [f"t/{number}" for number in range(FILTERS_MAX + 50)]


def test_interrupted_read_fails_and_retry_finds_all_values(mosquitto, tmp_path):
    found: list[str] = []

    async def visit(port: int, cuts: int) -> tuple[str, ...] | None:
        left = [None] * cuts

        def connecting(on_effect: Callable[[effects.Effect], None]) -> Connection:
            def forward(effect: effects.Effect) -> None:
                on_effect(effect)
                if left and isinstance(effect, effects.Subscribed):
                    left.pop()
                    made.abort()

            options = ConnectOptions(client_id="reader", clean_start=True)
            address = BrokerAddress("127.0.0.1", port)
            made = Connection(address, options, forward, random.Random(1))
            return made

        found.clear()
        return await read_retained(connecting, TOPICS, lambda publish: found.append(publish.topic))

    async def work(path: Path) -> None:
        broker = Mosquitto(path, free_port())
        await broker.start()
        try:
            await asyncio.to_thread(store, broker.port)
            assert await visit(broker.port, cuts=1) is None
            assert await visit(broker.port, cuts=0) == tuple(TOPICS)
            assert sorted(found) == sorted(TOPICS)
        finally:
            await broker.stop()

    asyncio.run(work(tmp_path))


def store(port: int) -> None:
    client = Client(port)
    client._do(  # noqa: SLF001
        inputs.Publish([packets.PublishPacket(topic, b"x", retain=True) for topic in TOPICS])
    )
    client.subscribe("end").publish("end", b"end")
    client.wait_for(b"end")
    client.kill()
