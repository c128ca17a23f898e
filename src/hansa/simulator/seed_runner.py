"""Runs many simulations over all cores: seeds in order until the first violation, or all cases.

The result does not depend on the number of cores. An exception in a worker is raised here with a
note that names its seed. Ctrl-C reaches only this process; the workers are terminated.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from hansa.errors import HansaError
from hansa.simulator.scenarios.catalogue import ScenarioResult

Case = TypeVar("Case")
Result = TypeVar("Result")

RUNS_AHEAD_PER_CORE = 4
"""Submitted runs per core, so that no core is idle."""


@dataclass(frozen=True, slots=True)
class SeedTally:
    """Result of a range of seeds."""

    passed: int
    failed: ScenarioResult | None
    """The first seed with a violation."""
    last: ScenarioResult | None
    """The last seed that passed."""


def find_first_failure(
    run_seed: Callable[[int], ScenarioResult],
    seeds: Sequence[int],
    on_passed: Callable[[], None] = lambda: None,
) -> SeedTally:
    """Run seeds until one fails. `run_seed` must be picklable; `on_passed` is called per seed."""
    passed, last = 0, None
    with closing(_run_in_order(run_seed, seeds)) as runs:
        for result in runs:
            if not result.result.ok:
                return SeedTally(passed, result, last)
            passed, last = passed + 1, result
            on_passed()
    return SeedTally(passed, None, last)


def run_as_completed(
    run_case: Callable[[Case], Result], cases: Iterable[Case], cores: int | None = None
) -> Generator[Result, None, None]:
    """Run all cases and yield results as they arrive. `run_case` must be picklable. Closing the
    generator ends the workers."""
    waiting = iter(cases)
    cores = cores or usable_cores()
    with _worker_pool(cores) as submit:
        running: set[Future[Result]] = set()
        while True:
            free = RUNS_AHEAD_PER_CORE * cores - len(running)
            running |= {submit(run_case, case) for case in islice(waiting, free)}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for run in done:
                yield run.result()


def _run_in_order(
    run_seed: Callable[[int], ScenarioResult], seeds: Sequence[int]
) -> Generator[ScenarioResult, None, None]:
    cores = min(usable_cores(), len(seeds))
    waiting: deque[tuple[int, Future[ScenarioResult]]] = deque()
    with _worker_pool(cores) as submit:
        for seed in seeds:
            waiting.append((seed, submit(run_seed, seed)))
            if len(waiting) >= RUNS_AHEAD_PER_CORE * cores:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())


@contextmanager
def _worker_pool(
    cores: int,
) -> Generator[Callable[[Callable[[Case], Result], Case], "Future[Result]"], None, None]:
    """Start workers; yield the function that submits a case. Workers that still run when the
    block is left by an exception are terminated."""
    other_children = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"))

    def submit(run_case: Callable[[Case], Result], case: Case) -> "Future[Result]":
        with _sigint_blocked():  # a worker may be started
            return pool.submit(run_case, case)

    try:
        yield submit
    except BaseException:
        for worker in set(multiprocessing.active_children()) - other_children:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _result(seed: int, run: Future[ScenarioResult]) -> ScenarioResult:
    try:
        return run.result()
    except HansaError:
        raise
    except Exception as fault:
        fault.add_note(f"while running seed {seed}")
        raise


@contextmanager
def _sigint_blocked() -> Generator[None, None, None]:
    """Block SIGINT while workers start: they inherit the mask, so only this process handles it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
