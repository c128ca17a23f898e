"""Wall and CPU time of a function, with the processes that it starts."""

import os
import time
from collections.abc import Callable
from pathlib import Path

Cost = tuple[float, float]
"""Wall time and CPU time in seconds; the second hardly changes on a busy machine."""


def cost_of(work: Callable[[], object]) -> Cost:
    """Call a function and return its cost."""
    began, cpu = time.perf_counter(), _cpu_s()
    work()
    return time.perf_counter() - began, _cpu_s() - cpu


def _cpu_s() -> float:
    """CPU seconds of this process and its children (Java, Python workers)."""
    used, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended; its parent includes its time
            continue
        pid = int(stat.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")
