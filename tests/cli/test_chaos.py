"""`hansa chaos`: short runs, their table and files, errors in one line, clean-up."""

import json
import signal
import time

import pytest
from tests.cli.test_demo import left_behind, started

from hansa.cli.main import main
from hansa.testbed.chaos import run
from hansa.testbed.chaos.scenarios import SCENARIOS


@pytest.mark.usefixtures("mosquitto")
def test_run_writes_files_that_can_be_judged_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "LISTEN_S", 0.1)
    results, seen = tmp_path / "results.json", tmp_path / "seen"
    where = ["--topology", "line:2", "--json", str(results), "--history", str(seen)]
    assert main(["chaos", "calm", "flaps", "--seconds", "1", *where]) == 0
    assert "calm: every promise kept" in capsys.readouterr().out
    found = json.loads(results.read_text())
    assert [row["broken"] for row in found.values()] == [[], []]
    assert found["calm"]["fates"]["ok"] > 0
    assert found["calm"]["faults"] == {}
    assert set(found["flaps"]["faults"]) == {"silence", "reset"}
    for name, row in found.items():
        again = tmp_path / "again.json"
        assert main(["chaos", "--judge", str(seen / f"{name}.jsonl"), "--json", str(again)]) == 0
        assert json.loads(again.read_text())[name]["fates"] == row["fates"]


@pytest.mark.usefixtures("mosquitto")
def test_stopped_run_keeps_only_earlier_results(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    results = tmp_path / "results.json"
    given = ["chaos", "calm", "kill-agents", "--topology", "line:2", "--seconds", "1"]
    process = started(*given, "--json", str(results), until="calm: ")
    while not any(place.iterdir()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "hansa: stopped\n")
    assert "calm" in out
    assert list(json.loads(results.read_text())) == ["calm"]
    assert left_behind(place) == []


def test_help_lists_every_scenario(capsys):
    with pytest.raises(SystemExit):
        main(["chaos", "--help"])
    lines = capsys.readouterr().out.splitlines()
    for each in SCENARIOS.values():
        (line,) = [line for line in lines if line.endswith(f"  {each.description}")]
        assert line.split()[0] == each.name


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["nonsense"], "nonsense"),
        ([], "SCENARIO"),
        (["calm", "--topology", "moebius:3"], "moebius"),
        (["calm", "--rate", "0"], "--rate"),
        (["calm", "partition", "--topology", "line:3"], "partition needs 4 nodes"),
        (["clones", "--topology", "line:1"], "clones needs 2 nodes"),
        (["calm", "--json", ""], "--json"),
        (["calm", "--json", "/nowhere/results.json"], "--json /nowhere"),
        (["calm", "--history", "/proc/x"], "--history /proc/x"),
        (["calm", "--keep", "/proc/x"], "--keep /proc/x"),
        (["calm", "--judge", "/nowhere"], "--judge"),
        (["--judge", "/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_invalid_arguments_are_one_line(given, problem, capsys):
    assert main(["chaos", *given]) == 2
    said = capsys.readouterr().err.strip()
    assert problem in said
    assert "\n" not in said


def test_directory_of_an_earlier_run_is_refused(tmp_path, capsys):
    (tmp_path / "calm" / "0").mkdir(parents=True)
    assert main(["chaos", "calm", "--keep", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
