"""Brings new rows of bronze into silver, in batches of a stream.

Every table records the number of the batch in its commit (Delta's application transactions), so a
batch that is repeated after a crash changes only the tables that do not have it yet. Additions and
new states are written as a whole; only `deliveries` is merged by key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from hansa.pipeline import contracts as payload_contracts
from hansa.pipeline import silver
from hansa.pipeline.bronze import ProgressCallback, require_checkpoint, run_stream
from hansa.pipeline.catalog import DECLARED, PLACES, contract_place
from hansa.pipeline.contracts import PayloadContract
from hansa.pipeline.hours import hour_text, shift_hour, timestamp_literals
from hansa.pipeline.lake import BRONZE_PLACES, CONTRACTS, Lake, TablePlace
from hansa.pipeline.silver import DELIVERY_KEY, PUBLICATION_KEY

PARALLEL_WRITES = 3
"""Small tables spend most of their time in planning: while one is planned, another is written."""

TRANSACTION = "spark.databricks.delta.write.txn"

ADDED_TABLES: Mapping[str, Sequence[str]] = {
    "copies": tuple(silver.COPY_KINDS),
    "losses_and_repairs": silver.LOSS_KINDS,
    "alarms": silver.ALARM_KINDS,
    "control_frames": ("control_frame_sent",),
    "control_events": silver.CONTROL_KINDS,
    "counters": ("counter",),
    "faults": ("fault_injected",),
    "convergences": ("converged",),
    "client_deliveries": ("client_deliveries_counted",),
}
"""Tables with a row per record, and the kinds of records that they have."""

MERGED_COLUMNS = {
    "delivery_count": "t.delivery_count + s.delivery_count",
    **{
        name: f"least(t.{name}, s.{name})"
        for name in ("delivered_at", "hops", "topic", "payload_bytes")
    },
    "published_at": "coalesce(t.published_at, s.published_at)",
}
"""The columns of a delivery that is in the table and in the batch."""


def run_silver(
    lake: Lake, table: str, contracts: Sequence[PayloadContract], on_progress: ProgressCallback
) -> None:
    """Bring the new rows of a bronze table into silver."""
    on_progress("silver", f"from {table}", None)
    # The first batch of events writes `runs`.
    require_checkpoint(lake, f"silver_{table}", PLACES["runs" if table == "events" else table])

    def update(frame: DataFrame, number: int) -> None:
        session = frame.sparkSession
        # The session of a stream is its own: the transaction applies to no other writer.
        session.conf.set(f"{TRANSACTION}AppId", f"hansa-silver-{table}")
        session.conf.set(f"{TRANSACTION}Version", str(number))
        batch_lake = Lake(session, lake.uri)
        if table == "messages":
            MessageBatch(batch_lake, frame, contracts).write()
        else:
            EventBatch(batch_lake, frame).write()

    def start() -> StreamingQuery:
        return (
            lake.spark.readStream.format("delta")
            # `forget` deletes from all layers itself.
            .option("skipChangeCommits", "true")
            .load(lake.location(BRONZE_PLACES[table]))
            .writeStream.queryName(f"silver_{table}")
            .option("checkpointLocation", f"{lake.uri}/{lake.checkpoint(f'silver_{table}')}")
            .foreachBatch(update)
            .trigger(availableNow=True)
            .start()
        )

    run_stream(start)


def append(lake: Lake, place: TablePlace, frame: DataFrame) -> None:
    frame.write.format("delta").mode("append").save(lake.location(place))


def is_empty(lake: Lake, place: TablePlace) -> bool:
    """Return whether a table never had rows. Delta would look for rows to replace."""
    return lake.version(place) <= 0


def overwrite(lake: Lake, place: TablePlace, frame: DataFrame) -> None:
    mode = "append" if is_empty(lake, place) else "overwrite"
    frame.write.format("delta").mode(mode).save(lake.location(place))


def replace_where(lake: Lake, place: TablePlace, frame: DataFrame, condition: str) -> None:
    if is_empty(lake, place):
        append(lake, place, frame)
    else:
        writer = frame.write.format("delta").mode("overwrite").option("replaceWhere", condition)
        writer.save(lake.location(place))


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """New rows of bronze messages."""

    lake: Lake
    frame: DataFrame
    contracts: Sequence[PayloadContract]

    def write(self) -> None:
        messages = silver.messages(self.frame)
        append(self.lake, PLACES["messages"], messages)
        for contract in self.contracts:
            rows = payload_contracts.typed_rows(messages, contract)
            append(self.lake, contract_place(contract), rows)
        if self.contracts:
            errors = payload_contracts.error_rows(messages, self.contracts)
            append(self.lake, PLACES["payload_errors"], errors)


def apply_contracts(
    lake: Lake, old: Sequence[PayloadContract], new: Sequence[PayloadContract]
) -> None:
    """Build the tables of new and changed contracts from all messages.

    Repeating it gives the same tables. It runs while no batch is in progress, so each later batch
    adds its rows to them once.
    """
    changed = [contract for contract in new if contract not in old]
    kept = [contract for contract in old if contract in new]
    messages = lake.read(PLACES["messages"])
    lake.storage.write(CONTRACTS, payload_contracts.contracts_to_text(kept))
    for contract in changed:
        rows = payload_contracts.typed_rows(messages, contract)
        (
            rows.write.format("delta")
            .mode("overwrite")
            .option("overwriteSchema", "true")
            .save(lake.location(contract_place(contract)))
        )
    gone = {contract.name for contract in old} - {contract.name for contract in kept}
    names = sorted(gone | {contract.name for contract in changed})
    if names:
        condition = f"contract in ({', '.join(map(repr, names))})"
        errors = (
            payload_contracts.error_rows(messages, changed)
            if changed
            else lake.read(PLACES["payload_errors"]).limit(0)
        )
        replace_where(lake, PLACES["payload_errors"], errors, condition)
    lake.storage.write(CONTRACTS, payload_contracts.contracts_to_text(new))


class EventBatch:
    """New rows of bronze events."""

    def __init__(self, lake: Lake, frame: DataFrame) -> None:
        self.lake = lake
        self._cached: list[DataFrame] = []
        counted = (
            frame.groupBy("feed", "kind", hour_text(F.date_trunc("hour", "time"))).count().collect()
        )
        self.kinds = {row["kind"] for row in counted}
        self.hours = {
            kind: {row["hour"] for row in counted if row["kind"] == kind} for kind in self.kinds
        }
        simulated = {row["feed"] for row in counted if row["kind"] == "simulation_started"}
        if not is_empty(lake, PLACES["runs"]):
            known = lake.read(PLACES["runs"]).where("simulated").select("run").collect()
            simulated |= {row["run"] for row in known}
        self.events = silver.prepare_events(frame, simulated)

    def write(self) -> None:
        """Bring the batch into all tables of silver."""
        try:
            self._write()
        finally:
            for frame in self._cached:
                frame.unpersist()

    def _cache(self, frame: DataFrame) -> DataFrame:
        self._cached.append(frame.persist())
        return frame

    def _write(self) -> None:
        if not self.kinds:
            return
        self._in_parallel(
            [
                *(
                    lambda name=name: self._add(name)
                    for name, kinds in ADDED_TABLES.items()
                    if not self.kinds.isdisjoint(kinds)
                ),
                *(
                    lambda name=name: self._replace_state(name)
                    for name in ("runs", "incarnations", "peers")
                ),
                self._add_publications,
            ]
        )
        if not self.kinds.isdisjoint(("delivered", "captured")):
            self._merge_deliveries()
        self._replace_memberships()

    @staticmethod
    def _in_parallel(steps: Iterable[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(PARALLEL_WRITES) as pool:
            for done in [pool.submit(step) for step in steps]:
                done.result()

    def _add(self, name: str) -> None:
        append(self.lake, PLACES[name], DECLARED[name].build(self.events))

    def _replace_state(self, name: str) -> None:
        before = self.lake.read(PLACES[name])
        if is_empty(self.lake, PLACES[name]):
            before = before.where("false")  # a plan without a scan
        overwrite(self.lake, PLACES[name], DECLARED[name].build(before, self.events))

    # ------------------------------------------------------------ publications, deliveries

    def _add_publications(self) -> None:
        hours = self.hours.get("captured")
        if not hours:
            return
        place = PLACES["publications"]
        new = silver.publications(self.events)
        if not is_empty(self.lake, place):
            known = self.lake.read(place).where(f"hour IN ({timestamp_literals(hours)})")
            new = new.join(known.select(*PUBLICATION_KEY), [*PUBLICATION_KEY], "left_anti")
        append(self.lake, place, new)

    def _merge_deliveries(self) -> None:
        place = PLACES["deliveries"]
        is_first = is_empty(self.lake, place)
        if is_first and "delivered" not in self.kinds:
            return
        new = silver.first_deliveries(self.events)
        if not is_first and "captured" in self.kinds:
            new = self._with_completed(new)
        rows = silver.add_delay(self._with_publications(new))
        if is_first:
            append(self.lake, place, rows)
        else:
            self._merge(place, self._cache(rows))

    def _with_completed(self, new: DataFrame) -> DataFrame:
        """Add the earlier deliveries whose publications are in this batch, counted 0 times."""
        captured = silver.records_of_kinds(self.events, "captured").select(*PUBLICATION_KEY)
        waiting = (
            self.lake.read(PLACES["deliveries"])
            .where("published_at is null")
            .join(captured.distinct(), [*PUBLICATION_KEY], "left_semi")
            .select(*DELIVERY_KEY, F.lit(0).cast("bigint").alias("delivery_count"))
        )
        return (
            new.unionByName(waiting, allowMissingColumns=True)
            .groupBy(*DELIVERY_KEY)
            .agg(
                F.sum("delivery_count").alias("delivery_count"),
                *(
                    F.min(name).alias(name)
                    for name in ("delivered_at", "hops", "topic", "payload_bytes")
                ),
            )
        )

    def _with_publications(self, delivered: DataFrame) -> DataFrame:
        """Add `published_at`, first from the publications of the same hours, then from all; at once
        if there are few."""
        hours = self.hours.get("delivered", set()) | self.hours.get("captured", set())
        near_hours = (shift_hour(min(hours), -1), shift_hour(max(hours), 1))
        publications = self.lake.read(PLACES["publications"]).select(
            *PUBLICATION_KEY, "hour", "published_at"
        )
        if self.lake.is_small(PLACES["publications"]):
            return delivered.join(publications.drop("hour"), [*PUBLICATION_KEY], "left")
        is_near = F.expr("hour BETWEEN TIMESTAMP'{}' AND TIMESTAMP'{}'".format(*near_hours))
        near = publications.where(is_near).drop("hour")
        found = self._cache(delivered.join(near, [*PUBLICATION_KEY], "left"))
        missing = found.where("published_at is null")
        (bounds,) = missing.agg(
            F.count("*").alias("count"),
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
        ).collect()
        if not bounds["count"]:
            return found
        far = publications.where(~is_near).where(
            F.col("sequence").between(bounds["first"], bounds["last"])
        )
        return found.where("published_at is not null").unionByName(
            missing.drop("published_at").join(far.drop("hour"), [*PUBLICATION_KEY], "left")
        )

    def _merge(self, place: TablePlace, rows: DataFrame) -> None:
        found = rows.select(hour_text(F.col("hour"))).distinct().collect()
        if not found:
            return
        listed = timestamp_literals(row["hour"] for row in found)
        same_key = " AND ".join(f"t.{name} = s.{name}" for name in DELIVERY_KEY)
        columns = {
            **MERGED_COLUMNS,
            "hour": "date_trunc('hour', coalesce({published_at}, {delivered_at}))",
            "delay_ms": "(unix_micros({delivered_at}) - unix_micros({published_at})) / 1000D",
        }
        changes = ", ".join(
            f"t.{name} = {text.format(**MERGED_COLUMNS)}" for name, text in columns.items()
        )
        rows.createOrReplaceTempView("hansa_new_deliveries")
        self.lake.spark.sql(
            f"MERGE INTO delta.`{self.lake.location(place)}` t USING hansa_new_deliveries s"
            f" ON {same_key} AND (t.hour IN ({listed}) OR t.published_at IS NULL)"
            f" WHEN MATCHED THEN UPDATE SET {changes}"
            " WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    # ------------------------------------------------------------ memberships

    def _replace_memberships(self) -> None:
        """Compute the memberships of nodes anew whose interest or incarnation changed."""
        place = PLACES["memberships"]
        control = self.lake.read(PLACES["control_events"])
        incarnations = self.lake.read(PLACES["incarnations"])
        if is_empty(self.lake, place):
            if not self.kinds.isdisjoint(silver.MEMBERSHIP_BEGINS):
                append(self.lake, place, silver.memberships(control, incarnations))
            return
        by_run: dict[str, list[str]] = {}
        for row in silver.changed_nodes(self.events, incarnations).collect():
            by_run.setdefault(row["run"], []).append(row["node_id"])
        if not by_run:
            return
        condition = " OR ".join(
            f"(run = '{run}' AND node_id IN ({', '.join(map(repr, sorted(nodes)))}))"
            for run, nodes in sorted(by_run.items())
        )
        found = silver.memberships(control.where(condition), incarnations.where(condition))
        replace_where(self.lake, place, found, condition)


def finish_silver(lake: Lake) -> None:
    """Compute `nodes` and `links` from the state of all batches."""
    peers = lake.read(PLACES["peers"]).persist()
    nodes = silver.nodes(lake.read(PLACES["incarnations"]), peers).persist()
    try:
        overwrite(lake, PLACES["nodes"], nodes)
        overwrite(lake, PLACES["links"], silver.links(peers, nodes))
    finally:
        nodes.unpersist()
        peers.unpersist()
