"""Runs the pipeline, once or continuously: recorded data to bronze, silver and gold.

Every step continues where it was interrupted, so a killed pipeline only has to be started again.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hansa.pipeline import feeds
from hansa.pipeline.bronze import (
    PipelineJob,
    ProgressCallback,
    ignore_progress,
    ingest,
    prepare_parallel_streams,
    start_callback_server,
    unread_bytes,
)
from hansa.pipeline.catalog import RESERVED_NAMES, create_tables, places_of, stored_contracts
from hansa.pipeline.contracts import read_contracts
from hansa.pipeline.errors import SPARK_EXCEPTIONS, to_user_error
from hansa.pipeline.gold_update import source_versions, update_gold
from hansa.pipeline.lake import BRONZE, BRONZE_PLACES, Lake
from hansa.pipeline.retention import remove_old_rows
from hansa.pipeline.session import plan_for_size
from hansa.pipeline.silver_update import apply_contracts, finish_silver, run_silver

WarningCallback = Callable[[str], None]

COMMITS_PER_COMPACTION = 16
"""A table has at most about this many small files."""
COMPILED_BYTES = 16 << 20
"""New data from which on it pays off that Spark compiles its plans to Java code."""


def run_once(lake: Lake, job: PipelineJob, on_progress: ProgressCallback = ignore_progress) -> bool:
    """Bring the present data into all tables; return whether there was something to do."""
    try:
        return _run_once(lake, job, on_progress)
    except SPARK_EXCEPTIONS as error:
        raise to_user_error(error) from error


def _run_once(lake: Lake, job: PipelineJob, on_progress: ProgressCallback) -> bool:
    create_tables(lake)
    unread = {table: unread_bytes(lake, job, table) for table in BRONZE}
    plan_for_size(lake.spark, sum(unread.values()) >= COMPILED_BYTES)
    tables = [table for table, size in unread.items() if size]
    if tables:
        prepare_parallel_streams(lake.spark)
    _for_each(tables, lambda table: ingest(lake, job, table, on_progress))
    return _update(lake, job.payloads, on_progress)


def catch_up(lake: Lake, on_progress: ProgressCallback = ignore_progress) -> None:
    """Complete an interrupted run, without new data: bring all rows of bronze into the other
    tables."""
    try:
        _update(lake, None, on_progress)
    except SPARK_EXCEPTIONS as error:
        raise to_user_error(error) from error


def _update(lake: Lake, payloads: Path | None, on_progress: ProgressCallback) -> bool:
    """Bring new rows of bronze into silver and gold; return whether there was something to do."""
    progress = lake.progress()
    versions = bronze_versions(lake)
    changed = [
        table
        for table in BRONZE
        if versions[f"bronze_{table}"] > progress.get(f"bronze_{table}", 0)
    ]
    if changed:
        start_callback_server(lake.spark)
    contracts = stored_contracts(lake)
    _for_each(changed, lambda table: run_silver(lake, table, contracts, on_progress))
    if "events" in changed:
        finish_silver(lake)
    new_contracts = read_contracts(payloads, RESERVED_NAMES) if payloads else contracts
    if new_contracts != contracts:
        on_progress("silver", "payload contracts", None)
        apply_contracts(lake, contracts, new_contracts)
    if changed:
        refresh_gold(lake, versions, on_progress)
    has_removed = remove_old_rows(lake, on_progress)
    return bool(changed) or new_contracts != contracts or has_removed


def refresh_gold(
    lake: Lake, bronze: Mapping[str, int], on_progress: ProgressCallback = ignore_progress
) -> None:
    """Bring the changes of silver into gold; `bronze` has the versions that silver contains."""
    progress = lake.progress()
    sources = source_versions(lake)
    update_gold(lake, progress, on_progress)
    every = {place.view: lake.version(place) for place in places_of(lake)}
    # Gold contains no more of its sources than was there before it was computed.
    lake.save_progress({**every, **bronze, **sources})
    compact(lake, progress)


def bronze_versions(lake: Lake) -> dict[str, int]:
    return {f"bronze_{table}": lake.version(BRONZE_PLACES[table]) for table in BRONZE}


def compact(lake: Lake, before: Mapping[str, int]) -> None:
    """Merge the small files of tables that had many commits since they were last merged; `before`
    has the versions at the end of the previous run.

    Delta's own automatic compaction would rewrite a clustered table after every commit."""
    for place in places_of(lake):
        version = lake.version(place)
        if version // COMMITS_PER_COMPACTION > before.get(place.view, 0) // COMMITS_PER_COMPACTION:
            lake.spark.sql(f"OPTIMIZE delta.`{lake.location(place)}`").collect()


def _for_each(tables: list[str], step: Callable[[str], None]) -> None:
    """Run a step for both bronze tables in parallel: their streams mostly wait for each other's
    plans."""
    with ThreadPoolExecutor(len(BRONZE)) as pool:
        for done in [pool.submit(step, table) for table in tables]:
            done.result()


def run_continuously(
    lake: Lake,
    job: PipelineJob,
    every_s: float,
    on_progress: ProgressCallback,
    warn: WarningCallback,
) -> None:
    """Bring new data into all tables every few seconds, until interrupted."""
    unreachable: set[str] = set()
    while True:
        began = time.monotonic()
        unreachable = _warn_unreachable(job, unreachable, warn)
        run_once(lake, job, on_progress)
        time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def _warn_unreachable(job: PipelineJob, before: set[str], warn: WarningCallback) -> set[str]:
    """Return the agents that do not answer now; warn about those that answered before."""
    unreachable = feeds.find_unreachable_agents(job.sources, job.token)
    for agent in sorted(unreachable - before):
        warn(f"{agent} does not answer; its data is read when it does")
    return unreachable
