"""Distributes cases over Spark's executors in small tasks, so that results arrive continuously.

One Spark job is one task: a few cases that take about two seconds. Enough tasks are queued to keep
all cores busy; stopping the driver loses at most the tasks in flight.
"""

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from hansa.experiments.sweep import SweepCase

if TYPE_CHECKING:
    from pyspark import SparkContext

TASK_SECONDS = 2.0
"""Target duration of a task: long compared to the start of a job."""

TASKS_PER_CORE = 2
"""Tasks in flight: one that runs and one that is queued."""

Row = dict[str, Any]
RunCase = Callable[[SweepCase], Row]


def run_on_executors(
    context: "SparkContext", cases: Sequence[SweepCase], run_case: RunCase
) -> Generator[list[Row], None, None]:
    """Run all cases on the executors and yield rows as they arrive, in no particular order.

    `run_case` must be a function that the executors can import. Closing the iterator cancels the
    tasks in flight.
    """
    task_slots = TASKS_PER_CORE * context.defaultParallelism
    waiting = deque(cases)
    finished, seconds = 0, 0.0
    in_flight: set[Future[list[Row]]] = set()
    with ThreadPoolExecutor(task_slots) as pool:
        try:
            while waiting or in_flight:
                size = _task_size(
                    len(waiting), task_slots, seconds / finished if finished else TASK_SECONDS
                )
                while waiting and len(in_flight) < task_slots:
                    task = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                    in_flight.add(pool.submit(_run_task, context, task, run_case))
                done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
                rows = [row for future in done for row in future.result()]
                finished += len(rows)
                seconds += sum(row["wall_s"] for row in rows)
                yield rows
        finally:
            waiting.clear()
            if in_flight:
                context.cancelAllJobs()


def _task_size(waiting: int, task_slots: int, mean_s: float) -> int:
    """Return the cases per task: fewer towards the end, so that all cores finish together."""
    return max(1, min(int(TASK_SECONDS / max(mean_s, 1e-3)), waiting // (2 * task_slots)))


def _run_task(context: "SparkContext", task: list[SweepCase], run_case: RunCase) -> list[Row]:
    rows: list[Row] = context.parallelize([task], 1).flatMap(partial(_run_all, run_case)).collect()
    return rows


def _run_all(run_case: RunCase, task: Iterable[SweepCase]) -> Iterator[Row]:
    gc.freeze()  # a worker collects garbage after every task: exclude the imported modules
    return (run_case(case) for case in task)
