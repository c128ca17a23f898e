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
from hansa.testbed.chaos.clients import Publisher, Subscriber
from hansa.testbed.chaos.outstanding import Account
from hansa.testbed.chaos.run import LISTEN_S
from hansa.testbed.chaos.testbench import TOPICS
from hansa.testbed.chaos.verdict import Circumstances, Excuse, Verdict, judge
from hansa.testbed.mosquitto import Mosquitto, free_port
from hansa.testbed.relay import Relay
from hansa.testbed.shutdown import to_the_end

BEFORE_S = 2.0
DRAIN_S = 30.0
POLL_S = 0.25
PUBLISHERS = 3


class Pair:
    """Two brokers, a bridge from the first to the second, and a cable that can be cut."""

    def __init__(self) -> None:
        """Choose ports; nothing runs yet."""
        self._directory = Path(tempfile.mkdtemp(prefix="hansa-bridge-"))
        self.far = Mosquitto(self._directory / "far", free_port(), is_persistent=True)
        self.relay = Relay(self.far.port, 0.0)
        self.near: Mosquitto | None = None
        self.losses: list[tuple[Mosquitto, Excuse]] = []
        """Which broker lost its memory, and when."""
        self._down: set[int] = set()
        """The ports of brokers that do not run."""
        self.is_back: Callable[[], bool] = lambda: True
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

    async def cuts(self, chance: random.Random) -> None:
        """Pull the cable, and plug it in again, as in `cuts`."""
        while True:
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            self.relay.cut()
            await asyncio.sleep(chance.choice((0.1, 1.0, 5.0)))
            self.relay.mend()

    async def parted(self, chance: random.Random) -> None:
        """Pull the cable, as in `parted`."""
        self.relay.cut()
        await asyncio.Event().wait()

    async def restarts(self, chance: random.Random) -> None:
        """Stop a broker gently and start it again, as in `brokers`."""
        while True:
            await asyncio.sleep(chance.uniform(1.0, 4.0))
            await self._restart(chance.choice(self.brokers))

    async def kills(self, chance: random.Random) -> None:
        """Kill a broker and start it again, as in `forgets`; what it takes with it is forfeited as
        there."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(chance.uniform(1.0, 3.0))
            broker = chance.choice(self.brokers)
            since = loop.time()
            self._down.add(broker.port)
            await broker.kill()
            await self._restart(broker)
            while not self.is_back():
                await asyncio.sleep(POLL_S)
            self.losses.append((broker, Excuse(since, loop.time())))

    async def heal(self) -> None:
        """Undo everything."""
        self.relay.mend()
        for broker in self.brokers:
            if broker.port in self._down:
                await self._restart(broker)

    async def _restart(self, broker: Mosquitto) -> None:
        """It is down until it runs again: this may be cancelled anywhere."""
        self._down.add(broker.port)
        await broker.stop()
        await broker.start()
        self._down.discard(broker.port)

    @property
    def brokers(self) -> tuple[Mosquitto, Mosquitto]:
        """Both."""
        assert self.near is not None
        return self.near, self.far


Trouble = Callable[[Pair, random.Random], Awaitable[None]]

TROUBLES: dict[str, Trouble] = {
    "bridge: cuts": Pair.cuts,
    "bridge: parted": Pair.parted,
    "bridge: brokers": Pair.restarts,
    "bridge: killed": Pair.kills,
}


async def play(trouble: Trouble, seed: int, seconds: float, rate: float) -> Verdict:
    """Publish, make trouble for so long, wait for what still comes, and judge."""
    pair = Pair()
    account = Account({"sub": TOPICS})
    clients: list[Publisher | Subscriber] = []
    try:
        await pair.start()
        near, far = (BrokerAddress("127.0.0.1", each.port) for each in pair.brokers)
        subscriber = Subscriber(far, "sub", ("plant/#",), account.note)
        publishers = [
            Publisher(near, f"pub{number}", TOPICS, rate, account.note)
            for number in range(PUBLISHERS)
        ]
        pair.is_back = lambda: subscriber.is_subscribed
        clients = [subscriber, *publishers]
        await asyncio.gather(*(client.start() for client in clients))
        await asyncio.sleep(BEFORE_S)  # a bridge does not say when it is ready
        for publisher in publishers:
            publisher.has_properties = True
            publisher.go()
        await asyncio.sleep(BEFORE_S)
        await _suffer(trouble(pair, random.Random(seed)), seconds)
        await pair.heal()
        await asyncio.sleep(BEFORE_S)
        await asyncio.gather(*(publisher.pause() for publisher in publishers))
        await _drained(account)
    finally:
        await to_the_end(_stop(pair, clients))
    excuses = {
        client.name: tuple(
            excuse
            for broker, excuse in pair.losses
            if (broker is pair.far) == (client is subscriber)
        )
        for client in clients
    }
    return judge(account.history, {"sub": TOPICS}, Circumstances(excuses))


async def _suffer(trouble: Awaitable[None], seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(trouble, seconds)


async def _stop(pair: Pair, clients: list[Publisher | Subscriber]) -> None:
    await asyncio.gather(*(client.stop() for client in clients))
    await pair.stop()


async def _drained(account: Account) -> None:
    """Wait until nothing is lost; in vain only for a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    while loop.time() < deadline and account.missing:
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(LISTEN_S)
