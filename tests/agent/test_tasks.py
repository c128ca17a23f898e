"""Background tasks: exceptions are reported, completion is not."""

import asyncio

from hansa.agent import tasks


async def fault() -> None:
    raise ZeroDivisionError("by zero")


async def nothing() -> None:
    pass


def test_only_unexpected_exceptions_are_reported():
    reported: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, said: reported.append((said["message"], repr(said["exception"])))
        )
        cancelled = tasks.start_task(asyncio.sleep(60))
        started = [cancelled, tasks.start_task(fault()), tasks.start_task(nothing())]
        cancelled.cancel()
        await asyncio.wait(started)

    asyncio.run(run())
    assert reported == [("a fault of Hansa", "ZeroDivisionError('by zero')")]
