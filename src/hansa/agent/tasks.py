"""Work in the background whose faults are told: asyncio keeps those of a task to itself."""

import asyncio
from collections.abc import Coroutine
from typing import TypeGuard


def start_task(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    """Start some work; if it ends by a fault, that is told."""
    task = asyncio.create_task(work)
    task.add_done_callback(_report_task_fault)
    return task


def is_running(task: asyncio.Task[None] | None) -> TypeGuard[asyncio.Task[None]]:
    """Whether some work was started and has not ended, be it by a fault."""
    return task is not None and not task.done()


def report_fault(fault: BaseException) -> None:
    """Tell a fault of ours that must not stop what met it: it is logged with its traceback, and an
    alarm of the agent."""
    context = {"message": "a fault of Hansa", "exception": fault}
    asyncio.get_running_loop().call_exception_handler(context)


def _report_task_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        report_fault(fault)
