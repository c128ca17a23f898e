"""`hansa chaos`: break a live federation on purpose, and see whether it kept its promise."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hansa.cli.arguments import Parser, decimal_number, one_of, path, seed
from hansa.console.terminal import console, make_table
from hansa.errors import UsageError
from hansa.testbed.chaos import bridges, evidence
from hansa.testbed.chaos.run import ChaosOutcome, ChaosRun, run_chaos
from hansa.testbed.chaos.scenarios import SCENARIOS
from hansa.testbed.chaos.verdict import ChaosVerdict
from hansa.testbed.signals import run_until_stopped

EXAMPLES = """\
  hansa chaos kills
  hansa chaos kills halves cores --seconds 120 --topology grid:3x3 --rate 200
  hansa chaos all --seed 7 --json results.json
  hansa chaos kills --history seen && hansa chaos --judge seen/kills.jsonl"""


def run(arguments: Sequence[str]) -> int:
    """Play scenarios, print what became of every publication; 1 if a promise was broken."""
    given = _parser().parse_args(arguments)
    outcomes: dict[str, ChaosOutcome] = {}
    plans = _make_runs(given)
    if bool(plans) == bool(given.judge):
        raise UsageError("name a SCENARIO to play, or a file to --judge; see `hansa chaos --help`")
    _check_outputs(given, plans)
    try:
        if given.judge is not None:
            outcomes[given.judge.stem] = _judge_file(given.judge)
        for plan in plans:
            outcomes[plan.scenario.name] = _run_scenario(plan, given.history)
            _save(outcomes, given.json)
        if given.compare:
            for name, trouble in bridges.BRIDGE_FAULTS.items():
                playing = bridges.run_bridges(trouble, given.seed, given.seconds, given.rate)
                verdict = run_until_stopped(playing)
                outcomes[name] = ChaosOutcome(verdict, None, is_comparison=True)
                _print_outcome(name, outcomes[name])
    finally:  # also if somebody has seen enough
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
    """Complain now about what would fail only when everything has been played."""
    for plan in runs:
        plan.validate()
        if plan.directory:
            _make_directory(plan.directory, "--keep")
            if any(plan.directory.iterdir()):
                raise UsageError(
                    f"--keep {given.keep}: {plan.directory} is not empty; name another"
                )
    if given.history:
        _make_directory(given.history, "--history")
    try:
        _save({}, given.json)
    except OSError as error:
        raise UsageError(f"--json {given.json}: {error.strerror}") from error


def _make_directory(directory: Path, option: str) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {directory}: {error.strerror}") from error


def _run_scenario(chaos_run: ChaosRun, history: Path | None) -> ChaosOutcome:
    name = chaos_run.scenario.name
    file = history / f"{name}.jsonl" if history else None
    with console().status(f"{name}: ") as progress:
        playing = run_chaos(chaos_run, lambda what: progress.update(f"{name}: {what}"), file)
        outcome = run_until_stopped(playing)
    _print_outcome(name, outcome)
    return outcome


def _judge_file(file: Path) -> ChaosOutcome:
    found = evidence.read_evidence(file)
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
        "Start real brokers and agents, publish at QoS 0, 1 and 2, break what can be broken, heal\n"
        "it, and account for every publication. Scenarios:\n\n"
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
        "--seed", type=seed, default=1, metavar="N", help="decides who is hit, and when (1)"
    )
    parser.add_argument(
        "--seconds",
        type=decimal_number(1, 86_400, "seconds"),
        default=30.0,
        metavar="S",
        help="how long there is trouble (30)",
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
        help="keep what clients saw in DIR, as lines of JSON in SCENARIO.jsonl",
    )
    parser.add_argument(
        "--judge", type=path, metavar="FILE", help="judge such a file again, and play nothing"
    )
    parser.add_argument(
        "--keep",
        type=path,
        metavar="DIR",
        help="keep everything in DIR, by scenario and node, with telemetry of agents and faults;"
        " only what is empty is used",
    )
    parser.add_argument(
        "--compare", action="store_true", help="also let a pair of bridged Mosquittos try"
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
        ">disorder",
        ">phantoms",
        ">drained",
    )
    rows.padding = 0  # with more room between them they would not fit
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
    # Not by asdict: it makes counters anew, and a counter made of pairs counts the pairs.
    verdict = {field.name: getattr(outcome.verdict, field.name) for field in fields(ChaosVerdict)}
    rest = {
        "faults": outcome.fault_counts,
        "drained_s": outcome.drained_s,
        "broken": outcome.violations,
    }
    return {**verdict, **rest}
