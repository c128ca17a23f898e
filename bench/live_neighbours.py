"""Delay between clients of one broker while its agent has a neighbour that hangs."""

import asyncio
import os
import signal
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.console import say
from bench.live import TOPIC, Client, federation, open_load, pids_of
from hansa.testbed.mosquitto import Mosquitto, free_port

ROUNDS = 5
PER_SECOND = 400
COUNT = 1_200


def measure() -> dict[str, object]:
    """Delay at one broker while its agent has a neighbour that hangs: of a broker alone (1.1)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    delays: dict[str, list[float]] = {"alone": [], "sick": []}
    async with federation("line:2") as ours, _broker() as alone:
        here, there = (node.broker.port for node in ours.nodes)
        with open_load(here, [there]):  # so the agent has subscribed to it
            far = Client(there, "far", TOPIC)
        hanging = pids_of(ours)[f"agent {ours.nodes[1].name}"]
        os.kill(hanging, signal.SIGSTOP)
        try:
            for _ in range(ROUNDS):
                delays["alone"] += await _delays(alone.port)
                delays["sick"] += await _delays(here)
        finally:
            os.kill(hanging, signal.SIGCONT)
            far.socket.close()
    answers: dict[str, object] = {}
    for what, percent in (("median", 50), ("p99", 99)):
        found = {name: _percentile(values, percent) for name, values in delays.items()}
        ratio = found["sick"] / found["alone"]
        say(f"a broker alone, {what}", f"{found['alone']:8.3f} ms")
        say(f"with a sick federation, {what}", f"{found['sick']:8.3f} ms  {ratio:.2f} of alone")
        answers |= {f"{name}_{what}_ms": round(ms, 3) for name, ms in found.items()}
        answers[f"ratio_{what}"] = round(ratio, 2)
    return answers


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


async def _delays(port: int) -> list[float]:
    with open_load(port, [port]) as load:
        return (await asyncio.to_thread(load.delays, COUNT, PER_SECOND))[COUNT // 10 :]


@asynccontextmanager
async def _broker() -> AsyncIterator[Mosquitto]:
    with tempfile.TemporaryDirectory(prefix="hansa-bench-") as directory:
        broker = Mosquitto(Path(directory), free_port())
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()
