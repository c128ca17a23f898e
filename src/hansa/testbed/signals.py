"""Runs a coroutine that must clean up, and cancels it at Ctrl-C, SIGTERM and SIGHUP."""

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
