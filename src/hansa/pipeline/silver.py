"""Silver tables: the recorded data, typed and split by subject.

The input `events` is bronze telemetry with the columns of `prepare_events`: `run` (each log of a
simulation is a run of its own, all agents together are the run `live`), `recorded_at` and its
`hour`. A publication is identified by `origin_id`, `epoch`, `sequence` and `guaranteed` (QoS 1 or
2). `delay_ms` compares the clocks of two machines if the agents run on two.

Three kinds of tables differ in how a batch of new events changes them:

- one row per record, or per publication: rows are only added;
- `deliveries`: rows are merged by key, because a delivery can be repeated, and its publication can
  be recorded later than the delivery;
- `runs`, `incarnations`, `peers`: the state after a batch is a function of the state before and the
  batch (the input of the same name). `nodes`, `links` and `memberships` follow from these.
"""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hansa.pipeline.tables import TableLayer
from hansa.telemetry import schema

LIVE = "live"
FAULT_INJECTOR = f"{schema.FAULT_INJECTOR:016x}"

RECORD_KEY = ("run", "node_id", "incarnation", "record_sequence")
MESSAGE_KEY = ("origin_id", "epoch", "sequence", "guaranteed")
PUBLICATION_KEY = ("run", *MESSAGE_KEY)
DELIVERY_KEY = (*PUBLICATION_KEY, "node_id")

COPY_KINDS = {"copy_sent": "sent", "copy_received": "received", "duplicate": "duplicate"}
ALARM_KINDS = ("alarm_raised", "alarm_cleared")
LOSS_KINDS = ("dropped", "gap", "delivery_abandoned", "repaired")
PEER_KINDS = ("link_up", "link_down", "round_trip", "node_unreachable")
MEMBERSHIP_BEGINS = {
    "interest_added": "interest",
    "subscribed_at_broker": "subscribed_at_broker",
    "mesh_joined": "mesh",
}
MEMBERSHIP_ENDS = {
    "interest_removed": "interest",
    "unsubscribed_at_broker": "subscribed_at_broker",
    "mesh_left": "mesh",
}
CONTROL_KINDS = (
    *("core_elected", "core_lost", "parents_changed", "mesh_joined", "mesh_left"),
    *("node_reachable", "node_unreachable", "interest_added", "interest_removed"),
    *("subscribed_at_broker", "unsubscribed_at_broker", "interest_installed"),
    *("incarnation_raised", "epoch_rollover_required", "link_up", "link_down", "link_refused"),
    *("node_started", "node_stopped"),
)

STOP = "INTERVAL 10 SECONDS"
"""A node that stopped cleanly this close to the end of the recording counts as present at the end,
because then all nodes were stopped."""
SILENCE = "INTERVAL 30 SECONDS"
"""A node without records for this long counts as lost: agents write a record every 10 seconds."""

SILVER = TableLayer("silver")


def prepare_events(bronze: DataFrame, simulated_feeds: Collection[str]) -> DataFrame:
    """Add `run`, `guaranteed`, `recorded_at` and `hour` to bronze events."""
    is_simulated = F.col("feed").isin([*simulated_feeds])
    return (
        bronze.withColumn("run", F.when(is_simulated, F.col("feed")).otherwise(F.lit(LIVE)))
        .withColumn("guaranteed", F.col("qos") > 0)
        .withColumn("hour", F.date_trunc("hour", "time"))
        .withColumnRenamed("time", "recorded_at")
    )


def records_of_kinds(events: DataFrame, *kinds: str) -> DataFrame:
    return events.where(F.col("kind").isin(*kinds))


# ---------------------------------------------------------------- one row per record


@SILVER.table("payload_bytes = length(payload)", "qos between 0 and 2")
def messages(bronze_messages: DataFrame) -> DataFrame:
    """One row per recorded publication. Key: origin_id, epoch, sequence, guaranteed.

    `payload_text` is empty if the payload is not UTF-8. In SQL, the view of this table also has
    `payload_json`, the payload as a variant.
    """
    return bronze_messages.select(
        *("origin_id", "epoch", "sequence", (F.col("qos") > 0).alias("guaranteed")),
        F.date_trunc("hour", "time").alias("hour"),
        F.col("time").alias("published_at"),
        *("qos", "retain", "topic"),
        F.split("topic", "/", -1).alias("topic_levels"),
        "payload",
        F.try_validate_utf8(F.col("payload").cast("string")).alias("payload_text"),
        F.length("payload").alias("payload_bytes"),
        *("content_type", "response_topic", "correlation_data", "expiry_seconds"),
        "user_properties",
    )


