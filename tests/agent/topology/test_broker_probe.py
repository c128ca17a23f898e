import asyncio
import random

from tests.agent.live import LoopThread

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.topology import broker_probe
from hansa.agent.topology.broker_probe import BrokerProbe
from hansa.mqtt.options import ConnectOptions
from hansa.testbed.mosquitto import Mosquitto, free_port


def connecting(port: int):
    options = ConnectOptions(client_id="probe", clean_start=True)
    address = BrokerAddress("127.0.0.1", port)
    return lambda on_effect: Connection(address, options, on_effect, random.Random(1))


def test_probe_measures_the_round_trip_to_the_broker(mosquitto, tmp_path):
    broker = Mosquitto(tmp_path / "broker", free_port())

    async def scene() -> None:
        await broker.start()
        probing = BrokerProbe(connecting(broker.port), "$hansa/probe/1")
        probing.connection.start()
        try:
            first = await probing.measure()
            second = await probing.measure()
        finally:
            await probing.connection.stop()
            await broker.stop()
        assert first is not None
        assert second is not None
        assert 0 < second < 2000

    thread = LoopThread()
    thread.run(scene())
    thread.close()


def test_probe_without_broker_measures_nothing(monkeypatch):
    monkeypatch.setattr(broker_probe, "PROBE_TIMEOUT_S", 0.05)

    async def scene() -> None:
        assert await BrokerProbe(connecting(1), "$hansa/probe/1").measure() is None

    asyncio.run(scene())
