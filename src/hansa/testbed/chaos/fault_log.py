"""Writes down what is done to a federation, beside the telemetry of its agents."""

import time
from pathlib import Path

from hansa.telemetry import schema
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

DIRECTORY_NAME = "chaos"
"""Where the faults are, beside one directory per node."""


class FaultLog:
    """The faults of one play."""

    def __init__(self, directory: Path, nodes: list[int]) -> None:
        """Write to a log of its own; `nodes` are the ids by place."""
        self._log = TelemetryLog(directory / DIRECTORY_NAME)
        self._recorder = NodeRecorder(self._log, schema.FAULT_INJECTOR, time.time_ns() // 1_000_000)
        self._nodes = nodes

    def record(self, what: str, *places: int) -> None:
        """Something was done to one node, or between two: `cut 0-1`."""
        text = f"{what} {'-'.join(map(str, places))}".strip()
        nodes = [self._nodes[place] for place in places]
        self._recorder.put(schema.FaultInjected(time.time_ns(), text, *nodes))

    def close(self) -> None:
        """Write the last ones."""
        self._recorder.flush()
        self._log.close()
