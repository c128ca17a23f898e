"""Ends things in order, however impatient whoever waits for it is."""

import asyncio
from collections.abc import Coroutine


async def run_to_completion(coroutine: Coroutine[object, object, None]) -> None:
    """Do this to its end, also if whoever waits is cancelled meanwhile: that counts only then."""
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
