"""Antonielli 2020, live: five brokers in a tree, a star and a line, three localities, QoS 1.

The paper's three forwarding schemes are ours under other names, and C is the root, as there. Ten
or a hundred publications a second, as there; bytes, CPU and delays include everything that runs:
brokers, agents, control traffic.
"""

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bench.console import say
from bench.live import cpu_seconds, pids_of
from bench.live_locality import LOCALITIES, TOPOLOGIES, C
from hansa.agent.broker.connection import BrokerAddress
from hansa.simulator.topologies import make_topology
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation
from hansa.testbed.clients import RecordingClient, wait_until
from hansa.testbed.federation import LocalFederation
from hansa.testbed.mosquitto import Mosquitto

STRATEGIES = {
    "tree-subscriptions": "subscription table",
    "tree-flood": "flooding",
    "bridge-flood": "benchmark",
}
PER_SECOND = {50: 10.0, 500: 100.0, 1_500: 100.0}
"""How fast so many publications are made."""
PAPER_KB = {
    "tree-subscriptions": {"100 %": 500, "0 %": 800, "n %": 1_700},
    "tree-flood": {"100 %": 1_000, "0 %": 1_000, "n %": 1_700},
    "bridge-flood": {"100 %": 1_600, "0 %": 1_500, "n %": 2_400},
}
"""Bytes that all brokers sent for 1,500 publications on the tree."""
PAPER_LAST_S: dict[tuple[int, str, str], tuple[float, float, float]] = {
    (50, "tree", "100 %"): (5.632, 6.758, 6.811),
    (50, "tree", "0 %"): (6.78, 7.46, 7.473),
    (50, "star", "100 %"): (5.131, 5.698, 6.532),
    (50, "star", "0 %"): (6.607, 6.736, 6.577),
    (50, "line", "100 %"): (5.267, 6.514, 6.726),
    (50, "line", "0 %"): (6.801, 8.769, 7.487),
    (500, "tree", "100 %"): (13.274, 17.35, 17.631),
    (500, "tree", "0 %"): (18.311, 18.324, 19.338),
    (500, "star", "100 %"): (13.649, 18.012, 21.59),
    (500, "star", "0 %"): (16.77, 17.125, 19.9),
    (500, "line", "100 %"): (14.66, 18.905, 24.97),
    (500, "line", "0 %"): (17.524, 21.463, 29.696),
}
"""Its tables 1 to 6: seconds until the last one arrived, with each of STRATEGIES."""

SYS_S = 1.2
"""Seconds after which a broker's own counters have been written anew."""
SAMPLE_S = 0.5
LAST_S = 30.0
NEW_TOPICS = 20
QUIET_S = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    """Cost of one run."""

    link_kb: float
    """Bytes between agents."""
    broker_kb: float
    """Bytes that brokers sent to clients and to their agents."""
    cpu_mean: float
    """Percent of a core, all brokers and agents together."""
    cpu_peak: float
    delay_ms: float | None
    """None, as the following, if nothing arrived."""
    delay_p95_ms: float | None
    last_s: float | None
    """From the first publication to the last arrival."""
    missing: int