@SILVER.table("payload_bytes >= 0", "qos between 0 and 2", "guaranteed = (qos > 0)")
def publications(events: DataFrame) -> DataFrame:
    """One row per captured publication. Key: run, origin_id, epoch, sequence, guaranteed."""
    return (
        records_of_kinds(events, "captured")
        .groupBy(*PUBLICATION_KEY)
        .agg(
            F.min("hour").alias("hour"),
            F.min("recorded_at").alias("published_at"),
            F.min("qos").alias("qos"),
            F.min("topic").alias("topic"),
            F.min("payload_bytes").alias("payload_bytes"),
        )
    )


@SILVER.table("kind in ('sent', 'received', 'duplicate')", "hops >= 1")
def copies(events: DataFrame) -> DataFrame:
    """One row per copy of a publication that a node sent over a link, received, or recognised as a
    duplicate. Key: run, node_id, incarnation, record_sequence.

    `kind` is `sent`, `received` or `duplicate`. A duplicate was also received, so it has two rows.
    """
    is_sent = F.col("kind") == "copy_sent"
    return records_of_kinds(events, *COPY_KINDS).select(
        *(*RECORD_KEY, "hour", "recorded_at"),
        _mapped(F.col("kind"), COPY_KINDS).alias("kind"),
        F.when(is_sent, F.col("node_id")).otherwise(F.col("peer_id")).alias("sender_id"),
        F.when(is_sent, F.col("peer_id")).otherwise(F.col("node_id")).alias("receiver_id"),
        *(*MESSAGE_KEY, "topic", "hops", "frame_bytes"),
    )


@SILVER.table()
def losses_and_repairs(events: DataFrame) -> DataFrame:
    """One row per publication, or range of them, that was dropped, abandoned or repaired. Key: run,
    node_id, incarnation, record_sequence."""
    return records_of_kinds(events, *LOSS_KINDS).select(
        *(*RECORD_KEY, "hour", "recorded_at", "kind", "origin_id", "epoch", "sequence"),
        *("peer_id", "first_sequence", "last_sequence", "count", "reason"),
    )


@SILVER.table()
def alarms(events: DataFrame) -> DataFrame:
    """One row per alarm that an agent raised or cleared. Key: run, node_id, incarnation,
    record_sequence."""
    return records_of_kinds(events, *ALARM_KINDS).select(
        *(*RECORD_KEY, "hour", "recorded_at", "kind", "alarm", "reason")
    )


@SILVER.table("frame_bytes > 0")
def control_frames(events: DataFrame) -> DataFrame:
    """One row per sent control frame. Key: run, node_id, incarnation, record_sequence.

    `receiver_id` is empty before the handshake of the link.
    """
    return records_of_kinds(events, "control_frame_sent").select(
        *(*RECORD_KEY, "hour", "recorded_at"),
        F.col("peer_id").alias("receiver_id"),
        *("frame", "frame_bytes"),
        *("core_id", "core_incarnation", "announcement_sequence", "distance"),
    )


@SILVER.table()
def control_events(events: DataFrame) -> DataFrame:
    """One row per change of links, membership, interest or cores that a node recorded. Key: run,
    node_id, incarnation, record_sequence."""
    return records_of_kinds(events, *CONTROL_KINDS).select(
        *(*RECORD_KEY, "hour", "recorded_at"),
        *("kind", "group", "core_id", "peer_id", "announcement_sequence", "distance"),
        *("parent_ids", "gained_parent_ids", "lost_parent_ids", "reason"),
    )


@SILVER.table()
def counters(events: DataFrame) -> DataFrame:
    """One row per periodic value of a node's counter. Key: run, node_id, incarnation,
    record_sequence."""
    return records_of_kinds(events, "counter").select(
        *(*RECORD_KEY, "hour", "recorded_at", "counter_name", "value")
    )


@SILVER.table()
def faults(events: DataFrame) -> DataFrame:
    """One row per injected fault. Key: run, node_id, incarnation, record_sequence."""
    return records_of_kinds(events, "fault_injected").select(
        *(*RECORD_KEY, "hour", "recorded_at", "disturbance", "target_id", "peer_id")
    )


@SILVER.table("seconds >= 0")
def convergences(events: DataFrame) -> DataFrame:
    """One row per disturbance of a simulation after which all nodes agreed again. Key: run,
    node_id, incarnation, record_sequence."""
    return records_of_kinds(events, "converged").select(
        *(*RECORD_KEY, "hour", "recorded_at", "disturbance", "seconds")
    )


