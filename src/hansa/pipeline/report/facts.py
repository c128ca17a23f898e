"""Collects the data of a report from gold and a few silver tables, bounded to fit into memory."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from hansa.pipeline.gold import delay_statistics
from hansa.pipeline.lake import EXPERIMENTS, Lake
from hansa.pipeline.query import read_tables
from hansa.pipeline.report import sweeps
from hansa.pipeline.report.incidents import RECORD_KINDS
from hansa.pipeline.report.sweeps import SweepSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RUNS_MAX = 6
"""Runs in one report."""
OVER_TIME = "over_time"
"""Rows of a run by time, in steps that suit its length."""
INCIDENT_RECORDS = "incident_records"
STEPS_S = (1, 10, 60, 600, 3_600, 86_400, 604_800)
POINTS_MAX = 150
"""Points of a chart over time."""
ROWS = "total rows"
ROWS_MAX = 20_000
"""Rows of one table that a report shows per run."""

Rows = list[dict[str, Any]]

TABLES = {
    "runs": "ended_at",
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

SUMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "delivery": (
        ("origin_id", "node_id"),
        ("expected", "delivered", "lost", "delivered_repeatedly", "delivered_without_interest"),
    ),
    "redundancy": (("node_id",), ("received", "duplicates", "duplicate_bytes")),
    "link_bytes": (("sender_id", "receiver_id", "frame"), ("frames", "bytes")),
    "traffic_matrix": (("origin_id", "node_id"), ("publications", "bytes")),
    "locality": (("origin_id",), ("publications", "not_forwarded", "deliveries")),
    "hot_topics": (("topic",), ("publications", "copies", "link_bytes", "deliveries")),
}
"""Gold tables that are added up over the hours: key, and columns to add."""


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


def collect_report(lake: Lake) -> ReportData:
    """Read the data of a report from a lake."""
    tables = read_tables(lake)
    swept = sweeps.collect_sweeps(tables[EXPERIMENTS]) if EXPERIMENTS in tables else []
    if "runs" not in tables:
        return ReportData([], 0, [], swept)
    known = [row.asDict() for row in tables["runs"].orderBy("run").collect()]
    known.sort(key=lambda row: (row["simulated"], row["topology"] or "", row["seed"] or 0))
    shown = known[:RUNS_MAX]
    topics = tables["recorded_topics"].groupBy("topic")
    recorded = topics.agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.max("origins").alias("origins"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )
    busiest = recorded.orderBy(F.desc("messages"), "topic").limit(100).collect()
    return ReportData(_runs(shown, tables), len(known), [row.asDict() for row in busiest], swept)


def _runs(shown: Rows, tables: "Mapping[str, DataFrame]") -> list[RunFacts]:
    runs = [row["run"] for row in shown]
    rows: dict[str, dict[str, Rows]] = {run: defaultdict(list) for run in runs}
    totals: dict[str, dict[str, dict[str, float | None]]] = {run: {} for run in runs}
    for name, size_column in TABLES.items():
        whole = _without_hours(name, tables).where(F.col("run").isin(runs))
        largest = whole.orderBy(F.desc(size_column)).limit(ROWS_MAX + 1).collect()
        if len(largest) > ROWS_MAX:
            for row in _column_sums(whole).collect():
                totals[row["run"]][name] = row.asDict()
        for row in largest[:ROWS_MAX]:
            rows[row["run"]][name].append(row.asDict())
    for row in (*_over_time(shown, tables), *_incident_records(runs, tables)):
        rows[row.pop("run")][row.pop("table")].append(row)
    return [_facts(row, rows[row["run"]], totals[row["run"]]) for row in shown]


def time_step(seconds: float) -> int:
    """Return the step of charts over time: the shortest that needs few points."""
    return next((step for step in STEPS_S if seconds / step <= POINTS_MAX), STEPS_S[-1])


def _over_time(shown: Rows, tables: "Mapping[str, DataFrame]") -> Rows:
    """Return publications, deliveries, delays and losses of runs by time since their start."""
    steps = {
        row["run"]: time_step((row["ended_at"] - row["started_at"]).total_seconds())
        for row in shown
    }

    def steps_of(name: str, time: str) -> "DataFrame":
        """Return the rows of the runs with `at_s`."""
        frame = tables[name].where(F.col("run").isin([*steps])).where(f"{time} is not null")
        start, step = (
            F.coalesce(*(F.when(F.col("run") == run, F.lit(value)) for run, value in by_run))
            for by_run in (
                [(row["run"], row["started_at"]) for row in shown],
                [*steps.items()],
            )
        )
        since = F.unix_timestamp(time) - F.unix_timestamp(start)
        return frame.withColumn("at_s", F.floor(since / step) * step)

    published = (
        steps_of("publications", "published_at")
        .groupBy("run", "at_s")
        .agg(F.count("*").alias("publications"))
    )
    p50, p99 = (F.percentile_approx("delay_ms", percent) for percent in (0.5, 0.99))
    delivered = (
        steps_of("deliveries", "published_at")
        .groupBy("run", "at_s")
        .agg(F.count("*").alias("deliveries"), p50.alias("p50_ms"), p99.alias("p99_ms"))
    )
    lost = (
        steps_of("losses_and_repairs", "recorded_at")
        .groupBy("run", "at_s")
        .agg(
            F.count_if(F.col("kind") == "dropped").alias("dropped"),
            F.sum(F.expr("if(kind = 'gap', last_sequence - first_sequence + 1, 0)")).alias("lost"),
        )
    )
    found = (
        published.join(delivered, ["run", "at_s"], "full")
        .join(lost, ["run", "at_s"], "full")
        .orderBy("run", "at_s")
        .limit((POINTS_MAX + 1) * len(steps))
    )
    return [
        {**row.asDict(), "table": OVER_TIME, "step_s": steps[row["run"]]} for row in found.collect()
    ]


def _incident_records(runs: list[str], tables: "Mapping[str, DataFrame]") -> Rows:
    """Return the records from which incidents are found, in order of time."""
    columns = ("run", "recorded_at", "kind", "node_id", "peer_id")
    control = tables["control_events"].select(*columns)
    lost = tables["losses_and_repairs"].select(
        *columns, "origin_id", "first_sequence", "last_sequence"
    )
    alarms = tables["alarms"].select("run", "recorded_at", "kind", "node_id", "alarm")
    found = (
        control.unionByName(lost, allowMissingColumns=True)
        .unionByName(alarms, allowMissingColumns=True)
        .where(F.col("run").isin(runs) & F.col("kind").isin(*RECORD_KINDS))
        .orderBy("recorded_at", "node_id")
        .limit(ROWS_MAX)
    )
    return [{**row.asDict(), "table": INCIDENT_RECORDS} for row in found.collect()]


def _without_hours(name: str, tables: "Mapping[str, DataFrame]") -> "DataFrame":
    """Return a table with one row for the whole recording instead of one per hour."""
    table = tables[name]
    if name in SUMS:
        key, columns = SUMS[name]
        return table.groupBy("run", *key).agg(*(F.sum(each).alias(each) for each in columns))
    if name == "delay":
        return table.groupBy("run", "origin_id", "node_id").agg(
            F.sum("deliveries").alias("deliveries"),
            F.sum("measured").alias("measured"),
            F.expr("try_divide(sum(delay_ms_mean * measured), sum(measured))").alias(
                "delay_ms_mean"
            ),
        )
    if name == "delay_by_hops":  # percentiles of hours cannot be combined
        return (
            tables["deliveries"]
            .groupBy("run", "hops")
            .agg(F.count("*").alias("deliveries"), *delay_statistics())
        )
    if name == "control_overhead":
        return table.groupBy("run", "frame").agg(
            F.sum("frames").alias("frames"),
            F.sum("bytes").alias("bytes"),
            F.expr("try_divide(sum(bytes), sum(seconds * links))").alias("bytes_per_link_second"),
        )
    return table


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
