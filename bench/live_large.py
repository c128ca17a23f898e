"""Delay of small publications while large ones share their link, compared with a bridge."""

import asyncio
import socket
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.console import say
from bench.live import Client, bridged, federation, open_load, publication

SIZES_MIB = (1, 64)
MIB_PER_SECOND = 16
PER_SECOND = 200
COUNT = 1_600
LARGE = "bench/large"
LIMIT = {"HANSA_PROTOCOL_PACKET_BYTES_MAX": str(65 << 20)}


def measure() -> dict[str, object]:
    """Delay of 200 small messages/s beside 16 MiB/s in payloads of 1 and 64 MiB: of one alone."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    async with federation("line:2", settings=LIMIT) as ours, bridged([(0, 1)]) as theirs:
        places = {
            "hansa": [node.broker.port for node in ours.nodes],
            "bridge": [broker.port for broker in theirs],
        }
        for name, (source, target) in places.items():
            quiet = await _delays(source, target, 0)
            answers |= {f"{name}_alone_{what}_ms": round(ms, 2) for what, ms in quiet.items()}
            say(f"{name}, alone", _words(quiet))
            for size in SIZES_MIB:
                found = await _delays(source, target, size)
                ratio = found["median"] / quiet["median"]
                say(f"{name}, {size} MiB", f"{_words(found)}  {ratio:.2f} of alone")
                key = f"{name}_{size}_mib"
                answers |= {f"{key}_{what}_ms": round(ms, 2) for what, ms in found.items()}
                answers[f"{key}_ratio"] = round(ratio, 2)
    return answers


def _words(found: dict[str, float]) -> str:
    return "  ".join(f"{what} {ms:8.2f} ms" for what, ms in found.items())


async def _delays(source: int, target: int, size_mib: int) -> dict[str, float]:
    with open_load(source, [target]) as load, _large(source, target, size_mib):
        delays = sorted(await asyncio.to_thread(load.delays, COUNT, PER_SECOND))
    return {
        "median": statistics.median(delays),
        "p99": delays[len(delays) * 99 // 100],
        "longest": delays[-1],
    }


@contextmanager
def _large(source: int, target: int, size_mib: int) -> Iterator[None]:
    """Publish large messages at a constant rate, and read them at the other end."""
    if not size_mib:
        yield
        return
    packet = publication(bytes(size_mib << 20), LARGE)
    publisher, subscriber = Client(source, "large-pub"), Client(target, "large-sub", LARGE)
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            publisher.socket.sendall(packet)
            stop.wait(size_mib / MIB_PER_SECOND)

    def read() -> None:
        buffer = bytearray(1 << 20)
        subscriber.socket.settimeout(0.2)
        while not stop.is_set():
            try:
                subscriber.socket.recv_into(buffer)
            except TimeoutError:
                continue

    threads = [threading.Thread(target=work) for work in (publish, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for client in (publisher, subscriber):
            client.socket.shutdown(socket.SHUT_RDWR)
            client.socket.close()
