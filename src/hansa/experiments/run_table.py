"""The table `experiments` of a lake: one row per simulation of all sweeps."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hansa import __version__
from hansa.errors import UsageError
from hansa.experiments.fan_out import Row
from hansa.experiments.runs import RUN_COLUMNS, RUN_KEY, RUN_SCHEMA
from hansa.experiments.sweep import SimulationSweep
from hansa.pipeline.lake import EXPERIMENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    def __init__(self, spark: "SparkSession", lake: str) -> None:
        self._spark = spark
        self._path = f"{lake.rstrip('/')}/{EXPERIMENTS}"

    def completed_cases(self) -> set[str]:
        """Return the cases that this version has completed; others may give other results."""
        return {
            row["case"] for row in self._runs_of_this_version().select("case").toLocalIterator()
        }

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows atomically."""
        if rows:
            values = [tuple(row[name] for name in RUN_COLUMNS) for row in rows]
            frame = self._spark.createDataFrame(values, RUN_SCHEMA)
            frame.coalesce(1).write.mode("append").parquet(self._path)

    def read_all(self) -> "DataFrame":
        """Return all rows, each case of a version once, although two drivers may have run it.
        Columns that a newer version added are null in older rows."""
        from pyspark.errors import AnalysisException

        try:
            found = self._spark.read.schema(RUN_SCHEMA).parquet(self._path)
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise UsageError(f"{self._path} cannot be read: {error.getMessage()}") from error
            found = self._spark.createDataFrame([], RUN_SCHEMA)
        return found.dropDuplicates([*RUN_KEY])

    def _runs_of_this_version(self) -> "DataFrame":
        return self.read_all().where(f"hansa = '{__version__}'")

    def summary(self, sweep: SimulationSweep, cases: Iterable[str]) -> "list[Row]":
        """Return one row per combination of swept options, aggregated over the seeds."""
        from pyspark.sql import functions as F

        case_frame = self._spark.createDataFrame([(case,) for case in cases], "`case` string")
        by = [F.coalesce(F.col("parameters")[n], F.lit("")).alias(n) for n in sweep.swept]
        measures = [F.expr(text).alias(name) for name, text in MEASURES.items()]
        grouped = self._runs_of_this_version().join(case_frame, "case").groupBy(*by).agg(*measures)
        rows = [row.asDict() for row in grouped.collect()]
        return sorted(rows, key=lambda row: [row[name] for name in sweep.swept])
