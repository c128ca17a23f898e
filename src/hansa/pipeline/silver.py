"""Silver: what was recorded, typed, once each, by what it is about.

`events` is bronze telemetry with a column `run`: the log of a simulation is a run of its own, all
agents together are the run `live`. `sure` says that a publication is of QoS 1 or 2; with `origin`,
`life` and `seq` it names it. `delay_ms` is by the clocks of two machines where agents are on two.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hansa.pipeline.tables import TableLayer
from hansa.pipeline.topics import filter_matches

LIVE = "live"
FAULT_INJECTOR = "f" * 16
"""Stands for a node in what no node wrote; telemetry's OBSERVER as tables have it."""

RECORD_KEY = ("run", "node", "incarnation", "number")
PUBLICATION_KEY = ("run", "origin", "life", "seq", "sure")

MESSAGE_KEY = ("origin", "life", "seq", "sure")

JSON_BEGINS = r'^\s*(?:[{\["\-0-9]|true|false|null)'
"""How every JSON text begins."""

CONTROL_KINDS = (
    *("core_elected", "core_lost", "parents", "mesh_joined", "mesh_left"),
    *("member_joined", "member_lost", "wanted", "unwanted", "subscribed", "unsubscribed"),
    *("installed", "life_raised", "epoch_renewed", "link_up", "link_down", "link_refused"),
    *("started", "stopped"),
)

STOP_NS = 10_000_000_000
"""A clean stop this close to the end of a recording belongs to that end: all nodes were stopped."""
SILENCE_NS = 30_000_000_000
"""A node that has written nothing for so long is lost: agents write a record every 10 seconds."""
STOPPING = "stopping"
"""Why an agent that stops cleanly reports its links down."""

SILVER = TableLayer("silver")


def with_guaranteed(bronze: DataFrame) -> DataFrame:
    """Say whether a row is about a publication of QoS 1 or 2."""
    return bronze.withColumn("sure", F.col("qos") > 0)


def with_run(events: DataFrame) -> DataFrame:
    """Say of every record to which run it belongs."""
    simulations = events.where("kind = 'run'").select("feed").distinct().collect()
    simulated = F.col("feed").isin([row.feed for row in simulations])
    return events.withColumn("run", F.when(simulated, F.col("feed")).otherwise(F.lit(LIVE)))


