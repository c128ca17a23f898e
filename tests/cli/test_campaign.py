"""`hansa simulate --campaign`: resumes, records, prints how to replay."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hansa.cli import campaign as command
from hansa.cli.main import main
from hansa.protocol.routing import STRATEGIES
from hansa.simulator.campaign import CampaignCase, CampaignRun, campaign_code


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    return ["simulate", "--campaign", "--ledger", str(tmp_path / "ledger.jsonl")]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[CampaignCase]:
    """Replace the workers: seed 3 fails. The cases that were played."""
    played: list[CampaignCase] = []

    def run_as_completed(run_case, cases, cores):
        for case in cases:
            played.append(case)
            broken = ("no loop: n1", "no phantom: n2") if case.seed == 3 else ()
            fields = (case.seed, case.strategy, "0.2.0", None, campaign_code(), broken, 0.25)
            yield CampaignRun(*fields, publications=5)

    monkeypatch.setattr(command, "run_as_completed", run_as_completed)
    return played


def rows(given: list[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(given[-1]).read_text().splitlines()]


def has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_strategies_are_played_and_a_second_run_plays_only_new_seeds(
    given, in_process, capsys
) -> None:
    assert main([*given, "--seeds", "0-1"]) == 0
    assert in_process == [CampaignCase(seed, name) for seed in (0, 1) for name in STRATEGIES]
    assert len(rows(given)) == 10
    in_process.clear()
    assert main([*given, "--seeds", "0-2", "--strategy", "paths"]) == 0
    assert in_process == [CampaignCase(2, "paths")]
    out, err = capsys.readouterr()
    assert "played now: 1 of 1 runs, 0 failed" in out
    assert "1 runs to play" in err


def test_strategies_in_turn_play_each_seed_once(given, in_process, capsys) -> None:
    assert main([*given, "--seeds", "5-10", "--in-turn"]) == 0
    names = [*STRATEGIES, next(iter(STRATEGIES))]
    assert in_process == [CampaignCase(5 + number, name) for number, name in enumerate(names)]
    assert main([*given, "--in-turn", "--strategy", "mesh"]) == 2
    assert "omit it or --strategy" in capsys.readouterr().err


def test_failing_seed_is_printed_with_its_replay_command(given, in_process, capsys) -> None:
    given += ["--seeds", "2-4", "--strategy", "mesh"]
    assert main(given) == 1
    failure = (
        "seed 3, mesh: no loop: n1 and 1 more\n"
        "  replay: hansa simulate --scenario random --strategy mesh --seed 3\n"
    )
    out, err = capsys.readouterr()
    assert failure in out
    assert failure in err
    assert main([*given, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["failed"] == [
        {
            "seed": 3,
            "strategy": "mesh",
            "violations": ["no loop: n1", "no phantom: n2"],
            "replay": "hansa simulate --scenario random --strategy mesh --seed 3",
        }
    ]
    assert printed["strategies"][0]["runs"] == 3
    assert (printed["seeds"], printed["missing"], printed["session"]["runs"]) == ([2, 4], 0, 0)


def test_runs_of_other_code_are_played_again(given, in_process, capsys) -> None:
    given += ["--seeds", "0-1", "--strategy", "mesh"]
    main(given)
    ledger = Path(given[3])
    ledger.write_text(ledger.read_text().replace(campaign_code(), "0123"))
    capsys.readouterr()
    in_process.clear()
    assert main(given) == 0
    assert len(in_process) == 2
    assert "has 2 entries of other code" in capsys.readouterr().err
    assert len(ledger.read_text().splitlines()) == 4


def test_interrupted_campaign_prints_its_summary(given, in_process, capsys, monkeypatch) -> None:
    def stop(self, result):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.CampaignSession, "add", stop)
    assert main([*given, "--seeds", "5-9", "--strategy", "mesh"]) == 130
    out, err = capsys.readouterr()
    assert "; 4 runs are missing" in out
    assert err.endswith("hansa: stopped; the same command continues\n")


def test_signal_ends_the_workers_and_keeps_complete_runs(given) -> None:
    words = ["--strategy", "tree-flood", "--cores", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hansa.cli", *given, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    ledger = Path(given[-1])
    deadline = time.monotonic() + 60
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no run was recorded"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "49,99" in out and "runs are missing" in out
    while has_processes(process.pid):
        assert time.monotonic() < deadline, "a worker survived"
        time.sleep(0.05)
    recorded = rows(given)
    assert [row["violations"] for row in recorded] == [[]] * len(recorded)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--seeds", "9-3"], "'9-3' is not a range of seeds; write FIRST-LAST, as in 0-1999"),
        (["--runs", "3"], "--campaign sets --runs itself; omit it, or use --scenario random"),
        (["--seed", "3"], "--campaign sets --seed itself; omit it, or use --scenario random"),
        (["--faults", "cuts=1"], "--campaign sets --faults itself; omit it, or use"),
        (["--preset", "machado"], "--campaign sets --preset itself; omit it, or use"),
        (["--topology", "ring:3"], "argument --topology: not allowed with argument --campaign"),
    ],
)
def test_contradictions_are_one_line_and_exit_code_2(given, words, problem, capsys) -> None:
    assert main([*given, *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"hansa: {problem}")


@pytest.mark.parametrize(
    "words", [["--seeds", "1"], ["--ledger", "1"], ["--cores", "1"], ["--in-turn"]]
)
def test_options_of_a_campaign_need_one(words, capsys) -> None:
    assert main(["simulate", *words]) == 2
    assert capsys.readouterr().err == f"hansa: {words[0]} needs --campaign\n"
