"""Runs faults for a limited time, and undoes them afterwards."""

import asyncio
import random
from typing import Protocol

from hansa.errors import HansaError
from hansa.testbed.chaos.federation import ChaosFederation


class ChaosFault(Protocol):
    """Injects faults until it is cancelled; `rng` decides where and when."""

    __name__: str

    async def __call__(self, chaos: ChaosFederation, rng: random.Random, /) -> None: ...


async def run_fault(
    fault: ChaosFault, chaos: ChaosFederation, rng: random.Random, seconds: float
) -> None:
    """Run a fault for some seconds, then heal the federation.

    A HansaError is a problem of the federation and is kept for the verdict. Any other exception is
    raised, because a run without faults would prove nothing.
    """
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
    """Run several faults at once; if one raises, cancel the others and raise."""
    tasks = [asyncio.ensure_future(fault(chaos, rng)) for fault in faults]
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
    """Inject no fault: the baseline of all other scenarios."""
    await asyncio.Event().wait()
