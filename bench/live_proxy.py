"""Cost of the proxy, compared with a direct connection to the same broker."""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.console import say
from bench.live import PAYLOAD_BYTES, Client, open_load, publication
from bench.peer_kinds import compile_relay
from hansa.mqtt import packets
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.types import Version
from hansa.testbed.mosquitto import Mosquitto, find_mosquitto, free_port
from hansa.testbed.service_manager import activate

RELAY = """
import select, socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
broker = "127.0.0.1", int(sys.argv[2])
poll, peers, buffer = select.epoll(), {}, memoryview(bytearray(1 << 18))
poll.register(listening, select.EPOLLIN)
while True:
    for number, _ in poll.poll():
        if number == listening.fileno():
            pair = listening.accept()[0], socket.create_connection(broker)
            for one, other in (pair, pair[::-1]):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers[one.fileno()] = one, other
                poll.register(one, select.EPOLLIN)
        elif number in peers:
            one, other = peers[number]
            if count := one.recv_into(buffer):
                other.sendall(buffer[:count])
            else:
                for each in (one, other):
                    del peers[each.fileno()]
                    each.close()
"""
"""A minimal relay in Python: what a proxy in this language costs at least."""

MINIMAL, MINIMAL_C = "minimal relay in Python", "minimal relay in C"
"""The second one is what any process between clients and broker costs at least."""

OUTAGES = 5
"""Times that the agent is killed."""

ROUNDS = 5
SECONDS = 0.8
DELAYS = 400
"""Messages of each path in a round; the paths take turns message by message."""

DELAY_PAUSE_S = 0.001
"""Pause before each message: all processes sleep when it is sent."""

IDLE_CLIENTS = 5_000
CONNECTIONS = 2_000
AT_ONCE = 100
"""Clients that connect at the same time."""


def measure() -> dict[str, object]:
    """The proxy against a direct connection: throughput (goal 0.7), delay (1.6), connections
    (1,000/s), idle clients (5,000); and how long clients wait when its agent is killed."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    async with (
        _broker_with_proxy() as (direct, proxy, pid),
        _relay_to(direct, [sys.executable, "-c", RELAY]) as relay,
        _c_relay_to(direct) as c_relay,
    ):
        ports = {"direct": direct, "proxy": proxy, MINIMAL: relay, MINIMAL_C: c_relay}
        rates: dict[str, list[float]] = {name: [] for name in ports}
        delays: dict[str, list[float]] = {name: [] for name in ports}  # medians of the rounds
        connections: dict[str, list[float]] = {name: [] for name in ports}
        client_kb = await asyncio.to_thread(_idle_client_kb, proxy, pid)  # while the heap is new
        for _ in range(ROUNDS):
            for name, port in ports.items():
                with open_load(port, [port]) as load:
                    flow = await asyncio.to_thread(load.flood, SECONDS)
                rates[name].append(flow.per_second)
                connections[name].append(await asyncio.to_thread(_connection_rate, port))
            for name, found in (await asyncio.to_thread(_delays_ms, ports)).items():
                delays[name].append(statistics.median(found))
    throughput = {name: _median_ratio(found, rates["direct"]) for name, found in rates.items()}
    delay = {name: _median_ratio(found, delays["direct"]) for name, found in delays.items()}
    say("", f"{'messages/s':>11}{'':>7}{'one message':>14}{'':>7}{'connections':>14}")
    for name in ports:
        say(
            f"{name}, 64 B at QoS 0" if name == "direct" else f"through the {name}",
            f"{max(rates[name]):11,.0f}{throughput[name]:7.2f}"
            f"{statistics.median(delays[name]):11.3f} ms{delay[name]:7.2f}"
            f"{statistics.median(connections[name]):12,.0f}/s",
        )
    outages = await asyncio.to_thread(_outages_s)
    say("agent killed, port kept open: until a client is served", f"{_range(outages)} s")
    say(f"memory for each of {IDLE_CLIENTS:,} idle clients", f"{client_kb:8.1f} kB")
    return {
        "throughput_ratio": round(throughput["proxy"], 2),
        "minimal_throughput_ratio": round(throughput[MINIMAL], 2),
        "minimal_c_throughput_ratio": round(throughput[MINIMAL_C], 2),
        "delay_ratio": round(delay["proxy"], 2),
        "minimal_delay_ratio": round(delay[MINIMAL], 2),
        "minimal_c_delay_ratio": round(delay[MINIMAL_C], 2),
        "connections_per_s": round(statistics.median(connections["proxy"])),
        "direct_connections_per_s": round(statistics.median(connections["direct"])),
        "client_kb": round(client_kb, 1),
        "outage_s": round(statistics.median(outages), 2),
    }


def _median_ratio(found: list[float], direct: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(found, direct, strict=True))


@asynccontextmanager
async def _relay_to(port: int, command: Sequence[str]) -> AsyncIterator[int]:
    """Yield the port of a minimal relay."""
    relay = free_port()
    with subprocess.Popen([*command, str(relay), str(port)]) as process:
        while not _answers(relay):
            await asyncio.sleep(0.05)
        yield relay
        process.kill()


@asynccontextmanager
async def _c_relay_to(port: int) -> AsyncIterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        async with _relay_to(port, [compile_relay("forward", Path(folder))]) as relay:
            yield relay


@asynccontextmanager
async def _broker_with_proxy() -> AsyncIterator[tuple[int, int, int]]:
    """Yield the ports of a broker and of the proxy in front of it, and the agent's process id."""
    with tempfile.TemporaryDirectory() as folder:
        port, proxy = free_port(), free_port()
        broker = Mosquitto(Path(folder) / "broker", port, ())
        await broker.start()
        agent = _start_agent(Path(folder) / "state", port, proxy)
        try:
            while agent.poll() is None and not _answers(proxy):
                await asyncio.sleep(0.05)
            yield port, proxy, agent.pid
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait()
            await broker.stop()


