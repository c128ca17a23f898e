"""Silver tables from incomplete or unordered records."""

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline import silver
from hansa.telemetry import schema

COLUMNS = (
    "run string, node_id string, incarnation int, record_sequence int, time_ns long, kind string,"
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


def parse_events(spark, text):
    """Return events of two nodes; each is written as node, incarnation, second and report."""
    rows = []
    for sequence, words in enumerate(text.split(", ")):
        (node, incarnation), second, report = words.split()
        kind, reason = KINDS[report]
        peer = None if report in ("start", "stop") else "b" if node == "a" else "a"
        key = ("live", node, int(incarnation), sequence)
        rows.append((*key, int(second) * 1_000_000_000, kind, peer, None, reason, None))
    return spark.createDataFrame(rows, COLUMNS)


@pytest.mark.parametrize(
    ("text", "is_established"),
    [
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
    ],
)  # fmt: skip
def test_link_established_at_the_end_of_the_recording(spark, text, is_established):
    events = parse_events(spark, text)
    (found,) = silver.links(events, silver.nodes(events)).collect()
    assert found.established_at_end is is_established


@pytest.mark.parametrize(
    ("text", "is_present"),
    [
        pytest.param("a1 0 start, b1 29 ping", True, id="quiet for less than 30 s"),
        pytest.param("a1 0 start, b1 31 ping", False, id="quiet for more than 30 s"),
        pytest.param("a1 0 start, b1 1 misses", False, id="another node lost it"),
        pytest.param("a1 0 start, b1 1 misses, a1 2 ping", True, id="it continued to write"),
        pytest.param(
            "a1 0 start, b1 1 misses, a1 2 stop, b1 9 ping", True, id="stopped at the end"
        ),
        pytest.param("a1 0 start, a1 2 stop, b1 13 ping", False, id="stopped before the end"),
        pytest.param("a1 0 start, a1 2 stop, a2 5 start, b1 13 ping", True, id="restarted"),
    ],
)
def test_node_present_at_the_end_of_the_recording(spark, text, is_present):
    found = silver.nodes(parse_events(spark, text)).where("node_id = 'a'").collect()
    assert [row.present_at_end for row in found] == [is_present]


def test_client_deliveries_show_losses_and_interruption(spark):
    columns = (
        "run string, node_id string, incarnation bigint, record_sequence bigint, time_ns bigint,"
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
    table = silver.client_deliveries(spark.createDataFrame(rows, columns))
    found = table.orderBy("record_sequence").collect()
    counts = [
        (row.target_id, row.published, row.arrived, row.lost, row.duplicates) for row in found
    ]
    assert counts == [("c", 241, 239, 2, 1), ("a", 241, 0, 241, 0)]
    assert [row.interruption_s for row in found] == [0.058, None]


def test_incarnation_counts_its_missing_records(spark):
    keys = [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("a", 2, 5), (silver.FAULT_INJECTOR, 1, 9)]
    rows = [("live", *key, key[-1] * 10) for key in keys]
    columns = (
        "run string, node_id string, incarnation bigint, record_sequence bigint, time_ns bigint"
    )
    found = (
        silver.incarnations(spark.createDataFrame(rows, columns)).orderBy("incarnation").collect()
    )
    assert [tuple(row) for row in found] == [
        ("live", "a", 1, 2, 0, 10, 20),
        ("live", "a", 2, 2, 3, 10, 50),
    ]
