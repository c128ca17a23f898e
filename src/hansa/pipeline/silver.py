"""Silver tables: the recorded data, typed, de-duplicated and split by subject.

`events` is bronze telemetry with a column `run`: each log of a simulation is a run of its own, all
agents together are the run `live`. A publication is identified by `origin_id`, `epoch`, `sequence`
and `guaranteed` (QoS 1 or 2). `delay_ms` compares the clocks of two machines if the agents run on
two.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hansa.pipeline.tables import TableLayer
from hansa.pipeline.topics import filter_matches
from hansa.telemetry import schema

LIVE = "live"
FAULT_INJECTOR = f"{schema.FAULT_INJECTOR:016x}"

RECORD_KEY = ("run", "node_id", "incarnation", "record_sequence")
MESSAGE_KEY = ("origin_id", "epoch", "sequence", "guaranteed")
PUBLICATION_KEY = ("run", *MESSAGE_KEY)

JSON_BEGINS = r'^\s*(?:[{\["\-0-9]|true|false|null)'
"""Matches the beginning of every JSON text."""

CONTROL_KINDS = (
    *("core_elected", "core_lost", "parents_changed", "mesh_joined", "mesh_left"),
    *("node_reachable", "node_unreachable", "interest_added", "interest_removed"),
    *("subscribed_at_broker", "unsubscribed_at_broker", "interest_installed"),
    *("incarnation_raised", "epoch_rollover_required", "link_up", "link_down", "link_refused"),
    *("node_started", "node_stopped"),
)

STOP_NS = 10_000_000_000
"""A node that stopped cleanly this close to the end of the recording counts as present at the end,
because then all nodes were stopped."""
SILENCE_NS = 30_000_000_000
"""A node without records for this long counts as lost: agents write a record every 10 seconds."""

SILVER = TableLayer("silver")


def with_guaranteed(bronze: DataFrame) -> DataFrame:
    """Add the column `guaranteed`: whether the publication has QoS 1 or 2."""
    return bronze.withColumn("guaranteed", F.col("qos") > 0)


def with_run(events: DataFrame) -> DataFrame:
    """Add the column `run`."""
    simulations = events.where("kind = 'simulation_started'").select("feed").distinct().collect()
    simulated = F.col("feed").isin([row.feed for row in simulations])
    return events.withColumn("run", F.when(simulated, F.col("feed")).otherwise(F.lit(LIVE)))


def deduplicate(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return one row per key.

    Rows that were read exactly once have no duplicates. Comparing hashes of the keys shows that at
    a fraction of the cost of sorting all rows, so that is tried first."""
    repeated = frame.groupBy(F.xxhash64(*key)).count().where("count > 1")
    return frame if repeated.isEmpty() else frame.dropDuplicates([*key])


def records_of_kinds(events: DataFrame, *kinds: str) -> DataFrame:
    return events.where(F.col("kind").isin(*kinds))


@SILVER.table("payload_bytes = length(payload)", partitions=("day",))
def messages(bronze_messages: DataFrame) -> DataFrame:
    """One row per recorded publication. Key: origin_id, epoch, sequence, guaranteed.

    `json` is the payload as a variant if it is JSON, else empty; `payload` always has the bytes.
    """
    text = F.try_validate_utf8(F.col("payload").cast("string"))
    # A failed attempt to parse JSON costs more than the rest of the row.
    candidate = F.when(text.rlike(JSON_BEGINS), text)
    return bronze_messages.select(
        *(*MESSAGE_KEY, "qos", "time", "time_ns", "topic", "payload", "retain", "properties"),
        F.length("payload").alias("payload_bytes"),
        F.try_parse_json(candidate).alias("json"),
        F.to_date("time").alias("day"),
    )


