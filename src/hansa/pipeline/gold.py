"""Gold: questions answered. What a run is, and which columns name a publication: see `silver`."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hansa.pipeline.silver import CONTROL_KINDS, PUBLICATION_KEY
from hansa.pipeline.tables import TableLayer

HOT_TOPICS_MAX = 100
"""Topics of one run that are called hot."""

DATA_FRAME_KIND = "publication"
"""In `link_bytes`: frames that carry publications."""

WITHDRAWN_DISTANCE = 4_294_967_295
"""The distance in a frame that takes an announcement back."""

SETTLED_AFTER_NS = 1_000_000_000
"""Nodes have settled when none recorded a change for so long."""

SETTLING_KINDS = tuple(kind for kind in CONTROL_KINDS if kind not in ("started", "stopped"))

GOLD = TableLayer("gold")


def _delays() -> list[Column]:
    """How long deliveries took: exact percentiles, interpolated as numpy does it."""
    delay = F.col("delay_ms")
    return [
        F.count(delay).alias("measured"),
        F.avg(delay).alias("delay_ms_mean"),
        *(
            F.percentile(delay, F.lit(share)).alias(f"delay_ms_p{round(share * 100)}")
            for share in (0.5, 0.95, 0.99)
        ),
        F.max(delay).alias("delay_ms_max"),
    ]


def _ratio(part: str, whole: str) -> Column:
    return F.when(F.col(whole) > 0, F.col(part) / F.col(whole))


@GOLD.table("deliveries > 0", "measured <= deliveries", "delay_ms_p50 <= delay_ms_max")
def delay(deliveries: DataFrame) -> DataFrame:
    """One row per run, pair of nodes and number of hops between them. Key: run, origin, node, hops.

    `hops` is -1 for what came out of a journal, whose way is not known.
    """
    return deliveries.groupBy(
        "run", "origin", "node", F.coalesce("hops", F.lit(-1)).alias("hops")
    ).agg(F.count("*").alias("deliveries"), *_delays())


@GOLD.table("deliveries > 0", "measured <= deliveries")
def delay_by_hops(deliveries: DataFrame) -> DataFrame:
    """One row per run and number of hops. Key: run, hops."""
    return deliveries.groupBy("run", F.coalesce("hops", F.lit(-1)).alias("hops")).agg(
        F.count("*").alias("deliveries"), *_delays()
    )


@GOLD.table(
    "delivered <= wanted", "lost = wanted - delivered", "share is null or share between 0 and 1"
)
def delivery(expected_deliveries: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run and pair of nodes of which one wanted what the other published. Key: run,
    origin, node.

    `wanted` counts what a node that ran wanted at the moment it was published, also what the others
    could not know yet; `delivered` how much of that came, `twice` how much came again, `unasked`
    what came although it was not wanted then.
    """
    wanted = expected_deliveries.select(*PUBLICATION_KEY, "node", F.lit(1).alias("asked"))
    came = deliveries.select(*PUBLICATION_KEY, "node", "times")
    return (
        wanted.join(came, [*PUBLICATION_KEY, "node"], "full")
        .groupBy("run", "origin", "node")
        .agg(
            F.count("asked").alias("wanted"),
            F.count_if(F.expr("asked = 1 and times > 0")).alias("delivered"),
            F.count_if(F.expr("asked = 1 and times is null")).alias("lost"),
            F.count_if(F.expr("times > 1")).alias("twice"),
            F.count_if(F.expr("asked is null")).alias("unasked"),
        )
        .withColumn("share", _ratio("delivered", "wanted"))
    )


@GOLD.table("duplicates <= received", "share is null or share between 0 and 1")
def redundancy(hops: DataFrame, duplicates: DataFrame) -> DataFrame:
    """One row per run and node that received copies. Key: run, node.

    What was paid for ways that were not needed this time: `duplicates` of the `received` copies,
    and their bytes.
    """
    way = [*PUBLICATION_KEY, "sender", "receiver"]
    joined = hops.join(duplicates, way, "left")
    bytes_each = F.col("bytes") / F.greatest("copies", F.lit(1))
    return (
        joined.where("arrived > 0")
        .groupBy("run", F.col("receiver").alias("node"))
        .agg(
            F.sum("arrived").alias("received"),
            F.coalesce(F.sum("times"), F.lit(0)).alias("duplicates"),
            F.coalesce(F.sum(bytes_each * F.col("times")), F.lit(0.0)).alias("duplicate_bytes"),
        )
        .withColumn("share", _ratio("duplicates", "received"))
    )


