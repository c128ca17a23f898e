"""Clients while the agent cannot start, and when it can at last."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.broker.proxy.test_server import CONNECT, echo, read_some
from tests.agent.waiting import until

from hansa.agent.alarms import Alarms
from hansa.agent.broker.proxy import Handover, ProxyServer, fallback, make_proxy
from hansa.agent.broker.settings import BrokerSettings, ProxySettings
from hansa.agent.settings import AgentSettings
from hansa.agent.storage.proxy_sessions import SESSIONS_FILE, SessionFile
from hansa.errors import UsageError
from hansa.testbed.mosquitto import free_port


@pytest.fixture(autouse=True)
def _hangup() -> Iterator[None]:
    """Restore what SIGHUP does."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


class Agent:
    """An agent that cannot start while it has a problem."""

    def __init__(self, directory: Path, broker_port: int, **proxy: Any) -> None:
        self.problem: Exception | None = UsageError("the state directory is full")
        self.attempts = 0
        self.settings = AgentSettings(
            state=str(directory),
            broker=BrokerSettings(port=broker_port, observer="proxy"),
            proxy=ProxySettings(**{"port": free_port(), "no_earlier_sessions": True, **proxy}),
        )
        self.path = directory / SESSIONS_FILE
        self.proxy: ProxyServer | None = None
        self.end = asyncio.Event()

    def file(self) -> SessionFile:
        return SessionFile(self.path, True, lambda text: None)

    async def start(self, handover: Handover) -> None:
        self.attempts += 1
        if self.problem is not None:
            raise self.problem
        proxy = make_proxy(self.settings, self.path.parent, Alarms(), handover)
        await proxy.listen()
        task = asyncio.create_task(proxy.run())
        self.proxy = proxy
        await self.end.wait()
        task.cancel()
        proxy.stop()
        if self.problem is not None:
            raise self.problem

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as soon as the port is open, and send CONNECT."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self.settings.proxy.port
                )
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
            else:
                writer.write(CONNECT)
                return reader, writer


def run(
    directory: Path,
    work: Callable[[Agent, asyncio.Task[None]], Awaitable[None]],
    **proxy: Any,
) -> None:
    async def inside() -> None:
        broker = await asyncio.start_server(lambda r, w: echo(r, w, []), "127.0.0.1", 0)
        port = broker.sockets[0].getsockname()[1]
        if "websocket_port" in proxy:
            proxy["broker_websocket_port"] = port
        agent = Agent(directory, port, **proxy)
        task = asyncio.create_task(fallback.run_agent(agent.settings, agent.start, retry_s=0.02))
        async with asyncio.timeout(60):
            await work(agent, task)
        broker.close()
        await until(lambda: len(asyncio.all_tasks()) == 1)  # the broker has closed its side
        for _ in range(5):
            await asyncio.sleep(0.005)

    asyncio.run(inside())


@pytest.mark.parametrize("problem", [UsageError("no space left"), ZeroDivisionError()])
def test_clients_pass_until_the_agent_starts_and_then_connect_to_it(tmp_path, problem):
    save_nothing(tmp_path)

    async def work(agent: Agent, task: asyncio.Task[None]) -> None:
        agent.problem = problem
        reader, writer = await agent.connect()
        assert await reader.readexactly(len(CONNECT)) == CONNECT
        await until(lambda: agent.attempts > 2 and agent.file().has_missed_changes)
        agent.problem = None
        assert await read_some(reader) == b""
        again, second = await agent.connect()
        assert await again.readexactly(len(CONNECT)) == CONNECT
        assert agent.proxy is not None
        assert agent.proxy.observer.incomplete_reason.startswith("clients were served while")
        agent.end.set()
        await task
        writer.close()
        second.close()

    run(tmp_path, work)
    assert SessionFile(tmp_path / SESSIONS_FILE, True, lambda text: None).has_missed_changes


def save_nothing(directory: Path) -> None:
    """Write the file of a proxy that has run before."""
    asyncio.run(SessionFile(directory / SESSIONS_FILE, True, lambda text: None).save(()))


def test_nothing_was_missed_if_no_client_came(tmp_path):
    async def work(agent: Agent, task: asyncio.Task[None]) -> None:
        await until(lambda: agent.attempts > 2)
        agent.problem = None
        await until(lambda: agent.proxy is not None)
        assert agent.proxy is not None
        assert agent.proxy.observer.is_complete
        agent.end.set()
        await task

    run(tmp_path, work)


