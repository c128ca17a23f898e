"""What a page says of sweeps: how combinations compare, and how they grow with the federation."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from hansa import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SWEEPS_MAX = 6
"""Sweeps on one page: those with most simulations."""

MEASURES = {
    "delay_ms": ("How long does a publication take?", "mean delay, ms", "avg(delay_mean_ms)"),
    "copies": (
        "How many copies does it cost?",
        "copies per publication",
        "avg(copies_per_publication)",
    ),
    "control": (
        "What is said on each link?",
        "control bytes per link and second",
        "avg(control_bytes / virtual_s / links)",
    ),
    "recovered_s": ("How fast does it heal?", "slowest recovery, s", "max(recovered_s)"),
    "lost": ("How much is lost?", "share of what was wanted", "sum(lost) / sum(expected)"),
}
"""Per measure, the question, the unit, and how Spark answers it over all seeds."""

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """One experiment: per combination of what was swept, and size, what all seeds have shown."""

    name: str
    simulations: int
    series: dict[str, dict[str, Points]]
    """Per measure and combination, the value for each number of nodes."""


def collect_sweeps(experiments: "DataFrame") -> list[SweepSummary]:
    """Return the sweeps that a page shows, as this version of Hansa played them if it did."""
    grouped = (
        experiments.withColumn("shape", F.substring_index("topology", ":", 1))
        .withColumn("said", F.expr("to_json(map_filter(parameters, (k, v) -> k <> 'topology'))"))
        .groupBy("sweep", "hansa", "shape", "said", "nodes")
        .agg(
            F.count("*").alias("simulations"),
            *(F.expr(text).alias(name) for name, (_, _, text) in MEASURES.items()),
        )
    )
    by_sweep: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in grouped.collect():
        by_sweep[row["sweep"]].append(row.asDict())
    made = [_sweep(name, _of_one_version(rows)) for name, rows in by_sweep.items()]
    return sorted(made, key=lambda sweep: (-sweep.simulations, sweep.name))[:SWEEPS_MAX]


def _of_one_version(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    versions = {row["hansa"] for row in rows}
    version = __version__ if __version__ in versions else max(versions)
    return [row for row in rows if row["hansa"] == version]


def _sweep(name: str, rows: list[dict[str, Any]]) -> SweepSummary:
    options = [{"": row["shape"], **json.loads(row["said"])} for row in rows]
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
    """Numbers need the name of their option, words speak for themselves."""
    return f"{option} {value}" if value.replace(".", "").isdigit() else value


def _sorted(combinations: dict[str, Points]) -> dict[str, Points]:
    return {label: sorted(combinations[label]) for label in sorted(combinations)}
