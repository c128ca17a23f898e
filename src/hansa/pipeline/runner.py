"""Runs the pipeline, once or continuously: recorded data to bronze, bronze to silver and gold."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event

from pyspark.sql import SparkSession

from hansa.pipeline import feeds
from hansa.pipeline.bronze import (
    PipelineJob,
    ProgressCallback,
    ignore_progress,
    ingest,
    run_stream,
)
from hansa.pipeline.builder import build_tables
from hansa.pipeline.lake import BRONZE, Lake, TableEntry

WarningCallback = Callable[[str], None]


@contextmanager
def _writing(lake: Lake, job: PipelineJob) -> Iterator[None]:
    with lake.write_lock():
        if job.payloads:
            lake.save_payloads(job.payloads)
        yield


def run_once(
    spark: SparkSession,
    lake: Lake,
    job: PipelineJob,
    on_progress: ProgressCallback = ignore_progress,
) -> list[TableEntry]:
    """Read the present data into a lake and rebuild its tables."""
    with _writing(lake, job):
        ingest(spark, lake, job, on_progress)
        return build_tables(spark, lake, on_progress)


def run_continuously(
    spark: SparkSession,
    lake: Lake,
    job: PipelineJob,
    every_s: float,
    on_progress: ProgressCallback,
    warn: WarningCallback,
) -> None:
    """Read new data until interrupted, and rebuild the tables whenever there is some."""
    with _writing(lake, job), ThreadPoolExecutor(len(BRONZE)) as pool:
        stopping = Event()
        streams = [
            pool.submit(run_stream, spark, lake, job, table, every_s, stopping) for table in BRONZE
        ]
        built_counts: list[int] = []
        unreachable: set[str] = set()
        try:
            while not any(stream.done() for stream in streams):
                unreachable = _warn_unreachable(job, unreachable, warn)
                counts = [lake.batch_count(table) for table in BRONZE]
                if counts != built_counts:
                    build_tables(spark, lake, on_progress)
                    built_counts = counts
                else:
                    time.sleep(every_s)
        finally:
            stopping.set()
            while wait(streams, timeout=0.1).not_done:
                for query in spark.streams.active:
                    query.stop()
        for stream in streams:
            stream.result()


def _warn_unreachable(job: PipelineJob, before: set[str], warn: WarningCallback) -> set[str]:
    """Return the agents that do not answer now; warn about those that answered before."""
    unreachable = feeds.find_unreachable_agents(job.sources, job.token)
    for agent in sorted(unreachable - before):
        warn(f"{agent} does not answer; its data is read when it does")
    return unreachable
