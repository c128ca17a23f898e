"""A connection of the proxy whose other side reads slowly, or not at all."""

import asyncio
import sys
from typing import Any, cast

from tests.agent.waiting import until

from hansa.agent.broker.proxy import connection
from hansa.agent.broker.proxy.connection import ProxyConnection, ProxyState
from hansa.observers.proxy.observer import ProxyObserver


class Transport:
    """A transport whose other side has received these numbers of bytes, one after another."""

    def __init__(self, *received: int) -> None:
        self.received = list(received)
        self.is_aborted = False

    def get_extra_info(self, name: str) -> "Transport":
        return self

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        return bytes(120) + self.received.pop(0).to_bytes(8, sys.byteorder)

    def abort(self) -> None:
        self.is_aborted = True


def pause(transport: Transport) -> ProxyConnection:
    made = ProxyConnection(ProxyState(ProxyObserver(False), None, 1))
    made.transport = cast(Any, transport)
    made.pause_writing()
    return made


def test_slow_reader_stays_until_it_reads_nothing(monkeypatch):
    monkeypatch.setattr(connection, "STALLED_S", 0.001)
    transport = Transport(0, 100, 100, 200, 200, 200)

    async def scene() -> None:
        pause(transport)
        await until(lambda: transport.is_aborted)

    asyncio.run(scene())
    assert transport.received == []


def test_reader_that_has_taken_everything_is_not_disconnected(monkeypatch):
    monkeypatch.setattr(connection, "STALLED_S", 0.001)
    transport = Transport(0)

    async def scene() -> None:
        pause(transport).resume_writing()
        await asyncio.sleep(0.01)

    asyncio.run(scene())
    assert not transport.is_aborted
