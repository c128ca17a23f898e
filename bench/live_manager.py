"""Bevilaqua 2023 through the manager, live: how soon a node whose neighbours all stop takes part
again, with the manager and without it; and the delay over one hop and three of twelve."""

import asyncio
from typing import Any

from bench.console import say
from bench.live_bevilaqua import delays
from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.clients import NumberedStream, RecordingClient, wait_until
from hansa.testbed.managed_federation import ManagedFederation
from hansa.topology.graph import hops_from, make_graph

NINE, TWELVE = 9, 12
TOPIC = "federated/data"
INTERVAL_S = 0.01
TIMEOUT_S = 60.0
BEFORE_S = 1.0


def measure() -> dict[str, object]:
    """Seconds until a node that lost all neighbours gets publications again; delays of twelve."""
    return {**asyncio.run(_availability()), **asyncio.run(_delay())}


# ---------------------------------------------------------------- availability


async def _availability() -> dict[str, object]:
    running = ManagedFederation(NINE, {"HANSA_LOG": "warning"})
    last = NINE - 1
    reader = RecordingClient(_broker(running, last), "reader", TOPIC)
    answers: dict[str, object] = {}
    try:
        await running.start()
        await running.wait_until_converged()
        await reader.start()
        await running.wait_until_converged()
        for name in ("with the manager", "without it"):
            stopped, gap = await _lose_neighbours(running, reader)
            say(
                f"{stopped}, all neighbours of 8, stopped {name}",
                f"{gap:.2f} s without publications",
            )
            answers[f"re-linked {name}, s"] = round(gap, 3)
            for number in stopped:
                await running.start_agent(number)
            await running.wait_until_converged()
            await running.kill_manager()
    finally:
        await reader.stop()
        await running.stop()
    return answers


def _broker(running: ManagedFederation, number: int) -> BrokerAddress:
    return BrokerAddress("127.0.0.1", running.nodes[number].broker.port)


async def _lose_neighbours(
    running: ManagedFederation, reader: RecordingClient
) -> tuple[list[int], float]:
    """Stop all neighbours of the last node while another publishes; return them, and the longest
    time without a publication from then on."""
    near = await _neighbours(running)
    source = next(number for number in range(NINE - 1) if number not in near)
    writer = RecordingClient(_broker(running, source), "writer")
    await writer.start()
    stream = NumberedStream(writer, TOPIC, INTERVAL_S)
    before = len(reader.arrivals)
    if not await wait_until(lambda: len(reader.arrivals) > before, TIMEOUT_S):
        raise RuntimeError("no publication arrives")
    loop = asyncio.get_running_loop()
    stopped = await _neighbours(running)  # nodes may have linked to it since, by their own decision
    if source in stopped:
        raise RuntimeError("the publisher's node has become a neighbour")
    for number in stopped:
        agent = running.nodes[number].agent
        assert agent is not None
        agent.kill()
    began = loop.time()
    await asyncio.sleep(BEFORE_S)  # publications in flight have arrived by then
    count = len(reader.arrivals)
    await wait_until(lambda: len(reader.arrivals) > count, TIMEOUT_S)
    await stream.stop()
    await writer.stop()
    times = [began, *(each.at for each in reader.arrivals if each.at > began)]
    return stopped, max(later - earlier for earlier, later in zip(times, times[1:], strict=False))


async def _neighbours(running: ManagedFederation) -> list[int]:
    page: Any = await asyncio.to_thread(running.nodes[-1].status)
    return sorted(int(page["names"][node]) for node in page["neighbours"])


# ---------------------------------------------------------------- delay


async def _delay() -> dict[str, object]:
    manager = {"FED_REDUNDANCY": "3", "TOP_MAX_REDUNDANCY": "5"}
    running = ManagedFederation(TWELVE, {"HANSA_LOG": "warning"}, manager)
    try:
        await running.start()
        await running.wait_until_converged()
        source, near, far = _one_and_three_hops(running)
        say("publisher, one hop, three hops", f"{source}, {near}, {far}")
        return await delays(running, source, {near: 1, far: 3})
    finally:
        await running.stop()


def _one_and_three_hops(running: ManagedFederation) -> tuple[int, int, int]:
    """Return a node with one that is one hop away and one that is three, as in the paper."""
    links = [(str(a), str(b)) for a in range(TWELVE) for b in running.neighbours_of(a) if a < b]
    graph = make_graph(map(str, range(TWELVE)), links)
    for name in reversed(graph):
        hops = hops_from(graph, name)
        if 3 in hops.values():
            found = {count: int(other) for other, count in hops.items()}
            return int(name), found[1], found[3]
    raise RuntimeError("no two nodes are three hops apart")