def _start_agent(
    state: Path, port: int, proxy: int, listening: socket.socket | None = None
) -> subprocess.Popen[bytes]:
    """Start an agent with a proxy, maybe on a port that is open already."""
    environment = os.environ | {
        "HANSA_STATE": str(state),
        "HANSA_BROKER_PORT": str(port),
        "HANSA_BROKER_OBSERVER": "proxy",
        "HANSA_PROXY_PORT": str(proxy),
        "HANSA_PROXY_NO_EARLIER_SESSIONS": "true",
        "HANSA_LINK_PORT": "0",
        "HANSA_ADMIN_PORT": "0",
    }
    command = [sys.executable, "-m", "hansa.cli", "agent"]
    passed: tuple[int, ...] = ()
    if listening is not None:
        command, passed = activate(command, listening)
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, pass_fds=passed)


def _outages_s() -> list[float]:
    """Seconds from the end of a killed agent until a client is served that connected at once. A
    service manager keeps the port open, and starts the next agent at once."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as held:
        proxy, port = held.getsockname()[1], free_port()
        broker = subprocess.Popen(
            [find_mosquitto(), "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        agent = _start_agent(Path(folder) / "state", port, proxy, held)
        for _ in range(OUTAGES):
            _connect(proxy, range(1))[0].close()
            agent.kill()
            agent.wait()
            began = time.perf_counter()
            agent = _start_agent(Path(folder) / "state", port, proxy, held)
            _connect(proxy, range(1))[0].close()
            found.append(time.perf_counter() - began)
        for process in (agent, broker):
            process.kill()
            process.wait()
    return found


def _range(seconds: list[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f}"


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _delays_ms(ports: dict[str, int]) -> dict[str, list[float]]:
    """Delays from publisher to subscriber over each path, by turns under the same load."""
    topics = {name: f"bench/delay/{number}" for number, name in enumerate(ports)}
    publishers = {name: Client(port, f"p {name}") for name, port in ports.items()}
    subscribers = {name: Client(port, f"s {name}", topics[name]) for name, port in ports.items()}
    publications = {name: publication(bytes(PAYLOAD_BYTES), topics[name]) for name in ports}
    delays: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(DELAYS):
        for name, packet in publications.items():
            time.sleep(DELAY_PAUSE_S)
            began = time.perf_counter_ns()
            publishers[name].socket.sendall(packet)
            if subscribers[name].socket.recv(len(packet), socket.MSG_WAITALL) != packet:
                raise ConnectionError("a publication did not arrive unchanged")
            delays[name].append((time.perf_counter_ns() - began) / 1e6)
    for client in (*publishers.values(), *subscribers.values()):
        client.socket.close()
    return delays


def _connection_rate(port: int) -> float:
    """Clients with a clean session that the broker accepts per second."""
    began = time.perf_counter()
    for first in range(0, CONNECTIONS, AT_ONCE):
        for client in _connect(port, range(first, first + AT_ONCE)):
            client.close()
    return CONNECTIONS / (time.perf_counter() - began)


def _idle_client_kb(port: int, pid: int) -> float:
    """Memory of the agent for each connected client that does nothing."""
    before = _resident_kb(pid)
    clients: list[socket.socket] = []
    for first in range(0, IDLE_CLIENTS, AT_ONCE):
        clients += _connect(port, range(first, first + AT_ONCE))
    grown = _resident_kb(pid) - before
    for client in clients:
        client.close()
    return grown / IDLE_CLIENTS


def _connect(port: int, numbers: range) -> list[socket.socket]:
    """Connect clients at the same time; return their sockets once the broker accepted all."""
    writer = PacketWriter(Version.V311)
    clients = [socket.create_connection(("127.0.0.1", port), timeout=30.0) for _ in numbers]
    for number, client in zip(numbers, clients, strict=True):
        connect = packets.ConnectPacket(f"idle-{number}", Version.V311, clean_start=True)
        client.sendall(writer.encode(connect))
    for client in clients:
        if client.recv(4, socket.MSG_WAITALL)[3:] != b"\0":
            raise ConnectionError("the broker did not accept a client")
    return clients


def _resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
