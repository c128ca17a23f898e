"""Silver tables where what was recorded is not all, or not in order."""

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline import silver

COLUMNS = (
    "run string, node string, incarnation int, number int, time_ns long, kind string, peer string,"
    " rtt_ms double"
)
KINDS = {"up": "link_up", "down": "link_down", "ping": "round_trip"}
UP, LATER = "a1 0 up, b1 0 up", "a1 20 ping, b1 20 ping"


@pytest.mark.parametrize(
    ("told", "stands"),
    [
        pytest.param(UP, True, id="both say so"),
        pytest.param("a1 0 up, b1 0 ping", True, id="one says so"),
        pytest.param("a1 0 ping, b1 0 ping", False, id="nobody says so"),
        pytest.param(f"{UP}, a1 5 down, b1 5 down, {LATER}", False, id="it was taken away"),
        pytest.param(f"{UP}, a1 5 down, {LATER}", False, id="only one has noticed"),
        pytest.param(f"{UP}, b1 5 down, b1 20 ping", True, id="one was killed"),
        pytest.param(f"{UP}, b1 5 down, a1 6 ping, b1 20 ping", True, id="one stopped"),
        pytest.param(f"{UP}, b1 5 down, a2 20 ping, b1 20 ping", False, id="gone since the kill"),
        pytest.param(f"{UP}, b1 5 down, a2 6 up, b1 6 up, b1 20 ping", True, id="it came back"),
    ],
)
def test_a_link_stands_by_what_both_ends_said_last(spark, told, stands):
    rows = []
    for number, text in enumerate(told.split(", ")):
        (node, life), second, what = text.split()
        peer = "b" if node == "a" else "a"
        time_ns = int(second) * 1_000_000_000
        rows.append(("live", node, int(life), number, time_ns, KINDS[what], peer, None))
    (found,) = silver.links(spark.createDataFrame(rows, COLUMNS)).collect()
    assert found.stands is stands


def test_a_life_knows_how_many_of_its_records_are_missing(spark):
    told = [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("a", 2, 5), (silver.OBSERVER, 1, 9)]
    rows = [("live", node, life, number, number * 10) for node, life, number in told]
    columns = "run string, node string, incarnation bigint, number bigint, time_ns bigint"
    found = silver.lives(spark.createDataFrame(rows, columns)).orderBy("incarnation").collect()
    assert [tuple(row) for row in found] == [
        ("live", "a", 1, 2, 0, 10, 20),
        ("live", "a", 2, 2, 3, 10, 50),
    ]