def measure() -> dict[str, object]:
    """Bytes, CPU, delay and time to the last arrival at QoS 1, beside the paper; 12 minutes."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    for shape in TOPOLOGIES:
        for strategy in STRATEGIES:
            async with _federation(shape, strategy) as running:
                for locality, (sources, targets) in LOCALITIES.items():
                    for count in PER_SECOND:
                        topic = f"{locality[0]}{count}"
                        found = await _play(running, topic, sources, targets, count)
                        name = f"{shape}, {STRATEGIES[strategy]}, {locality}, {count}"
                        answers[name] = asdict(found)
                        _show(shape, strategy, locality, count, found)
                if shape == "tree":
                    answers |= await _notices(running, strategy)
    return answers


def _show(shape: str, strategy: str, locality: str, count: int, found: Run) -> None:
    paper = ""
    if (shape, count) == ("tree", 1_500):
        paper = f"   (paper: {PAPER_KB[strategy][locality]:,} kB)"
    elif theirs := PAPER_LAST_S.get((count, shape, locality)):
        paper = f"   (paper: {theirs[list(STRATEGIES).index(strategy)]} s)"
    arrivals = "nothing arrived"
    if found.last_s is not None:
        arrivals = (
            f"{found.delay_ms:6.1f} ms (95 %: {found.delay_p95_ms:.1f}), last {found.last_s:5.2f} s"
        )
    say(
        f"{shape}, {strategy}, {locality}, {count:,}",
        f"{found.link_kb:7,.0f} kB on links, {found.broker_kb:7,.0f} kB by brokers, CPU"
        f" {found.cpu_mean:3.0f} % (peak {found.cpu_peak:3.0f}), {arrivals},"
        f" missing {found.missing}{paper}",
    )


@asynccontextmanager
async def _federation(shape: str, strategy: str) -> AsyncIterator[LocalFederation]:
    settings = {"HANSA_LOG": "warning", "HANSA_PROTOCOL_STRATEGY": strategy}
    running = LocalFederation(make_topology(shape, 5, TOPOLOGIES[shape]), settings)
    running.nodes[C].environment["HANSA_CAPACITY"] = "2"
    for node in running.nodes:
        assert isinstance(node.broker, Mosquitto)
        node.broker.extra_lines = ("sys_interval 1",)
    try:
        await running.start()
        await running.wait_until_converged()
        yield running
    finally:
        await running.stop()


async def _play(
    running: LocalFederation, topic: str, sources: list[int], targets: list[int], count: int
) -> Run:
    """Publish an equal part from each source, and wait for the last arrival everywhere."""
    events: list[HistoryEvent] = []
    places = [BrokerAddress("127.0.0.1", node.broker.port) for node in running.nodes]
    readers = [
        HistorySubscriber(places[n], f"sub-{topic}-{n}", (topic,), events.append) for n in targets
    ]
    share = count // len(sources)
    writers = [
        HistoryPublisher(
            places[n],
            f"pub-{topic}-{n}",
            {topic: 1},
            PER_SECOND[count] / len(sources),
            events.append,
            share,
        )
        for n in sources
    ]
    expected = share * len(sources) * len(targets)
    await asyncio.gather(*(each.start() for each in (*readers, *writers)))
    await installed(running, targets, topic)
    before = await _sent(running)
    meter = asyncio.create_task(_watch_cpu([*pids_of(running).values()]))
    for writer in writers:
        writer.start_publishing()
    patience = count / PER_SECOND[count] + LAST_S
    await wait_until(lambda: sum(each.arrival_count for each in readers) >= expected, patience)
    meter.cancel()
    shares = (await asyncio.gather(meter, return_exceptions=True))[0]
    await asyncio.sleep(SYS_S)
    after = await _sent(running)
    await asyncio.gather(*(each.stop() for each in (*readers, *writers)))
    assert isinstance(shares, list)
    return _sum_up(events, expected, [b - a for a, b in zip(before, after, strict=True)], shares)


def _sum_up(
    events: Sequence[HistoryEvent], expected: int, sent: Sequence[int], cpu: Sequence[float]
) -> Run:
    published = {(e.stream, e.counter): e.at for e in events if e.op is HistoryOperation.INVOKE}
    arrived = [e for e in events if e.op is HistoryOperation.DELIVER]
    delays = sorted((e.at - published[e.stream, e.counter]) * 1_000 for e in arrived)
    return Run(
        link_kb=round(sent[0] / 1_000, 1),
        broker_kb=round(sent[1] / 1_000, 1),
        cpu_mean=round(statistics.mean(cpu), 1),
        cpu_peak=round(max(cpu), 1),
        delay_ms=round(statistics.mean(delays), 2) if delays else None,
        delay_p95_ms=round(delays[int(0.95 * len(delays))], 2) if delays else None,
        last_s=round(max(e.at for e in arrived) - min(published.values()), 3) if arrived else None,
        missing=expected - len(arrived),
    )


async def _watch_cpu(pids: list[int]) -> list[float]:
    """Record the CPU of all processes, in percent of a core, until cancelled."""
    loop = asyncio.get_running_loop()
    shares: list[float] = []
    before, began = sum(map(cpu_seconds, pids)), loop.time()
    try:
        while True:
            await asyncio.sleep(SAMPLE_S)
            now, at = sum(map(cpu_seconds, pids)), loop.time()
            shares.append(100 * (now - before) / (at - began))
            before, began = now, at
    except asyncio.CancelledError:
        return shares or [100 * (sum(map(cpu_seconds, pids)) - before) / (loop.time() - began)]


async def installed(running: LocalFederation, targets: list[int], topic: str) -> None:
    """Wait until these nodes' interest in a topic is in force everywhere."""

    def holds() -> bool:
        statuses: list[Any] = [running.nodes[number].status() for number in targets]
        return all(topic in p["interest"]["local"] and p["interest"]["installed"] for p in statuses)

    while not await asyncio.to_thread(holds):
        await asyncio.sleep(0.05)


