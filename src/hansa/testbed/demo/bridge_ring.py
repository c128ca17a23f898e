"""A ring of Mosquittos with plain bridges, in which messages loop: `hansa demo --compare`."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from hansa.agent.broker.connection import BrokerAddress
from hansa.errors import UsageError
from hansa.testbed.clients import RecordingClient, wait_until
from hansa.testbed.mosquitto import Mosquitto, free_port

BROKERS = 3
LOOP_S = 2.0
CONNECT_TIMEOUT_S = 20.0
TOPIC = "plant/line1/temp"
BRIDGE_STATE_FILTER = "$SYS/broker/connection/+/state"


async def count_looping_deliveries() -> int:
    """Publish once, and return how often one subscriber received it within LOOP_S seconds."""
    directory = Path(tempfile.mkdtemp(prefix="hansa-bridges-"))
    ports = [free_port() for _ in range(BROKERS)]
    brokers = [
        Mosquitto(
            directory / str(number), port, _bridge_lines(number, ports[(number + 1) % BROKERS])
        )
        for number, port in enumerate(ports)
    ]
    addresses = [BrokerAddress("127.0.0.1", port) for port in ports]
    clients = [RecordingClient(address, "monitor", BRIDGE_STATE_FILTER) for address in addresses]
    try:
        await asyncio.gather(*(broker.start() for broker in brokers))
        await asyncio.gather(*(client.start() for client in clients))
        if not await wait_until(lambda: all(_is_bridged(c) for c in clients), CONNECT_TIMEOUT_S):
            raise UsageError(f"the bridges did not connect within {CONNECT_TIMEOUT_S:g} s")
        subscriber = RecordingClient(addresses[1], "subscriber", TOPIC)
        clients.append(subscriber)
        await subscriber.start()
        clients[0].publish(TOPIC, b"21.5")
        await asyncio.sleep(LOOP_S)
        return subscriber.arrival_count
    finally:
        await asyncio.gather(*(_kill(broker) for broker in brokers))
        await asyncio.gather(*(client.stop() for client in clients))
        shutil.rmtree(directory, ignore_errors=True)


async def _kill(broker: Mosquitto) -> None:
    """Kill a broker, which may be too busy for a graceful stop."""
    if broker.process is not None and broker.process.returncode is None:
        broker.process.kill()
        await broker.process.wait()


def _bridge_lines(number: int, to_port: int) -> tuple[str, ...]:
    return (
        f"connection ring-{number}",
        f"address 127.0.0.1:{to_port}",
        "topic # both 0",
        "restart_timeout 1",
    )


def _is_bridged(client: RecordingClient) -> bool:
    """Whether the outgoing and the incoming bridge of its broker are connected."""
    states = {arrival.topic: arrival.payload for arrival in client.arrivals}
    return sum(state == b"1" for state in states.values()) >= 2
