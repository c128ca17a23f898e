"""Silver tables from incomplete or unordered records."""

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from pyspark.sql import functions as F

from hansa.pipeline import silver
from hansa.pipeline.catalog import STATE_COLUMNS
from hansa.telemetry import schema

COLUMNS = (
    "run string, node_id string, incarnation long, record_sequence long, seconds long, kind string,"
    " peer_id string, rtt_ms double, reason string, node_name string"
)
KINDS = {
    "start": ("node_started", None),
    "up": ("link_up", None),
    "down": ("link_down", "closed by the other side"),
    "closes": ("link_down", schema.CLEAN_STOP_REASON),
    "ping": ("round_trip", None),
    "misses": ("node_unreachable", None),
    "stop": ("node_stopped", None),
}
UP, LATER = "a1 0 up, b1 0 up", "a1 40 ping, b1 40 ping"
STOP = "a1 40 closes, b1 40 down, a1 40 stop, b1 41 stop"


def parse_events(run, text):
    """Return events of two nodes; each is written as node, incarnation, second and report."""
    rows = []
    for sequence, words in enumerate(text.split(", ")):
        (node, incarnation), second, report = words.split()
        kind, reason = KINDS[report]
        peer = None if report in ("start", "stop") else "b" if node == "a" else "a"
        key = (run, node, int(incarnation), sequence)
        rows.append((*key, int(second), kind, peer, None, reason, None))
    return rows


def empty(spark, table):
    return spark.createDataFrame([], STATE_COLUMNS[table])


@pytest.fixture(scope="module")
def state(spark):
    """Nodes and links of all cases below, each case as a run of its own: computed at once."""
    texts = {case.values[0] for case in (*LINK_CASES, *NODE_CASES)}
    rows = [row for text in texts for row in parse_events(text, text)]
    events = spark.createDataFrame(rows, COLUMNS).withColumn(
        "recorded_at", F.timestamp_seconds("seconds")
    )
    peers = silver.peers(empty(spark, "peers"), events)
    nodes = silver.nodes(silver.incarnations(empty(spark, "incarnations"), events), peers)
    links = silver.links(peers, nodes)
    return (
        {(row.run, row.node_id): row.present_at_end for row in nodes.collect()},
        {row.run: row.established_at_end for row in links.collect()},
    )


LINK_CASES = [
        pytest.param(UP, True, id="both ends report it up"),
        pytest.param("a1 0 up, b1 0 ping", True, id="one end reports it up"),
        pytest.param("a1 0 ping, b1 0 ping", False, id="neither end reports it up"),
        pytest.param(f"{UP}, a1 5 down, b1 5 down, {LATER}", False, id="it went down"),
        pytest.param(f"{UP}, a1 5 down, {LATER}", False, id="one end reports it down"),
        pytest.param(f"{UP}, {STOP}", True, id="clean stop of all nodes"),
        pytest.param(f"{UP}, a1 5 down, b1 5 down, {LATER}, a1 41 stop, b1 41 stop", False,
                     id="it was down at the clean stop"),
        pytest.param(f"{UP}, a1 5 closes, b1 5 down, a1 5 stop, b1 40 ping", False,
                     id="one node stopped before the recording ended"),
        pytest.param(f"{UP}, b1 5 down, b1 5 misses, b1 40 ping", False, id="one node was killed"),
        pytest.param(f"{UP}, b1 5 down, b1 5 misses, b1 8 stop", False,
                     id="killed shortly before the clean stop"),
        pytest.param(f"{UP}, b1 40 ping", False, id="killed, and the link not yet reported down"),
        pytest.param(f"{UP}, b1 5 down, a2 6 start, {LATER}, a2 40 ping", False,
                     id="restarted, and not linked again"),
        pytest.param(f"{UP}, b1 5 down, b1 5 misses, a2 6 up, b1 6 up, b1 20 ping", True,
                     id="restarted and linked again"),
]  # fmt: skip
NODE_CASES = [
    pytest.param("a1 0 start, b1 29 ping", True, id="quiet for less than 30 s"),
    pytest.param("a1 0 start, b1 31 ping", False, id="quiet for more than 30 s"),
    pytest.param("a1 0 start, b1 1 misses", False, id="another node lost it"),
    pytest.param("a1 0 start, b1 1 misses, a1 2 ping", True, id="it continued to write"),
    pytest.param("a1 0 start, b1 1 misses, a1 2 stop, b1 9 ping", True, id="stopped at the end"),
    pytest.param("a1 0 start, a1 2 stop, b1 13 ping", False, id="stopped before the end"),
    pytest.param("a1 0 start, a1 2 stop, a2 5 start, b1 13 ping", True, id="restarted"),
]


@pytest.mark.parametrize(("text", "is_established"), LINK_CASES)
def test_link_established_at_the_end_of_the_recording(state, text, is_established):
    _, links = state
    assert links[text] is is_established


@pytest.mark.parametrize(("text", "is_present"), NODE_CASES)
def test_node_present_at_the_end_of_the_recording(state, text, is_present):
    nodes, _ = state
    assert nodes[text, "a"] is is_present


def test_client_deliveries_show_losses_and_interruption(spark):
    columns = (
        "run string, node_id string, incarnation bigint, record_sequence bigint, second bigint,"
        " kind string, disturbance string, origin_id string, target_id string, published bigint,"
        " arrived bigint, duplicates bigint, interruption_s double"
    )
    key = ("live", silver.FAULT_INJECTOR, 1)
    counted = "client_deliveries_counted"
    rows = [
        (*key, 1, 50, "fault_injected", "kill agent 0", None, "a", None, None, None, None),
        (*key, 2, 50, counted, "kill agent 0", "b", "c", 241, 239, 1, 0.058),
        (*key, 3, 50, counted, "kill agent 0", "b", "a", 241, 0, 0, None),
    ]
    events = spark.createDataFrame(rows, columns).selectExpr(
        "*", "timestamp_seconds(second) recorded_at", "timestamp_seconds(0) hour"
    )
    table = silver.client_deliveries(events)
    found = table.orderBy("record_sequence").collect()
    counts = [
        (row.target_id, row.published, row.arrived, row.lost, row.duplicates) for row in found
    ]
    assert counts == [("c", 241, 239, 2, 1), ("a", 241, 0, 241, 0)]
    assert [row.interruption_s for row in found] == [0.058, None]


def test_incarnation_counts_its_missing_records_over_two_batches(spark):
    columns = "node_id string, incarnation bigint, record_sequence bigint"

    def batch(*keys):
        return spark.createDataFrame(keys, columns).selectExpr(
            "'live' run", "*", "timestamp_seconds(record_sequence) recorded_at",
            "'counter' kind", "string(null) node_name",
        )  # fmt: skip

    first = batch(("a", 1, 1), ("a", 2, 5), (silver.FAULT_INJECTOR, 1, 9))
    before = silver.incarnations(empty(spark, "incarnations"), first)
    after = silver.incarnations(before, batch(("a", 2, 1), ("a", 1, 2)))
    found = after.orderBy("incarnation").collect()
    assert [(row.incarnation, row.records, row.missing) for row in found] == [(1, 2, 0), (2, 2, 3)]
