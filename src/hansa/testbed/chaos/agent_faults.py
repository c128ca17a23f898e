"""What is done to agents and brokers while clients publish: one small function per kind of trouble.

Each goes on for as long as it is let; chance comes from the seed. What it needs of brokers, agents
and links is in the hands of the stage, which can mend it at any time.
"""

import asyncio
import http.client
import random
from typing import Protocol

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.errors import HansaError
from hansa.testbed.chaos.brokers import RESTRICTIVE_LINES
from hansa.testbed.chaos.clients import HistorySubscriber
from hansa.testbed.chaos.links import NARROW_BYTES_PER_S
from hansa.testbed.chaos.testbench import ChaosFederation
from hansa.testbed.link_conditions import LinkConditions


class ChaosFault(Protocol):
    """Harms for as long as it is let."""

    __name__: str

    async def __call__(self, chaos: ChaosFederation, rng: random.Random, /) -> None:
        """Whom it hits is chance."""


VISITORS_PER_WAVE = 8
"""Clients that come and go together."""


async def run_fault(
    fault: ChaosFault, chaos: ChaosFederation, rng: random.Random, seconds: float
) -> None:
    """Let a trouble go on for so long, then mend everything. If it fails by itself, so does this:
    a federation that nobody harmed proves nothing. What it finds broken is kept for the end."""
    before = chaos.fault_effects.fault_counts.total()
    task = asyncio.ensure_future(fault(chaos, rng))
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        chaos.fault_effects.counts_by_fault[fault.__name__] += (
            chaos.fault_effects.fault_counts.total() - before
        )
    if isinstance(ended, HansaError):
        chaos.fault_effects.problems.append(str(ended))
    elif isinstance(ended, Exception):
        raise ended
    await chaos.heal()


async def run_together(chaos: ChaosFederation, rng: random.Random, *faults: ChaosFault) -> None:
    """Let several troubles go on; if one fails, so does this, and none goes on."""
    tasks = [asyncio.ensure_future(trouble(chaos, rng)) for trouble in faults]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each


async def do_nothing(chaos: ChaosFederation, rng: random.Random) -> None:
    """Nothing happens."""
    await asyncio.Event().wait()


# ---------------------------------------------------------------- agents


async def kill_agents(chaos: ChaosFederation, rng: random.Random) -> None:
    """F1."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        place = rng.choice(chaos.places)
        await chaos.agents.kill(place)
        await asyncio.sleep(rng.uniform(0.1, 2.0))
        await chaos.agents.start(place)


async def suspend_agents(chaos: ChaosFederation, rng: random.Random) -> None:
    """F2."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        place = rng.choice(chaos.places)
        await chaos.agents.suspend(place)
        await asyncio.sleep(rng.choice((1.0, 2.0, 6.0)))
        await chaos.agents.resume(place)


async def stop_agents_gracefully(chaos: ChaosFederation, rng: random.Random) -> None:
    """F12: agents take their leave, and come back."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        # Only who is up can take leave: before that SIGTERM ends it as SIGKILL does.
        await chaos.federation.wait_until_converged()
        place = rng.choice(chaos.places)
        await chaos.agents.stop_gracefully(place)
        await asyncio.sleep(rng.uniform(0.1, 4.0))
        await chaos.agents.start(place)


async def rejoin_with_lost_state(chaos: ChaosFederation, rng: random.Random) -> None:
    """F12: agents come back with an old state, or with none."""
    while True:
        place = rng.choice(chaos.places)
        await chaos.agents.back_up(place)
        await asyncio.sleep(rng.uniform(2.0, 4.0))
        if rng.random() < 0.5:
            await chaos.agents.restore_backup(place)
        else:
            await chaos.agents.rejoin_empty(place)


async def clone_agents(chaos: ChaosFederation, rng: random.Random) -> None:
    """F12: two nodes with one identity. Of two neighbours the one with the larger number dials, and
    a copy that dials nobody would meet nobody."""
    dialling = sorted({max(link) for link in chaos.links.pairs})
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        await chaos.agents.clone(rng.choice(dialling))


async def rejoin_with_lowest_id(chaos: ChaosFederation, rng: random.Random) -> None:
    """F14: a node joins whose id is lower than all others, so that every election ends anew."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        await chaos.agents.rejoin_with_lowest_id(rng.choice(chaos.places))


async def disrupt_cores(chaos: ChaosFederation, rng: random.Random) -> None:
    """F14: a core crashes, or pauses for so long that another is chosen, and returns."""
    while True:
        await asyncio.sleep(rng.uniform(1.0, 3.0))
        place = rng.choice(await current_cores(chaos) or list(chaos.places))
        if rng.random() < 0.5:
            await chaos.agents.kill(place)
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            await chaos.agents.start(place)
        else:
            await chaos.agents.suspend(place)
            await asyncio.sleep(rng.uniform(2.0, 6.0))
            await chaos.agents.resume(place)


async def current_cores(chaos: ChaosFederation) -> list[int]:
    """The nodes that lead a group, as far as they answer."""
    ids: dict[str, int] = {}
    found: set[str] = set()
    for place in chaos.places:
        try:
            status = await asyncio.to_thread(chaos.federation.nodes[place].status)
        except (OSError, http.client.HTTPException):
            continue
        groups = status["groups"]
        assert isinstance(groups, dict)
        ids[str(status["node"])] = place
        found.update(group["core"] for name, group in groups.items() if name and group["core"])
    return sorted(ids[core] for core in found if core in ids)