@GOLD.table("frames > 0", "bytes > 0")
def link_bytes(hops: DataFrame, control_frames: DataFrame) -> DataFrame:
    """One row per run, direction of a link and kind of frame. Key: run, sender, receiver, frame.

    `frame` is `publication` or a kind of control frame.
    """
    data = hops.where("copies > 0").select(
        "run", "sender", "receiver", F.lit(DATA_FRAME_KIND).alias("frame"), "copies", "bytes"
    )
    control = control_frames.select(
        "run",
        F.col("node").alias("sender"),
        "receiver",
        "frame",
        F.lit(1).alias("copies"),
        F.col("frame_bytes").alias("bytes"),
    )
    return (
        data.unionByName(control)
        .groupBy("run", "sender", "receiver", "frame")
        .agg(F.sum("copies").alias("frames"), F.sum("bytes").alias("bytes"))
    )


@GOLD.table("frames + later > 0")
def announcements(
    control_frames: DataFrame, control_events: DataFrame, links: DataFrame
) -> DataFrame:
    """One row per run and announcement of a core. Key: run, core, life, seq.

    The papers bound the `frames` of one by 2·l, where l is the number of links; `share` is of that.
    Links that came up while it was under way do not count, what they carry is `later`; nor does
    what takes an announcement back.
    """
    each = ["run", "core", "life", "seq"]
    lines = links.groupBy("run").agg(F.count("*").alias("links"))
    told = control_frames.where(f"frame = 'Announce' and distance < {WITHDRAWN_DISTANCE}")
    born = told.groupBy(*each).agg(F.min("time_ns").alias("born_ns"))
    ways = ["run", "node", "incarnation", "receiver"]
    ups = control_events.where("kind = 'link_up'").selectExpr(
        *ways[:3], "peer as receiver", "number", "time_ns as up_ns"
    )
    before = Window.partitionBy(*ways).orderBy("number")
    since = F.last("up_ns", ignorenulls=True).over(before)
    return (
        told.unionByName(ups, allowMissingColumns=True)
        .withColumn("up_ns", since)
        .where("frame is not null")
        .join(born, each)
        # A link that came up before the records begin is an old one.
        .withColumn("counts", F.expr("coalesce(up_ns <= born_ns, true)"))
        .groupBy(*each)
        .agg(
            F.count_if(F.col("counts")).alias("frames"),
            F.count_if(~F.col("counts")).alias("later"),
            F.sum("frame_bytes").alias("bytes"),
            F.min("time_ns").alias("time_ns"),
        )
        .join(F.broadcast(lines), "run", "left")
        .withColumn("share", F.col("frames") / (2 * F.col("links")))
    )


@GOLD.table("bytes > 0", "bytes_per_link_second >= 0")
def control_overhead(control_frames: DataFrame, links: DataFrame, runs: DataFrame) -> DataFrame:
    """One row per run and kind of control frame. Key: run, frame."""
    lines = links.groupBy("run").agg(F.count("*").alias("links"))
    lasted = runs.selectExpr("run", "(ended_ns - began_ns) / 1e9 as seconds")
    return (
        control_frames.groupBy("run", "frame")
        .agg(F.count("*").alias("frames"), F.sum("frame_bytes").alias("bytes"))
        .join(F.broadcast(lines), "run", "left")
        .join(F.broadcast(lasted), "run", "left")
        .withColumn(
            "bytes_per_link_second",
            F.when(F.expr("seconds > 0 and links > 0"), F.expr("bytes / (seconds * links)")),
        )
    )


