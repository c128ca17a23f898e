"""Keeps links to neighbours: dials, waits until the link is lost, backs off, dials again."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from hansa.agent import tasks
from hansa.agent.links.link import Address, Link
from hansa.agent.reasons import explain

DIAL_MIN_S = 0.1
DIAL_MAX_S = 2.0
"""Seconds between two attempts to reach a neighbour: what healing may wait after a partition."""

DIAL_TIMEOUT_S = 5.0

Connect = Callable[[Address], Awaitable[Link]]
"""Opens a link, or raises OSError."""

Failed = Callable[[Address, str], None]
"""Is told of every attempt in vain."""


class Dialler:
    """Dials the neighbours that are configured, for as long as it runs."""

    def __init__(self, connect: Connect, chance: random.Random) -> None:
        """Prepare; `chance` spreads the back-off, so that a restart is not a stampede."""
        self._connect = connect
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []

    def dial(self, address: Address, failed: Failed) -> None:
        """Keep a link to a neighbour."""
        self._tasks.append(tasks.start(self._keep(address, failed)))

    async def stop(self) -> None:
        """Dial no more. Links that stand are closed by their owner."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, address: Address, failed: Failed) -> None:
        pause = DIAL_MIN_S
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(DIAL_TIMEOUT_S):  # wait_for of 3.11 can miss our own end
                    link = await self._connect(address)
            except (OSError, UnicodeError) as error:  # the latter for what cannot be a host name
                failed(address, explain(error))
            else:
                began = loop.time()
                await link.closed.wait()
                if loop.time() - began > DIAL_MAX_S:
                    pause = DIAL_MIN_S
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.0))
            pause = min(2 * pause, DIAL_MAX_S)
