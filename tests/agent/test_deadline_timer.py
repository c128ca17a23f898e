"""The timer of a state machine calls back once, at the earliest deadline."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from hansa.agent.deadline_timer import DeadlineTimer

Runner = Callable[[Coroutine[Any, Any, None]], None]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@LOOPS
@pytest.mark.parametrize("delays", [(-1.0, -2.0, 60.0), (60.0, 0.0), (0.01, 60.0)])
def test_earliest_deadline_fires_once(run: Runner, delays: tuple[float, ...]) -> None:
    async def main() -> None:
        calls: list[float] = []
        fired = asyncio.Event()

        def on_deadline() -> None:
            calls.append(loop.time())
            fired.set()

        loop = asyncio.get_running_loop()
        began, timer = loop.time(), DeadlineTimer(on_deadline)
        for delay in delays:
            timer.schedule(began + delay)
        await asyncio.wait_for(fired.wait(), 30)
        timer.schedule(loop.time() + 60)
        timer.cancel()
        await asyncio.sleep(0)
        assert len(calls) == 1

    run(main())


@LOOPS
def test_cancelled_deadline_does_not_fire(run: Runner) -> None:
    async def main() -> None:
        calls: list[None] = []
        timer = DeadlineTimer(lambda: calls.append(None))
        timer.schedule(asyncio.get_running_loop().time() - 1)
        timer.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert calls == []

    run(main())
