"""Bevilaqua 2023, live: twelve federators, redundancy 3, delay over one hop and over three."""

import asyncio
import statistics

from bench.console import say
from bench.live_antonielli import installed
from hansa.agent.broker.connection import BrokerAddress
from hansa.simulator.papers.bevilaqua import (
    HOPS_BY_NODE,
    INTERVAL_S,
    PAPER_DELAY_MS,
    PUBLICATIONS,
    TWELVE,
)
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation
from hansa.testbed.clients import wait_until
from hansa.testbed.federation import LocalFederation

SOURCE = 11
LAST_S = 30.0


def measure() -> dict[str, object]:
    """Mean delay of 1,000 publications at QoS 1 from node 11 to 0 and 5, beside the paper."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    settings = {"HANSA_LOG": "warning", "HANSA_PROTOCOL_REDUNDANCY": "3"}
    running = LocalFederation(TWELVE, settings)
    try:
        await running.start()
        await running.wait_until_converged()
        return await delays(running, SOURCE, HOPS_BY_NODE)
    finally:
        await running.stop()


async def delays(running: LocalFederation, source: int, hops: dict[int, int]) -> dict[str, object]:
    """Publish at one node; report the delay at others, by number of hops."""
    events: list[HistoryEvent] = []
    places = [BrokerAddress("127.0.0.1", node.broker.port) for node in running.nodes]
    readers = {n: HistorySubscriber(places[n], f"sub-{n}", ("data",), events.append) for n in hops}
    rate = 1 / INTERVAL_S
    writer = HistoryPublisher(places[source], "pub", {"data": 1}, rate, events.append, PUBLICATIONS)
    for number, reader in readers.items():  # the first one's node becomes the core
        await reader.start()
        await installed(running, [number], "data")
    await writer.start()
    writer.start_publishing()
    await wait_until(
        lambda: all(each.arrival_count >= PUBLICATIONS for each in readers.values()),
        PUBLICATIONS * INTERVAL_S + LAST_S,
    )
    await asyncio.gather(*(each.stop() for each in (writer, *readers.values())))
    return _report(events, hops)


def _report(events: list[HistoryEvent], hops_of: dict[int, int]) -> dict[str, object]:
    answers: dict[str, object] = {}
    published = {each.counter: each.at for each in events if each.op is HistoryOperation.INVOKE}
    paper = {HOPS_BY_NODE[node]: ms for node, ms in PAPER_DELAY_MS.items()}
    for node, hops in hops_of.items():
        passed = [
            (each.at - published[each.counter]) * 1_000
            for each in events
            if each.op is HistoryOperation.DELIVER and each.subscriber == f"sub-{node}"
        ]
        mean, middle = statistics.mean(passed), statistics.median(passed)
        say(
            f"node {node}, {hops} hop{'s' * (hops > 1)} away",
            f"{mean:7.2f} ± {statistics.stdev(passed):.2f} ms, median {middle:.2f},"
            f" {len(passed)} of {PUBLICATIONS} arrived   (paper: {paper[hops]} ms)",
        )
        answers[f"node {node}"] = {
            "mean_ms": round(mean, 2),
            "stdev_ms": round(statistics.stdev(passed), 2),
            "median_ms": round(middle, 2),
            "arrived": len(passed),
            "paper_ms": paper[hops],
        }
    return answers
