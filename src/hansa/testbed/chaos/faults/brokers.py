"""Faults of brokers and their clients (F3, F4, F15, F16)."""

import asyncio
import random

from hansa.testbed.chaos.actuators.brokers import RESTRICTIVE_LINES
from hansa.testbed.chaos.actuators.links import NARROW_BYTES_PER_S
from hansa.testbed.chaos.clients import HistorySubscriber
from hansa.testbed.chaos.federation import ChaosFederation
from hansa.testbed.link_conditions import LinkConditions

VISITORS_PER_WAVE = 8
"""Clients that connect and disconnect together."""


async def restart_brokers(chaos: ChaosFederation, rng: random.Random) -> None:
    """F3: brokers are stopped gracefully and keep their sessions."""
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
    """F3: another client connects with the client id of an agent, and keeps the session."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        await chaos.brokers.take_over_session(rng.choice(chaos.places), rng.uniform(0.1, 2.0))


async def degrade_brokers(chaos: ChaosFederation, rng: random.Random) -> None:
    """F4: a broker answers late, refuses its agent, or accepts one message at a time."""
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
    """F15: other clients connect and disconnect, with filters that cover those of subscribers."""
    filters = ("plant/#", "plant/line1/#", "+/+/temp", "plant/line2/temp", "#")
    while True:
        chaos.fault_effects.record_fault("churn")
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
    """F16: clients that never read, and neighbours that read slowly."""
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
