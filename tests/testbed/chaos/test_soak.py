"""A soak: which piece comes next, and the sum of all pieces."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hansa.cli.main import main
from hansa.testbed.chaos import soak as module
from hansa.testbed.chaos.run import ChaosOutcome, ChaosRun
from hansa.testbed.chaos.scenarios import SCENARIOS
from hansa.testbed.chaos.soak import SOAK_SCENARIOS, Soak, SoakPiece
from hansa.testbed.chaos.verdict import ChaosVerdict

NAMES = ["kill-agents", "cuts"]
TEMPLATE = ChaosRun(SCENARIOS["cuts"], "line:3", seconds=5.0, rate=50.0)


def outcome(published: int = 100, lost: int = 0) -> ChaosOutcome:
    verdict = ChaosVerdict(published=published, acknowledged=published - 1, inversions=lost)
    verdict.fates = Counter(ok=80, recovered=10, lost=lost)
    verdict.duplicates[1]["sub0"] = 2
    verdict.unexplained[2] = lost
    return ChaosOutcome(verdict, 1.26, Counter(crash=3, silence=1))


def next_run(soak: Soak) -> ChaosRun:
    chaos_run = soak.next_run()
    assert chaos_run is not None
    return chaos_run


def test_scenarios_take_turns_until_the_messages_were_published():
    soak = Soak(350, NAMES, TEMPLATE)
    runs = []
    while (chaos_run := soak.next_run()) is not None:
        runs.append(chaos_run)
        soak.add(chaos_run, outcome(), 10.0)
    kill, cut = (SCENARIOS[name] for name in NAMES)
    assert runs == [
        replace(TEMPLATE, scenario=scenario, seed=number)
        for number, scenario in enumerate([kill, cut, kill, cut])
    ]


def test_pieces_of_a_ledger_count_if_the_code_is_the_same():
    first = Soak(1000, NAMES, TEMPLATE)
    pieces = [first.add(next_run(first), outcome(), 10.0) for _ in range(3)]
    again = Soak(1000, NAMES, TEMPLATE, pieces)
    assert (again.published, next_run(again).seed) == (300, 3)
    other = Soak(1000, NAMES, TEMPLATE, [replace(piece, code="1234") for piece in pieces])
    assert (other.published, next_run(other).seed) == (0, 0)


def test_account_is_the_sum_of_all_pieces():
    soak = Soak(1000, NAMES, TEMPLATE)
    soak.add(next_run(soak), outcome(), 10.04)
    broken = soak.add(next_run(soak), outcome(lost=4), 5.0)
    account = soak.account()
    assert (account.pieces, account.failed, soak.failed) == (2, 1, [broken])
    assert (account.published, account.acknowledged) == (200, 198)
    assert account.fates == Counter(ok=160, recovered=20, lost=4)
    assert (account.duplicates, account.unexplained) == ([0, 4, 0], [0, 0, 4])
    assert (account.inversions, account.phantoms, account.took_s) == (4, 0, 15.0)
    assert account.faults == Counter(crash=6, silence=2)
    assert broken.violations == ("4 lost", "4 out of order", "4 twice at QoS 2")
    assert " ".join(broken.arguments) == "cuts --topology line:3 --seed 1 --seconds 5 --rate 50"


def test_every_scenario_with_faults_is_part_of_a_soak():
    assert set(SCENARIOS) - set(SOAK_SCENARIOS) == {"calm"}


# ---------------------------------------------------------------- the command


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the federation: `cuts` loses a publication. The scenarios that were run."""
    found: list[str] = []

    async def run_chaos(chaos_run: ChaosRun, history: Path) -> ChaosOutcome:
        found.append(chaos_run.scenario.name)
        history.write_text("evidence\n")
        await asyncio.sleep(0)
        return outcome(lost=int(chaos_run.scenario.name == "cuts"))

    monkeypatch.setattr(module, "run_chaos", run_chaos)
    return found


