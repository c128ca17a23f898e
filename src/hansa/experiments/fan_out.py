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

from hansa.experiments.sweep import Case

if TYPE_CHECKING:
    from pyspark import SparkContext

TASK_S = 2.0
"""Seconds of work that one task should be: long beside a job's start, short beside one's patience.
"""

TASKS_PER_CORE = 2
"""Handed out at once: one that runs and one that waits."""

Row = dict[str, Any]
Play = Callable[[Case], Row]


def fan_out(
    context: "SparkContext", cases: Sequence[Case], play: Play
) -> Generator[list[Row], None, None]:
    """Play all cases on the executors and yield rows as they come in, in no order.

    `play` runs there: it must be a function that they can import. Closing the iterator cancels what
    is under way.
    """
    lanes = TASKS_PER_CORE * context.defaultParallelism
    waiting = deque(cases)
    played, seconds = 0, 0.0
    under_way: set[Future[list[Row]]] = set()
    with ThreadPoolExecutor(lanes) as pool:
        try:
            while waiting or under_way:
                size = _task_size(len(waiting), lanes, seconds / played if played else TASK_S)
                while waiting and len(under_way) < lanes:
                    task = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                    under_way.add(pool.submit(_run, context, task, play))
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                rows = [row for future in done for row in future.result()]
                played += len(rows)
                seconds += sum(row["wall_s"] for row in rows)
                yield rows
        finally:
            waiting.clear()
            if under_way:
                context.cancelAllJobs()


def _task_size(waiting: int, lanes: int, mean_s: float) -> int:
    """As much as `TASK_S` allows, and less towards the end, so that all cores end together."""
    return max(1, min(int(TASK_S / max(mean_s, 1e-3)), waiting // (2 * lanes)))


def _run(context: "SparkContext", task: list[Case], play: Play) -> list[Row]:
    rows: list[Row] = context.parallelize([task], 1).flatMap(partial(_play_all, play)).collect()
    return rows


def _play_all(play: Play, task: Iterable[Case]) -> Iterator[Row]:
    gc.freeze()  # a worker collects garbage after every task: not through all modules, please
    return (play(case) for case in task)
