"""Keeps links to neighbours: dials, waits until the link is lost, backs off, dials again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from hansa.agent import tasks
from hansa.agent.error_text import explain_socket_error
from hansa.agent.links.link import Address, Link

DIAL_MIN_S = 0.1
DIAL_MAX_S = 2.0
"""Longest back-off in seconds: the delay of reconnection after a partition."""

DIAL_TIMEOUT_S = 5.0

OpenLink = Callable[[Address], Awaitable[Link]]
"""Opens a link, or raises OSError."""

OnDialFailed = Callable[[Address, str], None]
"""Called after every failed attempt."""


class Dialler:
    """Dials addresses until it is stopped."""

    def __init__(self, connect: OpenLink, rng: random.Random) -> None:
        """`rng` spreads the back-off, so that neighbours do not dial all at once after a
        restart."""
        self.on_not_linked: Callable[[Address], None] = lambda address: None
        """Called with an address to which an attempt has brought no link to a neighbour."""
        self._connect = connect
        self._rng = rng
        self._dial_tasks: dict[Address, asyncio.Task[None]] = {}
        self._attempts: set[asyncio.Task[Link | None]] = set()

    def dial(self, address: Address, on_failed: OnDialFailed) -> None:
        """Keep a link to a neighbour."""
        if address not in self._dial_tasks:
            self._dial_tasks[address] = tasks.start_task(self._keep_dialling(address, on_failed))

    def stop_dialling(self, address: Address) -> bool:
        """Stop dialling a neighbour; return whether it was dialled. Its owner closes an open
        link."""
        task = self._dial_tasks.pop(address, None)
        if task is not None:
            task.cancel()
        return task is not None

    def dial_once(self, address: Address, on_failed: OnDialFailed) -> None:
        task = tasks.start_task(self._try_connect(address, on_failed))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)

    async def stop(self) -> None:
        """Stop dialling. Owners close open links."""
        running: list[asyncio.Task[Any]] = [*self._dial_tasks.values(), *self._attempts]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _try_connect(self, address: Address, on_failed: OnDialFailed) -> Link | None:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):  # wait_for of 3.11 can miss a cancellation
                return await self._connect(address)
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            on_failed(address, explain_socket_error(error))
            self.on_not_linked(address)
            return None

    async def _keep_dialling(self, address: Address, on_failed: OnDialFailed) -> None:
        pause = DIAL_MIN_S
        loop = asyncio.get_running_loop()
        while True:
            link = await self._try_connect(address, on_failed)
            if link is not None:
                began = loop.time()
                await link.closed.wait()
                if not link.is_admitted:
                    self.on_not_linked(address)
                if loop.time() - began > DIAL_MAX_S:
                    pause = DIAL_MIN_S
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(2 * pause, DIAL_MAX_S)