def test_soak_continues_where_its_ledger_ends(runs, tmp_path, capsys):
    given = ["chaos", "soak", "kill-agents", "halves", "--ledger", str(tmp_path / "soak.jsonl")]
    assert main([*given, "--messages", "150"]) == 0
    assert runs == ["kill-agents", "halves"]
    capsys.readouterr()
    assert main([*given, "--messages", "250", "--json"]) == 0
    assert runs == ["kill-agents", "halves", "kill-agents"]
    printed = json.loads(capsys.readouterr().out)
    assert (printed["published"], printed["faults"]) == (300, {"crash": 9, "silence": 3})
    lines = (tmp_path / "soak.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["soak.jsonl"]


def test_broken_promise_is_printed_with_its_command_and_keeps_its_events(runs, tmp_path, capsys):
    ledger = tmp_path / "soak.jsonl"
    given = ["chaos", "soak", "halves", "cuts", "--messages", "200", "--ledger", str(ledger)]
    assert main(given) == 1
    out, err = capsys.readouterr()
    failure = (
        "piece 1, cuts: 1 lost, 1 out of order, 1 twice at QoS 2\n"
        "  repeat: hansa chaos cuts --topology grid:3x3 --seed 1 --seconds 60 --rate 300\n"
    )
    assert failure in out
    assert failure in err
    assert [path.name for path in (tmp_path / "soak.failed").iterdir()] == ["1-cuts.jsonl"]


def test_pieces_of_other_code_do_not_count(runs, tmp_path, capsys):
    ledger = tmp_path / "soak.jsonl"
    given = ["chaos", "soak", "halves", "--messages", "100", "--ledger", str(ledger)]
    main(given)
    ledger.write_text(ledger.read_text().replace(module.soak_code(), "1234"))
    assert main(given) == 0
    assert "has 1 entries of other code" in capsys.readouterr().err
    assert len(runs) == len(ledger.read_text().splitlines()) == 2


def test_interrupted_soak_prints_its_account(runs, tmp_path, capsys, monkeypatch):
    async def stop(*_: object) -> SoakPiece:
        raise asyncio.CancelledError

    given = ["chaos", "soak", "halves", "--ledger", str(tmp_path / "soak.jsonl")]
    assert main([*given, "--messages", "100"]) == 0
    monkeypatch.setattr(Soak, "run_piece", stop)
    capsys.readouterr()
    assert main([*given, "--messages", "200"]) == 130
    out, err = capsys.readouterr()
    assert "published, acknowledged              100, 99" in out
    assert err.endswith("hansa: stopped; the same command continues\n")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["nonsense"], "there is no 'nonsense'"),
        (["--messages", "0"], "0 must be from 1"),
        (["--topology", "line:3"], "partition needs 4 nodes"),
        (["--ledger", "/nowhere/soak.jsonl"], "cannot write /nowhere/soak.jsonl"),
    ],
)
def test_invalid_arguments_are_one_line(given, problem, capsys):
    assert main(["chaos", "soak", *given]) == 2
    said = capsys.readouterr().err.strip()
    assert problem in said
    assert "\n" not in said


@pytest.mark.long
@pytest.mark.usefixtures("mosquitto")
def test_live_soak_of_three_pieces(tmp_path, capsys):
    ledger = tmp_path / "soak.jsonl"
    given = ["chaos", "soak", "kill-agents", "flaps", "brokers", "--ledger", str(ledger)]
    load = ["--topology", "line:3", "--seconds", "20", "--rate", "50", "--messages", "5000"]
    assert main([*given, *load, "--json"]) == 0
    account = json.loads(capsys.readouterr().out)
    assert account["published"] >= 5_000
    assert account["pieces"] >= 3
    assert set(account["faults"]) == {"crash", "reset", "silence", "restart-broker"}
    assert (account["fates"].get("lost", 0), account["unexplained"]) == (0, [0, 0, 0])
