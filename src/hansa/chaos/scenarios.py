"""What is done to a federation while clients publish: one small function per kind of trouble.

Each goes on for as long as it is let; chance comes from the seed. The letters are those of our list
of faults: F1 agent killed, F2 agent hangs, F3 broker restarted, F5 links, F6 partitions, F7 clogs,
F14 cores, F15 churn, F19 scripted killers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hansa.chaos.clients import Subscriber
from hansa.chaos.stage import Stage

Trouble = Callable[[Stage, random.Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of trouble, by name."""

    name: str
    about: str
    trouble: Trouble
    crashes: bool = False
    """Whether agents crash or lose their broker, so that QoS 1 may bring duplicates."""
    sides: bool = False
    """Whether there are two sides, with a publisher and a subscriber on each."""


async def _calm(stage: Stage, chance: random.Random) -> None:
    """Nothing happens."""
    await asyncio.Event().wait()


async def _kills(stage: Stage, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        place = chance.choice(stage.places)
        await stage.kill_agent(place)
        await asyncio.sleep(chance.uniform(0.1, 2.0))
        await stage.start_agent(place)


async def _hangs(stage: Stage, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        place = chance.choice(stage.places)
        await stage.hang_agent(place)
        await asyncio.sleep(chance.choice((1.0, 2.0, 6.0)))
        await stage.wake_agent(place)


async def _brokers(stage: Stage, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(2.0, 5.0))
        await stage.restart_broker(chance.choice(stage.places))


async def _cuts(stage: Stage, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        link = chance.choice(stage.topology.links)
        stage.cut(*link)
        await asyncio.sleep(chance.choice((0.1, 1.0, 5.0)))
        stage.mend(*link)


async def _flaps(stage: Stage, chance: random.Random) -> None:
    while True:
        link = chance.choice(stage.topology.links)
        hz = chance.uniform(1.0, 10.0)
        for _ in range(int(3 * hz)):
            stage.cut(*link)
            await asyncio.sleep(0.5 / hz)
            stage.mend(*link)
            await asyncio.sleep(0.5 / hz)


async def _halves(stage: Stage, chance: random.Random) -> None:
    while True:
        side = set(chance.sample(stage.places, len(stage.places) // 2))
        stage.part(side)
        await asyncio.sleep(chance.uniform(5.0, 10.0))
        stage.mend_all()
        await asyncio.sleep(chance.uniform(2.0, 4.0))


async def _parted(stage: Stage, chance: random.Random) -> None:
    """One partition, from the beginning to the end."""
    stage.part(stage.sides[0])
    await asyncio.Event().wait()


async def _lonely(stage: Stage, chance: random.Random) -> None:
    while True:
        stage.part({chance.choice(stage.places)})
        await asyncio.sleep(chance.uniform(4.0, 8.0))
        stage.mend_all()
        await asyncio.sleep(chance.uniform(1.0, 3.0))


async def _clogs(stage: Stage, chance: random.Random) -> None:
    while True:
        links = chance.sample(stage.topology.links, len(stage.topology.links) // 2)
        for link in links:
            stage.cut(*link)
            await asyncio.sleep(0.5)
        chance.shuffle(links)
        for link in links:
            stage.mend(*link)
            await asyncio.sleep(0.5)


async def _cores(stage: Stage, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(1.0, 3.0))
        cores = await _cores_now(stage)
        place = chance.choice(cores or list(stage.places))
        await stage.kill_agent(place)
        await asyncio.sleep(chance.uniform(0.5, 4.0))
        await stage.start_agent(place)


async def _cores_now(stage: Stage) -> list[int]:
    """The nodes that lead a group, as far as they answer."""
    ids: dict[str, int] = {}
    cores: set[str] = set()
    for place in stage.places:
        try:
            status = await asyncio.to_thread(stage.federation.nodes[place].status)
        except OSError:
            continue
        groups = status["groups"]
        assert isinstance(groups, dict)
        ids[str(status["node"])] = place
        cores.update(group["core"] for name, group in groups.items() if name and group["core"])
    return sorted(ids[core] for core in cores if core in ids)


async def _churn(stage: Stage, chance: random.Random) -> None:
    """Other clients come and go with filters that cover those of the subscribers."""
    filters = ("plant/#", "plant/line1/#", "+/+/temp", "plant/line2/temp", "#")
    while True:
        place = chance.choice(stage.places)
        name = f"visitor{chance.randrange(1_000_000)}"
        visitor = Subscriber(stage.address(place), name, (chance.choice(filters),), lambda _: None)
        await visitor.start()
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        await visitor.stop()


async def _part_kill(stage: Stage, chance: random.Random) -> None:
    """Part one node off, kill another, heal, and part again so that the second is the bridge."""
    while True:
        alone, other = chance.sample(stage.places, 2)
        stage.part({alone})
        await asyncio.sleep(4.0)
        await stage.kill_agent(other)
        await asyncio.sleep(1.0)
        stage.mend_all()
        await stage.start_agent(other)
        await asyncio.sleep(1.0)
        for a, b in stage.topology.links:
            if alone in (a, b) and other not in (a, b):
                stage.cut(a, b)
        await asyncio.sleep(4.0)
        stage.mend_all()


async def _pause_kill(stage: Stage, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(1.0)
        place = chance.choice(stage.places)
        await stage.hang_agent(place)
        await asyncio.sleep(chance.uniform(1.0, 5.0))
        await stage.kill_agent(place)
        await asyncio.sleep(0.5)
        await stage.start_agent(place)


async def _everything(stage: Stage, chance: random.Random) -> None:
    """One trouble after another, with a quarter of the time in peace."""
    while True:
        trouble = chance.choice((_kills, _hangs, _cuts, _flaps, _halves, _lonely, _cores, _churn))
        task = asyncio.ensure_future(trouble(stage, chance))
        try:
            await asyncio.wait([task], timeout=9.0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await stage.heal()
        await asyncio.sleep(3.0)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("calm", "nothing happens: the measure for all others", _calm),
        Scenario("kills", "agents are killed and started again (F1)", _kills, crashes=True),
        Scenario("hangs", "agents hang for up to six seconds (F2)", _hangs),
        Scenario(
            "brokers", "brokers are stopped gently and started again (F3)", _brokers, crashes=True
        ),
        Scenario("cuts", "links are cut without a word and mended (F5)", _cuts),
        Scenario("flaps", "a link comes and goes up to ten times a second (F5)", _flaps),
        Scenario("halves", "the federation is parted in halves again and again (F6)", _halves),
        Scenario("parted", "two sides do not meet until the end (F6)", _parted, sides=True),
        Scenario("lonely", "one node is parted from all others (F6)", _lonely),
        Scenario("clogs", "links clog one by one, and clear in another order (F7)", _clogs),
        Scenario("cores", "the core of a group is killed (F14)", _cores, crashes=True),
        Scenario("churn", "clients with covering filters come and go (F15)", _churn),
        Scenario(
            "part-kill",
            "one node parted, another killed, then that one is the bridge (F19)",
            _part_kill,
            crashes=True,
        ),
        Scenario("pause-kill", "agents hang and are then killed (F19)", _pause_kill, crashes=True),
        Scenario("everything", "one trouble after another", _everything, crashes=True),
    )
}
