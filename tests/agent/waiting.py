"""Wait for a condition with a deadline."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Timeout in seconds; two busy cores can be slow."""


async def until(holds: Callable[[], object], what: str = "", patience: float = PATIENCE) -> None:
    """Wait until a condition holds; fail with `what`."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, f"never: {what or holds}"
        await asyncio.sleep(0.01)
