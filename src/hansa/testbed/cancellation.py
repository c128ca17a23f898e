"""Cancellation: by Ctrl-C, SIGTERM and SIGHUP; and clean-up that it does not interrupt."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

T = TypeVar("T")


def run_until_stopped(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine; a signal cancels it, and raises KeyboardInterrupt after its clean-up."""
    try:
        return asyncio.run(_run_cancellable(coroutine))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _run_cancellable(work: Coroutine[object, object, T]) -> T:
    running = asyncio.current_task()
    assert running is not None
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    return await work


async def run_to_completion(coroutine: Coroutine[object, object, None]) -> None:
    """Await a coroutine to its end; raise a cancellation that arrives meanwhile only then."""
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled:
        raise cancelled
