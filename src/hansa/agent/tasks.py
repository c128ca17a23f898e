"""Background tasks whose faults are reported: asyncio alone would drop them silently."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeGuard, TypeVar

_T = TypeVar("_T")


def start_task(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Start a task; if it fails, the fault is reported."""
    task = asyncio.create_task(work)
    task.add_done_callback(_report_task_fault)
    return task


def is_running(task: asyncio.Task[None] | None) -> TypeGuard[asyncio.Task[None]]:
    """Whether a task was started and has not ended."""
    return task is not None and not task.done()


def report_fault(fault: BaseException) -> None:
    """Report a fault of Hansa that must not stop its caller: log it with its traceback and raise
    the alarm `internal error`."""
    context = {"message": "a fault of Hansa", "exception": fault}
    asyncio.get_running_loop().call_exception_handler(context)


def _report_task_fault(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        report_fault(fault)
