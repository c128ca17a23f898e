"""The row of one simulation in the table of sweeps.

Key: `case`, the arguments of `hansa simulate` that repeat it, and `hansa` and `code`, the version
that ran it and the digest of its sources.
"""

import shlex
from typing import Any

from hansa.experiments.sweep import SweepCase
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.result import SimulationResult
from hansa.source_digest import source_commit, source_digest

RUN_COLUMNS = {
    "case": "string",
    "sweep": "string",
    "hansa": "string",
    "topology": "string",
    "strategy": "string",
    "parameters": "map<string,string>",
    "seed": "bigint",
    "nodes": "int",
    "links": "int",
    "converged_s": "double",
    "recovered_s": "double",
    "publications": "bigint",
    "expected": "bigint",
    "delivered": "bigint",
    "lost": "bigint",
    "duplicates_delivered": "bigint",
    "duplicates_dropped": "bigint",
    "copies_per_publication": "double",
    "delay_mean_ms": "double",
    "delay_p50_ms": "double",
    "delay_p99_ms": "double",
    "control_frames": "bigint",
    "control_bytes": "bigint",
    "data_frames": "bigint",
    "data_bytes": "bigint",
    "violations": "array<string>",
    "fingerprint": "string",
    "virtual_s": "double",
    "events": "bigint",
    "wall_s": "double",
    "commit": "string",
    "code": "string",
}
"""Names and Spark types, in order. Columns are only added."""

RUN_KEY = ("case", "hansa", "code")

RUN_SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in RUN_COLUMNS.items())

DEFAULT_STRATEGY = ProtocolSettings().strategy


def simulator_code() -> str:
    """Return the digest of all sources that a simulation depends on."""
    return source_digest("hansa.simulator.request")


def case_key(case: SweepCase) -> str:
    return shlex.join(case.arguments)


def make_run_row(
    case: SweepCase, sweep: str, version: str, result: SimulationResult
) -> dict[str, Any]:
    """Return the row of a simulation. `recovered_s` is the slowest recovery from a fault, None if
    there was no fault or the next one came before the recovery."""
    start, *faults = result.converged_s
    recoveries = [each.converged_s for each in faults if each.converged_s is not None]
    delay = result.delay_ms
    parameters = dict(case.parameters)
    return {
        "case": case_key(case),
        "sweep": sweep,
        "hansa": version,
        "topology": result.topology,
        "strategy": parameters.get("strategy", DEFAULT_STRATEGY),
        "parameters": parameters,
        "seed": case.seed,
        "nodes": result.nodes,
        "links": result.links,
        "converged_s": start.converged_s,
        "recovered_s": max(recoveries, default=None),
        "publications": result.publications,
        "expected": result.expected,
        "delivered": result.delivered,
        "lost": result.lost,
        "duplicates_delivered": result.duplicates_delivered,
        "duplicates_dropped": result.duplicates_dropped,
        "copies_per_publication": result.copies_per_publication,
        "delay_mean_ms": delay.mean if delay else None,
        "delay_p50_ms": delay.p50 if delay else None,
        "delay_p99_ms": delay.p99 if delay else None,
        "control_frames": sum(result.control_frames.values()),
        "control_bytes": sum(result.control_bytes.values()),
        "data_frames": result.data_frames,
        "data_bytes": result.data_bytes,
        "violations": list(result.violations),
        "fingerprint": result.fingerprint,
        "virtual_s": result.virtual_s,
        "events": result.events,
        "wall_s": result.wall_s,
        "commit": source_commit(),
        "code": simulator_code(),
    }