@SILVER.table("arrived between 0 and published", "duplicates >= 0", "interruption_s >= 0")
def client_deliveries(events: DataFrame) -> DataFrame:
    """One row per disturbance and pair of nodes between whose brokers MQTT clients counted
    deliveries from then on. Key: run, node_id, incarnation, record_sequence.

    `published` publications at the broker of `origin_id` were due at a client of the broker of
    `target_id`; `arrived` of them arrived, `lost` did not; `duplicates` are further copies.
    `interruption_s` is the time from the disturbance until the first publication after the last
    lost one arrived: 0 if none was lost, empty if the last one was lost, or if there was no
    disturbance. Counted by the clients of the demo, not by agents.
    """
    return records_of_kinds(events, "client_deliveries_counted").select(
        *(*RECORD_KEY, "hour", "recorded_at"),
        *("disturbance", "origin_id", "target_id", "published", "arrived"),
        (F.col("published") - F.col("arrived")).alias("lost"),
        *("duplicates", "interruption_s"),
    )


# ---------------------------------------------------------------- deliveries, merged by key


@SILVER.table("delivery_count >= 1", "origin_id <> node_id")
def deliveries(events: DataFrame, publications: DataFrame) -> DataFrame:
    """One row per publication and other node whose broker received it. Key: run, origin_id, epoch,
    sequence, guaranteed, node_id.

    `delivery_count` is above 1 if it was delivered again; the other columns describe the first
    delivery. `published_at` and `delay_ms` are empty while the publication's own record is missing;
    until then, `hour` is that of the delivery.
    """
    return with_publication(first_deliveries(events), publications)


def first_deliveries(events: DataFrame) -> DataFrame:
    """Return one row per publication and node, without the time of publication."""
    return (
        records_of_kinds(events, "delivered")
        .where("origin_id <> node_id")
        .groupBy(*DELIVERY_KEY)
        .agg(
            F.count("*").alias("delivery_count"),
            F.min("recorded_at").alias("delivered_at"),
            F.min("hops").alias("hops"),
            F.min("topic").alias("topic"),
            F.min("payload_bytes").alias("payload_bytes"),
        )
    )


def with_publication(delivered: DataFrame, publications: DataFrame) -> DataFrame:
    """Add `published_at`, `delay_ms` and `hour` to deliveries."""
    published = publications.select(*PUBLICATION_KEY, "published_at")
    return add_delay(delivered.join(published, [*PUBLICATION_KEY], "left"))


def add_delay(delivered: DataFrame) -> DataFrame:
    at = F.coalesce("published_at", "delivered_at")
    return delivered.select(
        *(*DELIVERY_KEY, F.date_trunc("hour", at).alias("hour")),
        *("published_at", "delivered_at", "delivery_count", "hops", "topic", "payload_bytes"),
        delay_ms("delivered_at", "published_at").alias("delay_ms"),
    )


def delay_ms(later: str, earlier: str) -> Column:
    return (F.unix_micros(later) - F.unix_micros(earlier)) / 1e3


# ---------------------------------------------------------------- state


@SILVER.table("ended_at >= started_at")
def runs(runs: DataFrame, events: DataFrame) -> DataFrame:
    """One row per run. Key: run."""
    new = events.groupBy("run").agg(
        F.max(F.col("kind") == "simulation_started").alias("simulated"),
        F.max("seed").alias("seed"),
        F.max("topology").alias("topology"),
        F.max("strategy").alias("strategy"),
        F.min("recorded_at").alias("started_at"),
        F.max("recorded_at").alias("ended_at"),
    )
    return (
        runs.unionByName(new)
        .groupBy("run")
        .agg(
            *(F.max(name).alias(name) for name in ("simulated", "seed", "topology", "strategy")),
            F.min("started_at").alias("started_at"),
            F.max("ended_at").alias("ended_at"),
        )
    )


