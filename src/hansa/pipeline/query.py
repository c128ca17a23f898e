"""Runs SQL queries on a lake, read-only."""

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from hansa.pipeline.errors import to_user_error
from hansa.pipeline.lake import Lake
from hansa.pipeline.views import create_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_query(
    spark: "SparkSession", lake: Lake, sql: str, rows_max: int
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the names of the columns and at most `rows_max` rows."""
    create_views(spark, lake)
    try:
        # Only a query is allowed in parentheses: no statement that writes, drops or sets.
        result = spark.sql(f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)").limit(rows_max)
        return result.columns, [tuple(row) for row in result.collect()]
    except PySparkException as error:
        raise to_user_error(error) from error