@SILVER.table("ended_ns >= started_ns")
def runs(events: DataFrame) -> DataFrame:
    """One row per run. Key: run."""
    return events.groupBy("run").agg(
        F.max(F.col("kind") == "simulation_started").alias("simulated"),
        F.max("seed").alias("seed"),
        F.max("topology").alias("topology"),
        F.max("strategy").alias("strategy"),
        F.countDistinct(F.when(F.col("node_id") != FAULT_INJECTOR, F.col("node_id"))).alias(
            "node_count"
        ),
        F.min("time_ns").alias("started_ns"),
        F.max("time_ns").alias("ended_ns"),
    )


@SILVER.table("incarnation_count >= 1")
def nodes(events: DataFrame) -> DataFrame:
    """One row per run and node. Key: run, node_id.

    `present_at_end`: the node belonged to the federation when the recording of the run ended. It
    was still running then, or stopped cleanly less than 10 s before. A node that was lost is not
    present: its newest incarnation has no record `node_stopped`, and either another node reported
    `node_unreachable` after its last record, or it wrote nothing in the last 30 s of the recording.
    """
    written = events.where(F.col("node_id") != FAULT_INJECTOR)
    stopped_in = F.when(F.col("kind") == "node_stopped", F.col("incarnation"))
    found = written.groupBy("run", "node_id").agg(
        F.coalesce(F.max("node_name"), F.col("node_id")).alias("node_name"),
        F.countDistinct("incarnation").alias("incarnation_count"),
        F.min("time_ns").alias("first_ns"),
        F.max("time_ns").alias("last_ns"),
        F.coalesce(F.max(stopped_in) == F.max("incarnation"), F.lit(False)).alias("stopped"),
    )
    ends = written.groupBy("run").agg(F.max("time_ns").alias("end_ns"))
    losses = (
        records_of_kinds(written, "node_unreachable")
        .groupBy("run", F.col("peer_id").alias("node_id"))
        .agg(F.max("time_ns").alias("lost_ns"))
    )
    is_present = F.expr(
        f"if(stopped, last_ns > end_ns - {STOP_NS},"
        f" last_ns > end_ns - {SILENCE_NS} and coalesce(lost_ns <= last_ns, true))"
    )
    return (
        found.join(F.broadcast(ends), "run")
        .join(losses, ["run", "node_id"], "left")
        .withColumn("present_at_end", is_present)
        .drop("stopped", "end_ns", "lost_ns")
    )


@SILVER.table("payload_bytes >= 0", "qos between 0 and 2", "guaranteed = (qos > 0)")
def publications(events: DataFrame) -> DataFrame:
    """One row per captured publication. Key: run, origin_id, epoch, sequence, guaranteed."""
    return (
        records_of_kinds(events, "captured")
        .groupBy(*PUBLICATION_KEY)
        .agg(
            F.min("time").alias("time"),
            F.min("time_ns").alias("time_ns"),
            F.min("qos").alias("qos"),
            F.min("topic").alias("topic"),
            F.min("payload_bytes").alias("payload_bytes"),
        )
    )


@SILVER.table("copies + arrived > 0", "bytes >= 0", "hop_index >= 1")
def hops(events: DataFrame) -> DataFrame:
    """One row per publication and direction of a link that it crossed. Key: run, origin_id, epoch,
    sequence, guaranteed, sender_id, receiver_id.

    `copies` were sent and `arrived` were received: more than one if it was sent again.
    """
    sent = records_of_kinds(events, "copy_sent").selectExpr(
        *PUBLICATION_KEY,
        "node_id as sender_id",
        "peer_id as receiver_id",
        "hops",
        "frame_bytes",
        "time_ns as sent_ns",
    )
    received = records_of_kinds(events, "copy_received").selectExpr(
        *PUBLICATION_KEY,
        "peer_id as sender_id",
        "node_id as receiver_id",
        "hops",
        "time_ns as received_ns",
    )
    return (
        sent.unionByName(received, allowMissingColumns=True)
        .groupBy(*PUBLICATION_KEY, "sender_id", "receiver_id")
        .agg(
            F.min("hops").alias("hop_index"),
            F.count("sent_ns").alias("copies"),
            F.coalesce(F.sum("frame_bytes"), F.lit(0)).alias("bytes"),
            F.count("received_ns").alias("arrived"),
            F.min("sent_ns").alias("sent_ns"),
            F.min("received_ns").alias("received_ns"),
        )
    )


