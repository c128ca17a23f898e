"""An agent ends in bounded time, and nothing acknowledged is lost."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.process import Process, Scene
from tests.agent.waiting import until

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.shutdown import STOP_TIMEOUT_S, Shutdown
from hansa.mqtt.options import ConnectOptions
from hansa.testbed.mosquitto import Mosquitto, free_port

SLACK_S = 5.0
"""Seconds allowed for the last log line on busy cores."""

SLOW_DISK = """
import os, time
from pathlib import Path
from hansa.journal import disk
sync = disk._sync_data
def sync_slowly(descriptor):
    while Path(os.environ["SLOW_DISK"]).exists():
        time.sleep(0.05)
    sync(descriptor)
disk._sync_data = sync_slowly
from hansa.cli.main import main
raise SystemExit(main(["agent"]))
"""
"""An agent whose fsync blocks while a file exists."""

BLOCKED_LOOP = """
import asyncio, time
from hansa.agent.mqttfed.service import FedAgent
from hansa.agent.service import Agent
def block():
    print("the loop is blocked", flush=True)
    time.sleep(600)
def blocking(run):
    async def run_and_block(agent, *arguments):
        asyncio.get_running_loop().call_later(0.5, block)
        await run(agent, *arguments)
    return run_and_block
for each in (Agent, FedAgent):
    each.run = blocking(each.run)
from hansa.cli.main import main
raise SystemExit(main(["agent"]))
"""
"""An agent whose event loop is blocked half a second after its start."""

BUSY_LOOP = """
import asyncio, sys
from hansa.agent.shutdown import Shutdown
async def run():
    Shutdown(stop_timeout_s=0.5).handle_signals(lambda: print("the loop was told"))
    print("busy", flush=True)
    while True:
        pass
if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(run())
else:
    asyncio.run(run())
