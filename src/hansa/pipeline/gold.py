"""Gold tables: each answers one question, by hour. `silver` defines runs and publications.

A row belongs to one `run` and one `hour`, and depends only on input of that hour, or also of the
next one if the table is declared with `looks_ahead`. The pipeline therefore computes only the hours
anew whose input changed. Publications and their deliveries count in the hour of publication, frames
in the hour in which they were sent.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hansa.pipeline.silver import CONTROL_KINDS, DELIVERY_KEY, LIVE, PUBLICATION_KEY, RECORD_KEY
from hansa.pipeline.tables import BUCKET, TableLayer
from hansa.pipeline.topics import filter_matches
from hansa.protocol.wire.frames import UNREACHABLE, CoreAnnouncement

HOT_TOPICS_MAX = 100
"""Topics per run and hour in `hot_topics`."""

DATA_FRAME_KIND = "publication"
"""Value of `frame` in `link_bytes` for frames that carry publications."""

SETTLED_AFTER = "INTERVAL 1 SECOND"
"""Nodes have settled when none recorded a change for this long."""

SETTLING_KINDS = tuple(
    kind for kind in CONTROL_KINDS if kind not in ("node_started", "node_stopped")
)

GOLD = TableLayer("gold")


def delay_statistics() -> list[Column]:
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


@GOLD.table(
    "deliveries > 0",
    "measured <= deliveries",
    "delay_ms_p50 <= delay_ms_max",
    nullable_key=("hops",),
    partitions=BUCKET,
)
def delay(deliveries: DataFrame) -> DataFrame:
    """One row per run, hour, pair of nodes and number of hops between them. Key: run, hour,
    origin_id, node_id, hops.

    `hops` is empty for publications from a journal, whose path is not known.
    """
    return deliveries.groupBy(*BUCKET, "origin_id", "node_id", "hops").agg(
        F.count("*").alias("deliveries"), *delay_statistics()
    )


@GOLD.table("deliveries > 0", "measured <= deliveries", nullable_key=("hops",), partitions=BUCKET)
def delay_by_hops(deliveries: DataFrame) -> DataFrame:
    """One row per run, hour and number of hops. Key: run, hour, hops."""
    return deliveries.groupBy(*BUCKET, "hops").agg(
        F.count("*").alias("deliveries"), *delay_statistics()
    )


def expected_deliveries(publications: DataFrame, memberships: DataFrame) -> DataFrame:
    """Return one row per publication and other node that had interest in it when it was
    published."""
    interest = memberships.where("relation = 'interest'").select(
        "run", "node_id", "group", "since", "until"
    )
    topics = publications.select("run", "topic").distinct()
    groups = interest.select("run", "group").distinct()
    matching = topics.join(F.broadcast(groups), "run").where(filter_matches("`group`", "topic"))
    return (
        publications.join(matching, ["run", "topic"])
        .join(F.broadcast(interest), ["run", "group"])
        .where("published_at >= since and (until is null or published_at < until)")
        .where("node_id <> origin_id")
        .select(*DELIVERY_KEY, "hour")
        .distinct()
    )


@GOLD.table(
    "delivered <= expected",
    "lost = expected - delivered",
    "delivered_ratio is null or delivered_ratio between 0 and 1",
    partitions=BUCKET,
)
def delivery(publications: DataFrame, memberships: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run, hour and pair of nodes of which one had interest in publications of the
    other or received some. Key: run, hour, origin_id, node_id.

    `expected` counts publications in which a running node had interest when they were published,
    even if the other nodes did not know of its interest yet. `delivered` of these were delivered,
    `delivered_repeatedly` more than once. `delivered_without_interest` counts deliveries to a node
    that had no interest at that time.
    """
    expected = expected_deliveries(publications, memberships).withColumn("interest", F.lit(1))
    delivered = deliveries.select(*DELIVERY_KEY, "hour", "delivery_count")
    return (
        expected.join(delivered, [*DELIVERY_KEY, "hour"], "full")
        .groupBy(*BUCKET, "origin_id", "node_id")
        .agg(
            F.count("interest").alias("expected"),
            F.count_if(F.expr("interest = 1 and delivery_count > 0")).alias("delivered"),
            F.count_if(F.expr("interest = 1 and delivery_count is null")).alias("lost"),
            F.count_if(F.expr("delivery_count > 1")).alias("delivered_repeatedly"),
            F.count_if(F.expr("interest is null")).alias("delivered_without_interest"),
        )
        .withColumn("delivered_ratio", _ratio("delivered", "expected"))
    )


