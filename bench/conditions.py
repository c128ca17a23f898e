"""What a figure depends on, printed above the results and saved with them."""

import os
import platform
from pathlib import Path

from bench.peer_kinds import mosquitto_version
from hansa import __version__, compiled_core
from hansa.errors import UsageError
from hansa.source_digest import source_commit


def conditions() -> dict[str, str]:
    """Return the code and its core, the machine, its load before the run, and the versions."""
    try:
        broker = mosquitto_version()
    except UsageError:
        broker = "not installed"
    return {
        "Hansa": f"{__version__}, commit {source_commit() or 'unknown'}",
        "core": "compiled" if compiled_core.is_enabled() else "pure",  # agents inherit HANSA_PURE
        "machine": f"{os.cpu_count()} cores, {_processor()}, Linux {platform.release()}",
        "load before": ", ".join(f"{each:.1f}" for each in os.getloadavg()),
        "versions": f"Python {platform.python_version()}, Mosquitto {broker}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