@SILVER.table("records >= 1", "missing >= 0")
def incarnations(incarnations: DataFrame, events: DataFrame) -> DataFrame:
    """One row per incarnation of a node. Key: run, node_id, incarnation.

    `missing` counts records that were written and are not in the lake: retention or a slow disk
    dropped them, or a newer version wrote kinds that this one does not know. `stopped` is true if
    the node stopped cleanly.
    """
    key = ("run", "node_id", "incarnation")
    started = F.when(F.col("kind") == "node_started", F.col("recorded_at"))
    new = (
        events.where(F.col("node_id") != FAULT_INJECTOR)
        .groupBy(*key)
        .agg(
            F.max("node_name").alias("node_name"),
            F.count("*").alias("records"),
            F.max("record_sequence").alias("last_sequence"),
            F.min(started).alias("started_at"),
            F.min("recorded_at").alias("first_at"),
            F.max("recorded_at").alias("last_at"),
            F.max(F.col("kind") == "node_stopped").alias("stopped"),
        )
    )
    return (
        incarnations.drop("missing")
        .unionByName(new)
        .groupBy(*key)
        .agg(
            F.max("node_name").alias("node_name"),
            F.sum("records").alias("records"),
            F.max("last_sequence").alias("last_sequence"),
            F.min("started_at").alias("started_at"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.max("stopped").alias("stopped"),
        )
        .withColumn("missing", F.col("last_sequence") - F.col("records"))
    )


@SILVER.table("up_count >= 0", "down_count >= 0", "rtt_ms >= 0")
def peers(peers: DataFrame, events: DataFrame) -> DataFrame:
    """One row per run, node and other node that it reported about. Key: run, node_id, peer_id.

    `report` is the newest `link_up` or `link_down`. `rtt_ms` is the shortest of `rtt_count`
    measured round-trip times. `unreachable_at` is when the peer last became unreachable.
    """
    key = ("run", "node_id", "peer_id")
    report = F.struct("incarnation", "record_sequence", "kind", "reason")
    is_link = F.col("kind").isin("link_up", "link_down")
    lost_at = F.when(F.col("kind") == "node_unreachable", F.col("recorded_at"))
    new = (
        records_of_kinds(events, *PEER_KINDS)
        .where("peer_id is not null")
        .groupBy(*key)
        .agg(
            F.count_if(F.col("kind") == "link_up").alias("up_count"),
            F.count_if(F.col("kind") == "link_down").alias("down_count"),
            F.count_if(F.col("kind") == "round_trip").alias("rtt_count"),
            F.min("rtt_ms").alias("rtt_ms"),
            F.max(F.when(is_link, report)).alias("report"),
            F.max(lost_at).alias("unreachable_at"),
        )
    )
    return (
        peers.unionByName(new)
        .groupBy(*key)
        .agg(
            *(F.sum(name).alias(name) for name in ("up_count", "down_count", "rtt_count")),
            F.min("rtt_ms").alias("rtt_ms"),
            F.max("report").alias("report"),
            F.max("unreachable_at").alias("unreachable_at"),
        )
    )


# ---------------------------------------------------------------- derived from the state


@SILVER.table("incarnation_count >= 1")
def nodes(incarnations: DataFrame, peers: DataFrame) -> DataFrame:
    """One row per run and node. Key: run, node_id.

    `present_at_end`: the node belonged to the federation when the recording of the run ended. It
    was still running then, or stopped cleanly less than 10 s before. A node that was lost is not
    present: its newest incarnation has no record `node_stopped`, and either another node reported
    `node_unreachable` after its last record, or it wrote nothing in the last 30 s of the recording.
    """
    found = incarnations.groupBy("run", "node_id").agg(
        F.coalesce(F.max("node_name"), F.col("node_id")).alias("node_name"),
        F.count("*").alias("incarnation_count"),
        F.max("incarnation").alias("newest_incarnation"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.max_by("stopped", "incarnation").alias("stopped"),
    )
    ends = found.groupBy("run").agg(F.max("last_at").alias("end_at"))
    losses = peers.groupBy("run", F.col("peer_id").alias("node_id")).agg(
        F.max("unreachable_at").alias("lost_at")
    )
    is_present = F.expr(
        f"if(stopped, last_at > end_at - {STOP},"
        f" last_at > end_at - {SILENCE} and coalesce(lost_at <= last_at, true))"
    )
    return (
        found.join(F.broadcast(ends), "run")
        .join(F.broadcast(losses), ["run", "node_id"], "left")
        .withColumn("present_at_end", is_present)
        .drop("stopped", "end_at", "lost_at")
    )


@SILVER.table("up_count + down_count + rtt_count > 0", "rtt_ms >= 0", "node_a_id < node_b_id")
def links(peers: DataFrame, nodes: DataFrame) -> DataFrame:
    """One row per run and link between two nodes. Key: run, node_a_id, node_b_id.

    `established_at_end`: the link was up when the recording of the run ended. Both nodes were
    present then (see `nodes`), the last report of at least one end says that the link is up, and
    the last report of neither end says that it is down. The last report is the newest `link_up` or
    `link_down` of the node's newest incarnation. A `link_down` because one of the two nodes stopped
    cleanly counts as up: the link was up at the time of the stop. `rtt_ms` is the shortest of
    `rtt_count` measured round-trip times.
    """
    known = F.broadcast(nodes.select("run", "node_id", "newest_incarnation", "present_at_end"))
    ends = (
        peers.where("up_count + down_count + rtt_count > 0")
        .join(known.drop("present_at_end"), ["run", "node_id"])
        .withColumn("current", F.expr("if(report.incarnation = newest_incarnation, report, null)"))
        .withColumn(
            "stopping",
            F.expr(f"current.kind = 'link_down' and current.reason = '{schema.CLEAN_STOP_REASON}'"),
        )
    )
    says_up = F.col("stopping") | (F.col("current.kind") == "link_up")
    present = known.select("run", "node_id", "present_at_end")
    return (
        ends.groupBy(
            "run",
            F.least("node_id", "peer_id").alias("node_a_id"),
            F.greatest("node_id", "peer_id").alias("node_b_id"),
        )
        .agg(
            *(F.sum(name).alias(name) for name in ("up_count", "down_count", "rtt_count")),
            F.min("rtt_ms").alias("rtt_ms"),
            F.coalesce(F.max(says_up), F.lit(False)).alias("up"),
            F.coalesce(F.max("stopping"), F.lit(False)).alias("stopped"),
            F.coalesce(F.max(F.expr("current.kind = 'link_down'")), F.lit(False)).alias("down"),
        )
        .join(present.toDF("run", "node_a_id", "a_present"), ["run", "node_a_id"], "left")
        .join(present.toDF("run", "node_b_id", "b_present"), ["run", "node_b_id"], "left")
        # If a node has no telemetry, the reports of the other end are used.
        .withColumn("present", F.expr("coalesce(a_present, true) and coalesce(b_present, true)"))
        .withColumn("established_at_end", F.expr("present and up and (stopped or not down)"))
        .select(
            *("run", "node_a_id", "node_b_id", "up_count", "down_count"),
            *("rtt_count", "rtt_ms", "established_at_end"),
        )
    )


@SILVER.table("until is null or until >= since")
def memberships(control_events: DataFrame, incarnations: DataFrame) -> DataFrame:
    """One row per period in which a node had a relation to a filter. Key: run, node_id,
    incarnation, record_sequence.

    `relation` is `interest` (clients of its broker are subscribed), `subscribed_at_broker` (the
    agent is subscribed at its broker, because other nodes have interest) or `mesh` (the node is a
    member of the group's mesh). `until` is empty if the period lasted to the end. The periods of an
    incarnation end with its last record if another incarnation followed.
    """
    kinds = MEMBERSHIP_BEGINS | MEMBERSHIP_ENDS
    changes = records_of_kinds(control_events, *kinds).withColumn(
        "relation", _mapped(F.col("kind"), kinds)
    )
    of_group = Window.partitionBy("run", "node_id", "incarnation", "relation", "group").orderBy(
        "record_sequence"
    )
    following = Window.partitionBy("run", "node_id").orderBy("started_at", "incarnation")
    ends = incarnations.withColumn("next_started_at", F.lead("started_at").over(following)).select(
        "run", "node_id", "incarnation", "last_at", "next_started_at"
    )
    return (
        changes.withColumn("next_at", F.lead("recorded_at").over(of_group))
        .where(F.col("kind").isin(*MEMBERSHIP_BEGINS))
        .join(F.broadcast(ends), ["run", "node_id", "incarnation"], "left")
        .select(
            *(*RECORD_KEY, "relation", "group"),
            F.col("recorded_at").alias("since"),
            # The incarnation of a clone may start while this one continues: that is no end.
            F.expr("coalesce(next_at, if(next_started_at >= recorded_at, last_at, null))").alias(
                "until"
            ),
        )
        # If the clock was set back, the period has length 0.
        .withColumn("until", F.expr("if(until < since, since, until)"))
    )


def _mapped(column: Column, values: dict[str, str]) -> Column:
    return F.create_map(*(F.lit(word) for pair in values.items() for word in pair))[column]


def changed_nodes(events: DataFrame, incarnations: DataFrame) -> DataFrame:
    """Return the nodes whose `memberships` a batch may change: those with a change of interest or
    a new incarnation, and those with late records of an older incarnation."""
    newest = incarnations.groupBy("run", "node_id").agg(F.max("incarnation").alias("newest"))
    kinds = (*MEMBERSHIP_BEGINS, *MEMBERSHIP_ENDS, "node_started")
    return (
        events.join(F.broadcast(newest), ["run", "node_id"])
        .where(F.col("kind").isin(*kinds) | (F.col("incarnation") < F.col("newest")))
        .select("run", "node_id")
        .distinct()
    )