@GOLD.table(
    "duplicates <= received",
    "duplicate_ratio is null or duplicate_ratio between 0 and 1",
    partitions=BUCKET,
)
def redundancy(copies: DataFrame) -> DataFrame:
    """One row per run, hour and node that received copies. Key: run, hour, node_id.

    The cost of redundant paths: `duplicates` of the `received` copies, and their bytes.
    """
    per_hop = (
        copies.where("kind <> 'sent'")
        .groupBy(*PUBLICATION_KEY, "hour", "sender_id", "receiver_id")
        .agg(
            F.count_if(F.col("kind") == "received").alias("received"),
            F.count_if(F.col("kind") == "duplicate").alias("duplicates"),
            F.avg("frame_bytes").alias("bytes_each"),
        )
    )
    return (
        per_hop.where("received > 0")
        .groupBy(*BUCKET, F.col("receiver_id").alias("node_id"))
        .agg(
            F.sum("received").alias("received"),
            F.sum("duplicates").alias("duplicates"),
            F.sum(F.col("bytes_each") * F.col("duplicates")).alias("duplicate_bytes"),
        )
        .withColumn("duplicate_ratio", _ratio("duplicates", "received"))
    )


@GOLD.table("frames > 0", "bytes > 0", nullable_key=("receiver_id",), partitions=BUCKET)
def link_bytes(copies: DataFrame, control_frames: DataFrame) -> DataFrame:
    """One row per run, hour, direction of a link and kind of frame. Key: run, hour, sender_id,
    receiver_id, frame.

    `frame` is `publication` or a kind of control frame. `receiver_id` is empty before the handshake
    of the link.
    """
    data = copies.where("kind = 'sent'").select(
        *(*BUCKET, "sender_id", "receiver_id"),
        F.lit(DATA_FRAME_KIND).alias("frame"),
        "frame_bytes",
    )
    control = control_frames.select(
        *BUCKET, F.col("node_id").alias("sender_id"), "receiver_id", "frame", "frame_bytes"
    )
    return (
        data.unionByName(control)
        .groupBy(*BUCKET, "sender_id", "receiver_id", "frame")
        .agg(F.count("*").alias("frames"), F.sum("frame_bytes").alias("bytes"))
    )


def _link_counts(control_frames: DataFrame) -> DataFrame:
    """Return the number of links over which control frames were sent, by run and hour."""
    a, b = F.least("node_id", "receiver_id"), F.greatest("node_id", "receiver_id")
    return (
        control_frames.where("receiver_id is not null")
        .groupBy(*BUCKET)
        .agg(F.count_distinct(F.struct(a, b)).alias("links"))
    )


@GOLD.table("frames + frames_on_new_links > 0", partitions=BUCKET)
def announcements(control_frames: DataFrame, control_events: DataFrame) -> DataFrame:
    """One row per run, hour and announcement of a core. Key: run, hour, core_id, core_incarnation,
    announcement_sequence.

    The papers bound the `frames` of one announcement by 2·l, where l is the number of `links` over
    which control frames were sent in that hour; `bound_ratio` is `frames` divided by this bound.
    Links that came up while the announcement spread are counted separately, in
    `frames_on_new_links`. Withdrawals are not counted. An announcement that spreads while an hour
    ends has a row in both.
    """
    key = [*BUCKET, "core_id", "core_incarnation", "announcement_sequence"]
    sent = control_frames.where(
        f"frame = '{CoreAnnouncement.__name__}' and distance < {UNREACHABLE}"
    )
    first_sent = sent.groupBy(*key).agg(F.min("recorded_at").alias("first_sent_at"))
    direction = ["run", "hour", "node_id", "incarnation", "receiver_id"]
    ups = control_events.where("kind = 'link_up'").selectExpr(
        *direction[:4], "peer_id as receiver_id", "record_sequence", "recorded_at as up_at"
    )
    in_order = Window.partitionBy(*direction).orderBy("record_sequence")
    return (
        sent.unionByName(ups, allowMissingColumns=True)
        .withColumn("up_at", F.last("up_at", ignorenulls=True).over(in_order))
        .where("frame is not null")
        .join(first_sent, key)
        # Without a `link_up`, the link came up before this hour.
        .withColumn("is_old_link", F.expr("coalesce(up_at <= first_sent_at, true)"))
        .groupBy(*key)
        .agg(
            F.count_if(F.col("is_old_link")).alias("frames"),
            F.count_if(~F.col("is_old_link")).alias("frames_on_new_links"),
            F.sum("frame_bytes").alias("bytes"),
            F.min("recorded_at").alias("announced_at"),
        )
        .join(F.broadcast(_link_counts(control_frames)), [*BUCKET], "left")
        .withColumn("bound_ratio", F.col("frames") / (2 * F.col("links")))
    )


