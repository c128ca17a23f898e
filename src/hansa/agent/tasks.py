"""Work in the background whose faults are told: asyncio keeps those of a task to itself."""

import asyncio
from collections.abc import Coroutine


def start(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    """Start some work; if it ends by a fault, that is logged with its traceback."""
    task = asyncio.create_task(work)
    task.add_done_callback(_tell_fault)
    return task


def _tell_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        said = {"message": "a fault of Hansa", "exception": fault, "task": task}
        task.get_loop().call_exception_handler(said)