@SILVER.table("duplicate_count >= 1")
def duplicates(events: DataFrame) -> DataFrame:
    """One row per publication and direction of a link that delivered duplicates of it. Key: run,
    origin_id, epoch, sequence, guaranteed, sender_id, receiver_id."""
    return (
        records_of_kinds(events, "duplicate")
        .groupBy(
            *PUBLICATION_KEY,
            F.col("peer_id").alias("sender_id"),
            F.col("node_id").alias("receiver_id"),
        )
        .agg(F.count("*").alias("duplicate_count"))
    )


@SILVER.table("delivery_count >= 1", "origin_id <> node_id")
def deliveries(events: DataFrame, publications: DataFrame) -> DataFrame:
    """One row per publication and other node whose broker received it. Key: run, origin_id, epoch,
    sequence, guaranteed, node_id.

    `delivery_count` is above 1 if it was delivered again; the other columns describe the first
    delivery.
    """
    first = (
        records_of_kinds(events, "delivered")
        .where("origin_id <> node_id")
        .groupBy(*PUBLICATION_KEY, "node_id")
        .agg(
            F.count("*").alias("delivery_count"),
            F.min("time_ns").alias("time_ns"),
            F.min("hops").alias("hops"),
            F.min("topic").alias("topic"),
            F.min("payload_bytes").alias("payload_bytes"),
        )
    )
    published = publications.select(*PUBLICATION_KEY, F.col("time_ns").alias("published_ns"))
    delay = (F.col("time_ns") - F.col("published_ns")) / 1e6
    return first.join(published, [*PUBLICATION_KEY], "left").withColumn("delay_ms", delay)


@SILVER.table()
def losses_and_repairs(events: DataFrame) -> DataFrame:
    """One row per publication, or range of them, that was dropped, abandoned or repaired. Key: run,
    node_id, incarnation, record_sequence."""
    return records_of_kinds(events, "dropped", "gap", "delivery_abandoned", "repaired").select(
        *RECORD_KEY,
        "time_ns",
        "kind",
        "origin_id",
        "epoch",
        "sequence",
        "peer_id",
        "first_sequence",
        "last_sequence",
        "count",
        "reason",
    )


@SILVER.table("frame_bytes > 0")
def control_frames(events: DataFrame) -> DataFrame:
    """One row per sent control frame. Key: run, node_id, incarnation, record_sequence.

    `receiver_id` is empty before the handshake of the link.
    """
    return records_of_kinds(events, "control_frame_sent").select(
        *RECORD_KEY,
        "time_ns",
        F.coalesce("peer_id", F.lit("")).alias("receiver_id"),
        *("frame", "frame_bytes"),
        *("core_id", "core_incarnation", "announcement_sequence", "distance"),
    )


@SILVER.table()
def control_events(events: DataFrame) -> DataFrame:
    """One row per change of links, membership, interest or cores that a node recorded. Key: run,
    node_id, incarnation, record_sequence."""
    return records_of_kinds(events, *CONTROL_KINDS).select(
        *RECORD_KEY,
        *("time_ns", "kind", "group", "core_id", "peer_id", "announcement_sequence", "distance"),
        *("parent_ids", "gained_parent_ids", "lost_parent_ids", "reason", "node_name"),
    )


