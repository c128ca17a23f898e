"""Looks after a lake: describes, compacts and cleans its tables, and deletes rows for good."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hansa.errors import UsageError
from hansa.pipeline import runner
from hansa.pipeline.bronze import ProgressCallback, ignore_progress
from hansa.pipeline.catalog import DECLARED, PLACES, contract_place, places_of, stored_contracts
from hansa.pipeline.commits import commit_time
from hansa.pipeline.errors import SPARK_EXCEPTIONS, to_user_error
from hansa.pipeline.gold import GOLD
from hansa.pipeline.lake import BRONZE_PLACES, Lake, TablePlace
from hansa.pipeline.retention import IS_NO_MEMBERSHIP, RemovedRows, retention_days
from hansa.pipeline.silver import LIVE
from hansa.pipeline.topics import filter_condition, text_literal

VACUUM_SETTINGS = (
    "spark.databricks.delta.retentionDurationCheck.enabled",
    # Two commits per table without rows: the next run would look for new rows in them.
    "spark.databricks.delta.vacuum.logging.enabled",
)
"""Settings of Delta that are off while files are removed."""
TIMES = ("published_at", "recorded_at", "time", "delivered_at")
"""Columns that say when a row was recorded; the first that is not empty counts, and the hour in
tables without them."""


def find_table(lake: Lake, name: str) -> TablePlace:
    """Return a table by its name in SQL; raise UsageError if there is none."""
    places = {place.view: place for place in places_of(lake)}
    if name not in places:
        raise UsageError(f"{lake.uri} has no table {name!r}; there are {', '.join(sorted(places))}")
    return places[name]


@dataclass(frozen=True, slots=True)
class TableDescription:
    """What is known of a table without reading its rows."""

    place: TablePlace
    key: Sequence[str]
    rules: Sequence[str]
    columns: list[tuple[str, str, str]]
    """Name, type and comment."""
    days: int | None = None
    """Retention; None if rows are never deleted."""


def describe(lake: Lake, name: str) -> TableDescription:
    place = find_table(lake, name)
    declared = DECLARED.get(name)
    columns = [
        (field.name, field.dataType.simpleString(), str(field.metadata.get("comment", "")))
        for field in lake.read(place).schema
    ]
    key, rules = (declared.key, declared.rules) if declared else ((), ())
    return TableDescription(place, key, rules, columns, retention_days(lake).get(name))


def history(lake: Lake, name: str) -> DataFrame:
    """Return the commits of a table, the newest first."""
    place = find_table(lake, name)
    metrics = F.col("operationMetrics")
    return lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.location(place)}`").select(
        "version",
        F.date_format("timestamp", "yyyy-MM-dd HH:mm:ss").alias("time"),
        "operation",
        F.coalesce(metrics["numOutputRows"], metrics["numTargetRowsInserted"]).alias("rows"),
        F.coalesce(metrics["numFiles"], metrics["numAddedFiles"]).alias("files"),
    )


def optimize(lake: Lake, on_progress: ProgressCallback = ignore_progress) -> int:
    """Merge small files, and arrange rows by time and topic; return the number of removed files."""
    removed = 0
    for place in places_of(lake):
        if lake.version(place) > 0:
            on_progress(place.layer, place.name, None)
            (row,) = lake.spark.sql(f"OPTIMIZE delta.`{lake.location(place)}`").collect()
            removed += row["metrics"]["numFilesRemoved"]
    return removed


def vacuum(lake: Lake, retain_hours: int, on_progress: ProgressCallback = ignore_progress) -> None:
    """Remove files that no version of the last hours needs; earlier versions cannot be read
    afterwards."""
    if _has_rows_that_wait(lake, retain_hours):
        runner.catch_up(lake, on_progress)
    _remove_old_files(lake, retain_hours, on_progress)


def _has_rows_that_wait(lake: Lake, hours: int) -> bool:
    """Return whether an interrupted run left silver and gold to be made from versions older than
    some hours. Newer ones are left to the pipeline, which may be running."""
    progress = lake.progress()
    newest = (datetime.now(UTC) - timedelta(hours=hours)).timestamp() * 1000
    for place in BRONZE_PLACES.values():
        first = progress.get(place.view, 0) + 1
        if first <= lake.version(place):
            made_at = commit_time(lake, place, first)
            if made_at is None or made_at <= newest:
                return True
    return False


def _remove_old_files(lake: Lake, retain_hours: int, on_progress: ProgressCallback) -> None:
    conf = lake.spark.conf
    for name in VACUUM_SETTINGS:
        conf.set(name, "false")
    try:
        for place in places_of(lake):
            on_progress(place.layer, place.name, None)
            lake.spark.sql(
                f"VACUUM delta.`{lake.location(place)}` RETAIN {retain_hours} HOURS"
            ).collect()
    finally:
        for name in VACUUM_SETTINGS:
            conf.unset(name)


# ---------------------------------------------------------------- forget


@dataclass(frozen=True, slots=True)
class ForgottenRows:
    """Rows to delete: all conditions that are given hold."""

    topic_filter: str | None = None
    before: str | None = None
    """Timestamp."""
    origin_id: str | None = None

    def condition(self, frame: DataFrame) -> str | None:
        """Return the condition on a table; None if it has no such rows."""
        parts = []
        if self.topic_filter is not None:
            if "topic" not in frame.columns:
                return None
            parts.append(filter_condition(text_literal(self.topic_filter), "topic"))
        if self.origin_id is not None:
            if "origin_id" not in frame.columns:
                return None
            parts.append(f"origin_id = '{self.origin_id}'")
        if self.before is not None:
            columns = [name for name in (*TIMES, "hour") if name in frame.columns]
            if not columns:
                return None
            if columns[-1] == "hour":
                columns = columns[:-1] or columns
            # A delivery has no `published_at` while its publication is unknown.
            time = f"coalesce({', '.join(columns)})" if columns[1:] else columns[0]
            parts.append(f"{time} < TIMESTAMP'{self.before}'")
        return " AND ".join(f"({part})" for part in parts)


def node_id(lake: Lake, name: str) -> str:
    """Return the id of a live node; raise UsageError if it is unknown or ambiguous."""
    place = PLACES["nodes"]
    nodes = lake.read(place).where(f"run = '{LIVE}'").collect() if lake.has(place) else []
    found = [row["node_id"] for row in nodes if name in (row["node_name"], row["node_id"])]
    if len(found) != 1:
        known = ", ".join(sorted(row["node_name"] for row in nodes)) or "none"
        raise UsageError(f"{len(found)} nodes have the name or id {name!r}; there are {known}")
    return str(found[0])


def forget(
    lake: Lake, rows: ForgottenRows, on_progress: ProgressCallback = ignore_progress
) -> dict[str, int]:
    """Delete rows from all layers and their files for good; return the number of rows by table.

    Gold is computed anew for the hours of the deleted rows. Agents' own recordings are not
    changed. If it is interrupted, repeating it completes it."""
    deleted: dict[str, int] = {}
    try:
        # An interrupted run left rows in bronze that silver would get after the deletion.
        runner.catch_up(lake, on_progress)
        for place, only in _places_with_rows(lake).items():
            condition = rows.condition(lake.read(place))
            if condition is None:
                continue
            if only:
                condition = f"{condition} AND {only}"
            on_progress(place.layer, place.name, None)
            (answer,) = lake.spark.sql(
                f"DELETE FROM delta.`{lake.location(place)}` WHERE {condition}"
            ).collect()
            if answer["num_affected_rows"]:
                deleted[place.view] = answer["num_affected_rows"]
        runner.refresh_gold(lake, runner.bronze_versions(lake), on_progress)
        _remove_old_files(lake, 0, on_progress)
    except SPARK_EXCEPTIONS as error:
        raise to_user_error(error) from error
    return deleted


def _places_with_rows(lake: Lake) -> dict[TablePlace, str]:
    """Return the tables from which rows are deleted, and a condition on these rows."""
    contracts = [contract_place(each) for each in stored_contracts(lake)]
    silver = [place for place in PLACES.values() if place.layer == "silver"]
    places = [*BRONZE_PLACES.values(), *silver]
    # A table of a contract may be created with its first rows.
    found = [place for place in places if lake.version(place) > 0] + contracts
    only = {place: "" for place in found}
    if PLACES["control_events"] in only:
        only[PLACES["control_events"]] = IS_NO_MEMBERSHIP
    # Hours of gold that are not computed anew, because retention removed their sources.
    removed = RemovedRows.of(lake)
    for table in GOLD.tables:
        if frozen := removed.frozen_before(table):
            only[PLACES[table.name]] = f"run = '{LIVE}' AND hour < TIMESTAMP'{frozen}'"
    return only
