"""`hansa advise`: reading a recorded federation from tables, and advice on it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.advice.test_adviser import BAD_CORE, GOOD, MISSING_LINK
from tests.agent.live import Live, eventually
from tests.pipeline.recordings import Recording

from hansa.advice.adviser import advise
from hansa.advice.loading import TABLES_USED, load_federation, make_spark_map
from hansa.advice.proposals import Proposal, apply_proposal
from hansa.advice.replay import replay_options
from hansa.agent.telemetry.settings import TELEMETRY_DIRECTORY
from hansa.cli.main import main
from hansa.errors import UsageError
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.run import simulate
from hansa.simulator.topologies import parse_topology
from hansa.telemetry import schema
from hansa.telemetry.reader import read_rows
from hansa.testbed.federation import LocalFederation

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from pyspark.sql import functions as F

from hansa.pipeline.lake import Lake


@pytest.fixture(scope="module")
def tables(spark, recording):
    from hansa.pipeline.query import read_tables

    found = read_tables(Lake(spark, str(recording.lake)))
    return {name: found[name].cache() for name in (*TABLES_USED, "runs")}


def test_federation_is_loaded_as_recorded(recording, tables):
    found = load_federation(tables, recording.runs["line"], ProtocolSettings())
    assert len(found.nodes) == 8
    assert len(found.links) == 7
    assert all(rtt == pytest.approx(2.0, rel=0.1) for rtt in found.links.values())
    last, first = found.nodes[7], found.nodes[0]
    assert found.interest == {last: {"a/#"}}
    assert found.cores == {"a/#": last}
    (flow,) = found.flows
    assert (flow.origin, flow.topic, flow.publications) == (first, "a/x", 10)
    times = [each.at_s for each in found.sample]
    assert (times[0], len(times), times) == (0.0, 10, sorted(times))


def test_executors_find_the_missing_link(spark, recording, tables):
    found = load_federation(tables, recording.runs["line"], ProtocolSettings())
    advice = next(advise(found, 5, 1, make_spark_map(spark.sparkContext)))
    assert advice.proposal == Proposal("add link", (found.nodes[0], found.nodes[7]))
    assert (advice.replayed[0].copies, advice.replayed[1].copies) == (7, 1)


def test_unknown_run_or_other_strategy_is_refused(recording, tables):
    with pytest.raises(UsageError, match="there is no run 'nothing' in this lake; there are "):
        load_federation(tables, "nothing", ProtocolSettings())
    with pytest.raises(UsageError, match="this lake has no telemetry: enable it"):
        load_federation({**tables, "runs": tables["runs"].limit(0)}, None, ProtocolSettings())
    with pytest.raises(UsageError, match="this lake has no telemetry: enable it"):
        load_federation({}, None, ProtocolSettings())
    with pytest.raises(UsageError, match=r"this lake has \d runs; select one: --run "):
        load_federation(tables, None, ProtocolSettings())
    with pytest.raises(UsageError, match="strategy is mesh; advice supports only paths"):
        load_federation(tables, recording.runs["line"], ProtocolSettings(strategy="paths"))


def test_missing_lake_is_reported_with_the_command_to_create_it(capsys, tmp_path):
    assert main(["advise", "--lake", str(tmp_path / "nowhere")]) == 2
    assert "is not a lake; `hansa pipeline run" in capsys.readouterr().err


@pytest.mark.long
def test_line_gets_advice_and_ring_gets_none(recording, capsys):
    given = ["advise", "--lake", str(recording.lake), "--most", "1", "--run"]
    assert main([*given, recording.runs["line"]]) == 0
    message = capsys.readouterr().out
    assert message.startswith("1. link ")
    assert "bytes per publication" in message
    assert main([*given, recording.runs["ring"]]) == 0
    assert capsys.readouterr().out.startswith("no advice")
    assert main([*given, recording.runs["ring"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"advice": []}


@pytest.fixture
def live_ring(mosquitto: str, tmp_path: Path) -> Iterator[Live]:
    settings = {"HANSA_TELEMETRY_SAMPLE": "all"}
    with Live(
        LocalFederation(parse_topology("ring:3", 1), settings, directory=tmp_path / "kept")
    ) as live:
        yield live


def tables_in_memory(spark, source, names):
    """Return tables of telemetry, computed by the functions that declare them, without a lake."""
    from hansa.pipeline.catalog import DECLARED, STATE_COLUMNS
    from hansa.pipeline.silver import prepare_events

    events = spark.read.format("hansa").option("table", "events").load(str(source))
    frames = {name: spark.createDataFrame([], ddl) for name, ddl in STATE_COLUMNS.items()}
    frames["events"] = prepare_events(events, ()).cache()
    for name in ("runs", "incarnations", "peers", "control_events", *names):
        frames[name] = DECLARED[name].build_from(frames)
    return {name: frames[name] for name in names}


def reported_peers(live: Live, number: int) -> set[int]:
    """Return the peers to which the telemetry of a node reports a link."""
    log = live.nodes[number].directory / "agent" / TELEMETRY_DIRECTORY
    return {row.record.peer_id for row in read_rows(log) if isinstance(row.record, schema.LinkUp)}


def test_federation_at_the_end_excludes_a_killed_agent_before_a_clean_stop(
    spark, live_ring, tmp_path
):
    """Agent 1 is killed with -9; then all others are stopped, as by Ctrl-C of `hansa up`."""
    live = live_ring
    live.client(2).subscribe("plant/#")
    live.wait_installed(2, "plant/#")
    eventually(lambda: len(reported_peers(live, 1)) == 2, "both links of node 1 are on disk")
    killed = live.nodes[1].agent
    assert killed is not None
    killed.kill()
    live.run(killed.wait())
    eventually(
        lambda: len(live.nodes[0].status()["reachable_nodes"]) == 2, "node 0 notices the loss"
    )
    live.client(0).publish("plant/temp", b"21.5")
    live.run(live.federation.stop())

    tables = tables_in_memory(spark, tmp_path / "kept", (*TABLES_USED, "runs"))
    found = load_federation(tables, None, ProtocolSettings())
    assert set(found.nodes) == {"0", "2"}
    assert set(found.links) == {("0", "2")}
    assert found.interest == {"2": {"plant/#"}}


def test_federation_at_the_end_excludes_a_simulated_crash(recording, tables):
    found = load_federation(tables, recording.runs["crash"], ProtocolSettings())
    assert found.nodes == ("n0", "n2", "n3")
    assert set(found.links) == {("n0", "n3"), ("n2", "n3")}


@dataclass(frozen=True)
class MeasuredCost:
    """Gold figures of a run: milliseconds per delivery, bytes on links per publication."""

    delay_ms: float
    bytes: float

    @classmethod
    def of(cls, tables, run, publications):
        delays = tables["delay"].where(F.col("run") == run).collect()
        links = tables["link_bytes"].where(
            (F.col("run") == run) & (F.col("frame") == "publication")
        )
        total = sum(row.delay_ms_mean * row.measured for row in delays)
        sizes = sum(row.bytes for row in links.collect())
        return cls(total / sum(row.measured for row in delays), sizes / publications)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_applied_advice_has_the_predicted_effect_in_three_recordings(spark, tmp_path):
    """Record, build tables, advise, apply the advice, and record again."""
    from hansa.pipeline import bronze, query, runner

    made = Recording(tmp_path)
    given = {
        "missing link": (MISSING_LINK, 4, ("add link", (0, 7))),
        "bad core": (BAD_CORE, 2, ("move core", (4,))),
        "good": (GOOD, 4, None),
    }

    def recorded(name, federation):
        log = made.source / name
        simulate(replay_options(federation), telemetry=log)
        return made.add_log(name, log)

    def tables():
        lake = Lake.open_or_create(spark, str(made.lake))
        runner.run_once(lake, bronze.PipelineJob([str(made.source)]))
        return query.read_tables(lake)

    runs = {name: recorded(name, federation) for name, (federation, _, _) in given.items()}
    before, taken = tables(), {}
    for name, (federation, degree, right) in given.items():
        found = load_federation(before, runs[name], federation.protocol)
        first = next(advise(found, degree, 1, make_spark_map(spark.sparkContext)), None)
        if right is None:
            assert first is None
            continue
        assert first is not None
        kind, places = right
        assert first.proposal.kind == kind
        assert first.proposal.subject[-len(places) :] == tuple(found.nodes[n] for n in places)
        taken[name] = (first, recorded(f"{name} taken", apply_proposal(found, first.proposal)))
    after = tables()
    for name, (first, run) in taken.items():
        count = len(given[name][0].sample)
        old, new = MeasuredCost.of(before, runs[name], count), MeasuredCost.of(after, run, count)
        for measure in ("delay_ms", "bytes"):
            predicted = first.predicted[0].relative_change(first.predicted[1], measure)
            shown = getattr(new, measure) / getattr(old, measure) - 1
            assert shown == pytest.approx(predicted, abs=0.15), (name, measure)
