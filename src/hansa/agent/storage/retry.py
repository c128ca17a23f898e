"""Writes in a thread, repeated while the disk is full."""

import asyncio
from collections.abc import Callable

from hansa.errors import UsageError

RETRY_S = 1.0
"""Seconds from a failed write to the next attempt."""


async def run_write(write: Callable[[], object], set_alarm: Callable[[str], None]) -> bool:
    """Call `write` in a thread and return whether it succeeded. If it raises UsageError, set the
    alarm to its text and return after RETRY_S, so that the caller can try again at once; clear the
    alarm otherwise."""
    try:
        await asyncio.to_thread(write)
    except UsageError as error:
        set_alarm(str(error))
        await asyncio.sleep(RETRY_S)
        return False
    set_alarm("")
    return True
