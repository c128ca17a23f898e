"""Clean-up that cancellation does not interrupt."""

import asyncio
from collections.abc import Coroutine


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
