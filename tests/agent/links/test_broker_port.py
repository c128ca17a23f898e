"""Dialled addresses that are the port of a broker."""

import asyncio
import json

import pytest
from tests.agent.live import eventually

from hansa.agent.links.broker_port import ADDRESSES_MAX, FAILED_S, BrokerPortCheck
from hansa.agent.links.link import Address


class Server:
    """Answers the first bytes of each connection."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    async def __aenter__(self) -> Address:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(self.answer)
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


def checked(answer: bytes) -> list[str]:
    """Texts of the alarm after an attempt to link to a server with this answer."""
    texts: list[str] = []

    async def run() -> None:
        check = BrokerPortCheck()
        async with Server(answer) as address:
            check.note_failure(address)
            await check.check(texts.append)
            await check.check(texts.append)
        await check.check(texts.append)

    asyncio.run(run())
    return texts


def test_broker_raises_the_alarm_until_it_is_gone():
    text, end = checked(b"\x20\x02\x00\x00")
    assert "an MQTT broker answers there, not an agent" in text
    assert "[link] neighbours" in text
    assert end == ""


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request"])
def test_other_servers_raise_no_alarm(answer):
    assert checked(answer) == []


def test_address_that_is_no_longer_dialled_is_forgotten(monkeypatch):
    texts: list[str] = []

    async def run() -> None:
        check = BrokerPortCheck()
        async with Server(b"\x20\x02\x00\x00") as address:
            check.note_failure(address)
            await check.check(texts.append)
            loop = asyncio.get_running_loop()
            later = loop.time() + FAILED_S + 1
            monkeypatch.setattr(loop, "time", lambda: later)
            await check.check(texts.append)
            monkeypatch.undo()

    asyncio.run(run())
    assert [bool(text) for text in texts] == [True, False]


def test_number_of_addresses_is_bounded():
    async def run() -> int:
        check = BrokerPortCheck()
        for port in range(ADDRESSES_MAX + 9):
            check.note_failure(Address("127.0.0.1", port + 1))
        return len(check._failed_at)  # noqa: SLF001

    assert asyncio.run(run()) == ADDRESSES_MAX


def test_agent_says_that_its_neighbour_is_a_broker(scene):
    broker, other = scene.broker(), scene.broker()
    agent = scene.agent(broker_port=broker.port, link_neighbours=f"127.0.0.1:{other.port}")
    agent.says("neighbour is an MQTT broker, not an agent address=127.0.0.1:")

    def alarms():
        status, text = agent.page("/status")
        return status == 200 and json.loads(text)["alarms"]

    eventually(lambda: "neighbour is a broker" in (alarms() or {}), "the alarm")
