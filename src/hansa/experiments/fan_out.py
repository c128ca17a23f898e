"""Spreads cases over Spark's executors, a few at a time, so that results come in as they are made.

One job is one task: a handful of cases that takes a second or two. Enough of them wait that no core
ever does, and what is lost when the driver is stopped is at most that.
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
"""Seconds of work that one task should be: long beside a job's start, short beside one's patience.
"""

TASKS_PER_CORE = 2
"""Handed out at once: one that runs and one that waits."""

Row = dict[str, Any]
RunCase = Callable[[SweepCase], Row]


def run_on_executors(
    context: "SparkContext", cases: Sequence[SweepCase], run_case: RunCase
) -> Generator[list[Row], None, None]:
    """Play all cases on the executors and yield rows as they come in, in no order.

    `play` runs there: it must be a function that they can import. Closing the iterator cancels what
    is under way.
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


def _task_size(waiting: int, lanes: int, mean_s: float) -> int:
    """As much as `TASK_S` allows, and less towards the end, so that all cores end together."""
    return max(1, min(int(TASK_SECONDS / max(mean_s, 1e-3)), waiting // (2 * lanes)))


def _run_task(context: "SparkContext", task: list[SweepCase], run_case: RunCase) -> list[Row]:
    rows: list[Row] = context.parallelize([task], 1).flatMap(partial(_run_all, run_case)).collect()
    return rows


def _run_all(run_case: RunCase, task: Iterable[SweepCase]) -> Iterator[Row]:
    gc.freeze()  # a worker collects garbage after every task: not through all modules, please
    return (run_case(case) for case in task)
