"""Whatever a hand was about to do when it was stopped: all is mended, and faults are not hidden."""

import asyncio
import random

import pytest

from hansa.chaos.harm import GRACE_S, WINDOW, Harm
from hansa.chaos.stage import Stage, set_up
from hansa.chaos.troubles import suffer
from hansa.simulator.topologies import parse


def test_what_is_stopped_in_the_middle_is_mended(mosquitto):
    """Each step is cancelled early and later."""

    async def play() -> tuple[int, list[str]]:
        stage = await set_up(parse("line:2", 1))
        cancelled = 0
        try:
            for turns in (1, 4):
                for step in (stage.brokers.restart(0), _kill_and_start(stage)):
                    task = asyncio.ensure_future(step)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    cancelled += task.cancelled()
                    await stage.heal()
            await stage.federation.wait_until_converged()
            return cancelled, stage.agents.ended()
        finally:
            await stage.close()

    assert asyncio.run(play()) == (4, [])


async def _kill_and_start(stage: Stage) -> None:
    await stage.agents.kill(1)
    await stage.agents.start(1)


def test_a_trouble_that_fails_is_not_hidden_by_the_next(mosquitto):
    async def fail(stage: Stage, chance: random.Random) -> None:
        raise RuntimeError("not even that")

    async def play() -> None:
        stage = await set_up(parse("line:1", 1))
        try:
            await suffer(fail, stage, random.Random(1), 60.0)
        finally:
            await stage.close()

    with pytest.raises(RuntimeError, match="not even that"):
        asyncio.run(play())


def test_each_crash_may_cost_the_window_where_it_was():
    harm = Harm()
    harm.interruptions[3] += 2
    harm.forget(4, 10.0)
    assert harm.duplicates_allowed(3) == {1: 2 * WINDOW, 2: 0}
    assert harm.duplicates_allowed(4) == {1: WINDOW, 2: WINDOW}
    assert harm.duplicates_allowed(5) == {1: 0, 2: 0}


def test_memory_that_is_lost_is_lost_until_all_is_back():
    harm = Harm()
    harm.forget(4, 10.0)
    harm.forget(4, 12.0)
    harm.remember(4, 20.0)
    assert harm.spans == [(4, 10.0 - GRACE_S, 20.0 + GRACE_S)]
    assert harm.forgetful == {}
