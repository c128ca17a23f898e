"""The table `experiments` of a lake: one row per simulation of all sweeps."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hansa.experiments.fan_out import Row
from hansa.experiments.runs import RUN_COLUMNS, RUN_KEY, RUN_SCHEMA, simulator_code
from hansa.experiments.sweep import SimulationSweep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hansa.pipeline.lake import Lake

MEASURES = {
    "cases": "count(*)",
    "converged_s": "avg(converged_s)",
    "recovered_s": "max(recovered_s)",
    "delay_ms": "avg(delay_mean_ms)",
    "delay_p99_ms": "max(delay_p99_ms)",
    "copies": "avg(copies_per_publication)",
    "control_bytes_per_s": "avg(control_bytes / virtual_s)",
    "lost": "sum(lost) / sum(expected)",
    "violations": "sum(size(violations))",
}
"""The SQL aggregates over all seeds of one combination."""


class RunTable:
    """The simulations in a lake, which need not exist yet."""

    def __init__(self, lake: "Lake") -> None:
        from hansa.pipeline.catalog import EXPERIMENTS_PLACE

        self._lake, self._place = lake, EXPERIMENTS_PLACE
        self._spark = lake.spark

    def completed_cases(self) -> set[str]:
        """Return the cases that this code has completed; other code may give other results."""
        return {row["case"] for row in self._runs_of_this_code().select("case").toLocalIterator()}

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one commit; columns that a newer version added are added to the table."""
        if rows:
            values = [tuple(row[name] for name in RUN_COLUMNS) for row in rows]
            frame = self._spark.createDataFrame(values, RUN_SCHEMA)
            writer = frame.coalesce(1).write.format("delta").mode("append")
            writer.option("mergeSchema", "true").save(self._lake.location(self._place))

    def read_all(self) -> "DataFrame":
        """Return all rows, each case of a code once, although two drivers may have run it.
        Columns that a newer version added are null in older rows."""
        if self._lake.has(self._place):
            found = self._lake.read(self._place)
        else:
            found = self._spark.createDataFrame([], RUN_SCHEMA)
        return found.dropDuplicates([*RUN_KEY])

    def _runs_of_this_code(self) -> "DataFrame":
        return self.read_all().where(f"code = '{simulator_code()}'")

    def failed_cases(self, cases: Iterable[str]) -> dict[str, list[str]]:
        """Return the violations of each case that has any."""
        selected = set(cases)
        found = self._runs_of_this_code().where("size(violations) > 0")
        rows = found.select("case", "violations").orderBy("seed", "case").toLocalIterator()
        return {row["case"]: row["violations"] for row in rows if row["case"] in selected}

    def summary(self, sweep: SimulationSweep, cases: Iterable[str]) -> "list[Row]":
        """Return one row per combination of swept options, aggregated over the seeds."""
        from pyspark.sql import functions as F

        case_frame = self._spark.createDataFrame([(case,) for case in cases], "`case` string")
        by = [F.coalesce(F.col("parameters")[n], F.lit("")).alias(n) for n in sweep.swept]
        measures = [F.expr(text).alias(name) for name, text in MEASURES.items()]
        grouped = self._runs_of_this_code().join(case_frame, "case").groupBy(*by).agg(*measures)
        rows = [row.asDict() for row in grouped.collect()]
        return sorted(rows, key=lambda row: [row[name] for name in sweep.swept])
