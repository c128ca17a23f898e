"""Delay between clients of one broker while its agent has a neighbour that hangs.

It is compared with a broker alone, and with a broker that has one more subscriber, a process that
only reads: no agent of an unmodified broker can cost less.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bench.console import say
from bench.live import TOPIC, Client, federation, open_load, pids_of
from hansa.testbed.mosquitto import Mosquitto, free_port

ROUNDS = 5
PER_SECOND = 400
COUNT = 1_200

READER = """
import sys
from bench.live import TOPIC, Client
client = Client(int(sys.argv[1]), "reader", TOPIC)
client.socket.settimeout(None)
print("ready", flush=True)
while client.socket.recv(1 << 16):
    pass
"""
"""A subscriber that only reads."""


def measure() -> dict[str, object]:
    """Delay at one broker while its agent has a neighbour that hangs: of a broker alone (1.2)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    delays: dict[str, list[float]] = {"alone": [], "reader": [], "sick": []}
    async with federation("line:2") as ours, _broker() as alone:
        here, there = (node.broker.port for node in ours.nodes)
        with open_load(here, [there]):  # so the agent has subscribed to it
            far = Client(there, "far", TOPIC)
        hanging = pids_of(ours)[f"agent {ours.nodes[1].name}"]
        os.kill(hanging, signal.SIGSTOP)
        try:
            for _ in range(ROUNDS):
                delays["alone"] += await _delays(alone.port)
                with _reader(alone.port):
                    delays["reader"] += await _delays(alone.port)
                delays["sick"] += await _delays(here)
        finally:
            os.kill(hanging, signal.SIGCONT)
            far.socket.close()
    answers: dict[str, object] = {}
    for what, percent in (("median", 50), ("p99", 99)):
        found = {name: _percentile(values, percent) for name, values in delays.items()}
        names = {"reader": "with one more subscriber", "sick": "with a sick federation"}
        say(f"a broker alone, {what}", f"{found['alone']:8.3f} ms")
        for name, text in names.items():
            ratio = found[name] / found["alone"]
            say(f"{text}, {what}", f"{found[name]:8.3f} ms  {ratio:.2f} of alone")
        answers |= {f"{name}_{what}_ms": round(ms, 3) for name, ms in found.items()}
        answers[f"ratio_{what}"] = round(found["sick"] / found["alone"], 2)
    return answers


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


async def _delays(port: int) -> list[float]:
    with open_load(port, [port]) as load:
        return (await asyncio.to_thread(load.delays, COUNT, PER_SECOND))[COUNT // 10 :]


@contextmanager
def _reader(port: int) -> Iterator[None]:
    command = [sys.executable, "-c", READER, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@asynccontextmanager
async def _broker() -> AsyncIterator[Mosquitto]:
    with tempfile.TemporaryDirectory(prefix="hansa-bench-") as directory:
        broker = Mosquitto(Path(directory), free_port())
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()
