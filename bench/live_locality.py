"""Bytes on the links by locality of interest, on Antonielli's three topologies."""

import asyncio
import time
from collections.abc import Callable

from bench.console import say
from bench.live import PAYLOAD_BYTES, QUIET_S, TOPIC, Client, federation, publication
from hansa.simulator.topologies import Topology, make_topology
from hansa.testbed.federation import LocalFederation

COUNT = 1_500
SETTLE_S = 1.0
PER_WRITE = 25
A, B, C, D, E = range(5)
TOPOLOGIES = {
    "tree": [(A, C), (B, C), (C, D), (D, E)],
    "star": [(A, C), (B, C), (C, D), (C, E)],
    "line": [(A, C), (A, B), (B, D), (D, E)],
}
LOCALITIES: dict[str, tuple[list[int], list[int]]] = {
    "100 %": ([A], [A]),
    "0 %": ([A], [E]),
    "n %": ([A, B, C, D, E], [A, B, C, D, E]),
}


def measure() -> dict[str, object]:
    """Bytes between agents for 1,500 publications of 64 B at 100 %, 0 % and n % locality.

    The steady control traffic of a pause of the same length is measured first and subtracted.
    """
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    for name, links in TOPOLOGIES.items():
        async with federation(_topology(name, links)) as running:
            for locality, (sources, targets) in LOCALITIES.items():
                sent, control = await asyncio.to_thread(_bytes, running, sources, targets)
                answers[f"{name}_{locality}"] = {"data": sent, "control": control}
                each = sent / COUNT
                say(
                    f"{name}, {locality} locality",
                    f"{sent / 1000:8.1f} kB  {each:6.1f} B per publication"
                    f"  (control: {control / 1000:.1f} kB)",
                )
    return answers


def _topology(name: str, links: list[tuple[int, int]]) -> Topology:
    return make_topology(name, 5, links)


def _bytes(running: LocalFederation, sources: list[int], targets: list[int]) -> tuple[int, int]:
    """Publish, a share from each source; return bytes of data and of control in that time."""
    ports = [node.broker.port for node in running.nodes]
    readers = [Client(ports[node], f"reads-{node}", TOPIC) for node in targets]
    writers = [Client(ports[node], f"writes-{node}") for node in sources]
    time.sleep(SETTLE_S)
    for writer in writers:  # each path is used once before the measurement
        writer.socket.sendall(publication(bytes(PAYLOAD_BYTES)))
    time.sleep(SETTLE_S)
    for reader in readers:
        reader.drain()
    quiet, _ = _watch(running, lambda: None, readers)
    share = publication(b"x" * PAYLOAD_BYTES) * PER_WRITE

    def publish() -> None:
        for _ in range(COUNT // PER_WRITE // len(writers)):
            for writer in writers:
                writer.socket.sendall(share)

    total, arrived = _watch(running, publish, readers)
    for client in (*readers, *writers):
        client.socket.close()
    expected = COUNT * len(readers)
    if arrived != expected:
        say("  not all arrived", f"{arrived:,} of {expected:,}")
    return max(0, total - quiet), quiet


def _watch(
    running: LocalFederation, work: Callable[[], None], readers: list[Client]
) -> tuple[int, int]:
    """Return the bytes on all links during some work, and how much it made readers receive."""
    before, began = _sent(running), time.monotonic()
    work()
    packet = len(publication(bytes(PAYLOAD_BYTES)))
    arrived = sum(reader.drain() for reader in readers) // packet
    time.sleep(max(0.0, began + 2.0 + len(readers) * QUIET_S - time.monotonic()))
    return _sent(running) - before, arrived


def _sent(running: LocalFederation) -> int:
    total = 0
    for node in running.nodes:
        neighbours = node.status()["neighbours"]
        assert isinstance(neighbours, dict)
        total += sum(seen["bytes_out"] for seen in neighbours.values())
    return total