@GOLD.table("bytes > 0", "bytes_per_link_second >= 0", partitions=BUCKET)
def control_overhead(control_frames: DataFrame) -> DataFrame:
    """One row per run, hour and kind of control frame. Key: run, hour, frame.

    `seconds` is the time between the first and the last control frame of the hour; `links` counts
    the links over which control frames were sent.
    """
    span = (F.unix_micros(F.max("recorded_at")) - F.unix_micros(F.min("recorded_at"))) / 1e6
    durations = control_frames.groupBy(*BUCKET).agg(span.alias("seconds"))
    return (
        control_frames.groupBy(*BUCKET, "frame")
        .agg(F.count("*").alias("frames"), F.sum("frame_bytes").alias("bytes"))
        .join(F.broadcast(_link_counts(control_frames)), [*BUCKET], "left")
        .join(F.broadcast(durations), [*BUCKET], "left")
        .withColumn(
            "bytes_per_link_second",
            F.when(F.expr("seconds > 0 and links > 0"), F.expr("bytes / (seconds * links)")),
        )
    )


@GOLD.table(
    "agreed_after_s is null or agreed_after_s >= 0",
    "settled_after_s is null or settled_after_s >= 0",
    partitions=BUCKET,
    looks_ahead=True,
)
def convergence(faults: DataFrame, convergences: DataFrame, control_events: DataFrame) -> DataFrame:
    """One row per disturbance. Key: run, hour, node_id, incarnation, record_sequence.

    `agreed_after_s`: until all nodes agreed again; only a simulation knows it. `settled_after_s`:
    until the last of the `changes` of membership, interest, cores and links that nodes recorded
    before one second without changes, before the next disturbance or before the end of the next
    hour. Neither says how long deliveries were interrupted: see `client_deliveries`.
    """
    in_order = Window.partitionBy("run").orderBy(
        "recorded_at", "node_id", "incarnation", "record_sequence"
    )
    periods = faults.withColumn(
        "until",
        F.least(F.lead("recorded_at").over(in_order), F.expr("hour + INTERVAL 2 HOURS")),
    )
    changes = control_events.where(F.col("kind").isin(*SETTLING_KINDS)).select(
        "run", F.col("recorded_at").alias("changed_at")
    )
    by_time = Window.partitionBy(*RECORD_KEY).orderBy("changed_at")
    is_pause = F.expr(f"changed_at - previous_at > {SETTLED_AFTER}")
    settled = (
        F.broadcast(periods)
        .join(changes, "run")
        .where("changed_at >= recorded_at and changed_at < until")
        .withColumn("previous_at", F.lag("changed_at").over(by_time))
        .withColumn("pauses", F.count_if(is_pause).over(by_time))
        .where("pauses = 0")
        .groupBy(*RECORD_KEY)
        .agg(F.max("changed_at").alias("changed_at"), F.count("*").alias("changes"))
    )
    agreed = convergences.groupBy("run", "recorded_at", "disturbance").agg(
        F.min("seconds").alias("agreed_after_s")
    )
    took = (F.unix_micros("changed_at") - F.unix_micros("recorded_at")) / 1e6
    return (
        faults.join(agreed, ["run", "recorded_at", "disturbance"], "left")
        .join(settled, [*RECORD_KEY], "left")
        .withColumn("settled_after_s", took)
        .select(
            *(*RECORD_KEY, "hour", "recorded_at", "disturbance", "target_id", "peer_id"),
            *("agreed_after_s", "settled_after_s"),
            F.coalesce("changes", F.lit(0)).alias("changes"),
        )
    )


