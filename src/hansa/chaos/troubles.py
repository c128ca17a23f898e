"""What is done to a federation while clients publish: one small function per kind of trouble.

Each goes on for as long as it is let; chance comes from the seed. What it needs of brokers, agents
and links is in the hands of the stage, which can mend it at any time.
"""

import asyncio
import random
from typing import Protocol

from hansa.agent.custody.points import Point
from hansa.chaos.brokers import STINGY
from hansa.chaos.clients import Subscriber
from hansa.chaos.stage import Stage
from hansa.errors import HansaError
from hansa.local.line import Direction, Line


class Trouble(Protocol):
    """Harms for as long as it is let."""

    __name__: str

    async def __call__(self, stage: Stage, chance: random.Random, /) -> None:
        """Whom it hits is chance."""


VISITORS = 8
"""Clients that come and go together."""

NARROW = 8_000.0
"""Bytes per second: 64 kbit/s."""


async def suffer(trouble: Trouble, stage: Stage, chance: random.Random, seconds: float) -> None:
    """Let a trouble go on for so long, then mend everything. If it fails by itself, so does this:
    a federation that nobody harmed proves nothing. What it finds broken is kept for the end."""
    before = stage.harm.done.total()
    task = asyncio.ensure_future(trouble(stage, chance))
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        stage.harm.troubles[trouble.__name__] += stage.harm.done.total() - before
    if isinstance(ended, HansaError):
        stage.harm.problems.append(str(ended))
    elif isinstance(ended, Exception):
        raise ended
    await stage.heal()


async def calm(stage: Stage, chance: random.Random) -> None:
    """Nothing happens."""
    await asyncio.Event().wait()


# ---------------------------------------------------------------- agents


async def kills(stage: Stage, chance: random.Random) -> None:
    """F1."""
    while True:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        place = chance.choice(stage.places)
        await stage.agents.kill(place)
        await asyncio.sleep(chance.uniform(0.1, 2.0))
        await stage.agents.start(place)


async def hangs(stage: Stage, chance: random.Random) -> None:
    """F2."""
    while True:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        place = chance.choice(stage.places)
        await stage.agents.hang(place)
        await asyncio.sleep(chance.choice((1.0, 2.0, 6.0)))
        await stage.agents.wake(place)


async def leaves(stage: Stage, chance: random.Random) -> None:
    """F12: agents take their leave, and come back."""
    while True:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        place = chance.choice(stage.places)
        await stage.agents.leave(place)
        await asyncio.sleep(chance.uniform(0.1, 4.0))
        await stage.agents.start(place)


async def rejoins(stage: Stage, chance: random.Random) -> None:
    """F12: agents come back with an old state, or with none."""
    while True:
        place = chance.choice(stage.places)
        await stage.agents.back_up(place)
        await asyncio.sleep(chance.uniform(2.0, 4.0))
        if chance.random() < 0.5:
            await stage.agents.put_back(place)
        else:
            await stage.agents.come_back_empty(place)


async def clones(stage: Stage, chance: random.Random) -> None:
    """F12: two nodes with one identity. Of two neighbours the one with the larger number dials, and
    a copy that dials nobody would meet nobody."""
    dialling = sorted({max(link) for link in stage.links.all})
    while True:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        await stage.agents.clone(chance.choice(dialling))


async def latecomers(stage: Stage, chance: random.Random) -> None:
    """F14: a node joins whose id is lower than all others, so that every election ends anew."""
    while True:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        await stage.agents.come_back_lowest(chance.choice(stage.places))


async def cores(stage: Stage, chance: random.Random) -> None:
    """F14: a core crashes, or pauses for so long that another is chosen, and returns."""
    while True:
        await asyncio.sleep(chance.uniform(1.0, 3.0))
        place = chance.choice(await _cores_now(stage) or list(stage.places))
        if chance.random() < 0.5:
            await stage.agents.kill(place)
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            await stage.agents.start(place)
        else:
            await stage.agents.hang(place)
            await asyncio.sleep(chance.uniform(2.0, 6.0))
            await stage.agents.wake(place)


async def _cores_now(stage: Stage) -> list[int]:
    """The nodes that lead a group, as far as they answer."""
    ids: dict[str, int] = {}
    found: set[str] = set()
    for place in stage.places:
        try:
            status = await asyncio.to_thread(stage.federation.nodes[place].status)
        except OSError:
            continue
        groups = status["groups"]
        assert isinstance(groups, dict)
        ids[str(status["node"])] = place
        found.update(group["core"] for name, group in groups.items() if name and group["core"])
    return sorted(ids[core] for core in found if core in ids)


async def part_kill(stage: Stage, chance: random.Random) -> None:
    """F19: part one node off, kill another, heal, and part again so that the second is the
    bridge."""
    while True:
        alone, other = chance.sample(stage.places, 2)
        stage.links.part({alone})
        await asyncio.sleep(4.0)
        await stage.agents.kill(other)
        await asyncio.sleep(1.0)
        stage.links.heal()
        await stage.agents.start(other)
        await asyncio.sleep(1.0)
        stage.links.part({alone}, bridge=other)
        await asyncio.sleep(4.0)
        stage.links.heal()


