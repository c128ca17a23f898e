"""Faults of agents: killed, suspended, stopped, restored, cloned.

Numbers as in docs/simulator.md: F1 agent killed, F2 agent suspended, F12 membership, F14 cores,
F19 scripted combinations.
"""

import asyncio
import http.client
import random

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.testbed.chaos.federation import ChaosFederation


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
    """F12."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        # Until an agent has installed its signal handler, SIGTERM kills it.
        await chaos.federation.wait_until_converged()
        place = rng.choice(chaos.places)
        await chaos.agents.stop_gracefully(place)
        await asyncio.sleep(rng.uniform(0.1, 4.0))
        await chaos.agents.start(place)


async def rejoin_with_lost_state(chaos: ChaosFederation, rng: random.Random) -> None:
    """F12: agents restart with an old state directory, or with none."""
    while True:
        place = rng.choice(chaos.places)
        await chaos.agents.back_up(place)
        await asyncio.sleep(rng.uniform(2.0, 4.0))
        if rng.random() < 0.5:
            await chaos.agents.restore_backup(place)
        else:
            await chaos.agents.rejoin_empty(place)


async def clone_agents(chaos: ChaosFederation, rng: random.Random) -> None:
    """F12: two nodes with one id. Only nodes that dial a neighbour are cloned, because a clone that
    dials no node is not noticed."""
    dialling = sorted({max(link) for link in chaos.links.pairs})
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        await chaos.agents.clone(rng.choice(dialling))


async def rejoin_with_lowest_id(chaos: ChaosFederation, rng: random.Random) -> None:
    """F14: a node joins with the lowest id of all, so that every election is repeated."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        await chaos.agents.rejoin_with_lowest_id(rng.choice(chaos.places))


async def disrupt_cores(chaos: ChaosFederation, rng: random.Random) -> None:
    """F14: a core is killed, or suspended until another one is elected, and returns."""
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
    """Return the nodes that are cores; nodes that do not answer are left out."""
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
    """F19: isolate one node, kill another, heal, and isolate the first again except for links to
    the second."""
    while True:
        isolated, other = rng.sample(chaos.places, 2)
        chaos.links.partition({isolated})
        await asyncio.sleep(4.0)
        await chaos.agents.kill(other)
        await asyncio.sleep(1.0)
        chaos.links.heal()
        await chaos.agents.start(other)
        await asyncio.sleep(1.0)
        chaos.links.partition({isolated}, bridge=other)
        await asyncio.sleep(4.0)
        chaos.links.heal()


async def kill_only_forwarder(chaos: ChaosFederation, rng: random.Random) -> None:
    """F19: a core is the only path between two sides, and is killed while it forwards."""
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
    """F19: an origin crashes right after a capture, before or after it acknowledges it."""
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
