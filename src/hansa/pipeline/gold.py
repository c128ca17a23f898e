"""Gold tables: each answers one question. `silver` defines runs and the key of a publication."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hansa.pipeline.silver import CONTROL_KINDS, PUBLICATION_KEY, RECORD_KEY
from hansa.pipeline.tables import TableLayer
from hansa.protocol.wire.frames import UNREACHABLE, CoreAnnouncement

HOT_TOPICS_MAX = 100
"""Topics per run in `hot_topics`."""

DATA_FRAME_KIND = "publication"
"""Value of `frame` in `link_bytes` for frames that carry publications."""

SETTLED_AFTER_NS = 1_000_000_000
"""Nodes have settled when none recorded a change for this long."""

SETTLING_KINDS = tuple(
    kind for kind in CONTROL_KINDS if kind not in ("node_started", "node_stopped")
)

GOLD = TableLayer("gold")


def _delays() -> list[Column]:
    """Statistics of the delay: exact percentiles, interpolated as numpy does."""
    delay = F.col("delay_ms")
    return [
        F.count(delay).alias("measured"),
        F.avg(delay).alias("delay_ms_mean"),
        *(
            F.percentile(delay, F.lit(percent / 100)).alias(f"delay_ms_p{percent}")
            for percent in (50, 95, 99)
        ),
        F.max(delay).alias("delay_ms_max"),
    ]


def _ratio(part: str, whole: str) -> Column:
    return F.when(F.col(whole) > 0, F.col(part) / F.col(whole))


@GOLD.table("deliveries > 0", "measured <= deliveries", "delay_ms_p50 <= delay_ms_max")
def delay(deliveries: DataFrame) -> DataFrame:
    """One row per run, pair of nodes and number of hops between them. Key: run, origin_id, node_id,
    hops.

    `hops` is -1 for publications from a journal, whose path is not known.
    """
    return deliveries.groupBy(
        "run", "origin_id", "node_id", F.coalesce("hops", F.lit(-1)).alias("hops")
    ).agg(F.count("*").alias("deliveries"), *_delays())


@GOLD.table("deliveries > 0", "measured <= deliveries")
def delay_by_hops(deliveries: DataFrame) -> DataFrame:
    """One row per run and number of hops. Key: run, hops."""
    return deliveries.groupBy("run", F.coalesce("hops", F.lit(-1)).alias("hops")).agg(
        F.count("*").alias("deliveries"), *_delays()
    )


@GOLD.table(
    "delivered <= expected",
    "lost = expected - delivered",
    "delivered_ratio is null or delivered_ratio between 0 and 1",
)
def delivery(expected_deliveries: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run and pair of nodes of which one had interest in publications of the other or
    received some. Key: run, origin_id, node_id.

    `expected` counts publications in which a running node had interest when they were published,
    even if the other nodes did not know of its interest yet. `delivered` of these were delivered,
    `delivered_repeatedly` more than once. `delivered_without_interest` counts deliveries to a node
    that had no interest at that time.
    """
    expected = expected_deliveries.select(*PUBLICATION_KEY, "node_id", F.lit(1).alias("interest"))
    delivered = deliveries.select(*PUBLICATION_KEY, "node_id", "delivery_count")
    return (
        expected.join(delivered, [*PUBLICATION_KEY, "node_id"], "full")
        .groupBy("run", "origin_id", "node_id")
        .agg(
            F.count("interest").alias("expected"),
            F.count_if(F.expr("interest = 1 and delivery_count > 0")).alias("delivered"),
            F.count_if(F.expr("interest = 1 and delivery_count is null")).alias("lost"),
            F.count_if(F.expr("delivery_count > 1")).alias("delivered_repeatedly"),
            F.count_if(F.expr("interest is null")).alias("delivered_without_interest"),
        )
        .withColumn("delivered_ratio", _ratio("delivered", "expected"))
    )


@GOLD.table("duplicates <= received", "duplicate_ratio is null or duplicate_ratio between 0 and 1")
def redundancy(hops: DataFrame, duplicates: DataFrame) -> DataFrame:
    """One row per run and node that received copies. Key: run, node_id.

    The cost of redundant paths: `duplicates` of the `received` copies, and their bytes.
    """
    joined = hops.join(duplicates, [*PUBLICATION_KEY, "sender_id", "receiver_id"], "left")
    bytes_each = F.col("bytes") / F.greatest("copies", F.lit(1))
    return (
        joined.where("arrived > 0")
        .groupBy("run", F.col("receiver_id").alias("node_id"))
        .agg(
            F.sum("arrived").alias("received"),
            F.coalesce(F.sum("duplicate_count"), F.lit(0)).alias("duplicates"),
            F.coalesce(F.sum(bytes_each * F.col("duplicate_count")), F.lit(0.0)).alias(
                "duplicate_bytes"
            ),
        )
        .withColumn("duplicate_ratio", _ratio("duplicates", "received"))
    )


