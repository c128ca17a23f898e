"""The same workload and faults for two Mosquittos joined by Mosquitto's own bridge, as comparison.

Publishers are at one broker, a subscriber at the other, and the bridge forwards everything at QoS
2. Both brokers have the queues and the persistence of the brokers of a federation.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.cancellation import run_to_completion
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.federation import TOPICS
from hansa.testbed.chaos.history import OutstandingDeliveries
from hansa.testbed.chaos.run import LISTEN_S
from hansa.testbed.chaos.verdict import AllowedLoss, ChaosVerdict, FaultContext, judge_history
from hansa.testbed.mosquitto import Mosquitto, free_port
from hansa.testbed.relay import Relay

STEADY_S = 2.0
DRAIN_S = 30.0
POLL_S = 0.25
PUBLISHERS = 3


class BridgedPair:
    """Two brokers, and a bridge from the near to the far one through a relay that can be cut."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="hansa-bridge-"))
        self.far = Mosquitto(self._directory / "far", free_port(), is_persistent=True)
        self.relay = Relay(self.far.port, 0.0)
        self.near: Mosquitto | None = None
        self.state_losses: list[tuple[Mosquitto, AllowedLoss]] = []
        """Brokers that lost their sessions, and when."""
        self._stopped_ports: set[int] = set()
        """Ports of stopped brokers."""
        self.is_subscriber_back: Callable[[], bool] = lambda: True

    async def start(self) -> None:
        await self.far.start()
        lines = (
            "connection pair",
            f"address 127.0.0.1:{await self.relay.start()}",
            "topic # out 2",
            "cleansession false",
            "restart_timeout 1",
            "bridge_protocol_version mqttv50",
            "keepalive_interval 5",
        )
        self.near = Mosquitto(self._directory / "near", free_port(), lines, is_persistent=True)
        await self.near.start()

    async def stop(self) -> None:
        for broker in (self.near, self.far):
            if broker is not None:
                await broker.stop()
        await self.relay.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def cut_link(self, rng: random.Random) -> None:
        """As in the scenario `cuts`."""
        while True:
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            self.relay.cut()
            await asyncio.sleep(rng.choice((0.1, 1.0, 5.0)))
            self.relay.restore()

    async def cut_until_end(self, rng: random.Random) -> None:
        """As in `partition`."""
        self.relay.cut()
        await asyncio.Event().wait()

    async def restart_brokers(self, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.uniform(1.0, 4.0))
            await self._restart(rng.choice(self.brokers))

    async def kill_brokers(self, rng: random.Random) -> None:
        """As in `session-loss`, with the same allowed losses."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(rng.uniform(1.0, 3.0))
            broker = rng.choice(self.brokers)
            since = loop.time()
            self._stopped_ports.add(broker.port)
            await broker.kill()
            await self._restart(broker)
            while not self.is_subscriber_back():
                await asyncio.sleep(POLL_S)
            self.state_losses.append((broker, AllowedLoss(since, loop.time())))

    async def heal(self) -> None:
        self.relay.restore()
        for broker in self.brokers:
            if broker.port in self._stopped_ports:
                await self._restart(broker)

    async def _restart(self, broker: Mosquitto) -> None:
        self._stopped_ports.add(broker.port)  # before the first await: this may be cancelled
        await broker.stop()
        await broker.start()
        self._stopped_ports.discard(broker.port)

    @property
    def brokers(self) -> tuple[Mosquitto, Mosquitto]:
        assert self.near is not None
        return self.near, self.far


BridgeFault = Callable[[BridgedPair, random.Random], Awaitable[None]]

BRIDGE_FAULTS: dict[str, BridgeFault] = {
    "bridge: cuts": BridgedPair.cut_link,
    "bridge: partition": BridgedPair.cut_until_end,
    "bridge: brokers": BridgedPair.restart_brokers,
    "bridge: killed": BridgedPair.kill_brokers,
}


async def run_bridges(fault: BridgeFault, seed: int, seconds: float, rate: float) -> ChaosVerdict:
    """Publish, inject faults for some seconds, wait for pending publications, and judge."""
    pair = BridgedPair()
    outstanding = OutstandingDeliveries({"sub": TOPICS})
    clients: list[HistoryPublisher | HistorySubscriber] = []
    try:
        await pair.start()
        near, far = (BrokerAddress("127.0.0.1", each.port) for each in pair.brokers)
        subscriber = HistorySubscriber(far, "sub", ("plant/#",), outstanding.add_event)
        publishers = [
            HistoryPublisher(near, f"pub{number}", TOPICS, rate, outstanding.add_event)
            for number in range(PUBLISHERS)
        ]
        pair.is_subscriber_back = lambda: subscriber.is_subscribed
        clients = [subscriber, *publishers]
        await asyncio.gather(*(client.start() for client in clients))
        await asyncio.sleep(STEADY_S)  # a bridge does not report when it is ready
        for publisher in publishers:
            publisher.has_properties = True
            publisher.start_publishing()
        await asyncio.sleep(STEADY_S)
        await _run_for(fault(pair, random.Random(seed)), seconds)
        await pair.heal()
        await asyncio.sleep(STEADY_S)
        await asyncio.gather(*(publisher.stop_publishing() for publisher in publishers))
        await _wait_until_drained(outstanding)
    finally:
        await run_to_completion(_stop_all(pair, clients))
    allowed_losses = {
        client.name: tuple(
            loss
            for broker, loss in pair.state_losses
            if (broker is pair.far) == (client is subscriber)
        )
        for client in clients
    }
    return judge_history(outstanding.history, {"sub": TOPICS}, FaultContext(allowed_losses))


async def _run_for(fault: Awaitable[None], seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(fault, seconds)


async def _stop_all(pair: BridgedPair, clients: list[HistoryPublisher | HistorySubscriber]) -> None:
    await asyncio.gather(*(client.stop() for client in clients))
    await pair.stop()


async def _wait_until_drained(outstanding: OutstandingDeliveries) -> None:
    """Wait until nothing is missing, for at most DRAIN_S seconds, and then for duplicates."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    while loop.time() < deadline and outstanding.missing_count:
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(LISTEN_S)
