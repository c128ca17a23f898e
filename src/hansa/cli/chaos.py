"""`hansa chaos`: break a live federation on purpose, and see whether it kept its promise."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hansa.chaos import bridges
from hansa.chaos.run import Outcome, Play, play
from hansa.chaos.scenarios import SCENARIOS
from hansa.chaos.verdict import Verdict
from hansa.cli.arguments import Parser, amount, one_of, path, seed
from hansa.cli.results import console, table

EXAMPLES = """\
  hansa chaos kills
  hansa chaos kills halves cores --seconds 120 --topology grid:3x3 --rate 200
  hansa chaos all --seed 7 --json results.json"""


def run(arguments: Sequence[str]) -> int:
    """Play scenarios, print what became of every publication; 1 if a promise was broken."""
    given = _parser().parse_args(arguments)
    names = list(SCENARIOS) if "all" in given.scenarios else list(dict.fromkeys(given.scenarios))
    outcomes: dict[str, Outcome] = {}
    for name in names:
        keep = given.keep / name if given.keep else None
        plan = Play(SCENARIOS[name], given.topology, given.seed, given.seconds, given.rate, keep)
        outcomes[name] = _play(plan, given.history)
    if given.compare:
        for name, trouble in bridges.TROUBLES.items():
            verdict = asyncio.run(bridges.play(trouble, given.rate))
            outcomes[name] = Outcome(verdict, None, is_rival=True)
    _show(outcomes)
    if given.json is not None:
        rows = {name: _row(outcome) for name, outcome in outcomes.items()}
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(each.broken and not each.is_rival for each in outcomes.values()) else 0


def _play(plan: Play, history: Path | None) -> Outcome:
    out, name = console(), plan.scenario.name
    with out.status(f"{name}: ") as progress:
        outcome = asyncio.run(play(plan, lambda what: progress.update(f"{name}: {what}"), history))
    out.print(f"{name}: {', '.join(outcome.broken) or 'every promise kept'}")
    verdict = outcome.verdict
    if verdict.lost_where:
        out.print(f"  lost: {_counts(verdict.lost_where)}; at {_counts(verdict.lost_at)}")
    for example in verdict.examples if outcome.broken else ():
        out.print(f"  {example}")
    return outcome


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())


def _parser() -> Parser:
    parser = Parser(
        "hansa chaos",
        "Start real brokers and agents, publish at QoS 0, 1 and 2, break what can be broken, heal\n"
        "it, and account for every publication. Scenarios:\n\n"
        + "\n".join(f"  {each.name:<12}{each.about}" for each in SCENARIOS.values()),
        EXAMPLES,
    )
    parser.add_argument(
        "scenarios", nargs="+", type=one_of([*SCENARIOS, "all"]), metavar="SCENARIO"
    )
    parser.add_argument(
        "--topology", default="grid:3x3", metavar="WORD", help="as for `hansa up` (grid:3x3)"
    )
    parser.add_argument(
        "--seed", type=seed, default=1, metavar="N", help="decides who is hit, and when (1)"
    )
    parser.add_argument(
        "--seconds",
        type=amount(1, 86_400, "seconds"),
        default=30.0,
        metavar="S",
        help="how long there is trouble (30)",
    )
    parser.add_argument(
        "--rate",
        type=amount(1, 100_000, "a second"),
        default=100.0,
        metavar="N",
        help="publications per second of each publisher (100)",
    )
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="keep what clients saw, as JSON lines"
    )
    parser.add_argument(
        "--keep",
        type=path,
        metavar="DIR",
        help="keep everything in DIR, by scenario and node, with telemetry of agents and faults",
    )
    parser.add_argument(
        "--compare", action="store_true", help="also let a pair of bridged Mosquittos try"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    return parser


def _show(outcomes: dict[str, Outcome]) -> None:
    rows = table(
        "scenario",
        "faults",
        "published",
        "ok",
        "recovered",
        "unknown",
        "forfeited",
        "lost",
        "lost at 0",
        "twice (1, 2)",
        "disorder",
        "drained",
    )
    for name, outcome in outcomes.items():
        verdict = outcome.verdict
        rows.add_row(
            name,
            str(outcome.faults),
            str(verdict.published),
            str(verdict.fates["ok"]),
            str(verdict.fates["recovered"]),
            str(verdict.fates["unknown"]),
            str(verdict.fates["forfeited"]),
            str(verdict.fates["lost"]),
            str(verdict.fates["lost at QoS 0"]),
            f"{verdict.twice(1)}, {verdict.twice(2)}",
            str(verdict.inversions),
            _drained(outcome),
        )
    console().print(rows)


def _drained(outcome: Outcome) -> str:
    if outcome.is_rival:
        return ""
    return "not" if outcome.drained_s is None else f"{outcome.drained_s:.1f} s"


def _row(outcome: Outcome) -> dict[str, object]:
    # Not by asdict: it makes counters anew, and a counter made of pairs counts the pairs.
    verdict = {field.name: getattr(outcome.verdict, field.name) for field in fields(Verdict)}
    rest = {"faults": outcome.faults, "drained_s": outcome.drained_s, "broken": outcome.broken}
    return {**verdict, **rest}