@GOLD.table("frames > 0", "bytes > 0")
def link_bytes(hops: DataFrame, control_frames: DataFrame) -> DataFrame:
    """One row per run, direction of a link and kind of frame. Key: run, sender_id, receiver_id,
    frame.

    `frame` is `publication` or a kind of control frame.
    """
    data = hops.where("copies > 0").select(
        "run", "sender_id", "receiver_id", F.lit(DATA_FRAME_KIND).alias("frame"), "copies", "bytes"
    )
    control = control_frames.select(
        "run",
        F.col("node_id").alias("sender_id"),
        "receiver_id",
        "frame",
        F.lit(1).alias("copies"),
        F.col("frame_bytes").alias("bytes"),
    )
    return (
        data.unionByName(control)
        .groupBy("run", "sender_id", "receiver_id", "frame")
        .agg(F.sum("copies").alias("frames"), F.sum("bytes").alias("bytes"))
    )


@GOLD.table("frames + frames_on_new_links > 0")
def announcements(
    control_frames: DataFrame, control_events: DataFrame, links: DataFrame
) -> DataFrame:
    """One row per run and announcement of a core. Key: run, core_id, core_incarnation,
    announcement_sequence.

    The papers bound the `frames` of one announcement by 2·l, where l is the number of links;
    `bound_ratio` is `frames` divided by this bound. Links that came up while the announcement
    spread are counted separately, in `frames_on_new_links`. Withdrawals are not counted.
    """
    key = ["run", "core_id", "core_incarnation", "announcement_sequence"]
    link_counts = links.groupBy("run").agg(F.count("*").alias("links"))
    sent = control_frames.where(
        f"frame = '{CoreAnnouncement.__name__}' and distance < {UNREACHABLE}"
    )
    first_sent = sent.groupBy(*key).agg(F.min("time_ns").alias("first_sent_ns"))
    direction = ["run", "node_id", "incarnation", "receiver_id"]
    ups = control_events.where("kind = 'link_up'").selectExpr(
        *direction[:3], "peer_id as receiver_id", "record_sequence", "time_ns as up_ns"
    )
    in_order = Window.partitionBy(*direction).orderBy("record_sequence")
    return (
        sent.unionByName(ups, allowMissingColumns=True)
        .withColumn("up_ns", F.last("up_ns", ignorenulls=True).over(in_order))
        .where("frame is not null")
        .join(first_sent, key)
        # Without a `link_up`, the link came up before the recording started.
        .withColumn("is_old_link", F.expr("coalesce(up_ns <= first_sent_ns, true)"))
        .groupBy(*key)
        .agg(
            F.count_if(F.col("is_old_link")).alias("frames"),
            F.count_if(~F.col("is_old_link")).alias("frames_on_new_links"),
            F.sum("frame_bytes").alias("bytes"),
            F.min("time_ns").alias("time_ns"),
        )
        .join(F.broadcast(link_counts), "run", "left")
        .withColumn("bound_ratio", F.col("frames") / (2 * F.col("links")))
    )


@GOLD.table("bytes > 0", "bytes_per_link_second >= 0")
def control_overhead(control_frames: DataFrame, links: DataFrame, runs: DataFrame) -> DataFrame:
    """One row per run and kind of control frame. Key: run, frame."""
    link_counts = links.groupBy("run").agg(F.count("*").alias("links"))
    durations = runs.selectExpr("run", "(ended_ns - started_ns) / 1e9 as seconds")
    return (
        control_frames.groupBy("run", "frame")
        .agg(F.count("*").alias("frames"), F.sum("frame_bytes").alias("bytes"))
        .join(F.broadcast(link_counts), "run", "left")
        .join(F.broadcast(durations), "run", "left")
        .withColumn(
            "bytes_per_link_second",
            F.when(F.expr("seconds > 0 and links > 0"), F.expr("bytes / (seconds * links)")),
        )
    )


