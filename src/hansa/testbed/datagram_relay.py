"""A UDP relay on loopback that delays, loses, duplicates and cuts: a degraded link."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from hansa.testbed.link_conditions import BOTH_DIRECTIONS, Direction, LinkConditions

DELAYED_MAX = 4_096
"""Limit of delayed datagrams; more are dropped."""

SEED = 1


class DatagramRelay:
    """Relays between a port of its own and a target port; its random losses are repeatable."""

    def __init__(self, target_port: int, delay_s: float, loss: float) -> None:
        self.conditions = LinkConditions(delay_s, loss=loss)
        self._target = ("127.0.0.1", target_port)
        self._rng = random.Random(SEED)
        self._delayed_count = 0
        self._cut: frozenset[Direction] = frozenset()
        self._listening_transport: asyncio.DatagramTransport | None = None
        self._target_transports: dict[Any, asyncio.Task[asyncio.DatagramTransport]] = {}

    async def start(self) -> int:
        """Listen; return the port."""
        loop = asyncio.get_running_loop()
        self._listening_transport, _ = await loop.create_datagram_endpoint(
            lambda: _DatagramReceiver(self._receive_from_dialler), ("127.0.0.1", 0)
        )
        port: int = self._listening_transport.get_extra_info("sockname")[1]
        return port

    async def stop(self) -> None:
        if self._listening_transport is not None:
            self._listening_transport.close()
        for opened in await asyncio.gather(
            *self._target_transports.values(), return_exceptions=True
        ):
            if not isinstance(opened, BaseException):
                opened.close()

    def cut(self, directions: Iterable[Direction] = BOTH_DIRECTIONS) -> None:
        self._cut = frozenset(directions)

    def restore(self) -> None:
        """Undo `cut`; datagrams sent meanwhile are lost."""
        self._cut = frozenset()

    def _receive_from_dialler(self, data: bytes, sender: Any) -> None:
        """Forward from a dialler through a port of its own, by which the target distinguishes
        diallers."""
        if sender not in self._target_transports:
            self._target_transports[sender] = asyncio.create_task(self._open(sender))
        opening = self._target_transports[sender]
        if opening.done():
            self._forward(Direction.OUT, opening.result(), data, None)

    async def _open(self, dialler: Any) -> asyncio.DatagramTransport:
        def back(data: bytes, _: Any) -> None:
            if self._listening_transport is not None:
                self._forward(Direction.BACK, self._listening_transport, data, dialler)

        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _DatagramReceiver(back), remote_addr=self._target
        )
        return transport

    def _forward(
        self, direction: Direction, port: asyncio.DatagramTransport, data: bytes, destination: Any
    ) -> None:
        conditions, rng = self.conditions, self._rng
        lost = rng.random() < conditions.loss
        if lost or direction in self._cut:
            return
        for _ in range(1 + (rng.random() < conditions.duplicate)):
            if self._delayed_count < DELAYED_MAX:
                self._delayed_count += 1
                delay_s = conditions.delay_s + rng.uniform(0.0, conditions.jitter_s)
                loop = asyncio.get_running_loop()
                loop.call_later(delay_s, self._send_delayed, port, data, destination)

    def _send_delayed(self, port: asyncio.DatagramTransport, data: bytes, to: Any) -> None:
        self._delayed_count -= 1
        if not port.is_closing():
            port.sendto(data, to)


class _DatagramReceiver(asyncio.DatagramProtocol):
    def __init__(self, on_datagram: Callable[[bytes, Any], None]) -> None:
        self._on_datagram = on_datagram

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._on_datagram(data, addr)
