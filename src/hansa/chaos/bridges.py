"""The same workload over a pair of Mosquittos joined by Mosquitto's own bridge, for comparison.

Publishers are at one broker, a subscriber at the other, and the bridge carries everything at QoS 2.
Both brokers are configured as well as those of a federation: long queues, and what they hold is
kept when they are stopped gently.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from hansa.agent.brokers.connection import BrokerAddress
from hansa.chaos.account import Account
from hansa.chaos.clients import Publisher, Subscriber
from hansa.chaos.stage import TOPICS
from hansa.chaos.verdict import Verdict, judge
from hansa.local.ending import to_the_end
from hansa.local.mosquitto import Mosquitto, free_port
from hansa.local.relay import Relay

BEFORE_S = 2.0
CUT_S = 10.0
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

    async def start(self) -> None:
        """Start the far broker first, so that the bridge finds it."""
        await self.far.start()
        lines = (
            "connection pair",
            f"address 127.0.0.1:{await self.relay.start()}",
            "topic # out 2",
            "cleansession false",
            "restart_timeout 1",
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

    async def cut(self) -> None:
        """Pull the cable for a while."""
        self.relay.cut()
        await asyncio.sleep(CUT_S)
        self.relay.mend()

    async def kill(self) -> None:
        """Kill -9 the broker that holds the bridge, and start it again."""
        assert self.near is not None
        await self.near.kill()
        await self.near.start()


TROUBLES: dict[str, Callable[[Pair], Awaitable[None]]] = {
    f"bridge: link cut for {CUT_S:g} s": Pair.cut,
    "bridge: its broker killed": Pair.kill,
}


async def play(trouble: Callable[[Pair], Awaitable[None]], rate: float) -> Verdict:
    """Publish, make trouble once, wait for what still comes, and judge."""
    pair = Pair()
    account = Account({"sub": TOPICS})
    clients: list[Publisher | Subscriber] = []
    try:
        await pair.start()
        assert pair.near is not None
        near, far = (BrokerAddress("127.0.0.1", each.port) for each in (pair.near, pair.far))
        subscriber = Subscriber(far, "sub", ("plant/#",), account.note)
        publishers = [
            Publisher(near, f"pub{number}", TOPICS, rate, account.note)
            for number in range(PUBLISHERS)
        ]
        clients = [subscriber, *publishers]
        await asyncio.gather(*(client.start() for client in clients))
        await asyncio.sleep(BEFORE_S)  # a bridge does not say when it is ready
        for publisher in publishers:
            publisher.go()
        await asyncio.sleep(BEFORE_S)
        await trouble(pair)
        await asyncio.sleep(BEFORE_S)
        await asyncio.gather(*(publisher.pause() for publisher in publishers))
        await _drained(account)
    finally:
        await to_the_end(_stop(pair, clients))
    return judge(account.history, {"sub": TOPICS})


async def _stop(pair: Pair, clients: list[Publisher | Subscriber]) -> None:
    await asyncio.gather(*(client.stop() for client in clients))
    await pair.stop()


async def _drained(account: Account) -> None:
    """Wait until nothing is lost; in vain only for a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    while loop.time() < deadline and account.missing:
        await asyncio.sleep(POLL_S)
