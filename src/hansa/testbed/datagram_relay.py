"""A UDP relay that holds datagrams back for a while and loses some: a bad link, on loopback."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from hansa.testbed.link_conditions import BOTH, Direction, Line

HELD_MAX = 4_096
"""Datagrams that are held back at a time; more are lost, as in any network."""

SEED = 1
"""Of chance: the same datagrams of a run are lost every time."""


class DatagramRelay:
    """Listens on loopback and leads to one other port of it."""

    def __init__(self, target_port: int, delay_s: float, loss: float) -> None:
        """Prepare; nothing happens before `start`."""
        self.line = Line(delay_s, loss=loss)
        self._target = ("127.0.0.1", target_port)
        self._chance = random.Random(SEED)
        self._held = 0
        self._cut: frozenset[Direction] = frozenset()
        self._front: asyncio.DatagramTransport | None = None
        self._behind: dict[Any, asyncio.Task[asyncio.DatagramTransport]] = {}

    async def start(self) -> int:
        """Listen; return the port."""
        loop = asyncio.get_running_loop()
        self._front, _ = await loop.create_datagram_endpoint(
            lambda: _Ear(self._from_dialler), ("127.0.0.1", 0)
        )
        port: int = self._front.get_extra_info("sockname")[1]
        return port

    async def stop(self) -> None:
        """Carry no more."""
        if self._front is not None:
            self._front.close()
        for opened in await asyncio.gather(*self._behind.values(), return_exceptions=True):
            if not isinstance(opened, BaseException):
                opened.close()

    def cut(self, directions: Iterable[Direction] = BOTH) -> None:
        """Let nothing pass, and tell nobody."""
        self._cut = frozenset(directions)

    def mend(self) -> None:
        """Let everything pass again; what was sent meanwhile is lost."""
        self._cut = frozenset()

    def _from_dialler(self, data: bytes, sender: Any) -> None:
        """Every dialler gets a port of its own towards the target, which tells them apart by it."""
        if sender not in self._behind:
            self._behind[sender] = asyncio.create_task(self._open(sender))
        opening = self._behind[sender]
        if opening.done():
            self._carry(Direction.OUT, opening.result(), data, None)

    async def _open(self, dialler: Any) -> asyncio.DatagramTransport:
        def back(data: bytes, _: Any) -> None:
            if self._front is not None:
                self._carry(Direction.BACK, self._front, data, dialler)

        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Ear(back), remote_addr=self._target
        )
        return transport

    def _carry(
        self, direction: Direction, port: asyncio.DatagramTransport, data: bytes, to: Any
    ) -> None:
        line, chance = self.line, self._chance
        lost = chance.random() < line.loss
        if lost or direction in self._cut:
            return
        for _ in range(1 + (chance.random() < line.copies)):
            if self._held < HELD_MAX:
                self._held += 1
                delay_s = line.delay_s + chance.uniform(0.0, line.jitter_s)
                loop = asyncio.get_running_loop()
                loop.call_later(delay_s, self._release, port, data, to)

    def _release(self, port: asyncio.DatagramTransport, data: bytes, to: Any) -> None:
        self._held -= 1
        if not port.is_closing():
            port.sendto(data, to)


class _Ear(asyncio.DatagramProtocol):
    def __init__(self, heard: Callable[[bytes, Any], None]) -> None:
        self._heard = heard

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._heard(data, addr)