@GOLD.table(
    "agreed_after_s is null or agreed_after_s >= 0",
    "settled_after_s is null or settled_after_s >= 0",
)
def convergence(faults: DataFrame, convergences: DataFrame, control_events: DataFrame) -> DataFrame:
    """One row per disturbance. Key: run, node_id, incarnation, record_sequence.

    `agreed_after_s`: until all nodes agreed again; only a simulation knows it. `settled_after_s`:
    until the last of the `changes` of membership, interest, cores and links that nodes recorded
    before one second without changes, or before the next disturbance. Neither says how long
    deliveries were interrupted: see `client_deliveries`.
    """
    in_order = Window.partitionBy("run").orderBy(
        "time_ns", "node_id", "incarnation", "record_sequence"
    )
    periods = faults.withColumn("next_ns", F.lead("time_ns").over(in_order))
    changes = control_events.where(F.col("kind").isin(*SETTLING_KINDS)).select(
        "run", F.col("time_ns").alias("changed_ns")
    )
    by_time = Window.partitionBy(*RECORD_KEY).orderBy("changed_ns")
    previous = F.lag("changed_ns").over(by_time)
    pauses = F.count_if(F.col("changed_ns") - F.col("previous_ns") > SETTLED_AFTER_NS).over(by_time)
    settled = (
        periods.join(changes, "run")
        .where("changed_ns >= time_ns and (next_ns is null or changed_ns < next_ns)")
        .withColumn("previous_ns", previous)
        .withColumn("pauses", pauses)
        .where("pauses = 0")
        .groupBy(*RECORD_KEY)
        .agg(F.max("changed_ns").alias("changed_ns"), F.count("*").alias("changes"))
    )
    agreed = convergences.groupBy("run", "time_ns", "disturbance").agg(
        F.min("seconds").alias("agreed_after_s")
    )
    return (
        faults.join(agreed, ["run", "time_ns", "disturbance"], "left")
        .join(settled, [*RECORD_KEY], "left")
        .withColumn("settled_after_s", (F.col("changed_ns") - F.col("time_ns")) / 1e9)
        .select(
            *RECORD_KEY,
            *("time_ns", "disturbance", "target_id", "peer_id"),
            *("agreed_after_s", "settled_after_s"),
            F.coalesce("changes", F.lit(0)).alias("changes"),
        )
    )


@GOLD.table("publications > 0", "bytes >= 0")
def traffic_matrix(deliveries: DataFrame) -> DataFrame:
    """One row per run and pair of nodes between which publications were delivered. Key: run,
    origin_id, node_id."""
    return deliveries.groupBy("run", "origin_id", "node_id").agg(
        F.count("*").alias("publications"), F.sum("payload_bytes").alias("bytes")
    )


@GOLD.table(
    "not_forwarded <= publications",
    "neighbour_ratio is null or neighbour_ratio between 0 and 1",
)
def locality(publications: DataFrame, hops: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run and node that published. Key: run, origin_id.

    `not_forwarded` publications crossed no link; `neighbour_ratio` is the ratio of the deliveries
    that were at direct neighbours.
    """
    forwarded = hops.where("copies > 0").select(*PUBLICATION_KEY).distinct()
    forwarded = forwarded.withColumn("forwarded", F.lit(1))
    published = publications.join(forwarded, [*PUBLICATION_KEY], "left")
    delivered = deliveries.groupBy("run", "origin_id").agg(
        F.count("*").alias("deliveries"),
        F.count_if(F.col("hops") == 1).alias("at_neighbours"),
        F.avg("hops").alias("hops_mean"),
    )
    return (
        published.groupBy("run", "origin_id")
        .agg(
            F.count("*").alias("publications"),
            F.count_if(F.col("forwarded").isNull()).alias("not_forwarded"),
        )
        .join(delivered, ["run", "origin_id"], "left")
        .withColumn("deliveries", F.coalesce("deliveries", F.lit(0)))
        .withColumn("neighbour_ratio", _ratio("at_neighbours", "deliveries"))
        .drop("at_neighbours")
    )


@GOLD.table("publications > 0", f"rank between 1 and {HOT_TOPICS_MAX}")
def hot_topics(publications: DataFrame, hops: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run and topic, for the 100 topics with most publications. Key: run, topic."""
    published = publications.groupBy("run", "topic").agg(
        F.count("*").alias("publications"), F.sum("payload_bytes").alias("payload_bytes")
    )
    order = Window.partitionBy("run").orderBy(F.desc("publications"), "topic")
    hottest = published.withColumn("rank", F.row_number().over(order)).where(
        F.col("rank") <= HOT_TOPICS_MAX
    )
    topics = publications.select(*PUBLICATION_KEY, "topic")
    carried = (
        hops.join(topics, [*PUBLICATION_KEY])
        .groupBy("run", "topic")
        .agg(F.sum("copies").alias("copies"), F.sum("bytes").alias("link_bytes"))
    )
    delivered = deliveries.groupBy("run", "topic").agg(F.count("*").alias("deliveries"))
    return (
        hottest.join(carried, ["run", "topic"], "left")
        .join(delivered, ["run", "topic"], "left")
        .fillna(0, ["copies", "link_bytes", "deliveries"])
    )


@GOLD.table("messages > 0", "bytes >= 0")
def recorded_topics(messages: DataFrame) -> DataFrame:
    """One row per topic of recorded publications. Key: topic."""
    return messages.groupBy("topic").agg(
        F.count("*").alias("messages"),
        F.sum("payload_bytes").alias("bytes"),
        F.countDistinct("origin_id").alias("origins"),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
    )