def deduplicate(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return one row per key. What is read exactly once has nothing twice, and to see that by the
    keys' hashes costs far less than to sort all rows: so that is looked at first."""
    twice = frame.groupBy(F.xxhash64(*key)).count().where("count > 1")
    return frame if twice.isEmpty() else frame.dropDuplicates([*key])


def records_of_kinds(events: DataFrame, *kinds: str) -> DataFrame:
    """Return the records of some kinds."""
    return events.where(F.col("kind").isin(*kinds))


@SILVER.table("payload_bytes = length(payload)", partitions=("day",))
def messages(bronze_messages: DataFrame) -> DataFrame:
    """One row per recorded publication. Key: origin, life, seq, sure.

    `json` is the payload where it is JSON, as a variant; the bytes are always there.
    """
    text = F.try_validate_utf8(F.col("payload").cast("string"))
    # To try and fail costs more than all else about a row.
    maybe = F.when(text.rlike(JSON_BEGINS), text)
    return bronze_messages.select(
        *(*MESSAGE_KEY, "qos", "time", "time_ns", "topic", "payload", "retain", "properties"),
        F.length("payload").alias("payload_bytes"),
        F.try_parse_json(maybe).alias("json"),
        F.to_date("time").alias("day"),
    )


@SILVER.table("ended_ns >= began_ns")
def runs(events: DataFrame) -> DataFrame:
    """One row per run. Key: run."""
    return events.groupBy("run").agg(
        F.max(F.col("kind") == "run").alias("simulated"),
        F.max("seed").alias("seed"),
        F.max("topology").alias("topology"),
        F.max("strategy").alias("strategy"),
        F.countDistinct(F.when(F.col("node") != FAULT_INJECTOR, F.col("node"))).alias("nodes"),
        F.min("time_ns").alias("began_ns"),
        F.max("time_ns").alias("ended_ns"),
    )


@SILVER.table("lives >= 1")
def nodes(events: DataFrame) -> DataFrame:
    """One row per run and node. Key: run, node.

    `present_at_end`: the node belonged to the federation when the recording of the run ended. It
    was still running then, or stopped cleanly less than 10 s before. A node that was lost is not
    present: its newest incarnation has no record `stopped`, and either another node reported
    `member_lost` after its last record, or it wrote nothing in the last 30 s of the recording.
    """
    written = events.where(F.col("node") != FAULT_INJECTOR)
    named = F.when(F.col("kind") == "started", F.col("name"))
    stopped_in = F.when(F.col("kind") == "stopped", F.col("incarnation"))
    found = written.groupBy("run", "node").agg(
        F.coalesce(F.max(named), F.col("node")).alias("name"),
        F.countDistinct("incarnation").alias("lives"),
        F.min("time_ns").alias("first_ns"),
        F.max("time_ns").alias("last_ns"),
        F.coalesce(F.max(stopped_in) == F.max("incarnation"), F.lit(False)).alias("stopped"),
    )
    ends = written.groupBy("run").agg(F.max("time_ns").alias("end_ns"))
    losses = (
        records_of_kinds(written, "member_lost")
        .groupBy("run", F.col("peer").alias("node"))
        .agg(F.max("time_ns").alias("lost_ns"))
    )
    is_present = F.expr(
        f"if(stopped, last_ns > end_ns - {STOP_NS},"
        f" last_ns > end_ns - {SILENCE_NS} and coalesce(lost_ns <= last_ns, true))"
    )
    return (
        found.join(F.broadcast(ends), "run")
        .join(losses, ["run", "node"], "left")
        .withColumn("present_at_end", is_present)
        .drop("stopped", "end_ns", "lost_ns")
    )


@SILVER.table("payload_bytes >= 0", "qos between 0 and 2", "sure = (qos > 0)")
def publications(events: DataFrame) -> DataFrame:
    """One row per publication that began its way. Key: run, origin, life, seq, sure."""
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


@SILVER.table("copies + arrived > 0", "bytes >= 0", "hop >= 1")
def hops(events: DataFrame) -> DataFrame:
    """One row per publication and direction of a link that it crossed. Key: run, origin, life, seq,
    sure, sender, receiver.

    `copies` were sent, `arrived` were received; both more than one where it was sent again.
    """
    sent = records_of_kinds(events, "sent").selectExpr(
        *PUBLICATION_KEY,
        "node as sender",
        "peer as receiver",
        "hops",
        "frame_bytes",
        "time_ns as sent_ns",
    )
    received = records_of_kinds(events, "received").selectExpr(
        *PUBLICATION_KEY, "peer as sender", "node as receiver", "hops", "time_ns as received_ns"
    )
    return (
        sent.unionByName(received, allowMissingColumns=True)
        .groupBy(*PUBLICATION_KEY, "sender", "receiver")
        .agg(
            F.min("hops").alias("hop"),
            F.count("sent_ns").alias("copies"),
            F.coalesce(F.sum("frame_bytes"), F.lit(0)).alias("bytes"),
            F.count("received_ns").alias("arrived"),
            F.min("sent_ns").alias("sent_ns"),
            F.min("received_ns").alias("received_ns"),
        )
    )


@SILVER.table("times >= 1")
def duplicates(events: DataFrame) -> DataFrame:
    """One row per publication and direction of a link over which it came for nothing. Key: run,
    origin, life, seq, sure, sender, receiver."""
    return (
        records_of_kinds(events, "duplicate")
        .groupBy(*PUBLICATION_KEY, F.col("peer").alias("sender"), F.col("node").alias("receiver"))
        .agg(F.count("*").alias("times"))
    )


@SILVER.table("times >= 1", "origin <> node")
def deliveries(events: DataFrame, publications: DataFrame) -> DataFrame:
    """One row per publication and node whose broker got it. Key: run, origin, life, seq, sure,
    node.

    `times` is above 1 where it was delivered again; the rest is of the first time.
    """
    first = (
        records_of_kinds(events, "delivered")
        .where("origin <> node")
        .groupBy(*PUBLICATION_KEY, "node")
        .agg(
            F.count("*").alias("times"),
            F.min("time_ns").alias("time_ns"),
            F.min("hops").alias("hops"),
            F.min("topic").alias("topic"),
            F.min("payload_bytes").alias("payload_bytes"),
        )
    )
    began = publications.select(*PUBLICATION_KEY, F.col("time_ns").alias("published_ns"))
    delay = (F.col("time_ns") - F.col("published_ns")) / 1e6
    return first.join(began, [*PUBLICATION_KEY], "left").withColumn("delay_ms", delay)


@SILVER.table()
def losses_and_repairs(events: DataFrame) -> DataFrame:
    """One row per publication, or range of them, that was given up or repaired. Key: run, node,
    incarnation, number."""
    return records_of_kinds(events, "dropped", "gap", "given_up", "repaired").select(
        *RECORD_KEY,
        "time_ns",
        "kind",
        "origin",
        "life",
        "seq",
        "peer",
        "first",
        "last",
        "count",
        "reason",
    )


@SILVER.table("frame_bytes > 0")
def control_frames(events: DataFrame) -> DataFrame:
    """One row per control frame that was sent. Key: run, node, incarnation, number.

    `receiver` is empty while a link does not know yet who is behind it.
    """
    return records_of_kinds(events, "control").select(
        *RECORD_KEY,
        "time_ns",
        F.coalesce("peer", F.lit("")).alias("receiver"),
        *("frame", "frame_bytes", "core", "life", "seq", "distance"),
    )


@SILVER.table()
def control_events(events: DataFrame) -> DataFrame:
    """One row per thing that a node decided, or that happened to it. Key: run, node, incarnation,
    number."""
    return records_of_kinds(events, *CONTROL_KINDS).select(
        *RECORD_KEY,
        *("time_ns", "kind", "group", "core", "peer", "seq", "distance"),
        *("parents", "gained", "lost", "reason", "name"),
    )


@SILVER.table("ups + downs + trips > 0", "rtt_ms >= 0", "a < b")
def links(events: DataFrame, nodes: DataFrame) -> DataFrame:
    """One row per run and link between two nodes. Key: run, a, b.

    `stands`: the link was up when the recording of the run ended. Both nodes were present then (see
    `nodes`), the last report of at least one end says that the link is up, and the last report of
    neither end says that it is down. The last report is the newest `link_up` or `link_down` of the
    node's newest incarnation. A `link_down` because one of the two nodes stopped cleanly counts as
    up: the link was up at the time of the stop.
    """
    about = records_of_kinds(events, "link_up", "link_down", "round_trip").where("peer is not null")
    present = F.broadcast(nodes.select("run", "node", "present_at_end"))
    newest = F.broadcast(events.groupBy("run", "node").agg(F.max("incarnation").alias("newest")))
    moment = F.when(F.col("kind") != "round_trip", F.struct("incarnation", "number"))
    report = F.struct("kind", "reason", "incarnation")
    ends = (
        about.groupBy("run", "node", "peer")
        .agg(
            F.count_if(F.col("kind") == "link_up").alias("ups"),
            F.count_if(F.col("kind") == "link_down").alias("downs"),
            F.count_if(F.col("kind") == "round_trip").alias("trips"),
            F.min("rtt_ms").alias("rtt_ms"),
            F.max_by(report, moment).alias("report"),
        )
        .join(newest, ["run", "node"])
        .withColumn("report", F.expr("if(report.incarnation = newest, report, null)"))
        .withColumn(
            "stopping", F.expr(f"report.kind = 'link_down' and report.reason = '{STOPPING}'")
        )
    )
    says_up = F.col("stopping") | (F.col("report.kind") == "link_up")
    return (
        ends.groupBy(
            "run", F.least("node", "peer").alias("a"), F.greatest("node", "peer").alias("b")
        )
        .agg(
            F.sum("ups").alias("ups"),
            F.sum("downs").alias("downs"),
            F.sum("trips").alias("trips"),
            F.min("rtt_ms").alias("rtt_ms"),
            F.coalesce(F.max(says_up), F.lit(False)).alias("up"),
            F.coalesce(F.max("stopping"), F.lit(False)).alias("stopped"),
            F.coalesce(F.max(F.expr("report.kind = 'link_down'")), F.lit(False)).alias("down"),
        )
        .join(present.toDF("run", "a", "a_present"), ["run", "a"], "left")
        .join(present.toDF("run", "b", "b_present"), ["run", "b"], "left")
        # If a node has no telemetry, the reports of the other end decide.
        .withColumn("present", F.expr("coalesce(a_present, true) and coalesce(b_present, true)"))
        .withColumn("stands", F.expr("present and up and (stopped or not down)"))
        .select("run", "a", "b", "ups", "downs", "trips", "rtt_ms", "stands")
    )


@SILVER.table("until_ns is null or until_ns >= since_ns")
def memberships(events: DataFrame) -> DataFrame:
    """One row per time that a node wanted a filter, or was in its mesh. Key: run, node,
    incarnation, number.

    `relation` is `wanted` (clients here want it), `subscribed` (the broker is asked for it, because
    others want it) or `mesh`; `until_ns` is empty if it lasted to the end. A life that another one
    followed ended with its last record.
    """
    begins = {"wanted": "wanted", "subscribed": "subscribed", "mesh_joined": "mesh"}
    ends = {"unwanted": "wanted", "unsubscribed": "subscribed", "mesh_left": "mesh"}
    relation = _renamed(F.col("kind"), begins | ends)
    changes = records_of_kinds(events, *begins, *ends).withColumn("relation", relation)
    incarnation_window = Window.partitionBy(
        "run", "node", "incarnation", "relation", "group"
    ).orderBy("number")
    incarnation_times = events.groupBy("run", "node", "incarnation").agg(
        F.min(F.when(F.col("kind") == "started", F.col("time_ns"))).alias("began_ns"),
        F.max("time_ns").alias("last_ns"),
    )
    following = Window.partitionBy("run", "node").orderBy("began_ns", "incarnation")
    ended = incarnation_times.withColumn("next_life_ns", F.lead("began_ns").over(following)).drop(
        "began_ns"
    )
    return (
        changes.withColumn("next_ns", F.lead("time_ns").over(incarnation_window))
        .where(F.col("kind").isin(*begins))
        .join(ended, ["run", "node", "incarnation"], "left")
        .select(
            *RECORD_KEY,
            "relation",
            "group",
            F.col("time_ns").alias("since_ns"),
            # A clone begins its life while the other's goes on: then that is no end.
            F.expr("coalesce(next_ns, if(next_life_ns >= time_ns, last_ns, null))").alias(
                "until_ns"
            ),
        )
        # A clock that was set back ends nothing before it began.
        .withColumn("until_ns", F.expr("if(until_ns < since_ns, since_ns, until_ns)"))
    )


def _renamed(column: Column, names: dict[str, str]) -> Column:
    return F.create_map(*(F.lit(word) for pair in names.items() for word in pair))[column]


@SILVER.table()
def expected_deliveries(publications: DataFrame, memberships: DataFrame) -> DataFrame:
    """One row per publication and other node that wanted it when it was published. Key: run,
    origin, life, seq, sure, node."""
    wanted = memberships.where("relation = 'wanted'").select(
        "run", "node", "group", "since_ns", "until_ns"
    )
    topics = publications.select("run", "topic").distinct()
    groups = wanted.select("run", "group").distinct()
    fitting = topics.join(groups, "run").where(filter_matches("`group`", "topic"))
    then = "time_ns >= since_ns and (until_ns is null or time_ns < until_ns) and node <> origin"
    return (
        publications.join(fitting, ["run", "topic"])
        .join(wanted, ["run", "group"])
        .where(then)
        .select(*PUBLICATION_KEY, "node", "topic")
        .distinct()
    )


@SILVER.table()
def faults(events: DataFrame) -> DataFrame:
    """One row per thing that was done to the federation on purpose. Key: run, node, incarnation,
    number."""
    return records_of_kinds(events, "fault").select(
        *RECORD_KEY, "time_ns", "what", "target", "peer"
    )


@SILVER.table("seconds >= 0")
def convergences(events: DataFrame) -> DataFrame:
    """One row per disturbance of a simulation after which all agreed again. Key: run, node,
    incarnation, number."""
    return records_of_kinds(events, "converged").select(*RECORD_KEY, "time_ns", "what", "seconds")


@SILVER.table("arrived between 0 and published", "duplicates >= 0", "interruption_s >= 0")
def client_deliveries(events: DataFrame) -> DataFrame:
    """One row per event and pair of nodes between whose brokers MQTT clients counted deliveries
    from then on. Key: run, node, incarnation, number.

    `published` publications at the broker of `origin` were due at a client of the broker of
    `target`; `arrived` of them arrived, `lost` did not; `duplicates` are further copies.
    `interruption_s` is the time from the event until the first publication after the last lost one
    arrived: 0 if none was lost, empty if the last one was lost, or if there was no event. The
    demo's clients counted this, not the agents.
    """
    return records_of_kinds(events, "observed").select(
        *RECORD_KEY,
        *("time_ns", "what", "origin", "target", "published", "arrived"),
        (F.col("published") - F.col("arrived")).alias("lost"),
        "duplicates",
        F.col("seconds").alias("interruption_s"),
    )


@SILVER.table()
def counters(events: DataFrame) -> DataFrame:
    """One row per counter of a life of a node, with what it said last. Key: run, node, incarnation,
    name."""
    return (
        records_of_kinds(events, "counter")
        .groupBy("run", "node", "incarnation", "name")
        .agg(F.max_by("value", "number").alias("value"), F.max("time_ns").alias("time_ns"))
    )


@SILVER.table("missing >= 0")
def incarnations(events: DataFrame) -> DataFrame:
    """One row per life of a node. Key: run, node, incarnation.

    `missing` of its records were told and are not here: retention or a slow disk dropped them, or
    a newer version wrote kinds that this one does not know. What they were about is in no table.
    """
    return (
        events.where(F.col("node") != FAULT_INJECTOR)
        .groupBy("run", "node", "incarnation")
        .agg(
            F.count("*").alias("records"),
            (F.max("number") - F.count("*")).alias("missing"),
            F.min("time_ns").alias("first_ns"),
            F.max("time_ns").alias("last_ns"),
        )
    )
