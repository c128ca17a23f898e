"""What is done to links while clients publish, as in `troubles`: broken, clogged, long, narrow, and
whole parts of a federation that do not reach each other."""

import asyncio
import random

from hansa.testbed.chaos.agent_faults import at_once, churn, cores_now
from hansa.testbed.chaos.links import NARROW
from hansa.testbed.chaos.testbench import Stage
from hansa.testbed.link_conditions import Direction, Line


async def cuts(stage: Stage, chance: random.Random) -> None:
    """F5: nothing passes, and nobody is told."""
    while True:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        link = chance.choice(stage.links.all)
        stage.links.cut(*link)
        await asyncio.sleep(chance.choice((0.1, 1.0, 5.0)))
        stage.links.mend(*link)


async def resets(stage: Stage, chance: random.Random) -> None:
    """F5: connections break off, towards both ends or towards one."""
    while True:
        await asyncio.sleep(chance.uniform(0.1, 1.0))
        link = chance.choice(stage.links.all)
        if chance.random() < 0.5:
            stage.links.reset(*link)
        else:
            stage.links.strand(*link)


async def one_way(stage: Stage, chance: random.Random) -> None:
    """F5: bytes pass in one direction only, or in none, and who dials hears nothing."""
    while True:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        link = chance.choice(stage.links.all)
        ways = chance.choice(((Direction.OUT,), (Direction.BACK,), tuple(Direction)))
        stage.links.swallow(*link, ways)
        await asyncio.sleep(chance.choice((0.5, 2.0, 6.0)))
        stage.links.mend(*link)


async def flaps(stage: Stage, chance: random.Random) -> None:
    """F5: a link comes and goes."""
    while True:
        link = chance.choice(stage.links.all)
        hz = chance.uniform(1.0, 10.0)
        for _ in range(int(3 * hz)):
            stage.links.cut(*link)
            stage.links.reset(*link)
            await asyncio.sleep(0.5 / hz)
            stage.links.mend(*link)
            await asyncio.sleep(0.5 / hz)


async def halves(stage: Stage, chance: random.Random) -> None:
    """F6: two sides, now and then with one node that still reaches both."""
    while True:
        side = set(chance.sample(stage.places, len(stage.places) // 2))
        bridge = chance.choice((None, chance.choice(stage.places)))
        stage.links.part(side, bridge)
        await asyncio.sleep(chance.uniform(5.0, 10.0))
        stage.links.heal()
        await asyncio.sleep(chance.uniform(2.0, 4.0))


async def parted(stage: Stage, chance: random.Random) -> None:
    """F6: one partition, from the beginning to the end."""
    stage.links.part(stage.sides[0])
    await asyncio.Event().wait()


async def parted_churn(stage: Stage, chance: random.Random) -> None:
    """F15: clients come and go while the federation falls in two, again and again."""
    await at_once(stage, chance, halves, churn)


async def lonely(stage: Stage, chance: random.Random) -> None:
    """F6: one node is parted from all others, every other time a core."""
    while True:
        leading = await cores_now(stage) if chance.random() < 0.5 else []
        stage.links.part({chance.choice(leading or list(stage.places))})
        await asyncio.sleep(chance.uniform(4.0, 8.0))
        stage.links.heal()
        await asyncio.sleep(chance.uniform(1.0, 3.0))


def _half_of_the_links(stage: Stage, chance: random.Random) -> list[tuple[int, int]]:
    """Half of them, and at least one."""
    return chance.sample(stage.links.all, max(1, len(stage.links.all) // 2))


async def clogs(stage: Stage, chance: random.Random) -> None:
    """F7: links clog one by one, and clear in another order."""
    while True:
        links = _half_of_the_links(stage, chance)
        for link in links:
            stage.links.cut(*link)
            await asyncio.sleep(0.5)
        chance.shuffle(links)
        for link in links:
            stage.links.mend(*link)
            await asyncio.sleep(0.5)


async def delays(stage: Stage, chance: random.Random) -> None:
    """F8: links are long, uneven, or narrow."""
    while True:
        links = _half_of_the_links(stage, chance)
        for link in links:
            line = Line(chance.uniform(0.0, 2.0), chance.uniform(0.0, 0.5))
            narrow = Line(chance.uniform(0.0, 0.2), bytes_per_s=NARROW)
            stage.links.worsen(*link, chance.choice((line, narrow)))
        await asyncio.sleep(chance.uniform(3.0, 8.0))
        for link in links:
            stage.links.restore(*link)
        await asyncio.sleep(chance.uniform(0.5, 2.0))


async def losses(stage: Stage, chance: random.Random) -> None:
    """F8 with datagrams: some are lost, come late, out of order or twice."""
    while True:
        for link in stage.links.all:
            loss, copies = chance.uniform(0.0, 0.3), chance.uniform(0.0, 0.1)
            line = Line(0.0, chance.uniform(0.0, 0.05), loss=loss, copies=copies)
            stage.links.worsen(*link, line)
        await asyncio.sleep(chance.uniform(3.0, 6.0))