def test_agent_that_fails_later_ends(tmp_path):
    async def work(agent: Agent, task: asyncio.Task[None]) -> None:
        agent.problem = None
        await until(lambda: agent.proxy is not None)
        agent.problem = ZeroDivisionError()
        agent.end.set()
        with pytest.raises(ZeroDivisionError):
            await task

    run(tmp_path, work)


def test_first_problem_is_reported_if_the_settings_of_the_proxy_are_wrong(tmp_path):
    async def inside() -> None:
        agent = Agent(tmp_path, free_port(), host="x" * 64)
        with pytest.raises(UsageError, match="the state directory is full"):
            await fallback.run_agent(agent.settings, agent.start)

    asyncio.run(inside())


def occupy(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


@pytest.mark.parametrize("problem", [UsageError("no space left"), None])
def test_occupied_port_of_the_proxy_is_tried_again(tmp_path, caplog, problem):
    async def inside() -> None:
        agent = Agent(tmp_path, free_port())
        agent.problem = problem
        port = agent.settings.proxy.port
        with occupy(port):
            task = asyncio.create_task(fallback.run_agent(agent.settings, agent.start, 0.02))
            await until(lambda: agent.attempts > 2)
        if problem is not None:
            await until(lambda: "without being observed" in caplog.text)
            agent.problem = None
        await until(lambda: agent.proxy is not None)
        assert agent.proxy is not None
        assert agent.proxy.observer.is_complete
        agent.end.set()
        await task

    asyncio.run(inside())
    said = "cannot start: " + (f"{problem}; " if problem is not None else "") + "cannot listen on"
    assert said in caplog.text


def test_one_port_of_the_proxy_is_served_while_the_other_is_occupied(tmp_path, caplog):
    """First the port of WebSocket clients opens, then the other one, then the agent starts."""
    caplog.set_level("INFO")

    async def work(agent: Agent, task: asyncio.Task[None]) -> None:
        web_port = agent.settings.proxy.websocket_port
        await until(lambda: f"proxy for WebSocket clients at 127.0.0.1:{web_port}" in caplog.text)
        reader, writer = await asyncio.open_connection("127.0.0.1", web_port)
        writer.write(CONNECT)
        assert await reader.readexactly(len(CONNECT)) == CONNECT
        occupied.close()
        other, second = await agent.connect()
        assert await other.readexactly(len(CONNECT)) == CONNECT
        agent.problem = None
        assert await read_some(reader) == b""
        await until(lambda: agent.proxy is not None)
        agent.end.set()
        await task
        writer.close()
        second.close()

    port = free_port()
    with occupy(port) as occupied:
        run(tmp_path, work, port=port, websocket_port=free_port())


def test_sessions_are_marked_when_their_directory_is_usable_at_last(tmp_path):
    """A process that is killed afterwards leaves the mark."""
    directory = tmp_path / "missing"

    async def work(agent: Agent, task: asyncio.Task[None]) -> None:
        _, writer = await agent.connect()
        await until(lambda: agent.attempts > 3)
        directory.mkdir()
        await until(agent.path.exists)
        await until(lambda: agent.file().has_missed_changes)
        agent.problem = None
        await until(lambda: agent.proxy is not None)
        agent.end.set()
        await task
        writer.close()

    run(directory, work)


def test_same_fault_is_logged_once(tmp_path, caplog):
    async def work(agent: Agent, task: asyncio.Task[None]) -> None:
        agent.problem = ZeroDivisionError("by zero")
        await until(lambda: agent.attempts > 3)
        agent.problem = None
        await until(lambda: agent.proxy is not None)
        agent.end.set()
        await task

    run(tmp_path, work)
    assert sum(each.exc_info is not None for each in caplog.records) == 1
    assert caplog.text.count("alarm agent cannot start: ZeroDivisionError: by zero; it is") == 1


@pytest.mark.parametrize(("attempt_s", "pause_s"), [(0.1, 10.0), (2.5, 25.0), (90.0, 300.0)])
def test_pause_is_longer_after_a_long_attempt(attempt_s, pause_s):
    assert fallback._pause_s(attempt_s, 10.0) == pause_s  # noqa: SLF001
