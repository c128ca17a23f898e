"""Runs many seeds over all cores, in order, and stops at the first violation.

The result does not depend on the number of cores. An exception in a worker is raised here with a
note that names its seed. Ctrl-C reaches only this process; the workers are terminated.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

from hansa.errors import HansaError
from hansa.simulator.scenarios.catalogue import ScenarioResult

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


def _run_in_order(
    run_seed: Callable[[int], ScenarioResult], seeds: Sequence[int]
) -> Generator[ScenarioResult, None, None]:
    cores = min(_usable_cores(), len(seeds))
    other_children = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"))
    waiting: deque[tuple[int, Future[ScenarioResult]]] = deque()
    complete = False
    try:
        for seed in seeds:
            with _sigint_blocked():
                waiting.append((seed, pool.submit(run_seed, seed)))
            if len(waiting) >= RUNS_AHEAD_PER_CORE * cores:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())
        complete = True
    finally:
        if not complete:
            for worker in set(multiprocessing.active_children()) - other_children:
                worker.terminate()
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


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