"""
"""An event loop that never runs its callbacks."""


# ---------------------------------------------------------------- the parts of `Stopping`


def test_component_that_does_not_stop_is_logged_and_abandoned(caplog):
    codes: list[int] = []
    stopped: list[str] = []

    async def never() -> None:
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                if codes:
                    raise

    async def at_once(name: str) -> None:
        stopped.append(name)

    async def run() -> None:
        stopping = Shutdown(part_timeout_s=0.01, exit_process=codes.append)
        await stopping.stop_part("first", at_once("first"))
        await stopping.stop_part("stuck", never())
        await stopping.stop_part("last", at_once("last"))
        stopping.end()

    asyncio.run(run())
    assert (stopped, codes) == (["first", "last"], [0])
    assert caplog.messages == [
        "part did not stop in time part='stuck' seconds=0.01",
        "agent ends by force without stuck: nothing that was acknowledged is lost",
    ]


def test_process_ends_in_time_if_loop_is_blocked(caplog):
    codes: list[int] = []
    is_forced = threading.Event()

    def exit_process(code: int) -> None:
        codes.append(code)
        is_forced.set()

    async def run() -> None:
        stopping = Shutdown(stop_timeout_s=0.05, exit_process=exit_process)
        stopping.begin(1)
        stopping.begin(2)  # the first signal counts

        async def block() -> None:
            assert is_forced.wait(60)

        await stopping.stop_part("disk", block())

    asyncio.run(run())
    assert codes == [1]
    assert "agent ends by force after 0.05 s, while it waited for disk" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_signal_ends_process_with_busy_loop(loop, number):
    command = [sys.executable, "-c", BUSY_LOOP, loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "busy\n"
            began = time.monotonic()
            child.send_signal(number)
            child.send_signal(number)  # a second signal changes nothing
            assert child.wait(20) == 0
            assert time.monotonic() - began < 0.5 + SLACK_S
            assert child.stdout.read() == ""
        finally:
            child.kill()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_signal_stops_waiting_loop(loop):
    program = BUSY_LOOP.replace("lambda: print(", "lambda: over.set_result(").replace(
        "    while True:\n        pass\n", "    print(await over, flush=True)\n"
    )
    program = program.replace("async def run():", "async def run():\n    over = asyncio.Future()")
    command = [sys.executable, "-c", program, loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "busy\n"
            child.terminate()
            assert child.stdout.read() == "the loop was told\n"
            assert child.wait(20) == 0
        finally:
            child.kill()


def test_component_exception_is_raised_after_all_have_stopped():
    stopped: list[str] = []

    async def fail() -> None:
        raise ZeroDivisionError("a fault to be found")

    async def at_once() -> None:
        stopped.append("last")

    async def run() -> None:
        stopping = Shutdown()
        await stopping.stop_part("faulty", fail())
        await stopping.stop_part("last", at_once())
        stopping.end()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    assert stopped == ["last"]


# ---------------------------------------------------------------- cancellation


def test_disconnecting_does_not_swallow_cancellation(mosquitto, tmp_path):
    """A swallowed cancellation would block its caller indefinitely: cancel at each moment around
    the end of the connection."""

    async def cancelled_after(turns: int, port: int) -> bool:
        options = ConnectOptions(client_id=f"leaver-{turns}", clean_start=True)
        connection = Connection(
            BrokerAddress("127.0.0.1", port), options, lambda effect: None, random.Random(1)
        )
        connection.start()
        await until(lambda: not connection.problem, "connected")
        leaving = asyncio.create_task(connection.disconnect())
        await asyncio.sleep(0)
        connection._closed.set()  # noqa: SLF001  # what the end of the connection does
        for _ in range(turns):
            await asyncio.sleep(0)
        if leaving.done():
            return False
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled(), f"swallowed after {turns} turns"
        await connection.stop()
        connection.abort()
        return True

    async def run() -> None:
        broker = Mosquitto(tmp_path / "broker", free_port())
        await broker.start()
        try:
            turns = 0
            while await cancelled_after(turns, broker.port):
                turns += 1
            assert turns
        finally:
            await broker.stop()

    asyncio.run(run())


# ---------------------------------------------------------------- live agents


@pytest.mark.parametrize("mode", [{}, {"mqtt_fed_id": 1}], ids=["hansa", "mqtt-fed"])
def test_agent_ends_in_time_if_loop_was_blocked_before_signal(scene, mode):
    agent = scene.agent(program=("-c", BLOCKED_LOOP), broker_port=free_port(), **mode)
    agent.says("the loop is blocked")
    began = time.monotonic()
    agent.process.terminate()
    assert agent.process.wait(60) == 0, agent.log
    assert STOP_TIMEOUT_S - 0.5 < time.monotonic() - began < STOP_TIMEOUT_S + SLACK_S
    assert "agent ends by force after 8 s, while it waited for its loop" in agent.log


# ---------------------------------------------------------------- live agents under load


class Load:
    """Publishes at QoS 0 and 1 in a thread while its context is active."""

    def __init__(self, scene: Scene, port: int) -> None:
        self._client = scene.client_of(GuaranteedClient, port)
        self._payload = os.urandom(8_000).hex().encode()
        self.accepted: list[bytes] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(0.02):  # the test measures the shutdown, not the throughput
            self._client.publish("load/qos0", *[self._payload] * 20)
            payloads = [b"%d" % each for each in range(number, number + 5)]
            self._client.publish_guaranteed(1, "load/qos1", *payloads)
            self.accepted += payloads
            number += 5

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Pair:
    """Two agents; clients of the second subscribe to publications at the first."""

    def __init__(self, scene: Scene, tmp_path: Path) -> None:
        self.scene = scene
        self.slow_disks = [tmp_path / "slow-0", tmp_path / "slow-1"]
        queue = ("max_queued_messages 100000", "max_inflight_messages 100")
        self.brokers = [scene.broker(*queue), scene.broker(*queue)]
        self._link_port = free_port()
        self._states = [tmp_path / "state-0", tmp_path / "state-1"]
        self.agents = [self.start(0), self.start(1)]
        for agent in self.agents:
            agent.says("neighbour up")
        self.subscriber = scene.client_of(
            GuaranteedClient,
            self.brokers[1].port,
            name="subscriber",
            clean=False,
            session_expiry=3_600,
        ).subscribe_qos2("load/qos1")
        eventually(self._is_installed, "the interest of the second agent in force at the first")

    def start(self, number: int) -> Process:
        """Start or restart an agent."""
        os.environ["SLOW_DISK"] = str(self.slow_disks[number])
        first = {"link_port": self._link_port, "broker_observer": "static", "broker_filters": "x"}
        second = {
            "link_neighbours": f"127.0.0.1:{self._link_port}",
            "broker_observer": "static",
            "broker_filters": "load/#",
        }
        return self.scene.agent(
            program=("-c", SLOW_DISK),
            state=self._states[number],
            broker_port=self.brokers[number].port,
            **(second if number else first),
        )

    def status(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.agents[number].page("/status")[1] or "{}")
        return found

    def _is_installed(self) -> bool:
        return bool(self.status(1).get("interest", {}).get("installed"))

    def terminate(self, number: int) -> float:
        """Stop an agent with SIGTERM; return the seconds until it ended."""
        agent = self.agents[number].process
        began = time.monotonic()
        agent.terminate()
        assert agent.wait(60) == 0, self.agents[number].log
        return time.monotonic() - began

    def assert_all_arrives(self, payloads: list[bytes]) -> None:
        """Every publication accepted by the first broker arrives; QoS 1 may duplicate."""
        assert payloads
        expected, deadline = set(payloads), time.monotonic() + 90
        while missing := expected.difference(each.payload for each in self.subscriber.received):
            if time.monotonic() > deadline:
                states = [(self.status(each), self.agents[each].log) for each in (0, 1)]
                pytest.fail(f"missing {sorted(map(int, missing))} of {len(expected)}: {states}")
            self.subscriber.silent(0.1)


@pytest.fixture
def pair(scene: Scene, tmp_path: Path) -> Iterator[Pair]:
    yield Pair(scene, tmp_path)
    del os.environ["SLOW_DISK"]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_agent_ends_in_time_if_broker_does_not_read(pair):
    with Load(pair.scene, pair.brokers[0].port) as load, stopped(pair.brokers[1].process.pid):
        eventually(
            lambda: pair.status(1)["counters"].get("dropped: broker buffer full"),
            "the socket to the broker full",
        )
        took = pair.terminate(1)
    assert took < STOP_TIMEOUT_S + SLACK_S
    pair.agents[1] = pair.start(1)
    pair.assert_all_arrives(load.accepted)


def test_agent_ends_in_time_if_neighbour_does_not_read(pair):
    def is_stuck() -> bool:
        links = pair.status(0)["neighbours"].values()
        return any(link["outstanding_bytes"] > 1 << 20 for link in links)

    with Load(pair.scene, pair.brokers[0].port) as load, stopped(pair.agents[1].process.pid):
        eventually(is_stuck, "much outstanding on the link")
        took = pair.terminate(0)
    assert took < STOP_TIMEOUT_S + SLACK_S
    pair.agents[0] = pair.start(0)
    pair.assert_all_arrives(load.accepted)


@pytest.mark.parametrize("number", [0, 1], ids=["origin", "receiver"])
def test_agent_stops_in_time_while_the_disk_hangs(pair, number):
    waiting = "inbox" if number else "unsynced_bytes"
    with Load(pair.scene, pair.brokers[0].port) as load:
        eventually(lambda: pair.status(1)["counters"].get("injected", 0) > 100, "load")
        pair.slow_disks[number].touch()
        eventually(lambda: pair.status(number)["delivery"][waiting] > 50, "writes that wait")
        took = pair.terminate(number)
        pair.slow_disks[number].unlink()
    assert took < STOP_TIMEOUT_S + SLACK_S
    assert "agent ends by force" in pair.agents[number].log
    pair.agents[number] = pair.start(number)
    pair.assert_all_arrives(load.accepted)
