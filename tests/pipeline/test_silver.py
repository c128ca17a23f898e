"""Silver tables where what was recorded is not all, or not in order."""

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline import silver

COLUMNS = (
    "run string, node string, incarnation int, number int, time_ns long, kind string, peer string,"
    " rtt_ms double, reason string, name string"
)
KINDS = {
    "start": ("started", None),
    "up": ("link_up", None),
    "down": ("link_down", "closed by the other side"),
    "closes": ("link_down", silver.STOPPING),
    "ping": ("round_trip", None),
    "misses": ("member_lost", None),
    "stop": ("stopped", None),
}
UP, LATER = "a1 0 up, b1 0 up", "a1 40 ping, b1 40 ping"
STOP = "a1 40 closes, b1 40 down, a1 40 stop, b1 41 stop"


def reported(spark, told):
    """Events of two nodes, each written as node, incarnation, second and what it reports."""
    rows = []
    for number, text in enumerate(told.split(", ")):
        (node, life), second, what = text.split()
        kind, reason = KINDS[what]
        peer = None if what in ("start", "stop") else "b" if node == "a" else "a"
        time_ns = int(second) * 1_000_000_000
        rows.append(("live", node, int(life), number, time_ns, kind, peer, None, reason, None))
    return spark.createDataFrame(rows, COLUMNS)


@pytest.mark.parametrize(
    ("told", "stands"),
    [
        pytest.param(UP, True, id="both ends report it up"),
        pytest.param("a1 0 up, b1 0 ping", True, id="one end reports it up"),
        pytest.param("a1 0 ping, b1 0 ping", False, id="no end reports it up"),
        pytest.param(f"{UP}, a1 5 down, b1 5 down, {LATER}", False, id="it went down"),
        pytest.param(f"{UP}, a1 5 down, {LATER}", False, id="one end noticed that it went down"),
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
def test_link_stands_at_the_end_of_the_recording(spark, told, stands):
    events = reported(spark, told)
    (found,) = silver.links(events, silver.nodes(events)).collect()
    assert found.stands is stands


@pytest.mark.parametrize(
    ("told", "present"),
    [
        pytest.param("a1 0 start, b1 29 ping", True, id="quiet for less than 30 s"),
        pytest.param("a1 0 start, b1 31 ping", False, id="quiet for more than 30 s"),
        pytest.param("a1 0 start, b1 1 misses", False, id="another node lost it"),
        pytest.param("a1 0 start, b1 1 misses, a1 2 ping", True, id="it wrote on after that"),
        pytest.param(
            "a1 0 start, b1 1 misses, a1 2 stop, b1 9 ping", True, id="stopped at the end"
        ),
        pytest.param("a1 0 start, a1 2 stop, b1 13 ping", False, id="stopped before the end"),
        pytest.param("a1 0 start, a1 2 stop, a2 5 start, b1 13 ping", True, id="restarted"),
    ],
)
def test_node_is_present_at_the_end_of_the_recording(spark, told, present):
    found = silver.nodes(reported(spark, told)).where("node = 'a'").collect()
    assert [row.present_at_end for row in found] == [present]


def test_observation_says_what_was_lost_and_for_how_long(spark):
    columns = (
        "run string, node string, incarnation bigint, number bigint, time_ns bigint, kind string,"
        " what string, origin string, target string, published bigint, arrived bigint,"
        " duplicates bigint, seconds double"
    )
    key = ("live", silver.FAULT_INJECTOR, 1)
    rows = [
        (*key, 1, 50, "fault", "kill agent 0", None, "a", None, None, None, None),
        (*key, 2, 50, "observed", "kill agent 0", "b", "c", 241, 239, 1, 0.058),
        (*key, 3, 50, "observed", "kill agent 0", "b", "a", 241, 0, 0, None),
    ]
    found = (
        silver.client_deliveries(spark.createDataFrame(rows, columns)).orderBy("number").collect()
    )
    shown = [(row.target, row.published, row.arrived, row.lost, row.duplicates) for row in found]
    assert shown == [("c", 241, 239, 2, 1), ("a", 241, 0, 241, 0)]
    assert [row.interruption_s for row in found] == [0.058, None]


def test_a_life_knows_how_many_of_its_records_are_missing(spark):
    told = [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("a", 2, 5), (silver.FAULT_INJECTOR, 1, 9)]
    rows = [("live", node, life, number, number * 10) for node, life, number in told]
    columns = "run string, node string, incarnation bigint, number bigint, time_ns bigint"
    found = (
        silver.incarnations(spark.createDataFrame(rows, columns)).orderBy("incarnation").collect()
    )
    assert [tuple(row) for row in found] == [
        ("live", "a", 1, 2, 0, 10, 20),
        ("live", "a", 2, 2, 3, 10, 50),
    ]
