"""Cost of Spark for a sweep of small simulations, compared with a pool of processes."""

import multiprocessing
from functools import partial
from typing import Any

from bench.console import say
from bench.cost import cost_of
from hansa.cli.simulate import parse_request
from hansa.experiments.fan_out import run_on_executors
from hansa.experiments.runner import run_case
from hansa.experiments.sweep import SweepCase, make_sweep
from hansa.pipeline.session import session

VALUES = {"topology": ["ring:{size}", "random:{size},3"], "size": [5, 8], "seeds": 500}
OPTIONS = ("topology",)


def measure() -> dict[str, object]:
    """Wall time of 2,000 simulations on Spark, as a ratio to multiprocessing (goal 1.2)."""
    cases = make_sweep(VALUES, OPTIONS).cases
    one = partial(run_case, parse_request, "bench")
    context = session().sparkContext
    workers = context.defaultParallelism
    _on_spark(context, cases[: 8 * workers], one)  # both sides start with their modules loaded
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(one, cases[: 8 * workers])
        by_pool: list[dict[str, object]] = []
        pool_s, pool_cpu_s = cost_of(
            lambda: by_pool.extend(pool.imap_unordered(one, cases, chunksize=8))
        )
    by_spark: list[dict[str, object]] = []
    spark_s, spark_cpu_s = cost_of(lambda: by_spark.extend(_on_spark(context, cases, one)))
    same = {row["case"]: row["fingerprint"] for row in by_pool} == {
        row["case"]: row["fingerprint"] for row in by_spark
    }
    say(
        f"{len(cases)} simulations on {workers} cores",
        f"{pool_s:8.1f} s in a pool of processes, CPU {pool_cpu_s:.1f} s",
    )
    say(
        "the same on Spark",
        f"{spark_s:8.1f} s, {spark_s / pool_s:.2f} of that, CPU {spark_cpu_s:.1f} s,"
        f" {spark_cpu_s / pool_cpu_s:.2f}",
    )
    say("the same results", "yes" if same else "NO")
    return {
        "pool_s": round(pool_s, 1),
        "pool_cpu_s": round(pool_cpu_s, 1),
        "spark_s": round(spark_s, 1),
        "spark_cpu_s": round(spark_cpu_s, 1),
        "same": same,
    }


def _on_spark(
    context: Any, cases: tuple[SweepCase, ...], one: "partial[dict[str, object]]"
) -> list[dict[str, object]]:
    return [row for rows in run_on_executors(context, cases, one) for row in rows]
