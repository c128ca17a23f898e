"""Loads a recorded federation from the tables of a lake, with Spark."""

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from hansa.advice.federation import (
    DEFAULT_LINK_RTT_MS,
    RecordedFederation,
    SampledPublication,
    TopicFlow,
)
from hansa.errors import UsageError
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import split_share
from hansa.topology.graph import make_link_pair

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row

SAMPLE_MAX = 2_000
"""Maximum number of publications to replay: the newest."""
FLOWS_MAX = 10_000
"""Maximum number of flows: those with the most publications."""


def load_federation(
    tables: "Mapping[str, DataFrame]", run: str | None, protocol: ProtocolSettings
) -> RecordedFederation:
    """Return the federation as it was at the end of a run; `run` is None if there is only one.

    Nodes that were lost or had left, and their publications, are excluded.
    """
    run = _choose_run(tables.get("runs"), run, protocol)
    of_run = {
        name: table.where(table["run"] == run)
        for name, table in tables.items()
        if name in TABLES_USED
    }
    names_by_id = _load_names(of_run["nodes"])
    if len(set(names_by_id.values())) < len(names_by_id):
        names_by_id = {node: node for node in names_by_id}
    return RecordedFederation(
        nodes=tuple(names_by_id[node] for node in sorted(names_by_id)),
        links=_load_links(of_run["links"], names_by_id),
        interest=_load_interest(of_run["memberships"], names_by_id),
        flows=_load_flows(of_run["publications"], names_by_id),
        cores=_load_cores(of_run["control_events"], names_by_id),
        sample=_load_sample(of_run["publications"], names_by_id),
        protocol=protocol,
    )


TABLES_USED = ("nodes", "links", "memberships", "publications", "control_events")


def _choose_run(runs: "DataFrame | None", run: str | None, protocol: ProtocolSettings) -> str:
    # A lake of `hansa experiment run` has no such table.
    found = {row["run"]: row for row in runs.collect()} if runs is not None else {}
    if not found:
        raise UsageError("this lake has no telemetry: enable it (docs/telemetry.md) and record")
    if run is None and len(found) > 1:
        raise UsageError(f"this lake has {len(found)} runs; select one: --run {min(found)}")
    run = run or next(iter(found))
    if run not in found:
        raise UsageError(
            f"there is no run {run!r} in this lake; there are {', '.join(sorted(found))}"
        )
    strategy = found[run]["strategy"] or protocol.strategy
    if strategy != protocol.strategy:
        raise UsageError(
            f"this run's strategy is {strategy}; advice supports only {protocol.strategy}"
        )
    return run


def _load_names(nodes: "DataFrame") -> dict[str, str]:
    """Return the names of the nodes that were present at the end, by their ids."""
    return {row["node_id"]: row["node_name"] for row in nodes.where("present_at_end").collect()}


def _load_links(links: "DataFrame", names_by_id: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Return the links at the end with their round-trip times; the median if not measured."""
    found = [
        (make_link_pair(names_by_id[a], names_by_id[b]), rtt_ms)
        for a, b, rtt_ms in links.where("established_at_end")
        .orderBy("node_a_id", "node_b_id")
        .select("node_a_id", "node_b_id", "rtt_ms")
        .collect()
        if a in names_by_id and b in names_by_id
    ]
    measured = [rtt for _, rtt in found if rtt is not None]
    default = median(measured) if measured else DEFAULT_LINK_RTT_MS
    return {link: default if rtt is None else rtt for link, rtt in found}


def _load_interest(
    memberships: "DataFrame", names_by_id: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """Return the interest at the end; shared subscriptions count as plain ones."""
    interest_rows = memberships.where("relation = 'interest' and until is null")
    found: dict[str, set[str]] = {}
    for node, group in interest_rows.select("node_id", "group").distinct().collect():
        if node in names_by_id:
            found.setdefault(names_by_id[node], set()).add(split_share(group)[1])
    return {node: frozenset(filters) for node, filters in found.items()}


def _load_flows(publications: "DataFrame", names_by_id: Mapping[str, str]) -> tuple[TopicFlow, ...]:
    from pyspark.sql import functions as F

    grouped = (
        publications.where(F.col("origin_id").isin([*names_by_id]))
        .groupBy("origin_id", "topic")
        .agg(F.count("*").alias("publications"), F.avg("payload_bytes").alias("payload_bytes"))
        .orderBy("publications", "origin_id", "topic", ascending=[False, True, True])
    )
    return tuple(
        TopicFlow(
            names_by_id[row["origin_id"]], row["topic"], row["publications"], row["payload_bytes"]
        )
        for row in grouped.limit(FLOWS_MAX).collect()
    )


def _load_cores(control_events: "DataFrame", names_by_id: Mapping[str, str]) -> dict[str, str]:
    from pyspark.sql import functions as F

    elected = control_events.where("kind = 'core_elected' and `group` <> ''")
    newest = elected.groupBy("group").agg(F.max_by("core_id", "recorded_at").alias("core_id"))
    return {
        row["group"]: names_by_id[row["core_id"]]
        for row in newest.collect()
        if row["core_id"] in names_by_id
    }


def _load_sample(
    publications: "DataFrame", names_by_id: Mapping[str, str]
) -> tuple[SampledPublication, ...]:
    from pyspark.sql import functions as F

    present_rows = publications.where(F.col("origin_id").isin([*names_by_id]))
    order = ("published_at", "origin_id", "sequence")
    newest = present_rows.orderBy(*order, ascending=False).limit(SAMPLE_MAX)
    rows: list[Row] = newest.orderBy(*order).collect()
    return tuple(
        SampledPublication(
            (row["published_at"] - rows[0]["published_at"]).total_seconds(),
            names_by_id[row["origin_id"]],
            row["topic"],
            row["payload_bytes"],
        )
        for row in rows
    )


def make_spark_map(
    context: "SparkContext",
) -> Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]:
    """Return a `map` that runs on Spark's executors."""

    def spark_map(work: Callable[[Any], Any], items: list[Any]) -> Iterable[Any]:
        if not items:
            return []
        slices = min(len(items), 4 * context.defaultParallelism)
        results: list[Any] = context.parallelize(items, slices).map(work).collect()
        return results

    return spark_map
