"""Collects the data of a report from gold and a few silver tables, bounded to fit into memory."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from hansa.errors import UsageError
from hansa.pipeline.lake import EXPERIMENTS, Lake
from hansa.pipeline.query import create_views
from hansa.pipeline.report import sweeps
from hansa.pipeline.report.sweeps import SweepSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS_MAX = 6
"""Runs in one report."""
ROWS = "total rows"
ROWS_MAX = 20_000
"""Rows of one table that a report shows per run."""

Rows = list[dict[str, Any]]

TABLES = {
    "runs": "node_count",
    "nodes": "incarnation_count",
    "links": "rtt_count",
    "delay": "deliveries",
    "delay_by_hops": "deliveries",
    "delivery": "expected",
    "redundancy": "received",
    "link_bytes": "bytes",
    "announcements": "frames",
    "control_overhead": "bytes",
    "convergence": "changes",
    "client_deliveries": "published",
    "traffic_matrix": "publications",
    "locality": "publications",
    "hot_topics": "publications",
}
"""Tables that are read, with the column by which the largest rows are selected if there are more
than ROWS_MAX."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The tables of one run, and the names of its nodes."""

    run: str
    title: str
    tables: Mapping[str, Rows]
    names: Mapping[str, str]
    totals: Mapping[str, Mapping[str, float | None]]
    """For tables with more rows than are shown: the number of rows and the sums of their
    columns."""

    def name(self, node: str | None) -> str:
        """Return the name of a node."""
        return self.names.get(node or "", node or "?")

    def total(self, table: str, column: str) -> float:
        """Return the sum of a column."""
        if table in self.totals:
            return self.totals[table][column] or 0
        return sum(row[column] or 0 for row in self.tables[table])

    def left_out(self) -> dict[str, tuple[int, int]]:
        """Return, per table that is not shown completely, how many rows are shown and exist."""
        counts = {
            name: (len(self.tables[name]), int(total[ROWS] or 0))
            for name, total in self.totals.items()
        }
        return {name: (shown, total) for name, (shown, total) in counts.items() if shown < total}


@dataclass(frozen=True, slots=True)
class ReportData:
    """The data of a report."""

    runs: list[RunFacts]
    run_count: int
    """All runs of the lake, shown or not."""
    recorded: Rows
    sweeps: list[SweepSummary]


def collect_report(spark: "SparkSession", lake: Lake) -> ReportData:
    """Read the data of a report from a lake."""
    tables = create_views(spark, lake)
    swept = sweeps.collect_sweeps(tables[EXPERIMENTS]) if EXPERIMENTS in tables else []
    if lake.is_only_experiments:
        return ReportData([], 0, [], swept)
    missing = [name for name in TABLES if name not in tables]
    if missing:
        raise UsageError(
            f"{lake.path} has no table {missing[0]!r}: it was made by another version;"
            " `hansa pipeline run` rebuilds the tables"
        )
    known = [row.asDict() for row in tables["runs"].orderBy("run").collect()]
    known.sort(key=lambda row: (row["simulated"], row["topology"] or "", row["seed"] or 0))
    shown = known[:RUNS_MAX]
    recorded = tables["recorded_topics"].orderBy(F.desc("messages"), "topic").limit(100).collect()
    sizes = {entry.name: entry.rows for entry in lake.tables()}
    runs = _runs(shown, tables, sizes)
    return ReportData(runs, len(known), [row.asDict() for row in recorded], swept)


def _runs(
    shown: Rows, tables: "Mapping[str, DataFrame]", sizes: Mapping[str, int]
) -> list[RunFacts]:
    runs = [row["run"] for row in shown]
    rows: dict[str, dict[str, Rows]] = {run: defaultdict(list) for run in runs}
    totals: dict[str, dict[str, dict[str, float | None]]] = {run: {} for run in runs}
    for name, size_column in TABLES.items():
        selected = tables[name].where(F.col("run").isin(runs))
        if sizes[name] > ROWS_MAX:
            for row in _column_sums(selected).collect():
                totals[row["run"]][name] = row.asDict()
            by_size = Window.partitionBy("run").orderBy(F.desc(size_column))
            selected = selected.withColumn("size_rank", F.row_number().over(by_size))
            selected = selected.where(F.col("size_rank") <= ROWS_MAX).drop("size_rank")
        for row in selected.collect():
            rows[row["run"]][name].append(row.asDict())
    return [_facts(row, rows[row["run"]], totals[row["run"]]) for row in shown]


def _column_sums(table: "DataFrame") -> "DataFrame":
    numbers = [name for name, kind in table.dtypes if kind in ("bigint", "int", "double")]
    return table.groupBy("run").agg(
        F.count("*").alias(ROWS), *(F.sum(name).alias(name) for name in numbers)
    )


def _facts(
    run: dict[str, Any],
    tables: Mapping[str, Rows],
    totals: Mapping[str, Mapping[str, float | None]],
) -> RunFacts:
    if run["simulated"]:
        title = f"Simulated: {run['topology']}, {run['strategy']}, seed {run['seed']}"
    else:
        title = "Live"
    names = {row["node_id"]: row["node_name"] for row in tables["nodes"]}
    if len(set(names.values())) < len(names):  # make equal names unique
        names = {node: f"{name} {node[-4:]}" for node, name in names.items()}
    return RunFacts(run["run"], title, tables, names, totals)
