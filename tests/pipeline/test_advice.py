"""`hansa advise`: a federation is read from tables as it was recorded, and spoken about."""

import json

import pytest

from hansa.advice.adviser import advise
from hansa.advice.loading import USED, load, on_executors
from hansa.advice.proposals import Proposal
from hansa.cli.main import main
from hansa.errors import UsageError
from hansa.protocol.settings import ProtocolSettings

LINE = ("--topology", "line:8", "--subscribe", "7:a/#", "--publish", "0:a/x")
RING = ("--topology", "ring:3", "--subscribe", "0:a/#", "--publish", "1:a/x")


def record(directory, *options):
    assert main(["simulate", *options, "--telemetry", str(directory), "--json"]) == 0


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory):
    """The tables that advice is made from, of a line with a long way across."""
    from hansa.pipeline.silver import SILVER, with_run

    directory = tmp_path_factory.mktemp("line")
    record(directory, *LINE)
    events = spark.read.format("hansa").option("table", "events").load(str(directory))
    made = {"events": with_run(events).cache()}
    for table in SILVER.tables:
        if table.name in (*USED, "runs"):
            made[table.name] = table.made_from(made).cache()
    return made


def test_a_federation_is_read_as_it_was_recorded(tables):
    recorded = load(tables, None, ProtocolSettings())
    assert len(recorded.nodes) == 8
    assert len(recorded.links) == 7
    assert all(rtt == pytest.approx(2.0, rel=0.1) for rtt in recorded.links.values())
    last, first = recorded.nodes[7], recorded.nodes[0]
    assert recorded.wants == {last: {"a/#"}}
    assert recorded.cores == {"a/#": last}
    (flow,) = recorded.flows
    assert (flow.origin, flow.topic, flow.publications) == (first, "a/x", 10)
    times = [each.at_s for each in recorded.sample]
    assert (times[0], len(times), times) == (0.0, 10, sorted(times))


def test_the_executors_find_the_missing_link(spark, tables):
    recorded = load(tables, None, ProtocolSettings())
    advice = next(advise(recorded, 5, 1, on_executors(spark.sparkContext)))
    assert advice.proposal == Proposal("add link", (recorded.nodes[0], recorded.nodes[7]))
    assert (advice.replayed[0].copies, advice.replayed[1].copies) == (7, 1)


def test_a_run_must_be_there_and_of_the_strategy_that_advice_knows(tables):
    with pytest.raises(UsageError, match="there is no run 'nothing' in this lake; there are "):
        load(tables, "nothing", ProtocolSettings())
    with pytest.raises(UsageError, match="this lake has no telemetry: switch it on"):
        load({**tables, "runs": tables["runs"].limit(0)}, None, ProtocolSettings())
    doubled = tables["runs"].union(
        tables["runs"].selectExpr("'again'", *tables["runs"].columns[1:])
    )
    with pytest.raises(UsageError, match="this lake has 2 runs; say which: --run "):
        load({**tables, "runs": doubled}, None, ProtocolSettings())
    with pytest.raises(UsageError, match="strategy is mesh; advice is for paths"):
        load(tables, None, ProtocolSettings(strategy="paths"))


def test_without_a_lake_it_says_how_to_make_one(capsys, tmp_path):
    assert main(["advise", "--lake", str(tmp_path / "nowhere")]) == 2
    assert "is no lake; `hansa pipeline run" in capsys.readouterr().err


@pytest.mark.long
def test_from_a_recording_to_advice_and_to_none(spark, capsys, tmp_path):
    said = {}
    for name, options in (("line", LINE), ("ring", RING)):
        record(tmp_path / name, *options)
        lake = str(tmp_path / f"lake-{name}")
        assert main(["pipeline", "run", "--lake", lake, str(tmp_path / name)]) == 0
        capsys.readouterr()
        assert main(["advise", "--lake", lake]) == 0
        said[name] = capsys.readouterr().out
        assert main(["advise", "--lake", lake, "--json"]) == 0
        said[f"{name} json"] = json.loads(capsys.readouterr().out)["advice"]
    assert said["line"].startswith("1. link ")
    assert "bytes per publication" in said["line"]
    assert said["line json"][0]["kind"] == "add link"
    assert said["ring"].startswith("nothing to advise")
    assert said["ring json"] == []