async def only_copy(stage: Stage, chance: random.Random) -> None:
    """F19: a core is the only way between two sides, and dies with what it was passing on."""
    while True:
        core = chance.choice(await _cores_now(stage) or list(stage.places))
        others = [place for place in stage.places if place != core]
        stage.links.part(set(chance.sample(others, len(others) // 2)), bridge=core)
        await asyncio.sleep(chance.uniform(1.0, 3.0))
        await stage.agents.kill(core)
        await asyncio.sleep(1.0)
        stage.links.heal()
        await stage.agents.start(core)
        await asyncio.sleep(1.0)


async def capture_kill(stage: Stage, chance: random.Random) -> None:
    """F19: an origin crashes right after it captured something, before or after it said so to its
    broker."""
    points = (Point.CAPTURE_DURABLE, Point.CAPTURE_ACKNOWLEDGED)
    while True:
        place = chance.choice(sorted(stage.publishers))
        await stage.agents.doom(place, f"{int(chance.choice(points))}:{chance.randint(1, 20)}")
        await asyncio.sleep(chance.uniform(0.5, 1.5))


async def pause_kill(stage: Stage, chance: random.Random) -> None:
    """F19."""
    while True:
        await asyncio.sleep(1.0)
        place = chance.choice(stage.places)
        await stage.agents.hang(place)
        await asyncio.sleep(chance.uniform(1.0, 5.0))
        await stage.agents.kill(place)
        await asyncio.sleep(0.5)
        await stage.agents.start(place)


# ---------------------------------------------------------------- brokers and their clients


async def restarts(stage: Stage, chance: random.Random) -> None:
    """F3: brokers are stopped gently."""
    while True:
        await asyncio.sleep(chance.uniform(1.0, 4.0))
        await stage.brokers.restart(chance.choice(stage.places))


async def forgets(stage: Stage, chance: random.Random) -> None:
    """F3: brokers are killed, start empty, or end the agent's session."""
    while True:
        await asyncio.sleep(chance.uniform(1.0, 3.0))
        place = chance.choice(stage.places)
        match chance.randrange(3):
            case 0:
                await stage.brokers.kill(place)
            case 1:
                await stage.brokers.empty(place)
            case _:
                await stage.brokers.expel(place)


async def takeovers(stage: Stage, chance: random.Random) -> None:
    """F3: somebody connects with the client id of an agent, and keeps the session."""
    while True:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        await stage.brokers.take_over(chance.choice(stage.places), chance.uniform(0.1, 2.0))


async def manners(stage: Stage, chance: random.Random) -> None:
    """F4: a broker answers late, refuses its agent, takes one publication at a time."""
    while True:
        place = chance.choice(stage.places)
        match chance.randrange(3):
            case 0:
                stage.brokers.slow(place, chance.uniform(0.1, 2.0))
                await asyncio.sleep(chance.uniform(2.0, 6.0))
            case 1:
                stage.brokers.refuse(place)
                await asyncio.sleep(chance.uniform(0.5, 4.0))
            case _:
                await stage.brokers.reconfigure(place, *STINGY)
                await asyncio.sleep(chance.uniform(1.0, 3.0))
                await stage.brokers.reconfigure(place)
        stage.brokers.admit(place)
        await asyncio.sleep(chance.uniform(0.5, 1.5))


async def churn(stage: Stage, chance: random.Random) -> None:
    """F15: other clients come and go with filters that cover those of the subscribers."""
    filters = ("plant/#", "plant/line1/#", "+/+/temp", "plant/line2/temp", "#")
    while True:
        stage.harm.note("visitors")
        visitors = [
            Subscriber(
                stage.brokers.address(chance.choice(stage.places)),
                f"visitor{chance.randrange(1_000_000)}",
                (chance.choice(filters),),
                lambda _: None,
                session_s=0,
            )
            for _ in range(VISITORS)
        ]
        try:
            await asyncio.gather(*(visitor.start() for visitor in visitors))
            await asyncio.sleep(chance.uniform(0.05, 0.5))
        finally:
            await asyncio.gather(*(visitor.stop() for visitor in visitors))


async def parted_churn(stage: Stage, chance: random.Random) -> None:
    """F15: the same while the federation falls in two, again and again."""
    async with asyncio.TaskGroup() as both:
        both.create_task(halves(stage, chance))
        both.create_task(churn(stage, chance))


async def sleepers(stage: Stage, chance: random.Random) -> None:
    """F16: clients that never read, and neighbours that hardly do."""
    while True:
        for place in chance.sample(stage.places, min(3, len(stage.places))):
            await stage.put_to_sleep(place)
        slow = chance.choice(stage.places)
        links = [link for link in stage.links.all if slow in link]
        for link in links:
            stage.links.worsen(*link, Line(bytes_per_s=NARROW / 4))
        await asyncio.sleep(chance.uniform(4.0, 8.0))
        for link in links:
            stage.links.restore(*link)
        stage.wake_sleepers()


# ---------------------------------------------------------------- links


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


async def lonely(stage: Stage, chance: random.Random) -> None:
    """F6: one node is parted from all others, every other time a core."""
    while True:
        leading = await _cores_now(stage) if chance.random() < 0.5 else []
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
