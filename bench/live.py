"""Shared by the live benchmarks: raw load, chains of bridges, and the CPU of a process.

The load is made with plain sockets and packets that were encoded before, so that it costs little;
what is measured are brokers, agents and bridges. Hansa and its rival take turns in one run, the
best round of each counts, and what is printed is their ratio: the machine cancels out.
"""

import asyncio
import itertools
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hansa.mqtt import packets
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.types import Version
from hansa.simulator.topologies import Topology, parse_topology
from hansa.testbed.federation import DIRECT_LINKS, LinkProfile, LocalFederation
from hansa.testbed.mosquitto import Mosquitto, free_port

TOPIC = "bench/live"
PAYLOAD_BYTES = 64
BATCH = 50
"""Publications that one write of the load generator holds."""

WINDOW = 4_000
"""Publications in flight: enough to keep all processes busy, too few to be dropped."""

PAUSE_S = 0.001
"""A pause of the load generator after each read, so that it costs next to nothing."""

PROBE_S = 0.02
WAY_TIMEOUT_S = 20.0
QUIET_S = 0.3
STUCK_S = 2.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def publication(payload: bytes, topic: str = TOPIC) -> bytes:
    """Return the packet of one publication, QoS 0."""
    return PacketWriter(Version.V311).encode(packets.PublishPacket(topic, payload))


PACKET_BYTES = len(publication(bytes(PAYLOAD_BYTES)))
BATCH_DATA = publication(b"x" * PAYLOAD_BYTES) * BATCH


class Client:
    """A minimal MQTT 3.1.1 connection."""

    def __init__(self, port: int, name: str, topic_filter: str | None = None, qos: int = 0) -> None:
        """Connect, and subscribe if there is a filter."""
        writer = PacketWriter(Version.V311)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
        self.socket.sendall(writer.encode(packets.ConnectPacket(name, Version.V311)))
        self._expect(4)
        if topic_filter is not None:
            wish = packets.Subscription(topic_filter, qos=qos)
            self.socket.sendall(writer.encode(packets.SubscribePacket(1, (wish,))))
            self._expect(5)

    def _expect(self, count: int) -> None:
        answer = self.socket.recv(count, socket.MSG_WAITALL)
        if len(answer) != count:
            raise ConnectionError("the broker closed the connection")

    def drain(self) -> int:
        """Discard arriving data until none arrives; return the number of bytes."""
        self.socket.settimeout(QUIET_S)
        seen = 0
        try:
            while True:
                seen += len(self.socket.recv(1 << 20))
        except TimeoutError:
            return seen
        finally:
            self.socket.settimeout(10.0)


class Load:
    """A publisher at one broker, and subscribers at others."""

    def __init__(
        self, source: int, targets: Sequence[int], *, sources: Sequence[int] = (), share: str = ""
    ) -> None:
        """Connect to these ports and wait until publications get through to all. `sources` are
        ports of more publishers; with a `share`, all subscribers share one subscription."""
        self._is_shared = bool(share)
        topic_filter = f"$share/{share}/{TOPIC}" if share else TOPIC
        self.subscribers = [
            Client(port, f"sub-{number}-{port}", topic_filter)
            for number, port in enumerate(targets)
        ]
        self.publishers = [
            Client(port, f"pub-{number}-{port}") for number, port in enumerate((source, *sources))
        ]
        self.publisher = self.publishers[0]
        for publisher in self.publishers:
            self._wait(publisher)

    def _wait(self, publisher: Client) -> None:
        deadline = time.monotonic() + WAY_TIMEOUT_S
        for client in self.subscribers:
            client.socket.settimeout(PROBE_S)
            while True:
                publisher.socket.sendall(publication(bytes(PAYLOAD_BYTES)))
                try:
                    client.socket.recv(1 << 16)
                    break
                except TimeoutError:
                    if time.monotonic() > deadline:
                        raise
        for client in self.subscribers:
            client.drain()

    def flood(self, seconds: float, per_second: float | None = None) -> "Flow":
        """Publish as fast as all subscribers receive, or at this rate if it is lower; return the
        result."""
        received = [0] * len(self.subscribers)
        stop = threading.Event()

        def count(index: int) -> None:
            connection = self.subscribers[index].socket
            buffer = bytearray(1 << 20)
            connection.settimeout(0.2)
            while not stop.is_set():
                try:
                    received[index] += connection.recv_into(buffer)
                except TimeoutError:
                    continue
                time.sleep(PAUSE_S)

        threads = [threading.Thread(target=count, args=(n,)) for n in range(len(received))]
        for thread in threads:
            thread.start()
        began = time.perf_counter()
        sent = self._send(seconds, received, per_second)
        seen, stuck_after = -1, 0.0  # lost is what has not arrived after STUCK_S without arrivals
        while (progress := self._progress(received)) < sent * PACKET_BYTES:
            if progress != seen:
                seen, stuck_after = progress, time.perf_counter() + STUCK_S
            elif time.perf_counter() > stuck_after:
                break
            time.sleep(PAUSE_S)
        elapsed = time.perf_counter() - began
        stop.set()
        for thread in threads:
            thread.join()
        arrived = [count // PACKET_BYTES for count in received]
        expected = sent if self._is_shared else len(arrived) * sent
        return Flow(sent, sum(arrived), elapsed, expected - sum(arrived))

    def _progress(self, received: list[int]) -> int:
        """Return the bytes that the slowest subscriber has, or all together if they share."""
        return sum(received) if self._is_shared else min(received)

    def _send(self, seconds: float, received: list[int], per_second: float | None) -> int:
        began = time.perf_counter()
        sent, until = 0, began + seconds
        writers = itertools.cycle(self.publishers)
        while (now := time.perf_counter()) < until:
            is_due = per_second is None or sent <= (now - began) * per_second
            if is_due and sent - self._progress(received) // PACKET_BYTES < WINDOW:
                next(writers).socket.sendall(BATCH_DATA)
                sent += BATCH
            else:
                time.sleep(PAUSE_S)
        return sent

    def delays(self, count: int, per_second: int) -> list[float]:
        """Publish at a steady rate; return the delay of each publication in milliseconds."""
        delays: list[float] = []
        connection = self.subscribers[0].socket

        def receive() -> None:
            while len(delays) < count:
                packet = connection.recv(PACKET_BYTES, socket.MSG_WAITALL)
                now = time.perf_counter_ns()
                at = PACKET_BYTES - PAYLOAD_BYTES
                delays.append((now - int.from_bytes(packet[at : at + 8], "big")) / 1e6)

        thread = threading.Thread(target=receive)
        thread.start()
        head, rest = publication(bytes(PAYLOAD_BYTES))[:-PAYLOAD_BYTES], bytes(PAYLOAD_BYTES - 8)
        began = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, began + number / per_second - time.perf_counter()))
            stamp = time.perf_counter_ns().to_bytes(8, "big")
            self.publisher.socket.sendall(head + stamp + rest)
        thread.join()
        return delays

    def close(self) -> None:
        for client in (*self.publishers, *self.subscribers):
            client.socket.close()