@GOLD.table("publications > 0", "bytes >= 0", partitions=BUCKET)
def traffic_matrix(deliveries: DataFrame) -> DataFrame:
    """One row per run, hour and pair of nodes between which publications were delivered. Key: run,
    hour, origin_id, node_id."""
    return deliveries.groupBy(*BUCKET, "origin_id", "node_id").agg(
        F.count("*").alias("publications"), F.sum("payload_bytes").alias("bytes")
    )


@GOLD.table(
    "not_forwarded <= publications",
    "neighbour_ratio is null or neighbour_ratio between 0 and 1",
    partitions=BUCKET,
    looks_ahead=True,
)
def locality(publications: DataFrame, copies: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run, hour and node that published. Key: run, hour, origin_id.

    `not_forwarded` publications crossed no link before the end of the next hour; `neighbour_ratio`
    is the ratio of the deliveries that were at direct neighbours.
    """
    forwarded = (
        copies.where("kind = 'sent' and sender_id = origin_id")
        .groupBy(*PUBLICATION_KEY)
        .agg(F.min("hour").alias("forwarded"))
    )
    published = publications.join(forwarded, [*PUBLICATION_KEY], "left")
    delivered = deliveries.groupBy(*BUCKET, "origin_id").agg(
        F.count("*").alias("deliveries"),
        F.count_if(F.col("hops") == 1).alias("at_neighbours"),
        F.avg("hops").alias("hops_mean"),
    )
    is_forwarded = F.expr("forwarded <= hour + INTERVAL 1 HOUR")
    return (
        published.groupBy(*BUCKET, "origin_id")
        .agg(
            F.count("*").alias("publications"),
            F.count_if(~F.coalesce(is_forwarded, F.lit(False))).alias("not_forwarded"),
        )
        .join(delivered, [*BUCKET, "origin_id"], "left")
        .withColumn("deliveries", F.coalesce("deliveries", F.lit(0)))
        .withColumn("neighbour_ratio", _ratio("at_neighbours", "deliveries"))
        .drop("at_neighbours")
    )


@GOLD.table("publications > 0", f"rank between 1 and {HOT_TOPICS_MAX}", partitions=BUCKET)
def hot_topics(publications: DataFrame, copies: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run, hour and topic, for the 100 topics with most publications in that hour. Key:
    run, hour, topic."""
    published = publications.groupBy(*BUCKET, "topic").agg(
        F.count("*").alias("publications"), F.sum("payload_bytes").alias("payload_bytes")
    )
    order = Window.partitionBy(*BUCKET).orderBy(F.desc("publications"), "topic")
    hottest = published.withColumn("rank", F.row_number().over(order)).where(
        F.col("rank") <= HOT_TOPICS_MAX
    )
    carried = (
        copies.where("kind = 'sent'")
        .groupBy(*BUCKET, "topic")
        .agg(F.count("*").alias("copies"), F.sum("frame_bytes").alias("link_bytes"))
    )
    delivered = deliveries.groupBy(*BUCKET, "topic").agg(F.count("*").alias("deliveries"))
    return (
        hottest.join(carried, [*BUCKET, "topic"], "left")
        .join(delivered, [*BUCKET, "topic"], "left")
        .fillna(0, ["copies", "link_bytes", "deliveries"])
    )


@GOLD.table("messages > 0", "bytes >= 0", partitions=BUCKET)
def recorded_topics(messages: DataFrame) -> DataFrame:
    """One row per hour and topic of recorded publications. Key: run, hour, topic."""
    return messages.groupBy(F.lit(LIVE).alias("run"), "hour", "topic").agg(
        F.count("*").alias("messages"),
        F.sum("payload_bytes").alias("bytes"),
        F.count_distinct("origin_id").alias("origins"),
        F.min("published_at").alias("first_at"),
        F.max("published_at").alias("last_at"),
    )
