"""What a report says of one run, read from gold and a few silver tables; small enough to hold."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from hansa.errors import UsageError
from hansa.pipeline.lake import EXPERIMENTS, Lake
from hansa.pipeline.report import sweeps
from hansa.pipeline.report.sweeps import SweepSummary
from hansa.pipeline.runner import create_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS_MAX = 6
"""Runs on one page."""
ROWS = "rows of all"
ROWS_MAX = 20_000
"""Rows of one table that a page draws of each run."""

Rows = list[dict[str, Any]]

TABLES = {
    "runs": "nodes",
    "nodes": "lives",
    "links": "trips",
    "delay": "deliveries",
    "delay_by_hops": "deliveries",
    "delivery": "wanted",
    "redundancy": "received",
    "link_bytes": "bytes",
    "announcements": "frames",
    "control_overhead": "bytes",
    "convergence": "changes",
    "observations": "published",
    "traffic_matrix": "publications",
    "locality": "publications",
    "hot_topics": "publications",
}
"""What is read, and which column says what is large: that is drawn if not all can be."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run: its tables, with nodes by name."""

    run: str
    title: str
    tables: Mapping[str, Rows]
    names: Mapping[str, str]
    totals: Mapping[str, Mapping[str, float | None]]
    """Of tables that have more rows than are drawn: how many, and the sums of their columns."""

    def name(self, node: str | None) -> str:
        """Return what people call a node."""
        return self.names.get(node or "", node or "?")

    def total(self, table: str, column: str) -> float:
        """Return the sum of a column."""
        if table in self.totals:
            return self.totals[table][column] or 0
        return sum(row[column] or 0 for row in self.tables[table])

    def left_out(self) -> dict[str, tuple[int, int]]:
        """Return how many rows are drawn, and how many there are, where that differs."""
        counts = {
            name: (len(self.tables[name]), int(all_[ROWS] or 0))
            for name, all_ in self.totals.items()
        }
        return {name: (drawn, there) for name, (drawn, there) in counts.items() if drawn < there}


@dataclass(frozen=True, slots=True)
class ReportData:
    """All that a page says."""

    runs: list[RunFacts]
    run_count: int
    """How many there are, shown or not."""
    recorded: Rows
    sweeps: list[SweepSummary]


def collect_report(spark: "SparkSession", lake: Lake) -> ReportData:
    """Return what a page shows of a lake."""
    tables = create_views(spark, lake)
    swept = sweeps.collect_sweeps(tables[EXPERIMENTS]) if EXPERIMENTS in tables else []
    if lake.is_only_experiments:
        return ReportData([], 0, [], swept)
    missing = [name for name in TABLES if name not in tables]
    if missing:
        raise UsageError(
            f"{lake.path} has no table {missing[0]!r}: it was made by another version;"
            " `hansa pipeline run` makes the tables anew"
        )
    known = [row.asDict() for row in tables["runs"].orderBy("run").collect()]
    known.sort(key=lambda row: (row["simulated"], row["topology"] or "", row["seed"] or 0))
    shown = known[:RUNS_MAX]
    recorded = tables["recorded_topics"].orderBy(F.desc("messages"), "topic").limit(100).collect()
    sizes = {kept.name: kept.rows for kept in lake.tables()}
    runs = _runs(shown, tables, sizes)
    return ReportData(runs, len(known), [row.asDict() for row in recorded], swept)


def _runs(
    shown: Rows, tables: "Mapping[str, DataFrame]", sizes: Mapping[str, int]
) -> list[RunFacts]:
    wanted = [row["run"] for row in shown]
    drawn: dict[str, dict[str, Rows]] = {run: defaultdict(list) for run in wanted}
    whole: dict[str, dict[str, dict[str, float | None]]] = {run: {} for run in wanted}
    for name, largest in TABLES.items():
        some = tables[name].where(F.col("run").isin(wanted))
        if sizes[name] > ROWS_MAX:
            for row in _summed(some).collect():
                whole[row["run"]][name] = row.asDict()
            order = Window.partitionBy("run").orderBy(F.desc(largest))
            some = some.withColumn("place", F.row_number().over(order))
            some = some.where(F.col("place") <= ROWS_MAX).drop("place")
        for row in some.collect():
            drawn[row["run"]][name].append(row.asDict())
    return [_facts(row, drawn[row["run"]], whole[row["run"]]) for row in shown]


def _summed(table: "DataFrame") -> "DataFrame":
    numbers = [name for name, kind in table.dtypes if kind in ("bigint", "int", "double")]
    return table.groupBy("run").agg(
        F.count("*").alias(ROWS), *(F.sum(name).alias(name) for name in numbers)
    )


def _facts(
    run: dict[str, Any], tables: Mapping[str, Rows], whole: Mapping[str, Mapping[str, float | None]]
) -> RunFacts:
    if run["simulated"]:
        title = f"Simulated: {run['topology']}, {run['strategy']}, seed {run['seed']}"
    else:
        title = "Live"
    names = {row["node"]: row["name"] for row in tables["nodes"]}
    if len(set(names.values())) < len(names):  # two of one name could not be told apart
        names = {node: f"{name} {node[-4:]}" for node, name in names.items()}
    return RunFacts(run["run"], title, tables, names, whole)
