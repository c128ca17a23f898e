"""Many seeds over all cores: plays them in order and stops at the first that breaks a promise."""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress

from hansa.errors import HansaError
from hansa.simulator.scenarios.catalogue import ScenarioResult

RUNS_AHEAD_PER_CORE = 4
"""Runs per core that are handed out at once: enough that no core waits."""


@dataclass(frozen=True, slots=True)
class SeedTally:
    """How far a row of seeds came."""

    passed: int
    failed: ScenarioResult | None
    """The first seed that broke a promise."""
    last: ScenarioResult | None
    """The last seed that kept all."""


def find_first_failure(
    run_seed: Callable[[int], ScenarioResult], seeds: Sequence[int]
) -> SeedTally:
    """Play seeds until one fails. The answer does not depend on how many cores there are."""
    passed, last = 0, None
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(f"seeds {seeds[0]} to {seeds[-1]}", total=len(seeds))
        with closing(_run_in_order(run_seed, seeds)) as runs:
            for played in runs:
                if not played.result.ok:
                    return SeedTally(passed, played, last)
                passed, last = passed + 1, played
                progress.advance(bar)
    return SeedTally(passed, None, last)


def _run_in_order(
    run_seed: Callable[[int], ScenarioResult], seeds: Sequence[int]
) -> Generator[ScenarioResult, None, None]:
    """Yield the runs in the order of their seeds, a bounded number of them under way."""
    cores = min(_cores(), len(seeds))
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"))
    waiting: deque[tuple[int, Future[ScenarioResult]]] = deque()
    complete = False
    try:
        for seed in seeds:
            with _interrupts_held():
                waiting.append((seed, pool.submit(run_seed, seed)))
            if len(waiting) >= RUNS_AHEAD_PER_CORE * cores:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())
        complete = True
    finally:
        if not complete:  # nobody needs what the workers still compute
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
        pool.shutdown(cancel_futures=True)


def _result(seed: int, run: Future[ScenarioResult]) -> ScenarioResult:
    """Return what a worker found. A fault of ours keeps its traceback and gets its seed."""
    try:
        return run.result()
    except HansaError:
        raise
    except Exception as fault:
        fault.add_note(f"while playing seed {seed}")
        raise


@contextmanager
def _interrupts_held() -> Generator[None, None, None]:
    """Hold Ctrl-C back while processes start: they inherit that and never see it.

    A terminal sends it to all of them, and only the first one shall tell.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _cores() -> int:
    """Return the cores that this process may use; not every system tells, then all count."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