@GOLD.table("seconds is null or seconds >= 0", "settled_s is null or settled_s >= 0")
def convergence(faults: DataFrame, convergences: DataFrame, control_events: DataFrame) -> DataFrame:
    """One row per disturbance. Key: run, node, incarnation, number.

    `seconds` until all nodes agreed again, as a simulation knows it. `settled_s` until the nodes
    had settled: from the disturbance to the last of the `changes` of membership, interest, cores
    and links that nodes recorded before one second without any, or before the next disturbance.
    Neither says how long deliveries were interrupted: see `observations`.
    """
    order = Window.partitionBy("run").orderBy("time_ns", "node", "incarnation", "number")
    until = faults.withColumn("next_ns", F.lead("time_ns").over(order))
    moves = control_events.where(F.col("kind").isin(*SETTLING_KINDS)).select(
        "run", F.col("time_ns").alias("moved_ns")
    )
    during = "moved_ns >= time_ns and (next_ns is null or moved_ns < next_ns)"
    each = ["run", "node", "incarnation", "number"]
    moved = Window.partitionBy(*each).orderBy("moved_ns")
    before = F.lag("moved_ns").over(moved)
    pauses = F.count_if(F.col("moved_ns") - F.col("before_ns") > SETTLED_AFTER_NS).over(moved)
    settled = (
        until.join(moves, "run")
        .where(during)
        .withColumn("before_ns", before)
        .withColumn("pauses", pauses)
        .where("pauses = 0")
        .groupBy(*each)
        .agg(F.max("moved_ns").alias("moved_ns"), F.count("*").alias("changes"))
    )
    known = convergences.groupBy("run", "time_ns", "what").agg(F.min("seconds").alias("seconds"))
    return (
        faults.join(known, ["run", "time_ns", "what"], "left")
        .join(settled, each, "left")
        .withColumn("settled_s", (F.col("moved_ns") - F.col("time_ns")) / 1e9)
        .select(
            *each,
            *("time_ns", "what", "target", "peer", "seconds", "settled_s"),
            F.coalesce("changes", F.lit(0)).alias("changes"),
        )
    )


@GOLD.table("publications > 0", "bytes >= 0")
def traffic_matrix(deliveries: DataFrame) -> DataFrame:
    """One row per run and pair of nodes between which publications were delivered. Key: run,
    origin, node."""
    return deliveries.groupBy("run", "origin", "node").agg(
        F.count("*").alias("publications"), F.sum("payload_bytes").alias("bytes")
    )


@GOLD.table("stayed <= publications", "near_share is null or near_share between 0 and 1")
def locality(publications: DataFrame, hops: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run and node that published. Key: run, origin.

    `stayed` of the publications crossed no link; `near_share` of the deliveries were at neighbours.
    """
    crossed = hops.where("copies > 0").select(*PUBLICATION_KEY).distinct()
    crossed = crossed.withColumn("crossed", F.lit(1))
    published = publications.join(crossed, [*PUBLICATION_KEY], "left")
    near = deliveries.groupBy("run", "origin").agg(
        F.count("*").alias("deliveries"),
        F.count_if(F.col("hops") == 1).alias("near"),
        F.avg("hops").alias("hops_mean"),
    )
    return (
        published.groupBy("run", "origin")
        .agg(
            F.count("*").alias("publications"),
            F.count_if(F.col("crossed").isNull()).alias("stayed"),
        )
        .join(near, ["run", "origin"], "left")
        .withColumn("deliveries", F.coalesce("deliveries", F.lit(0)))
        .withColumn("near_share", _ratio("near", "deliveries"))
        .drop("near")
    )


@GOLD.table("publications > 0", f"rank between 1 and {HOT_TOPICS_MAX}")
def hot_topics(publications: DataFrame, hops: DataFrame, deliveries: DataFrame) -> DataFrame:
    """One row per run and topic, of the hundred with most publications. Key: run, topic."""
    published = publications.groupBy("run", "topic").agg(
        F.count("*").alias("publications"), F.sum("payload_bytes").alias("payload_bytes")
    )
    order = Window.partitionBy("run").orderBy(F.desc("publications"), "topic")
    hottest = published.withColumn("rank", F.row_number().over(order)).where(
        F.col("rank") <= HOT_TOPICS_MAX
    )
    named = publications.select(*PUBLICATION_KEY, "topic")
    carried = (
        hops.join(named, [*PUBLICATION_KEY])
        .groupBy("run", "topic")
        .agg(F.sum("copies").alias("copies"), F.sum("bytes").alias("link_bytes"))
    )
    came = deliveries.groupBy("run", "topic").agg(F.count("*").alias("deliveries"))
    return (
        hottest.join(carried, ["run", "topic"], "left")
        .join(came, ["run", "topic"], "left")
        .fillna(0, ["copies", "link_bytes", "deliveries"])
    )


@GOLD.table("messages > 0", "bytes >= 0")
def recorded_topics(messages: DataFrame) -> DataFrame:
    """One row per topic of recorded publications. Key: topic."""
    return messages.groupBy("topic").agg(
        F.count("*").alias("messages"),
        F.sum("payload_bytes").alias("bytes"),
        F.countDistinct("origin").alias("origins"),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
    )
