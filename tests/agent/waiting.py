"""Waiting for a condition, with a deadline: tests never sleep and hope."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds until a test gives up; two busy cores can be slow."""


async def until(holds: Callable[[], object], what: str = "", patience: float = PATIENCE) -> None:
    """Wait until something holds; say what never came."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, f"never: {what or holds}"
        await asyncio.sleep(0.01)
