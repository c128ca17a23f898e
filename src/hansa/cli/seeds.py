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
from hansa.simulator.scenarios.catalogue import Played

AHEAD = 4
"""Runs per core that are handed out at once: enough that no core waits."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How far a row of seeds came."""

    passed: int
    failed: Played | None
    """The first seed that broke a promise."""
    last: Played | None
    """The last seed that kept all."""


def first_failure(play: Callable[[int], Played], seeds: Sequence[int]) -> Tally:
    """Play seeds until one fails. The answer does not depend on how many cores there are."""
    passed, last = 0, None
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(f"seeds {seeds[0]} to {seeds[-1]}", total=len(seeds))
        with closing(_in_order(play, seeds)) as runs:
            for played in runs:
                if not played.result.ok:
                    return Tally(passed, played, last)
                passed, last = passed + 1, played
                progress.advance(bar)
    return Tally(passed, None, last)


def _in_order(play: Callable[[int], Played], seeds: Sequence[int]) -> Generator[Played, None, None]:
    """Yield the runs in the order of their seeds, a bounded number of them under way."""
    cores = min(_cores(), len(seeds))
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"))
    waiting: deque[tuple[int, Future[Played]]] = deque()
    complete = False
    try:
        for seed in seeds:
            with _interrupts_held():
                waiting.append((seed, pool.submit(play, seed)))
            if len(waiting) >= AHEAD * cores:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())
        complete = True
    finally:
        if not complete:  # nobody needs what the workers still compute
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
        pool.shutdown(cancel_futures=True)


def _result(seed: int, run: Future[Played]) -> Played:
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
