"""Keeps links to neighbours: dials, waits until the link is lost, backs off, dials again."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from hansa.agent import tasks
from hansa.agent.error_text import explain
from hansa.agent.links.link import Address, Link

DIAL_MIN_S = 0.1
DIAL_MAX_S = 2.0
"""Seconds between two attempts to reach a neighbour: what healing may wait after a partition."""

DIAL_TIMEOUT_S = 5.0

Connect = Callable[[Address], Awaitable[Link]]
"""Opens a link, or raises OSError."""

Failed = Callable[[Address, str], None]
"""Is told of every attempt in vain."""


class Dialler:
    """Dials the neighbours that it is told to keep, for as long as it runs."""

    def __init__(self, connect: Connect, chance: random.Random) -> None:
        """Prepare; `chance` spreads the back-off, so that a restart is not a stampede."""
        self._connect = connect
        self._chance = chance
        self._kept: dict[Address, asyncio.Task[None]] = {}
        self._attempts: set[asyncio.Task[None]] = set()

    def dial(self, address: Address, failed: Failed) -> None:
        """Keep a link to a neighbour."""
        if address not in self._kept:
            self._kept[address] = tasks.start(self._keep(address, failed))

    def forget(self, address: Address) -> None:
        """Dial a neighbour no more. A link that stands is closed by its owner."""
        if (task := self._kept.pop(address, None)) is not None:
            task.cancel()

    def attempt(self, address: Address, failed: Failed) -> None:
        """Dial once."""
        task = tasks.start(self._attempt(address, failed))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)

    async def stop(self) -> None:
        """Dial no more. Links that stand are closed by their owner."""
        running = [*self._kept.values(), *self._attempts]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _attempt(self, address: Address, failed: Failed) -> None:
        await self._once(address, failed)

    async def _once(self, address: Address, failed: Failed) -> Link | None:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):  # wait_for of 3.11 can miss our own end
                return await self._connect(address)
        except (OSError, UnicodeError) as error:  # the latter for what cannot be a host name
            failed(address, explain(error))
            return None

    async def _keep(self, address: Address, failed: Failed) -> None:
        pause = DIAL_MIN_S
        loop = asyncio.get_running_loop()
        while True:
            link = await self._once(address, failed)
            if link is not None:
                began = loop.time()
                await link.closed.wait()
                if loop.time() - began > DIAL_MAX_S:
                    pause = DIAL_MIN_S
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.0))
            pause = min(2 * pause, DIAL_MAX_S)
