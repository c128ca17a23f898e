"""What is done to agents and brokers while clients publish: one small function per kind of trouble.

Each goes on for as long as it is let; chance comes from the seed. What it needs of brokers, agents
and links is in the hands of the stage, which can mend it at any time.
"""

import asyncio
import http.client
import random
from typing import Protocol

from hansa.agent.delivery.crash_points import Point
from hansa.errors import HansaError
from hansa.testbed.chaos.brokers import STINGY
from hansa.testbed.chaos.clients import Subscriber
from hansa.testbed.chaos.links import NARROW
from hansa.testbed.chaos.testbench import Stage
from hansa.testbed.link_conditions import Line


class Trouble(Protocol):
    """Harms for as long as it is let."""

    __name__: str

    async def __call__(self, stage: Stage, chance: random.Random, /) -> None:
        """Whom it hits is chance."""


VISITORS = 8
"""Clients that come and go together."""


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


async def at_once(stage: Stage, chance: random.Random, *some: Trouble) -> None:
    """Let several troubles go on; if one fails, so does this, and none goes on."""
    tasks = [asyncio.ensure_future(trouble(stage, chance)) for trouble in some]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each


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
        # Only who is up can take leave: before that SIGTERM ends it as SIGKILL does.
        await stage.federation.wait_until_converged()
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
        place = chance.choice(await cores_now(stage) or list(stage.places))
        if chance.random() < 0.5:
            await stage.agents.kill(place)
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            await stage.agents.start(place)
        else:
            await stage.agents.hang(place)
            await asyncio.sleep(chance.uniform(2.0, 6.0))
            await stage.agents.wake(place)


async def cores_now(stage: Stage) -> list[int]:
    """The nodes that lead a group, as far as they answer."""
    ids: dict[str, int] = {}
    found: set[str] = set()
    for place in stage.places:
        try:
            status = await asyncio.to_thread(stage.federation.nodes[place].status)
        except (OSError, http.client.HTTPException):
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
        core = chance.choice(await cores_now(stage) or list(stage.places))
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