@dataclass(frozen=True, slots=True)
class Flow:
    """Result of publishing as fast as possible."""

    sent: int
    arrived: int
    seconds: float
    lost: int

    @property
    def per_second(self) -> float:
        """Deliveries per second, over all subscribers."""
        return self.arrived / self.seconds


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, of its present threads to the nanosecond where the
    kernel tells that."""
    try:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9
    except FileNotFoundError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class CpuMeter:
    """CPU of some processes between two moments."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = {name: cpu_seconds(pid) for name, pid in pids.items()}

    def micros(self, publications: int) -> dict[str, float]:
        """Return what each process spent, in microseconds per publication."""
        return {
            name: (cpu_seconds(pid) - self._before[name]) / publications * 1e6
            for name, pid in self._pids.items()
        }


@asynccontextmanager
async def federation(
    topology: str | Topology,
    cable: LinkProfile = DIRECT_LINKS,
    persistent: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[LocalFederation]:
    """A federation that has converged; `settings` are environment variables for all agents."""
    if isinstance(topology, str):
        topology = parse_topology(topology, seed=1)
    running = LocalFederation(
        topology, {"HANSA_LOG": "warning", **settings}, link_profile=cable, persistent=persistent
    )
    try:
        await running.start()
        await running.wait_until_converged()
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def bridged(
    links: Sequence[tuple[int, int]], qos: int = 0, is_persistent: bool = False
) -> AsyncIterator[list[Mosquitto]]:
    """Brokers with a bridge from the first to the second of each link, for all topics. A bridge
    copies everything as far as there are bridges, also to brokers without subscribers."""
    directory = Path(tempfile.mkdtemp(prefix="hansa-bench-"))
    ports = [free_port() for _ in range(1 + max(map(max, links)))]
    brokers = []
    for number, port in enumerate(ports):
        lines: list[str] = []
        for near, far in links:
            if near == number:
                lines += bridge_lines(near, far, ports[far], qos)
                lines += ["cleansession false"] if is_persistent else []
        brokers.append(Mosquitto(directory / str(number), port, tuple(lines), is_persistent))
    try:
        for broker in reversed(brokers):
            await broker.start()
        yield brokers
    finally:
        await asyncio.gather(*(broker.stop() for broker in brokers))
        shutil.rmtree(directory, ignore_errors=True)


def bridge_lines(near: int, far: int, port: int, qos: int = 0) -> list[str]:
    """Return the configuration of a bridge to the broker on this port, for at most this QoS. The
    name of the connection becomes the client id there: equal ones would disconnect each other."""
    return [
        f"connection {near}-to-{far}",
        f"address 127.0.0.1:{port}",
        f"topic # out {qos}",
        "notifications false",
        "bridge_protocol_version mqttv311",
        "restart_timeout 1",
    ]


@contextmanager
def open_load(
    source: int, targets: Sequence[int], *, sources: Sequence[int] = (), share: str = ""
) -> Iterator[Load]:
    """Publishers and subscribers, connected in the `with` block."""
    found = Load(source, targets, sources=sources, share=share)
    try:
        yield found
    finally:
        found.close()


def pids_of(running: LocalFederation) -> dict[str, int]:
    """Return the process ids of brokers and agents by name."""
    pids: dict[str, int] = {}
    for node in running.nodes:
        assert node.agent is not None and node.broker.process is not None
        pids[f"agent {node.name}"] = node.agent.pid
        pids[f"broker {node.name}"] = node.broker.process.pid
    return pids
