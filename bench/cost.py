"""Wall and CPU time of a function or a command, with the processes that it starts."""

import ctypes
import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Cost = tuple[float, float]
"""Wall time and CPU time in seconds; the second hardly changes on a busy machine."""

ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of Linux: this process becomes the parent of processes whose own parent
has ended."""


def cost_of(work: Callable[[], object]) -> Cost:
    """Call a function and return its cost."""
    began, cpu = time.perf_counter(), _cpu_s()
    work()
    return time.perf_counter() - began, _cpu_s() - cpu


def cost_of_command(command: Sequence[str]) -> Cost:
    """Run a command; return the time until it ended, and the CPU time of all that it started. A
    JVM may end after the command, so this waits until no child is left."""
    ctypes.CDLL(None, use_errno=True).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    began, cpu = time.perf_counter(), _waited_cpu_s()
    subprocess.run(command, check=True)
    wall_s = time.perf_counter() - began
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return wall_s, _waited_cpu_s() - cpu


def _waited_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
