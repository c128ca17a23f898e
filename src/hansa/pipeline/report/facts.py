"""What a report says of one run, read from gold and a few silver tables; small enough to hold."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from hansa.errors import UsageError
from hansa.pipeline.job import views
from hansa.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS_MAX = 6
"""Runs on one page."""
ROWS_MAX = 20_000
"""Rows of one table that a page is made from."""

Rows = list[dict[str, Any]]

TABLES = (
    *("runs", "nodes", "links", "delay", "delay_by_hops", "delivery", "redundancy"),
    *("link_bytes", "announcements", "control_overhead", "convergence", "traffic_matrix"),
    *("locality", "hot_topics"),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """One run: its tables, with nodes by name."""

    run: str
    title: str
    tables: Mapping[str, Rows]
    names: Mapping[str, str]

    def name(self, node: str | None) -> str:
        """Return what people call a node."""
        return self.names.get(node or "", node or "?")

    def total(self, table: str, column: str) -> float:
        """Return the sum of a column."""
        return sum(row[column] or 0 for row in self.tables[table])


def collect(spark: "SparkSession", lake: Lake) -> tuple[list[Facts], int, Rows]:
    """Return the runs that a page shows, how many there are, and the recorded topics."""
    tables = views(spark, lake)
    missing = [name for name in TABLES if name not in tables]
    if missing:
        raise UsageError(
            f"{lake.path} has no table {missing[0]!r}: it was made by another version;"
            " `hansa pipeline run` makes the tables anew"
        )
    known = [row.asDict() for row in tables["runs"].orderBy("run").collect()]
    known.sort(key=lambda row: (row["simulated"], row["topology"] or "", row["seed"] or 0))
    shown = known[:RUNS_MAX]
    wanted = [row["run"] for row in shown]
    by_run: dict[str, dict[str, Rows]] = {run: defaultdict(list) for run in wanted}
    for name in TABLES:
        some = tables[name].where(F.col("run").isin(wanted)).limit(ROWS_MAX)
        for row in some.collect():
            by_run[row["run"]][name].append(row.asDict())
    recorded = tables["recorded_topics"].orderBy(F.desc("messages"), "topic").limit(100).collect()
    facts = [_facts(row, by_run[row["run"]]) for row in shown]
    return facts, len(known), [row.asDict() for row in recorded]


def _facts(run: dict[str, Any], tables: Mapping[str, Rows]) -> Facts:
    if run["simulated"]:
        title = f"Simulated: {run['topology']}, {run['strategy']}, seed {run['seed']}"
    else:
        title = "Live"
    names = {row["node"]: row["name"] for row in tables["nodes"]}
    if len(set(names.values())) < len(names):  # two of one name could not be told apart
        names = {node: f"{name} {node[-4:]}" for node, name in names.items()}
    return Facts(run["run"], title, tables, names)