async def isolate_and_kill(chaos: ChaosFederation, rng: random.Random) -> None:
    """F19: part one node off, kill another, heal, and part again so that the second is the
    bridge."""
    while True:
        alone, other = rng.sample(chaos.places, 2)
        chaos.links.partition({alone})
        await asyncio.sleep(4.0)
        await chaos.agents.kill(other)
        await asyncio.sleep(1.0)
        chaos.links.heal()
        await chaos.agents.start(other)
        await asyncio.sleep(1.0)
        chaos.links.partition({alone}, bridge=other)
        await asyncio.sleep(4.0)
        chaos.links.heal()


async def kill_only_forwarder(chaos: ChaosFederation, rng: random.Random) -> None:
    """F19: a core is the only way between two sides, and dies with what it was passing on."""
    while True:
        core = rng.choice(await current_cores(chaos) or list(chaos.places))
        others = [place for place in chaos.places if place != core]
        chaos.links.partition(set(rng.sample(others, len(others) // 2)), bridge=core)
        await asyncio.sleep(rng.uniform(1.0, 3.0))
        await chaos.agents.kill(core)
        await asyncio.sleep(1.0)
        chaos.links.heal()
        await chaos.agents.start(core)
        await asyncio.sleep(1.0)


async def kill_after_capture(chaos: ChaosFederation, rng: random.Random) -> None:
    """F19: an origin crashes right after it captured something, before or after it said so to its
    broker."""
    points = (DeliveryCrashPoint.CAPTURE_DURABLE, DeliveryCrashPoint.CAPTURE_ACKNOWLEDGED)
    while True:
        place = rng.choice(sorted(chaos.publishers))
        await chaos.agents.crash_at_point(place, f"{int(rng.choice(points))}:{rng.randint(1, 20)}")
        await asyncio.sleep(rng.uniform(0.5, 1.5))


async def suspend_and_kill(chaos: ChaosFederation, rng: random.Random) -> None:
    """F19."""
    while True:
        await asyncio.sleep(1.0)
        place = rng.choice(chaos.places)
        await chaos.agents.suspend(place)
        await asyncio.sleep(rng.uniform(1.0, 5.0))
        await chaos.agents.kill(place)
        await asyncio.sleep(0.5)
        await chaos.agents.start(place)


# ---------------------------------------------------------------- brokers and their clients


async def restart_brokers(chaos: ChaosFederation, rng: random.Random) -> None:
    """F3: brokers are stopped gently."""
    while True:
        await asyncio.sleep(rng.uniform(1.0, 4.0))
        await chaos.brokers.restart(rng.choice(chaos.places))


async def lose_broker_sessions(chaos: ChaosFederation, rng: random.Random) -> None:
    """F3: brokers are killed, start empty, or end the agent's session."""
    while True:
        await asyncio.sleep(rng.uniform(1.0, 3.0))
        place = rng.choice(chaos.places)
        match rng.randrange(3):
            case 0:
                await chaos.brokers.kill(place)
            case 1:
                await chaos.brokers.clear_database(place)
            case _:
                await chaos.brokers.end_agent_session(place)


async def take_over_sessions(chaos: ChaosFederation, rng: random.Random) -> None:
    """F3: somebody connects with the client id of an agent, and keeps the session."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        await chaos.brokers.take_over_session(rng.choice(chaos.places), rng.uniform(0.1, 2.0))


async def degrade_brokers(chaos: ChaosFederation, rng: random.Random) -> None:
    """F4: a broker answers late, refuses its agent, takes one publication at a time."""
    while True:
        place = rng.choice(chaos.places)
        match rng.randrange(3):
            case 0:
                chaos.brokers.slow_down(place, rng.uniform(0.1, 2.0))
                await asyncio.sleep(rng.uniform(2.0, 6.0))
            case 1:
                chaos.brokers.refuse(place)
                await asyncio.sleep(rng.uniform(0.5, 4.0))
            case _:
                await chaos.brokers.reconfigure(place, *RESTRICTIVE_LINES)
                await asyncio.sleep(rng.uniform(1.0, 3.0))
                await chaos.brokers.reconfigure(place)
        chaos.brokers.admit(place)
        await asyncio.sleep(rng.uniform(0.5, 1.5))


async def churn_subscribers(chaos: ChaosFederation, rng: random.Random) -> None:
    """F15: other clients come and go with filters that cover those of the subscribers."""
    filters = ("plant/#", "plant/line1/#", "+/+/temp", "plant/line2/temp", "#")
    while True:
        chaos.fault_effects.record_fault("visitors")
        visitors = [
            HistorySubscriber(
                chaos.brokers.address(rng.choice(chaos.places)),
                f"visitor{rng.randrange(1_000_000)}",
                (rng.choice(filters),),
                lambda _: None,
                session_s=0,
            )
            for _ in range(VISITORS_PER_WAVE)
        ]
        try:
            await asyncio.gather(*(visitor.start() for visitor in visitors))
            await asyncio.sleep(rng.uniform(0.05, 0.5))
        finally:
            await asyncio.gather(*(visitor.stop() for visitor in visitors))


async def add_slow_readers(chaos: ChaosFederation, rng: random.Random) -> None:
    """F16: clients that never read, and neighbours that hardly do."""
    while True:
        for place in rng.sample(chaos.places, min(3, len(chaos.places))):
            await chaos.add_stalled_client(place)
        slow = rng.choice(chaos.places)
        links = [link for link in chaos.links.pairs if slow in link]
        for link in links:
            chaos.links.degrade(*link, LinkConditions(bytes_per_s=NARROW_BYTES_PER_S / 4))
        await asyncio.sleep(rng.uniform(4.0, 8.0))
        for link in links:
            chaos.links.restore_conditions(*link)
        chaos.close_stalled_clients()
