"""Reads a lake: its tables as Spark views, and read-only SQL queries on them."""

import re
from collections.abc import Collection, Iterable, Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hansa.pipeline.catalog import places_of
from hansa.pipeline.errors import SPARK_EXCEPTIONS, to_user_error
from hansa.pipeline.lake import EXPERIMENTS, Lake
from hansa.pipeline.session import plan_for_size

NODE_COLUMNS = (
    *("node_id", "origin_id", "peer_id", "sender_id", "receiver_id", "core_id"),
    *("target_id", "node_a_id", "node_b_id"),
)
SHOW_TABLES = re.compile(r"\s*show\s+tables\s*", re.IGNORECASE)
INFORMATION = re.compile(r"\s*(show\s+tables|describe\s+\w+|desc\s+\w+)\s*", re.IGNORECASE)
"""Statements besides SELECT that `query` accepts."""
COUNT = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
WHOLE_ROWS = frozenset(("natural", "pivot", "table", "unpivot"))
"""Words of statements whose result depends on columns that they do not mention."""


def read_tables(
    lake: Lake, as_of: str | None = None, names: Collection[str] | None = None
) -> dict[str, DataFrame]:
    """Return the tables of a lake, or those with these names in SQL, by name; with `as_of`, as they
    were then."""
    tables = {
        place.view: lake.read(place, as_of)
        for place in places_of(lake)
        if names is None or place.view in names
    }
    if EXPERIMENTS in tables:
        # Two drivers may have run the same case at the same time.
        tables[EXPERIMENTS] = tables[EXPERIMENTS].dropDuplicates(["case", "hansa", "code"])
    return tables


def create_views(lake: Lake, sql: str, as_of: str | None = None) -> None:
    """Create a view of each table that a statement mentions, with the names of nodes beside their
    ids and payloads as variants. `show tables` mentions all: a view takes a while to create."""
    mentioned = {word.lower() for word in re.findall(r"\w+", sql)}
    named = named_columns(sql, mentioned)
    places = places_of(lake)
    selected = mentioned & {place.view for place in places}
    if SHOW_TABLES.fullmatch(sql):
        selected = {place.view for place in places}
    tables = read_tables(lake, as_of, selected)
    if any(not named.isdisjoint(table.columns) for table in tables.values()):
        tables |= read_tables(lake, as_of, {"nodes"})
    plan_for_size(
        lake.spark, not all(lake.is_small(place) for place in places if place.view in tables)
    )
    names = tables["nodes"].select("run", "node_id", "node_name") if "nodes" in tables else None
    views = {
        name: table if names is None or name == "nodes" else _with_names(table, names, named)
        for name, table in tables.items()
    }
    if "messages" in views:
        parsed = F.try_parse_json("payload_text").alias("payload_json")
        views["messages"] = views["messages"].select("*", parsed)
    for name, view in views.items():
        view.createOrReplaceTempView(name)


def named_columns(sql: str, mentioned: Collection[str]) -> set[str]:
    """Return the columns with ids whose names a statement may use; each costs a join. Without a
    star, it can only use those that it mentions."""
    has_star = "*" in COUNT.sub("", sql) or "|>" in sql
    if has_star or INFORMATION.fullmatch(sql) or not WHOLE_ROWS.isdisjoint(mentioned):
        return {*NODE_COLUMNS}
    return {column for column in NODE_COLUMNS if _name_column(column) in mentioned}


def _name_column(column: str) -> str:
    return f"{column.removesuffix('_id')}_name"


def _with_names(table: DataFrame, names: DataFrame, named: Collection[str]) -> DataFrame:
    """Add `node_name` after `node_id`, and so on."""
    columns = []
    joined = table
    key = ["run"] if "run" in table.columns else []
    known = names if key else names.where("run = 'live'")
    for column in table.columns:
        columns.append(column)
        if column in named:
            name = _name_column(column)
            if name in table.columns:
                continue
            columns.append(name)
            other = known.select(
                *key, F.col("node_id").alias(column), F.col("node_name").alias(name)
            )
            joined = joined.join(F.broadcast(other), [*key, column], "left")
    return joined.select(*(F.col(f"`{column}`") for column in columns))


def run_query(
    lake: Lake, sql: str, rows_max: int | None = None, as_of: str | None = None
) -> tuple[list[str], Iterable[tuple[object, ...]]]:
    """Return the names of the columns and the rows: at most `rows_max`, or all, one by one."""
    text = sql.rstrip().rstrip(";")
    try:
        create_views(lake, text, as_of)
        if INFORMATION.fullmatch(text):
            result = lake.spark.sql(text).drop("namespace", "isTemporary")
        else:
            # Only a query is allowed in parentheses: no statement that writes, drops or sets.
            result = lake.spark.sql(f"SELECT * FROM (\n{text}\n)")
        if rows_max is None:
            return result.columns, _all_rows(result)
        return result.columns, result.limit(rows_max).collect()
    except SPARK_EXCEPTIONS as error:
        raise to_user_error(error) from error


def _all_rows(result: DataFrame) -> Iterator[tuple[object, ...]]:
    try:
        yield from result.toLocalIterator()
    except SPARK_EXCEPTIONS as error:
        raise to_user_error(error) from error
