"""Memory of an agent over ten minutes of load, new topics and changing subscriptions.

Three brokers in a ring. A sensor publishes to ever new topics, all of which cross; a client changes
its subscriptions all the time, others come, subscribe and leave. Caches of topics and of groups are
bounded, and filled within the first four minutes; after that, memory that grows is a leak.
"""

import asyncio
from itertools import count
from pathlib import Path

from bench.console import say
from bench.live import federation, pids_of
from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.clients import RecordingClient
from hansa.testbed.federation import LocalFederation

TICK_S = 0.02
PER_TICK = 20
"""Publications per tick, each to a topic that was never used before."""
CHURN_S = 0.02
CHURN_HELD = 105
"""Filters that the client with changing subscriptions holds at a time."""
VISITOR_S = 0.5
MINUTE_S = 60.0


def measure(minutes: int = 10) -> dict[str, object]:
    """Resident memory of three agents, minute by minute, under load and churn."""
    return asyncio.run(_measure(minutes))


async def _measure(minutes: int) -> dict[str, object]:
    async with federation("ring:3") as running:
        agents = {name: pid for name, pid in pids_of(running).items() if "agent" in name}
        addresses = [BrokerAddress("127.0.0.1", node.broker.port) for node in running.nodes]
        sensor, reader = (
            RecordingClient(addresses[0], "sensor"),
            RecordingClient(addresses[1], "reader", "soak/#"),
        )
        changing = RecordingClient(addresses[2], "changing")
        for client in (sensor, reader, changing):
            await client.start()
        await running.wait_until_converged()
        published = [0]
        work = [
            asyncio.create_task(_publish(sensor, reader, published)),
            asyncio.create_task(_change(changing)),
            asyncio.create_task(_visit(addresses[0])),
        ]
        try:
            rows = await _watch(agents, minutes, published, work)
            dropped = await _dropped(running)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await asyncio.gather(*(each.stop() for each in (sensor, reader, changing)))
    arrived = reader.arrival_count
    say("publications that crossed", f"{arrived:,} of {published[0]:,}; dropped {dropped}")
    return {"rss_mb": rows, "published": published[0], "arrived": arrived, "dropped": dropped}


async def _watch(
    agents: dict[str, int], minutes: int, published: list[int], work: list[asyncio.Task[None]]
) -> list[list[float]]:
    """Say and return the memory of each agent, at the start and after every minute."""
    rows = []
    for minute in range(minutes + 1):
        if minute:
            ended, _ = await asyncio.wait(work, timeout=MINUTE_S)
            for task in ended:
                task.result()  # none of them ends unless it failed
        rows.append([_resident_mb(pid) for pid in agents.values()])
        memory = "  ".join(f"{mb:6.1f}" for mb in rows[-1])
        say(f"after {minute} min, {published[0]:,} publications", f"{memory} MB")
    return rows


async def _publish(sensor: RecordingClient, reader: RecordingClient, published: list[int]) -> None:
    while True:
        for number in range(published[0], published[0] + PER_TICK):
            sensor.publish(f"soak/{number % 100}/{number}", b"x" * 64)
        published[0] += PER_TICK
        reader.arrivals.clear()
        await asyncio.sleep(TICK_S)


async def _change(client: RecordingClient) -> None:
    """Subscribe and unsubscribe; every tenth filter overlaps with the load."""
    for number in count():
        client.subscribe(_filter(number))
        if number >= CHURN_HELD:
            client.unsubscribe(_filter(number - CHURN_HELD))
        client.filters = ()
        client.granted.clear()
        await asyncio.sleep(CHURN_S)


def _filter(number: int) -> str:
    return f"soak/{number % 100}/#" if number % 10 == 0 else f"churn/{number}/+"


async def _visit(address: BrokerAddress) -> None:
    """Connect, subscribe, disconnect."""
    for number in count():
        visitor = RecordingClient(address, f"visitor-{number}", f"visit/{number}", "visit/all")
        await visitor.start()
        await asyncio.sleep(VISITOR_S)
        await visitor.stop()


async def _dropped(running: LocalFederation) -> int:
    total = 0
    for node in running.nodes:
        counters = (await asyncio.to_thread(node.status))["counters"]
        assert isinstance(counters, dict)
        total += sum(many for name, many in counters.items() if name.startswith("dropped"))
    return total


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(kilobytes) / 1024
