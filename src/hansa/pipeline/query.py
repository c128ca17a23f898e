"""Questions in SQL, which can only read."""

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from hansa.pipeline.errors import to_user_error
from hansa.pipeline.lake import Lake
from hansa.pipeline.runner import create_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_query(
    spark: "SparkSession", lake: Lake, sql: str, rows_max: int
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the names of the columns and at most so many rows."""
    create_views(spark, lake)
    try:
        # Inside parentheses only a query can stand: nothing that writes, drops or sets.
        answer = spark.sql(f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)").limit(rows_max)
        return answer.columns, [tuple(row) for row in answer.collect()]
    except PySparkException as error:
        raise to_user_error(error) from error
