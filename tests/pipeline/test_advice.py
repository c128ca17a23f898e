"""`hansa advise`: a federation is read from tables as it was recorded, and spoken about."""

import json

import pytest

from hansa.advice.adviser import advise
from hansa.advice.loading import USED, load, on_executors
from hansa.advice.proposals import Proposal
from hansa.cli.main import main
from hansa.errors import UsageError
from hansa.pipeline.lake import Lake
from hansa.protocol.settings import ProtocolSettings


@pytest.fixture(scope="module")
def tables(spark, recording):
    from hansa.pipeline.job import views

    found = views(spark, Lake(recording.lake))
    return {name: found[name].cache() for name in (*USED, "runs")}


def test_a_federation_is_read_as_it_was_recorded(recording, tables):
    found = load(tables, recording.runs["line"], ProtocolSettings())
    assert len(found.nodes) == 8
    assert len(found.links) == 7
    assert all(rtt == pytest.approx(2.0, rel=0.1) for rtt in found.links.values())
    last, first = found.nodes[7], found.nodes[0]
    assert found.wants == {last: {"a/#"}}
    assert found.cores == {"a/#": last}
    (flow,) = found.flows
    assert (flow.origin, flow.topic, flow.publications) == (first, "a/x", 10)
    times = [each.at_s for each in found.sample]
    assert (times[0], len(times), times) == (0.0, 10, sorted(times))


def test_the_executors_find_the_missing_link(spark, recording, tables):
    found = load(tables, recording.runs["line"], ProtocolSettings())
    advice = next(advise(found, 5, 1, on_executors(spark.sparkContext)))
    assert advice.proposal == Proposal("add link", (found.nodes[0], found.nodes[7]))
    assert (advice.replayed[0].copies, advice.replayed[1].copies) == (7, 1)


def test_a_run_must_be_there_and_of_the_strategy_that_advice_knows(recording, tables):
    with pytest.raises(UsageError, match="there is no run 'nothing' in this lake; there are "):
        load(tables, "nothing", ProtocolSettings())
    with pytest.raises(UsageError, match="this lake has no telemetry: switch it on"):
        load({**tables, "runs": tables["runs"].limit(0)}, None, ProtocolSettings())
    with pytest.raises(UsageError, match=r"this lake has \d runs; say which: --run "):
        load(tables, None, ProtocolSettings())
    with pytest.raises(UsageError, match="strategy is mesh; advice is for paths"):
        load(tables, recording.runs["line"], ProtocolSettings(strategy="paths"))


def test_without_a_lake_it_says_how_to_make_one(capsys, tmp_path):
    assert main(["advise", "--lake", str(tmp_path / "nowhere")]) == 2
    assert "is no lake; `hansa pipeline run" in capsys.readouterr().err


@pytest.mark.long
def test_the_line_gets_advice_and_the_ring_gets_none(recording, capsys):
    given = ["advise", "--lake", str(recording.lake), "--most", "1", "--run"]
    assert main([*given, recording.runs["line"]]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1. link ")
    assert "bytes per publication" in said
    assert main([*given, recording.runs["ring"]]) == 0
    assert capsys.readouterr().out.startswith("nothing to advise")
    assert main([*given, recording.runs["ring"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"advice": []}
