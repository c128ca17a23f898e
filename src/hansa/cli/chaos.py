"""`hansa chaos`: inject faults into a live federation and account for every publication."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hansa.cli import soak
from hansa.cli.arguments import Parser, decimal_number, make_directory, one_of, path, seed
from hansa.console.terminal import console, make_table
from hansa.errors import UsageError
from hansa.testbed.cancellation import run_until_stopped
from hansa.testbed.chaos import bridges
from hansa.testbed.chaos.run import ChaosOutcome, ChaosRun, run_chaos
from hansa.testbed.chaos.scenarios import SCENARIOS
from hansa.testbed.chaos.verdict import ChaosVerdict, read_evidence

EXAMPLES = """\
  hansa chaos kill-agents
  hansa chaos kill-agents halves cores --seconds 120 --topology grid:3x3 --rate 200
  hansa chaos all --seed 7 --json results.json
  hansa chaos cores --history histories && hansa chaos --judge histories/cores.jsonl
  hansa chaos soak --messages 10000000 --ledger soak.jsonl   all scenarios in turn, for hours;
                                                             see `hansa chaos soak --help`"""


def run(arguments: Sequence[str]) -> int:
    """Run scenarios and print their verdicts; exit code 1 if a promise was broken."""
    if arguments and arguments[0] == "soak":
        return soak.run(arguments[1:])
    given = _parser().parse_args(arguments)
    outcomes: dict[str, ChaosOutcome] = {}
    runs = _make_runs(given)
    if bool(runs) == bool(given.judge):
        raise UsageError("name a SCENARIO to run, or a file to --judge; see `hansa chaos --help`")
    _check_outputs(given, runs)
    try:
        if given.judge is not None:
            outcomes[given.judge.stem] = _judge_file(given.judge)
        for chaos_run in runs:
            outcomes[chaos_run.scenario.name] = _run_scenario(chaos_run, given.history)
            _save(outcomes, given.json)
        if given.compare:
            for name, fault in bridges.BRIDGE_FAULTS.items():
                running = bridges.run_bridges(fault, given.seed, given.seconds, given.rate)
                verdict = run_until_stopped(running)
                outcomes[name] = ChaosOutcome(verdict, None, is_comparison=True)
                _print_outcome(name, outcomes[name])
    finally:  # also after Ctrl-C
        _save(outcomes, given.json)
        _show(outcomes)
    return 1 if any(each.violations and not each.is_comparison for each in outcomes.values()) else 0


def _make_runs(given: argparse.Namespace) -> list[ChaosRun]:
    names = SCENARIOS if "all" in given.scenarios else dict.fromkeys(given.scenarios)
    return [
        ChaosRun(
            SCENARIOS[name],
            given.topology,
            given.seed,
            given.seconds,
            given.rate,
            given.keep / name if given.keep else None,
        )
        for name in names
    ]


def _check_outputs(given: argparse.Namespace, runs: list[ChaosRun]) -> None:
    """Raise UsageError now for outputs that would fail only after the runs."""
    for chaos_run in runs:
        chaos_run.validate()
        if chaos_run.directory:
            make_directory(chaos_run.directory, "--keep")
            if any(chaos_run.directory.iterdir()):
                raise UsageError(
                    f"--keep {given.keep}: {chaos_run.directory} is not empty; name another"
                )
    if given.history:
        make_directory(given.history, "--history")
    try:
        _save({}, given.json)
    except OSError as error:
        raise UsageError(f"--json {given.json}: {error.strerror}") from error


def _run_scenario(chaos_run: ChaosRun, history: Path | None) -> ChaosOutcome:
    name = chaos_run.scenario.name
    file = history / f"{name}.jsonl" if history else None
    with console().status(f"{name}: ") as progress:
        running = run_chaos(chaos_run, lambda what: progress.update(f"{name}: {what}"), file)
        outcome = run_until_stopped(running)
    _print_outcome(name, outcome)
    return outcome


def _judge_file(file: Path) -> ChaosOutcome:
    found = read_evidence(file)
    outcome = ChaosOutcome(found.judge(), None, problems=found.header.problems)
    _print_outcome(file.stem, outcome)
    return outcome


def _print_outcome(name: str, outcome: ChaosOutcome) -> None:
    out, verdict = console(), outcome.verdict
    out.print(f"{name}: {', '.join(outcome.violations) or 'every promise kept'}")
    if verdict.lost_where:
        out.print(f"  lost: {_counts(verdict.lost_where)}; at {_counts(verdict.lost_at)}")
    for example in verdict.examples if outcome.violations and not outcome.is_comparison else ():
        out.print(f"  {example}")


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())


def _parser() -> Parser:
    width = max(map(len, SCENARIOS))
    parser = Parser(
        "hansa chaos",
        "Start real brokers and agents, publish at QoS 0, 1 and 2, inject faults, heal them, and\n"
        "account for every publication. Exit code 1 if a promise was broken. Scenarios:\n\n"
        + "\n".join(f"  {each.name:<{width}}  {each.description}" for each in SCENARIOS.values()),
        EXAMPLES,
    )
    parser.add_argument(
        "scenarios", nargs="*", type=one_of([*SCENARIOS, "all"]), metavar="SCENARIO"
    )
    parser.add_argument(
        "--topology", default="grid:3x3", metavar="WORD", help="as for `hansa up` (grid:3x3)"
    )
    parser.add_argument(
        "--seed", type=seed, default=1, metavar="N", help="seed of places and times of faults (1)"
    )
    parser.add_argument(
        "--seconds",
        type=decimal_number(1, 86_400, "seconds"),
        default=30.0,
        metavar="S",
        help="seconds of faults (30)",
    )
    parser.add_argument(
        "--rate",
        type=decimal_number(1, 100_000, "a second"),
        default=100.0,
        metavar="N",
        help="publications per second of each publisher (100)",
    )
    parser.add_argument(
        "--history",
        type=path,
        metavar="DIR",
        help="write the events of all clients to DIR/SCENARIO.jsonl",
    )
    parser.add_argument(
        "--judge", type=path, metavar="FILE", help="judge such a file again, without a run"
    )
    parser.add_argument(
        "--keep",
        type=path,
        metavar="DIR",
        help="keep state and logs in DIR, by scenario and node, with telemetry of agents and"
        " faults; must be empty",
    )
    parser.add_argument(
        "--compare", action="store_true", help="also run two Mosquittos with a bridge"
    )
    parser.add_argument("--json", type=path, metavar="FILE", help="write the results")
    return parser


def _show(outcomes: dict[str, ChaosOutcome]) -> None:
    rows = make_table(
        "scenario",
        ">faults",
        ">sent",
        ">ok",
        ">late",
        ">unknown",
        ">refused",
        ">forfeited",
        ">lost",
        ">at QoS 0",
        ">twice 0/1/2",
        ">reordered",
        ">phantoms",
        ">drained",
    )
    rows.padding = 0  # else the table is wider than 120 columns
    for name, outcome in outcomes.items():
        verdict, fates = outcome.verdict, outcome.verdict.fates
        words = ("ok", "recovered", "unknown", "refused", "forfeited", "lost", "lost at QoS 0")
        rows.add_row(
            name,
            str(outcome.fault_counts.total()),
            str(verdict.published),
            *(str(fates[word]) for word in words),
            "/".join(str(verdict.duplicate_count(qos)) for qos in (0, 1, 2)),
            str(verdict.inversions),
            str(verdict.phantoms),
            _drained(outcome),
        )
    if outcomes:
        console().print(rows)


def _drained(outcome: ChaosOutcome) -> str:
    if outcome.drained_s is None:
        return "not" if outcome.fault_counts else ""
    return f"{outcome.drained_s:.1f} s"


def _save(outcomes: dict[str, ChaosOutcome], file: Path | None) -> None:
    if file is not None:
        rows = {name: _row(outcome) for name, outcome in outcomes.items()}
        file.write_text(json.dumps(rows, indent=1) + "\n")


def _row(outcome: ChaosOutcome) -> dict[str, object]:
    # Not asdict: it rebuilds a Counter from its pairs, which counts the pairs.
    verdict = {field.name: getattr(outcome.verdict, field.name) for field in fields(ChaosVerdict)}
    rest = {
        "faults": outcome.fault_counts,
        "drained_s": outcome.drained_s,
        "broken": outcome.violations,
    }
    return {**verdict, **rest}
