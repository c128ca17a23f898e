"""Reads a lake: its tables as Spark views, and read-only SQL queries on them."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from hansa.pipeline.bronze import read_bronze
from hansa.pipeline.errors import to_user_error
from hansa.pipeline.lake import BRONZE, EXPERIMENTS, Lake, TableEntry


def create_views(spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    """Return the tables of a lake, and create a view of each for SQL."""
    tables = {} if lake.is_only_experiments else _tables(spark, lake)
    if lake.experiments:
        simulations = spark.read.option("mergeSchema", "true").parquet(str(lake.experiments))
        # Two drivers may have run the same case at the same time.
        tables[EXPERIMENTS] = simulations.dropDuplicates(["case", "hansa"])
    for name, frame in tables.items():
        frame.createOrReplaceTempView(name)
    return tables


def _tables(spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    return {entry.name: _read(spark, lake, entry) for entry in lake.tables()} | {
        f"bronze_{table}": read_bronze(spark, lake, table) for table in BRONZE
    }


def _read(spark: SparkSession, lake: Lake, entry: TableEntry) -> DataFrame:
    # With a given schema, Spark reads no file before the first query.
    reader = spark.read.schema(entry.columns) if entry.columns else spark.read
    return reader.parquet(str(lake.table_path(entry)))


def run_query(
    spark: SparkSession, lake: Lake, sql: str, rows_max: int
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the names of the columns and at most `rows_max` rows."""
    create_views(spark, lake)
    try:
        # Only a query is allowed in parentheses: no statement that writes, drops or sets.
        result = spark.sql(f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)").limit(rows_max)
        return result.columns, [tuple(row) for row in result.collect()]
    except PySparkException as error:
        raise to_user_error(error) from error