@SILVER.table("up_count + down_count + rtt_count > 0", "rtt_ms >= 0", "node_a_id < node_b_id")
def links(events: DataFrame, nodes: DataFrame) -> DataFrame:
    """One row per run and link between two nodes. Key: run, node_a_id, node_b_id.

    `established_at_end`: the link was up when the recording of the run ended. Both nodes were
    present then (see `nodes`), the last report of at least one end says that the link is up, and
    the last report of neither end says that it is down. The last report is the newest `link_up` or
    `link_down` of the node's newest incarnation. A `link_down` because one of the two nodes stopped
    cleanly counts as up: the link was up at the time of the stop. `rtt_ms` is the shortest of
    `rtt_count` measured round-trip times.
    """
    about = records_of_kinds(events, "link_up", "link_down", "round_trip").where(
        "peer_id is not null"
    )
    present = F.broadcast(nodes.select("run", "node_id", "present_at_end"))
    newest = F.broadcast(events.groupBy("run", "node_id").agg(F.max("incarnation").alias("newest")))
    moment = F.when(F.col("kind") != "round_trip", F.struct("incarnation", "record_sequence"))
    report = F.struct("kind", "reason", "incarnation")
    ends = (
        about.groupBy("run", "node_id", "peer_id")
        .agg(
            F.count_if(F.col("kind") == "link_up").alias("up_count"),
            F.count_if(F.col("kind") == "link_down").alias("down_count"),
            F.count_if(F.col("kind") == "round_trip").alias("rtt_count"),
            F.min("rtt_ms").alias("rtt_ms"),
            F.max_by(report, moment).alias("report"),
        )
        .join(newest, ["run", "node_id"])
        .withColumn("report", F.expr("if(report.incarnation = newest, report, null)"))
        .withColumn(
            "stopping",
            F.expr(f"report.kind = 'link_down' and report.reason = '{schema.CLEAN_STOP_REASON}'"),
        )
    )
    says_up = F.col("stopping") | (F.col("report.kind") == "link_up")
    return (
        ends.groupBy(
            "run",
            F.least("node_id", "peer_id").alias("node_a_id"),
            F.greatest("node_id", "peer_id").alias("node_b_id"),
        )
        .agg(
            F.sum("up_count").alias("up_count"),
            F.sum("down_count").alias("down_count"),
            F.sum("rtt_count").alias("rtt_count"),
            F.min("rtt_ms").alias("rtt_ms"),
            F.coalesce(F.max(says_up), F.lit(False)).alias("up"),
            F.coalesce(F.max("stopping"), F.lit(False)).alias("stopped"),
            F.coalesce(F.max(F.expr("report.kind = 'link_down'")), F.lit(False)).alias("down"),
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


@SILVER.table("until_ns is null or until_ns >= since_ns")
def memberships(events: DataFrame) -> DataFrame:
    """One row per period in which a node had a relation to a filter. Key: run, node_id,
    incarnation, record_sequence.

    `relation` is `interest` (clients of its broker are subscribed), `subscribed_at_broker` (the
    agent is subscribed at its broker, because other nodes have interest) or `mesh` (the node is a
    member of the group's mesh). `until_ns` is empty if the period lasted to the end. The periods of
    an incarnation end with its last record if another incarnation followed.
    """
    begins = {
        "interest_added": "interest",
        "subscribed_at_broker": "subscribed_at_broker",
        "mesh_joined": "mesh",
    }
    ends = {
        "interest_removed": "interest",
        "unsubscribed_at_broker": "subscribed_at_broker",
        "mesh_left": "mesh",
    }
    relation = _mapped(F.col("kind"), begins | ends)
    changes = records_of_kinds(events, *begins, *ends).withColumn("relation", relation)
    incarnation_window = Window.partitionBy(
        "run", "node_id", "incarnation", "relation", "group"
    ).orderBy("record_sequence")
    incarnation_times = events.groupBy("run", "node_id", "incarnation").agg(
        F.min(F.when(F.col("kind") == "node_started", F.col("time_ns"))).alias("started_ns"),
        F.max("time_ns").alias("last_ns"),
    )
    following = Window.partitionBy("run", "node_id").orderBy("started_ns", "incarnation")
    ended = incarnation_times.withColumn(
        "next_started_ns", F.lead("started_ns").over(following)
    ).drop("started_ns")
    return (
        changes.withColumn("next_ns", F.lead("time_ns").over(incarnation_window))
        .where(F.col("kind").isin(*begins))
        .join(ended, ["run", "node_id", "incarnation"], "left")
        .select(
            *RECORD_KEY,
            "relation",
            "group",
            F.col("time_ns").alias("since_ns"),
            # The incarnation of a clone may start while this one continues: that is no end.
            F.expr("coalesce(next_ns, if(next_started_ns >= time_ns, last_ns, null))").alias(
                "until_ns"
            ),
        )
        # If the clock was set back, the period has length 0.
        .withColumn("until_ns", F.expr("if(until_ns < since_ns, since_ns, until_ns)"))
    )


def _mapped(column: Column, values: dict[str, str]) -> Column:
    return F.create_map(*(F.lit(word) for pair in values.items() for word in pair))[column]


@SILVER.table()
def expected_deliveries(publications: DataFrame, memberships: DataFrame) -> DataFrame:
    """One row per publication and other node that had interest in it when it was published. Key:
    run, origin_id, epoch, sequence, guaranteed, node_id."""
    interest = memberships.where("relation = 'interest'").select(
        "run", "node_id", "group", "since_ns", "until_ns"
    )
    topics = publications.select("run", "topic").distinct()
    groups = interest.select("run", "group").distinct()
    matching = topics.join(groups, "run").where(filter_matches("`group`", "topic"))
    return (
        publications.join(matching, ["run", "topic"])
        .join(interest, ["run", "group"])
        .where("time_ns >= since_ns and (until_ns is null or time_ns < until_ns)")
        .where("node_id <> origin_id")
        .select(*PUBLICATION_KEY, "node_id", "topic")
        .distinct()
    )


@SILVER.table()
def faults(events: DataFrame) -> DataFrame:
    """One row per injected fault. Key: run, node_id, incarnation, record_sequence."""
    return records_of_kinds(events, "fault_injected").select(
        *RECORD_KEY, "time_ns", "disturbance", "target_id", "peer_id"
    )


@SILVER.table("seconds >= 0")
def convergences(events: DataFrame) -> DataFrame:
    """One row per disturbance of a simulation after which all nodes agreed again. Key: run,
    node_id, incarnation, record_sequence."""
    return records_of_kinds(events, "converged").select(
        *RECORD_KEY, "time_ns", "disturbance", "seconds"
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
        *RECORD_KEY,
        *("time_ns", "disturbance", "origin_id", "target_id", "published", "arrived"),
        (F.col("published") - F.col("arrived")).alias("lost"),
        "duplicates",
        "interruption_s",
    )


@SILVER.table()
def counters(events: DataFrame) -> DataFrame:
    """One row per counter of an incarnation, with its last value. Key: run, node_id, incarnation,
    counter_name."""
    return (
        records_of_kinds(events, "counter")
        .groupBy("run", "node_id", "incarnation", "counter_name")
        .agg(F.max_by("value", "record_sequence").alias("value"), F.max("time_ns").alias("time_ns"))
    )


@SILVER.table("missing >= 0")
def incarnations(events: DataFrame) -> DataFrame:
    """One row per incarnation of a node. Key: run, node_id, incarnation.

    `missing` counts records that were written and are not in the lake: retention or a slow disk
    dropped them, or a newer version wrote kinds that this one does not know.
    """
    return (
        events.where(F.col("node_id") != FAULT_INJECTOR)
        .groupBy("run", "node_id", "incarnation")
        .agg(
            F.count("*").alias("records"),
            (F.max("record_sequence") - F.count("*")).alias("missing"),
            F.min("time_ns").alias("first_ns"),
            F.max("time_ns").alias("last_ns"),
        )
    )
