"""The papers' grid, live: Spohn 2021, Tables 2 and 3, with and without delay on the links.

Nine brokers, subscribers at 2 and 7, a publisher at 6, 1,000 publications of 64 B, 50 to 100 ms
apart. The baseline is the papers': one broker, at node 2 or at node 7, with both subscribers beside
it, and a publisher that reaches it over the shortest path: as many link delays as that has hops.
Federation and baselines are measured at the same time, in one process, with one clock.
"""

import asyncio
import random
import shutil
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.console import say
from hansa.agent.broker.connection import BrokerAddress
from hansa.simulator.topologies import hop_distances, parse_topology
from hansa.testbed.clients import RecordingClient
from hansa.testbed.federation import LinkProfile, LocalFederation
from hansa.testbed.mosquitto import Mosquitto, free_port
from hansa.testbed.relay import Relay

TOPIC = "papers/grid"
GRID = parse_topology("grid:3x3", seed=1)
SOURCE, SINKS = 6, (2, 7)
COUNT = 1_000
PAUSE_S = (0.05, 0.1)
LATE_S = 2.0
LINK_DELAYS_MS = (0.0, 5.0)
"""The paper's own is not in its text; three hops more cost it 16 ms, which is 5 ms a hop."""

FEDERATED = {
    2: "Spohn 34.77 ± 3.17, Ribas 16.71 ± 9.53",
    7: "Spohn 18.61 ± 3.17, Ribas 12.35 ± 10.70",
}
CENTRAL = {
    (2, "A"): "34.58 ± 3.23",
    (2, "B"): "42.58 ± 4.48",
    (7, "A"): "18.47 ± 3.22",
    (7, "B"): "26.42 ± 4.56",
}
"""What the papers measured with 1,000 publications, ms."""


@dataclass(slots=True)
class Setting:
    """One publisher, its subscribers, and what each of them is called."""

    publisher: RecordingClient
    subscribers: dict[str, RecordingClient]
    papers: dict[str, str]

    async def start(self) -> None:
        """Connect all, one after the other."""
        for client in (*self.subscribers.values(), self.publisher):
            await client.start()

    async def stop(self) -> None:
        clients = [self.publisher, *self.subscribers.values()]
        await asyncio.gather(*(client.stop() for client in clients))

    async def play(self, chance: random.Random) -> dict[str, list[float]]:
        """Publish; return the delays in ms that each subscriber saw."""
        loop = asyncio.get_running_loop()
        sent: list[float] = []
        for number in range(COUNT):
            await asyncio.sleep(chance.uniform(*PAUSE_S))
            sent.append(loop.time())
            self.publisher.publish(TOPIC, b"%064d" % number)
        await asyncio.sleep(LATE_S)
        return {
            name: [(got.at - sent[int(got.payload)]) * 1000 for got in client.arrivals]
            for name, client in self.subscribers.items()
        }


def measure() -> dict[str, object]:
    """Mean delay on the papers' grid, beside one broker and beside the papers' tables."""
    answers: dict[str, object] = {}
    for delay_ms in LINK_DELAYS_MS:
        answers |= asyncio.run(_measure(delay_ms))
    return answers


async def _measure(delay_ms: float) -> dict[str, object]:
    async with _federated(delay_ms) as federated, _central(2, delay_ms) as far:
        async with _central(7, delay_ms) as near:
            settings = [federated, far, near]
            found = await asyncio.gather(*(each.play(random.Random(1)) for each in settings))
    answers: dict[str, object] = {}
    for setting, delays in zip(settings, found, strict=True):
        for name, values in delays.items():
            mean, spread = statistics.mean(values), statistics.stdev(values)
            middle, count = statistics.median(values), len(values)
            say(
                f"links of {delay_ms:g} ms, {name}",
                f"{mean:6.2f} ± {spread:5.2f} ms, median {middle:6.2f}, {count} of {COUNT}"
                f"   (paper: {setting.papers[name]})",
            )
            answers[f"{delay_ms:g} ms, {name}"] = {
                "mean_ms": round(mean, 2),
                "stdev_ms": round(spread, 2),
                "median_ms": round(middle, 2),
                "arrived": count,
            }
    return answers


@asynccontextmanager
async def _federated(delay_ms: float) -> AsyncIterator[Setting]:
    federation = LocalFederation(
        GRID, {"HANSA_LOG": "warning"}, link_profile=LinkProfile(delay_s=delay_ms / 1000)
    )
    addresses = [BrokerAddress("127.0.0.1", node.broker.port) for node in federation.nodes]
    names = {number: f"federation, node {number}" for number in SINKS}
    setting = Setting(
        RecordingClient(addresses[SOURCE], "publisher"),
        {
            names[number]: RecordingClient(addresses[number], "subscriber", TOPIC)
            for number in SINKS
        },
        {names[number]: FEDERATED[number] for number in SINKS},
    )
    try:
        await federation.start()
        await federation.wait_until_converged()
        for client in setting.subscribers.values():  # the first one's node becomes the core
            await client.start()
            await federation.wait_until_converged()
        await setting.publisher.start()
        await _say_mesh(federation)
        yield setting
    finally:
        await setting.stop()
        await federation.stop()


async def _say_mesh(federation: LocalFederation) -> None:
    statuses: list[Any] = [await asyncio.to_thread(node.status) for node in federation.nodes]
    groups = [status["groups"].get(TOPIC) for status in statuses]
    members = [str(number) for number, group in enumerate(groups) if group and group["member"]]
    core = next(group["core"] for group in groups if group)
    number = [status["node"] for status in statuses].index(core)
    say("mesh members", f"{' '.join(members)}, core {number}   (paper: 1 2 4 5 7 8, core 2)")


@asynccontextmanager
async def _central(at: int, delay_ms: float) -> AsyncIterator[Setting]:
    directory = Path(tempfile.mkdtemp(prefix="hansa-bench-"))
    broker = Mosquitto(directory, free_port())
    hops = hop_distances(GRID, SOURCE)[at]
    path = Relay(broker.port, hops * delay_ms / 1000)
    names = {turn: f"one broker at node {at}, subscriber {turn}" for turn in "AB"}
    setting: Setting | None = None
    try:
        await broker.start()
        reached = await path.start() if delay_ms else broker.port
        setting = Setting(
            RecordingClient(BrokerAddress("127.0.0.1", reached), "publisher"),
            {
                name: RecordingClient(BrokerAddress("127.0.0.1", broker.port), turn, TOPIC)
                for turn, name in names.items()
            },
            {name: CENTRAL[at, turn] for turn, name in names.items()},
        )
        await setting.start()
        yield setting
    finally:
        if setting is not None:
            await setting.stop()
        await path.stop()
        await broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
