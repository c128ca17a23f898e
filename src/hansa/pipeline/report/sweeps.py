"""Collects the results of sweeps for the report: measures by combination and federation size."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from hansa import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SWEEPS_MAX = 6
"""Sweeps in one report: those with most simulations."""

MEASURES = {
    "delay_ms": ("How long does a publication take?", "mean delay, ms", "avg(delay_mean_ms)"),
    "copies": (
        "How many copies does it cost?",
        "copies per publication",
        "avg(copies_per_publication)",
    ),
    "control": (
        "What does control traffic cost?",
        "control bytes per link and second",
        "avg(control_bytes / virtual_s / links)",
    ),
    "recovered_s": ("How fast does it recover?", "slowest recovery, s", "max(recovered_s)"),
    "lost": (
        "How much is lost?",
        "lost ratio of expected deliveries",
        "try_divide(sum(lost), sum(expected))",
    ),
}
"""Per measure: question, unit, and the SQL aggregate over all seeds."""

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """The results of one sweep, aggregated over seeds."""

    name: str
    simulations: int
    series: dict[str, dict[str, Points]]
    """Per measure and combination of swept options, the value for each number of nodes."""


def collect_sweeps(experiments: "DataFrame") -> list[SweepSummary]:
    """Return the sweeps to show: runs of this version of Hansa if there are any, else the
    newest."""
    grouped = (
        experiments.withColumn("shape", F.substring_index("topology", ":", 1))
        .withColumn("options", F.expr("to_json(map_filter(parameters, (k, v) -> k <> 'topology'))"))
        .groupBy("sweep", "hansa", "shape", "options", "nodes")
        .agg(
            F.count("*").alias("simulations"),
            *(F.expr(text).alias(name) for name, (_, _, text) in MEASURES.items()),
        )
    )
    by_sweep: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in grouped.collect():
        by_sweep[row["sweep"]].append(row.asDict())
    sweeps = [_sweep(name, _of_one_version(rows)) for name, rows in by_sweep.items()]
    return sorted(sweeps, key=lambda sweep: (-sweep.simulations, sweep.name))[:SWEEPS_MAX]


def _of_one_version(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    versions = {row["hansa"] for row in rows}
    version = __version__ if __version__ in versions else max(versions)
    return [row for row in rows if row["hansa"] == version]


def _sweep(name: str, rows: list[dict[str, Any]]) -> SweepSummary:
    options = [{"": row["shape"], **json.loads(row["options"])} for row in rows]
    names = dict.fromkeys(option for each in options for option in each)
    swept = [option for option in names if len({each.get(option) for each in options}) > 1]
    series: dict[str, dict[str, Points]] = {measure: defaultdict(list) for measure in MEASURES}
    for row, given in zip(rows, options, strict=True):
        label = " ".join(_word(option, given.get(option, "")) for option in swept).strip()
        for measure, combinations in series.items():
            if row[measure] is not None:
                combinations[label or "all"].append((row["nodes"], row[measure]))
    simulations = sum(row["simulations"] for row in rows)
    return SweepSummary(name, simulations, {name: _sorted(found) for name, found in series.items()})


def _word(option: str, value: str) -> str:
    """Return a label; only numbers need the name of their option."""
    return f"{option} {value}" if value.replace(".", "").isdigit() else value


def _sorted(combinations: dict[str, Points]) -> dict[str, Points]:
    return {label: sorted(combinations[label]) for label in sorted(combinations)}