async def _sent(running: LocalFederation) -> tuple[int, int]:
    """Return the bytes that agents sent to each other so far, and those that brokers sent."""
    links, _ = await asyncio.to_thread(_links, running)
    brokers = 0
    for node in running.nodes:
        place = BrokerAddress("127.0.0.1", node.broker.port)
        reader = RecordingClient(place, "reads-sys", "$SYS/broker/bytes/sent")
        await reader.start()
        brokers += await _counter(reader)
        await reader.stop()
    return links, brokers


async def _counter(reader: RecordingClient) -> int:
    await wait_until(lambda: bool(reader.arrivals), SYS_S + 1.0)
    return int(reader.arrivals[-1].payload)


def _links(running: LocalFederation) -> tuple[int, int]:
    statuses: list[Any] = [node.status() for node in running.nodes]
    links = [link for page in statuses for link in page["neighbours"].values()]
    return sum(link["bytes_out"] for link in links), sum(link["frames_out"] for link in links)


async def _notices(running: LocalFederation, strategy: str) -> dict[str, object]:
    """Count the frames caused by a new topic, with interest at one or at all brokers."""
    loop = asyncio.get_running_loop()
    answers: dict[str, object] = {}
    nodes = len(running.nodes)
    for wanting in (1, nodes):
        began, (_, first) = loop.time(), await asyncio.to_thread(_links, running)
        await asyncio.sleep(QUIET_S)
        _, before = await asyncio.to_thread(_links, running)
        rate = (before - first) / (loop.time() - began)
        began = loop.time()
        places = [
            BrokerAddress("127.0.0.1", running.nodes[number].broker.port)
            for number in range(nodes - wanting, nodes)
        ]
        clients = [RecordingClient(place, f"wants-{wanting}") for place in places]
        await asyncio.gather(*(client.start() for client in clients))
        for number in range(NEW_TOPICS):
            topic = f"new/{wanting}/{number}"
            for client in clients:
                client.subscribe(topic)
            await installed(running, [*range(nodes - wanting, nodes)], topic)
        _, after = await asyncio.to_thread(_links, running)
        frames = (after - before - rate * (loop.time() - began)) / NEW_TOPICS
        await asyncio.gather(*(client.stop() for client in clients))
        theirs = wanting * (nodes - 1)
        say(
            f"{strategy}, frames for a topic that {wanting} of {nodes} want",
            f"{frames:5.1f}   (paper: {theirs} notices)",
        )
        answers[f"frames per new topic, {strategy}, {wanting} of {nodes}"] = round(frames, 1)
    return answers
