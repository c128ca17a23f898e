"""Every gold table against plain Python, and against what simulations counted by themselves."""

import pytest
from tests.pipeline import slowly
from tests.pipeline.recordings import journal, many, recorded, simulated

from hansa.simulator.analysis.telemetry import result_counters

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline import gold, runner
from hansa.pipeline.gold import GOLD
from hansa.pipeline.lake import Lake

SEEDS = (1, 4, 5, 6, 7, 9, 10, 12, 13, 14)
"""Random topologies, traffic of all three qualities, faults; small ones."""


@pytest.fixture(
    scope="module", params=["the shared lake", pytest.param("ten seeds", marks=pytest.mark.long)]
)
def made(request, spark, recording, tmp_path_factory):
    """What was recorded, whose tables these are."""
    if request.param == "the shared lake":
        return recording
    ten = simulated(tmp_path_factory.mktemp("ten"), SEEDS)
    journal(ten.source / "n5", 5, [*many(1, 20), *(recorded(n) for n in range(1, 8))])
    runner.run_once(spark, Lake.open_or_create(ten.lake), runner.PipelineJob([str(ten.source)]))
    return ten


@pytest.fixture(scope="module")
def tables(spark, made):
    return runner.create_views(spark, Lake(made.lake))


def as_dictionary(frame, key):
    names = [column for column in frame.columns if column not in key]
    return {
        tuple(row[column] for column in key): {column: row[column] for column in names}
        for row in frame.collect()
    }


IN_TELEMETRY = [table for table in GOLD.tables if table.name != "recorded_topics"]


@pytest.mark.parametrize("table", IN_TELEMETRY, ids=lambda table: table.name)
def test_a_gold_table_is_what_plain_python_makes_of_the_same_records(made, tables, table):
    expected = getattr(slowly, table.name)(made.told)
    found = as_dictionary(tables[table.name], table.key)
    assert found.keys() == expected.keys()
    assert found  # an empty table would agree with anything
    for key, row in expected.items():
        assert found[key] == pytest.approx(row, nan_ok=True), key


def test_recorded_topics_are_counted_from_the_journal(recording, spark):
    tables = runner.create_views(spark, Lake(recording.lake))
    found = {row.topic: (row.messages, row.bytes) for row in tables["recorded_topics"].collect()}
    assert found == {"plant/1/temp": (3, 37), "a/c": (7, 14)}


def sums(frame, *columns):
    return {row.run: row for row in frame.groupBy("run").sum(*columns).collect()}


def test_what_simulations_counted_is_what_the_tables_add_up_to(made, tables):
    data = sums(tables["link_bytes"].where("frame = 'publication'"), "frames", "bytes")
    cut = sums(tables["redundancy"], "duplicates")
    delivery = sums(tables["delivery"], "delivered", "twice")
    matrix = sums(tables["traffic_matrix"], "publications")
    control = tables["control_overhead"].collect()
    for run, result in made.results.items():
        own = result_counters(result)
        arrivals = result.delay_ms.count if result.delay_ms else 0
        assert (matrix[run]["sum(publications)"] if run in matrix else 0) == arrivals
        frames = {row.frame: row.frames for row in control if row.run == run}
        sizes = {row.frame: row.bytes for row in control if row.run == run}
        carried = (data[run]["sum(frames)"], data[run]["sum(bytes)"]) if run in data else (0, 0)
        assert carried == (own["data_frames"], own["data_bytes"])
        assert (cut[run]["sum(duplicates)"] if run in cut else 0) == own["duplicates_dropped"]
        came = delivery[run].asDict() if run in delivery else {}
        # Not what was wanted or published: agents do not see what nobody elsewhere asked for yet.
        assert came.get("sum(delivered)", 0) == own["delivered"]
        assert came.get("sum(twice)", 0) == own["duplicates_delivered"]
        assert frames == {kind: n for kind, n in result.control_frames.items() if n}
        assert sizes == {kind: n for kind, n in result.control_bytes.items() if n}


def test_how_long_it_took_to_converge_is_what_simulations_measured(made, tables):
    told: dict[str, list[tuple[int, str, float]]] = {}
    for row in tables["convergence"].where("seconds is not null").collect():
        told.setdefault(row.run, []).append((row.time_ns, row.what, row.seconds))
    for run, result in made.results.items():
        own = [
            (round(each.at_s * 1e9), each.after, each.converged_s)
            for each in result.converged_s
            if each.converged_s is not None
        ]
        assert sorted(told[run]) == sorted(own)


def test_nodes_have_settled_when_a_second_passes_without_a_change(spark):
    """Later changes, as clients that leave, do not belong to the fault."""
    second = 1_000_000_000
    key = ("live", "f", 1)
    fault = spark.createDataFrame(
        [(*key, 1, 10 * second, "kill", "a", None)],
        "run string, node string, incarnation long, number long, time_ns long, what string,"
        " target string, peer string",
    )
    known = spark.createDataFrame([], "run string, time_ns long, what string, seconds double")
    moves = [
        9.9,
        13.0,
        13.4,
        14.3,
        15.4,
    ]  # the first is before, a second of silence before the last
    events = spark.createDataFrame(
        [("live", int(at * second), "link_up") for at in moves],
        "run string, time_ns long, kind string",
    )
    (row,) = gold.convergence(fault, known, events).collect()
    assert (row.settled_s, row.changes, row.seconds) == (4.3, 3, None)


def test_every_table_says_its_grain_and_was_counted(recording):
    from pyarrow.parquet import read_metadata

    lake = Lake(recording.lake)
    for kept in lake.tables():
        assert kept.grain.startswith("One row per ")
        files = lake.table_path(kept).rglob("*.parquet")
        assert sum(read_metadata(path).num_rows for path in files) == kept.rows
