"""Many seeds over all cores: plays them in order and stops at the first that breaks a promise."""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress

from hansa.simulator.scenarios import Played

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
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    waiting: deque[Future[Played]] = deque()
    pool = ProcessPoolExecutor(cores, context, initializer=_ignore_interrupt)
    try:
        for seed in seeds:
            waiting.append(pool.submit(play, seed))
            if len(waiting) >= AHEAD * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for child in set(multiprocessing.active_children()) - others if waiting else ():
            child.terminate()  # nobody needs what it still computes
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    """Return the cores that this process may use; not every system tells, then all count."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ignore_interrupt() -> None:
    """Ctrl-C goes to all processes of a terminal; only the first one shall tell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
