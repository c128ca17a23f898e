"""Computes the hours of gold anew whose input changed, according to silver's change data feed.

A repeated computation gives the same rows, so a crash needs no more than to repeat it: the versions
up to which changes were followed are stored after all tables are written.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hansa.pipeline.bronze import ProgressCallback
from hansa.pipeline.catalog import DECLARED, GOLD_SOURCES, PLACES
from hansa.pipeline.commits import added_buckets
from hansa.pipeline.gold import GOLD
from hansa.pipeline.hours import bucket_condition, hour_text, shift_hour
from hansa.pipeline.lake import Lake
from hansa.pipeline.retention import RemovedRows
from hansa.pipeline.silver import LIVE
from hansa.pipeline.silver_update import PARALLEL_WRITES, is_empty, replace_where
from hansa.pipeline.tables import LakeTable

Buckets = dict[str, set[str]]
"""Hours by run."""

MEMBERSHIPS = "memberships"
FOREVER = "TIMESTAMP'9999-12-31 00:00:00'"
"""End of a membership that has not ended."""


def update_gold(lake: Lake, followed: Mapping[str, int], on_progress: ProgressCallback) -> None:
    """Compute the changed hours of all gold tables; `followed` has the last followed version of
    each source."""
    touched = changed_buckets(lake, followed)
    removed = RemovedRows.of(lake)
    buckets = {
        table.name: table_buckets(table, touched, removed.frozen_before(table))
        for table in GOLD.tables
    }
    changed = [table for table in GOLD.tables if buckets[table.name]]

    def update(table: LakeTable) -> None:
        on_progress("gold", table.name, None)
        write_buckets(lake, table, buckets[table.name], inputs)

    with gold_inputs(lake, changed, buckets) as inputs, ThreadPoolExecutor(PARALLEL_WRITES) as pool:
        for done in [pool.submit(update, table) for table in changed]:
            done.result()


def source_versions(lake: Lake) -> dict[str, int]:
    return {name: lake.version(PLACES[name]) for name in GOLD_SOURCES}


# ---------------------------------------------------------------- which hours


def changed_buckets(lake: Lake, followed: Mapping[str, int]) -> dict[str, Buckets]:
    """Return the hours with changed rows, by source."""
    found: dict[str, Buckets] = {name: defaultdict(set) for name in GOLD_SOURCES}
    feeds = {}
    for name, version in source_versions(lake).items():
        first = followed.get(name, 0) + 1
        if first > version:
            continue
        run = None if "run" in DECLARED[name].key else LIVE
        added = added_buckets(lake, PLACES[name], first, version, run)
        if added is None:
            feeds[name] = _changes(lake, name, first, version)
        for added_run, hour in added or ():
            found[name][added_run].add(hour)
    memberships = feeds.pop(MEMBERSHIPS, None)
    if feeds:
        rows = reduce(
            DataFrame.unionByName,
            (
                feed.select(F.lit(name).alias("source"), _run(feed), hour_text(F.col("hour")))
                for name, feed in feeds.items()
            ),
        )
        for row in rows.distinct().collect():
            found[row["source"]][row["run"]].add(row["hour"])
    if memberships is not None and not is_empty(lake, PLACES["locality"]):
        _add_membership_hours(lake, memberships, found[MEMBERSHIPS])
    return found


def _changes(lake: Lake, name: str, first: int, last: int) -> DataFrame:
    if first == 1:  # the first run: all rows are new
        return lake.read(PLACES[name]).withColumn("_change_type", F.lit("insert"))
    return (
        lake.spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", first)
        .option("endingVersion", last)
        .load(lake.location(PLACES[name]))
    )


def _run(feed: DataFrame) -> Column:
    return F.col("run") if "run" in feed.columns else F.lit(LIVE).alias("run")


def _add_membership_hours(lake: Lake, changes: DataFrame, found: Buckets) -> None:
    """Add the hours of publications in which a node's interest differs from before.

    A membership that ended differs only after its end. Hours without gold rows yet are touched by
    their publications."""
    is_removed = F.col("_change_type").isin("delete", "update_preimage")
    until = F.coalesce("until", F.expr(FOREVER))
    periods = (
        changes.where("relation = 'interest'")
        .groupBy("run", "node_id", "incarnation", "record_sequence")
        .agg(
            F.min("since").alias("since"),
            F.min(until).alias("first_end"),
            F.max(until).alias("last_end"),
            F.count_if(is_removed).alias("removed"),
            F.count_if(~is_removed).alias("added"),
        )
        .where("removed <> added or first_end <> last_end")
        .withColumn("begin", F.expr("if(removed = 0 or added = 0, since, first_end)"))
        .groupBy("run", F.date_trunc("hour", "begin").alias("begin"))
        .agg(F.max("last_end").alias("end"))
    )
    known = lake.read(PLACES["locality"]).select("run", "hour").distinct()
    rows = known.join(F.broadcast(periods), "run").where("hour between begin and end")
    for row in rows.select("run", hour_text(F.col("hour"))).distinct().collect():
        found[row["run"]].add(row["hour"])


def table_buckets(
    table: LakeTable, touched: Mapping[str, Buckets], frozen_before: str = ""
) -> Buckets:
    """Return the hours of a table that depend on changed rows, and whose rows are all there."""
    buckets: Buckets = defaultdict(set)
    for name in table.inputs:
        for run, hours in touched[name].items():
            buckets[run] |= hours
            if table.looks_ahead:
                buckets[run] |= {shift_hour(hour, -1) for hour in hours}
    if LIVE in buckets:
        buckets[LIVE] = {hour for hour in buckets[LIVE] if hour >= frozen_before}
    return {run: hours for run, hours in buckets.items() if hours}


# ---------------------------------------------------------------- their rows


def write_buckets(
    lake: Lake, table: LakeTable, buckets: Buckets, inputs: Mapping[str, DataFrame]
) -> None:
    """Replace some hours of a table."""
    condition = bucket_condition(buckets)
    rows = table.build_from(inputs).where(condition).coalesce(1)
    replace_where(lake, PLACES[table.name], rows, condition)


@contextmanager
def gold_inputs(
    lake: Lake, tables: Sequence[LakeTable], buckets: Mapping[str, Buckets]
) -> Iterator[dict[str, DataFrame]]:
    """Return the rows of silver from which some hours of gold tables are made.

    A table depends on no other hours, so it may get those of other tables too. Small tables are
    read once and kept in memory for all gold tables."""
    needed: dict[str, Buckets] = defaultdict(lambda: defaultdict(set))
    for table in tables:
        for run, hours in buckets[table.name].items():
            ahead = {shift_hour(hour, 1) for hour in hours} if table.looks_ahead else set()
            for name in table.inputs:
                needed[name][run] |= hours | ahead
    frames = {name: _rows_of(lake, name, hours) for name, hours in needed.items()}
    kept = [frame.persist() for name, frame in frames.items() if lake.is_small(PLACES[name])]
    try:
        yield frames
    finally:
        for frame in kept:
            frame.unpersist()


def _rows_of(lake: Lake, name: str, buckets: Buckets) -> DataFrame:
    frame = lake.read(PLACES[name])
    if name == MEMBERSHIPS:
        return frame.where(F.col("run").isin([*buckets]))
    if "run" in DECLARED[name].key:
        return frame.where(bucket_condition(buckets))
    return frame.where(bucket_condition(buckets).replace(f"run = '{LIVE}'", "true"))
