"""`hansa chaos soak`: hours of live load with all faults, and one account of all publications."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hansa.cli.arguments import Parser, decimal_number, one_of, path, whole_number
from hansa.console.progress import ConsoleProgress
from hansa.console.terminal import console, make_table, say
from hansa.launcher import command_line
from hansa.run_ledger import RunLedger, describe_other_code
from hansa.simulator.scenarios.scenario import format_duration
from hansa.testbed.cancellation import run_until_stopped
from hansa.testbed.chaos.run import ChaosRun
from hansa.testbed.chaos.scenarios import SCENARIOS
from hansa.testbed.chaos.soak import SOAK_SCENARIOS, Soak, SoakPiece

FAILURES_SHOWN_MAX = 10

EXAMPLES = """\
  hansa chaos soak                                        10,000,000 messages, all scenarios in turn
  hansa chaos soak --messages 2000000 --ledger soak.jsonl
  hansa chaos soak kill-agents pairs --messages 100000    only these scenarios

exit code: 0 all promises kept, 1 some broken, 2 bad input, 70 internal error"""


def run(arguments: Sequence[str]) -> int:
    """Run the pieces that the ledger lacks; exit code 1 if a promise was broken in any."""
    given = _parser().parse_args(arguments)
    names = list(dict.fromkeys(given.scenarios)) or list(SOAK_SCENARIOS)
    template = ChaosRun(
        SCENARIOS[names[0]], given.topology, seconds=given.seconds, rate=given.rate, drain_s=120.0
    )
    for name in names:
        ChaosRun(SCENARIOS[name], given.topology).validate()
    with RunLedger(given.ledger, SoakPiece) as ledger:
        soak = Soak(given.messages, names, template, ledger.rows)
        if others := describe_other_code(ledger.rows, soak.code):
            say(f"{ledger.path} has {others}; they stay, and the account begins anew")
        try:
            _run_pieces(soak, ledger)
            is_stopped = False
        except KeyboardInterrupt:
            is_stopped = True
    if given.json:
        print(json.dumps(_account_json(soak), indent=2))
    else:
        _print_account(soak)
    if is_stopped:
        print("hansa: stopped; the same command continues", file=sys.stderr)
        return 130
    return 1 if soak.failed else 0


def _run_pieces(soak: Soak, ledger: RunLedger[SoakPiece]) -> None:
    before, began = soak.published, time.monotonic()
    with ConsoleProgress(_describe_progress(soak, 0.0)) as progress:
        while (chaos_run := soak.next_run()) is not None:
            published = soak.published - before
            rate = published / (time.monotonic() - began) if published else 0.0
            name, number = chaos_run.scenario.name, chaos_run.seed
            progress.show(f"piece {number}, {name}; {_describe_progress(soak, rate)}")
            running = soak.run_piece(chaos_run, ledger.path.with_suffix(".failed"))
            piece = run_until_stopped(running)
            ledger.append(piece)
            if piece.violations:
                progress.warn(_describe_failure(piece))


def _parser() -> Parser:
    parser = Parser(
        "hansa chaos soak",
        "Run scenarios of `hansa chaos` in turn until the given number of messages was published.\n"
        "Every piece is recorded in a ledger; the same command continues after an interruption.\n"
        "The events of a piece that broke a promise are kept beside it, in a directory with the\n"
        "suffix .failed; `hansa chaos --judge` reads them.",
        EXAMPLES,
    )
    parser.add_argument(
        "scenarios", nargs="*", type=one_of(SCENARIOS), metavar="SCENARIO",
        help="only these (default: all with faults)",
    )  # fmt: skip
    parser.add_argument(
        "--messages", type=whole_number(1, 10**12, "messages"), default=10_000_000, metavar="N",
        help="publications of all pieces together (10,000,000)",
    )  # fmt: skip
    parser.add_argument(
        "--ledger", type=path, default=Path("soak.jsonl"), metavar="FILE",
        help="where pieces are recorded, as lines of JSON (soak.jsonl)",
    )  # fmt: skip
    parser.add_argument(
        "--topology", default="grid:3x3", metavar="WORD", help="as for `hansa up` (grid:3x3)"
    )
    parser.add_argument(
        "--seconds", type=decimal_number(1, 86_400, "seconds"), default=60.0, metavar="S",
        help="seconds of faults of a piece (60)",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=decimal_number(1, 100_000, "a second"), default=300.0, metavar="N",
        help="publications per second of each publisher (300)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


# ---------------------------------------------------------------- output


def _describe_progress(soak: Soak, rate: float) -> str:
    done = f"{soak.published:,} of {soak.messages:,} messages, {len(soak.failed)} pieces failed"
    if not rate:
        return done
    left = format_duration((soak.messages - soak.published) / rate)
    return f"{done}, {rate * 3600:,.0f} per hour, {left} left"


def _describe_failure(piece: SoakPiece) -> str:
    return (
        f"piece {piece.number}, {piece.scenario}: {', '.join(piece.violations)}\n"
        f"  repeat: {command_line('chaos', *piece.arguments)}"
    )


def _account_json(soak: Soak) -> dict[str, object]:
    account = soak.account()
    return {
        # Not asdict of all: it rebuilds a Counter from its pairs, which counts the pairs.
        **{name: getattr(account, name) for name in account.__slots__},
        "code": soak.code,
        "failed_pieces": [asdict(piece) for piece in soak.failed],
    }


def _print_account(soak: Soak) -> None:
    out, account = console(), soak.account()
    fates = account.fates
    twice = ", ".join(f"{count:,} at QoS {qos}" for qos, count in enumerate(account.duplicates))
    rows = {
        "pieces, of which broke a promise": f"{account.pieces:,}, {account.failed:,}",
        "published, acknowledged": f"{account.published:,}, {account.acknowledged:,}",
        "deliveries on time, late": f"{fates['ok']:,}, {fates['recovered']:,}",
        "lost at QoS 1 and 2": f"{fates['lost']:,}",
        "lost at QoS 0": f"{fates['lost at QoS 0']:,}",
        "forfeited with lost state": f"{fates['forfeited']:,}",
        "neither acknowledged nor delivered": f"{fates['unknown']:,}",
        "refused by a broker": f"{fates['refused']:,}",
        "delivered twice": f"{twice}; {sum(account.unexplained):,} without a fault that allows it",
        "out of order, never published": f"{account.inversions:,}, {account.phantoms:,}",
        "faults": f"{account.faults.total():,}: "
        + ", ".join(f"{kind} {count:,}" for kind, count in sorted(account.faults.items())),
        "duration": format_duration(account.took_s),
        "code": soak.code,
    }
    table = make_table("", "")
    for name, value in rows.items():
        table.add_row(name, value)
    out.print(table)
    failed = soak.failed
    for piece in failed[:FAILURES_SHOWN_MAX]:
        out.print(_describe_failure(piece), style="red", markup=False, soft_wrap=True)
    if len(failed) > FAILURES_SHOWN_MAX:
        out.print(f"{len(failed) - FAILURES_SHOWN_MAX} more failed; --json has all", style="red")
