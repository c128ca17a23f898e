"""Faults of links (F5 to F8): cut, reset, clogged, degraded; and partitions of the federation."""

import asyncio
import random

from hansa.testbed.chaos.actuators.links import NARROW_BYTES_PER_S
from hansa.testbed.chaos.faults.agents import current_cores
from hansa.testbed.chaos.faults.brokers import churn_subscribers
from hansa.testbed.chaos.faults.runner import run_together
from hansa.testbed.chaos.federation import ChaosFederation
from hansa.testbed.link_conditions import Direction, LinkConditions


async def cut_links(chaos: ChaosFederation, rng: random.Random) -> None:
    """F5: nothing passes, and neither end notices at once."""
    while True:
        await asyncio.sleep(rng.uniform(0.2, 1.0))
        link = rng.choice(chaos.links.pairs)
        chaos.links.cut(*link)
        await asyncio.sleep(rng.choice((0.1, 1.0, 5.0)))
        chaos.links.unblock(*link)


async def reset_links(chaos: ChaosFederation, rng: random.Random) -> None:
    """F5: connections are reset at both ends, or become half-open."""
    while True:
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        link = rng.choice(chaos.links.pairs)
        if rng.random() < 0.5:
            chaos.links.reset(*link)
        else:
            chaos.links.make_half_open(*link)


async def cut_one_way(chaos: ChaosFederation, rng: random.Random) -> None:
    """F5: bytes pass in one direction only, or in none; new connections get no answer."""
    while True:
        await asyncio.sleep(rng.uniform(0.2, 1.0))
        link = rng.choice(chaos.links.pairs)
        directions = rng.choice(((Direction.OUT,), (Direction.BACK,), tuple(Direction)))
        chaos.links.black_hole(*link, directions)
        await asyncio.sleep(rng.choice((0.5, 2.0, 6.0)))
        chaos.links.unblock(*link)


async def flap_links(chaos: ChaosFederation, rng: random.Random) -> None:
    """F5: a link fails 1 to 10 times a second."""
    while True:
        link = rng.choice(chaos.links.pairs)
        hz = rng.uniform(1.0, 10.0)
        for _ in range(int(3 * hz)):
            chaos.links.cut(*link)
            chaos.links.reset(*link)
            await asyncio.sleep(0.5 / hz)
            chaos.links.unblock(*link)
            await asyncio.sleep(0.5 / hz)


async def partition_in_halves(chaos: ChaosFederation, rng: random.Random) -> None:
    """F6: two sides, sometimes with one node that still reaches both."""
    while True:
        side = set(rng.sample(chaos.places, len(chaos.places) // 2))
        bridge = rng.choice((None, rng.choice(chaos.places)))
        chaos.links.partition(side, bridge)
        await asyncio.sleep(rng.uniform(5.0, 10.0))
        chaos.links.heal()
        await asyncio.sleep(rng.uniform(2.0, 4.0))


async def partition_until_end(chaos: ChaosFederation, rng: random.Random) -> None:
    """F6: one partition, from start to end."""
    chaos.links.partition(chaos.sides[0])
    await asyncio.Event().wait()


async def churn_during_partitions(chaos: ChaosFederation, rng: random.Random) -> None:
    """F15: clients connect and disconnect during repeated partitions."""
    await run_together(chaos, rng, partition_in_halves, churn_subscribers)


async def isolate_nodes(chaos: ChaosFederation, rng: random.Random) -> None:
    """F6: one node is isolated, half of the time a core."""
    while True:
        cores = await current_cores(chaos) if rng.random() < 0.5 else []
        chaos.links.partition({rng.choice(cores or list(chaos.places))})
        await asyncio.sleep(rng.uniform(4.0, 8.0))
        chaos.links.heal()
        await asyncio.sleep(rng.uniform(1.0, 3.0))


def _half_of_the_links(chaos: ChaosFederation, rng: random.Random) -> list[tuple[int, int]]:
    return rng.sample(chaos.links.pairs, max(1, len(chaos.links.pairs) // 2))


async def clog_links(chaos: ChaosFederation, rng: random.Random) -> None:
    """F7: links clog one by one, and clear in another order."""
    while True:
        links = _half_of_the_links(chaos, rng)
        for link in links:
            chaos.links.cut(*link)
            await asyncio.sleep(0.5)
        rng.shuffle(links)
        for link in links:
            chaos.links.unblock(*link)
            await asyncio.sleep(0.5)


async def degrade_links(chaos: ChaosFederation, rng: random.Random) -> None:
    """F8: links get delay and jitter, or little bandwidth."""
    while True:
        links = _half_of_the_links(chaos, rng)
        for link in links:
            conditions = LinkConditions(rng.uniform(0.0, 2.0), rng.uniform(0.0, 0.5))
            narrow = LinkConditions(rng.uniform(0.0, 0.2), bytes_per_s=NARROW_BYTES_PER_S)
            chaos.links.degrade(*link, rng.choice((conditions, narrow)))
        await asyncio.sleep(rng.uniform(3.0, 8.0))
        for link in links:
            chaos.links.restore_conditions(*link)
        await asyncio.sleep(rng.uniform(0.5, 2.0))


async def lose_datagrams(chaos: ChaosFederation, rng: random.Random) -> None:
    """F8 with datagrams: some are lost, delayed, reordered or duplicated."""
    while True:
        for link in chaos.links.pairs:
            loss, copies = rng.uniform(0.0, 0.3), rng.uniform(0.0, 0.1)
            conditions = LinkConditions(0.0, rng.uniform(0.0, 0.05), loss=loss, duplicate=copies)
            chaos.links.degrade(*link, conditions)
        await asyncio.sleep(rng.uniform(3.0, 6.0))
