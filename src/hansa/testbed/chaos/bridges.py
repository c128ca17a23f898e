"""The same workload, with some of the same troubles, over a pair of Mosquittos joined by
Mosquitto's own bridge, for comparison.

Publishers are at one broker, a subscriber at the other, and the bridge carries everything at QoS 2.
Both brokers are configured as well as those of a federation: long queues, and what they hold is
kept when they are stopped gently.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.outstanding import OutstandingDeliveries
from hansa.testbed.chaos.run import LISTEN_S
from hansa.testbed.chaos.testbench import TOPICS
from hansa.testbed.chaos.verdict import AllowedLoss, ChaosVerdict, FaultContext, judge_history
from hansa.testbed.mosquitto import Mosquitto, free_port
from hansa.testbed.relay import Relay
from hansa.testbed.shutdown import run_to_completion

STEADY_S = 2.0
DRAIN_S = 30.0
POLL_S = 0.25
PUBLISHERS = 3


class BridgedPair:
    """Two brokers, a bridge from the first to the second, and a cable that can be cut."""

    def __init__(self) -> None:
        """Choose ports; nothing runs yet."""
        self._directory = Path(tempfile.mkdtemp(prefix="hansa-bridge-"))
        self.far = Mosquitto(self._directory / "far", free_port(), is_persistent=True)
        self.relay = Relay(self.far.port, 0.0)
        self.near: Mosquitto | None = None
        self.state_losses: list[tuple[Mosquitto, AllowedLoss]] = []
        """Which broker lost its memory, and when."""
        self._stopped_ports: set[int] = set()
        """The ports of brokers that do not run."""
        self.is_subscriber_back: Callable[[], bool] = lambda: True
        """Whether the subscriber is."""

    async def start(self) -> None:
        """Start the far broker first, so that the bridge finds it."""
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
        """Leave nothing behind."""
        for broker in (self.near, self.far):
            if broker is not None:
                await broker.stop()
        await self.relay.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def cut_link(self, rng: random.Random) -> None:
        """Pull the cable, and plug it in again, as in `cuts`."""
        while True:
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            self.relay.cut()
            await asyncio.sleep(rng.choice((0.1, 1.0, 5.0)))
            self.relay.restore()

    async def cut_until_end(self, rng: random.Random) -> None:
        """Pull the cable, as in `parted`."""
        self.relay.cut()
        await asyncio.Event().wait()

    async def restart_brokers(self, rng: random.Random) -> None:
        """Stop a broker gently and start it again, as in `brokers`."""
        while True:
            await asyncio.sleep(rng.uniform(1.0, 4.0))
            await self._restart(rng.choice(self.brokers))

    async def kill_brokers(self, rng: random.Random) -> None:
        """Kill a broker and start it again, as in `forgets`; what it takes with it is forfeited as
        there."""
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
        """Undo everything."""
        self.relay.restore()
        for broker in self.brokers:
            if broker.port in self._stopped_ports:
                await self._restart(broker)

    async def _restart(self, broker: Mosquitto) -> None:
        """It is down until it runs again: this may be cancelled anywhere."""
        self._stopped_ports.add(broker.port)
        await broker.stop()
        await broker.start()
        self._stopped_ports.discard(broker.port)

    @property
    def brokers(self) -> tuple[Mosquitto, Mosquitto]:
        """Both."""
        assert self.near is not None
        return self.near, self.far


BridgeFault = Callable[[BridgedPair, random.Random], Awaitable[None]]

BRIDGE_FAULTS: dict[str, BridgeFault] = {
    "bridge: cuts": BridgedPair.cut_link,
    "bridge: parted": BridgedPair.cut_until_end,
    "bridge: brokers": BridgedPair.restart_brokers,
    "bridge: killed": BridgedPair.kill_brokers,
}


async def run_bridges(fault: BridgeFault, seed: int, seconds: float, rate: float) -> ChaosVerdict:
    """Publish, make trouble for so long, wait for what still comes, and judge."""
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
        await asyncio.sleep(STEADY_S)  # a bridge does not say when it is ready
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
            excuse
            for broker, excuse in pair.state_losses
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
    """Wait until nothing is lost; in vain only for a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    while loop.time() < deadline and outstanding.missing_count:
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(LISTEN_S)
