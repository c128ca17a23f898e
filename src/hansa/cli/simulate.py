"""`hansa simulate`: run a scenario or any topology, for one seed or many."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.cli import arguments
from hansa.cli.arguments import SEED_MAX, Parser, decimal_number, one_of, whole_number
from hansa.errors import UsageError
from hansa.launcher import command_line
from hansa.protocol.settings import PRESETS, ManagementBy, Metric, NonMemberForwarding

if TYPE_CHECKING:
    from hansa.simulator.request import SimulationRequest
    from hansa.simulator.scenarios.catalogue import ScenarioResult
    from hansa.simulator.world.transcript import TranscriptListener

DEFAULT_SEED = 1
RUNS_MAX = 1_000_000

FIXED_BY_SCENARIO = (
    *("redundancy", "metric", "management", "group_depth", "delay", "jitter", "loss", "duplicate"),
    *("reorder", "subscribe", "subscribers", "filter", "publish", "publications", "qos", "faults"),
    *("at", "duration"),
)
"""Options that every scenario sets itself: its expectations depend on them."""
FIXED_BY_CLAIM = ("strategy",)
"""Options that a scenario of a paper sets besides."""
DRAWN_BY_SEED = ("preset", "non_member_forwarding")
"""Options that a scenario drawn from the seed sets besides."""

EXAMPLES = """\
  hansa simulate --list
  hansa simulate --scenario spohn-2020
  hansa simulate --scenario machado-25 --preset machado     the same with the paper's timers
  hansa simulate --topology ring:3 --subscribe '1:plant/#' --publish 0:plant/temp
  hansa simulate --topology grid:4x4 --at '2 crash 5' --at '6 restart 5' --transcript story.txt
  hansa simulate --topology random:25,4 --subscribers 10 --faults crashes=3,partitions=1 --runs 100
  hansa simulate --scenario random --seed 2000 --runs 100   topology, faults and traffic at random
  hansa simulate --scenario random --strategy paths --runs 100          with another strategy
  hansa simulate --campaign --seeds 0-1999                  every strategy, with a ledger; resumable
  hansa simulate --campaign --seeds 0-19999 --in-turn       one strategy for each seed
  hansa simulate --scenario overlap --json | python3 -m json.tool

exit code: 0 all promises kept, 1 some broken, 2 bad input, 70 internal error
"""


def run(given: Sequence[str]) -> int:
    args = make_parser().parse_args(given)
    if args.list:
        return _list_scenarios()
    _refuse_contradictions(args)
    if args.campaign:
        from hansa.cli import campaign

        return campaign.run(args)
    if args.runs > 1:
        return _run_many(args, given)
    return _run_one(args, given)


def parse_request(given: Sequence[str]) -> "SimulationRequest":
    """Parse options of `hansa simulate`; for sweeps, whose cases are written in them."""
    args = make_parser().parse_args(given)
    _refuse_contradictions(args)
    return _make_request(args)


def make_parser() -> Parser:
    """Return the parser. Imports nothing slow, so that `--help` is fast."""
    made = Parser(
        "hansa simulate",
        "Run a federation in virtual time, with the protocol code of the live agent, and check\n"
        "all promises while it runs. The same seed and options give the same run, bit for bit.",
        EXAMPLES,
    )
    _add_what(made)
    _add_protocol(made)
    _add_links(made)
    _add_clients(made)
    return made


def _add_what(made: Parser) -> None:
    group = made.add_argument_group("what to run")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--list", action="store_true", help="list the scenarios and what they claim")
    one.add_argument(
        "--scenario", metavar="NAME",
        help="an experiment of the papers, checked; random: the seed draws everything",
    )  # fmt: skip
    one.add_argument(
        "--campaign", action="store_true",
        help="the scenario random with the seeds of --seeds and every strategy, on all cores;"
        " continues with the seeds that the ledger lacks",
    )  # fmt: skip
    one.add_argument(
        "--topology",
        metavar="WORD",
        help="ring:N line:N star:N tree:N full:N grid:RxC random:N,DEGREE geometric:N,RADIUS"
        ' file:PATH (JSON {"links": [[0, 1], ...]} or lines a-b); default: ring:3',
    )
    group.add_argument(
        "--seed", type=arguments.seed, default=DEFAULT_SEED, metavar="N",
        help=f"seed of everything random (default {DEFAULT_SEED}); printed with every result",
    )  # fmt: skip
    group.add_argument(
        "--runs", type=whole_number(1, RUNS_MAX, "runs"), default=1, metavar="N",
        help="run N seeds from --seed on, on all cores; stop at the first that breaks a promise",
    )  # fmt: skip
    group.add_argument(
        "--seeds", metavar="FIRST-LAST",
        help="seeds of a campaign (default 0-49999)",
    )  # fmt: skip
    group.add_argument(
        "--ledger", metavar="FILE", type=arguments.path,
        help="where a campaign records every run, as a line of JSON (default campaign.jsonl)",
    )  # fmt: skip
    group.add_argument(
        "--cores", type=whole_number(1, 1024, "processes"), metavar="N",
        help="processes of a campaign (default: one per core)",
    )  # fmt: skip
    group.add_argument(
        "--in-turn", action="store_true", default=None,
        help="in a campaign, play each seed with one strategy only: all of them in turn",
    )  # fmt: skip
    group.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )
    group.add_argument(
        "--transcript",
        metavar="FILE",
        type=arguments.path,
        help="write all events to FILE, one line each",
    )
    group.add_argument(
        "--telemetry", metavar="DIR", type=arguments.path,
        help="write telemetry, as live agents do, to an empty directory",
    )  # fmt: skip


def _add_protocol(made: Parser) -> None:
    group = made.add_argument_group("protocol")
    group.add_argument(
        "--preset", type=one_of(PRESETS), metavar="NAME",
        help="timers: default, or machado for those of Machado 2023, which take minutes",
    )  # fmt: skip
    group.add_argument(
        "--strategy", type=arguments.strategy, metavar="NAME",
        help="routing strategy, see docs/strategies.md (default mesh)",
    )  # fmt: skip
    group.add_argument(
        "--redundancy", type=whole_number(1, 16, "parents"), metavar="N",
        help="parents per mesh member; 1 makes a tree (default 2)",
    )  # fmt: skip
    group.add_argument(
        "--non-member-forwarding", type=one_of(NonMemberForwarding), metavar="one|all|random",
        help="parents to which a node outside the mesh sends a publication (default one)",
    )  # fmt: skip
    group.add_argument(
        "--metric",
        type=one_of(Metric),
        metavar="hops|rtt",
        help="length of a path (default hops)",
    )
    group.add_argument(
        "--management", type=one_of(ManagementBy), metavar="id|capacity",
        help="core of the management group: the smallest id, or the highest random capacity"
        " (default id)",
    )  # fmt: skip
    group.add_argument(
        "--group-depth", type=whole_number(0, 32, "levels"), metavar="N",
        help="filters that agree in N levels share a group; 0: a group per filter (default 0)",
    )  # fmt: skip


def _add_links(made: Parser) -> None:
    group = made.add_argument_group("links")
    group.add_argument(
        "--delay", type=decimal_number(0, 60_000, "milliseconds"), metavar="MS",
        help="one-way delay of a link in milliseconds (default 1)",
    )  # fmt: skip
    group.add_argument(
        "--jitter", type=decimal_number(0, 60_000, "milliseconds"), metavar="MS",
        help="largest random addition to the delay of a frame, in milliseconds (default 0)",
    )  # fmt: skip
    for name, what in (
        ("loss", "is lost"),
        ("duplicate", "arrives twice"),
        ("reorder", "is held back"),
    ):
        group.add_argument(
            f"--{name}", type=decimal_number(0, 0.9), metavar="P",
            help=f"probability from 0 to 0.9 that a frame {what}; above 0 makes datagram links",
        )  # fmt: skip


def _add_clients(made: Parser) -> None:
    group = made.add_argument_group("clients, faults, time (not with --scenario)")
    group.add_argument(
        "--subscribe", action="append", type=arguments.node_and_text, metavar="NODE:FILTER",
        help="subscribe at a node; may be repeated, in this order",
    )  # fmt: skip
    group.add_argument(
        "--subscribers", type=whole_number(0, 100_000, "subscribers"), metavar="N",
        help="number of subscriptions at random nodes (default 3 unless --subscribe is given)",
    )  # fmt: skip
    group.add_argument(
        "--filter", action="append", metavar="FILTER",
        help="filter of the random subscribers; may be repeated (default plant/#)",
    )  # fmt: skip
    group.add_argument(
        "--publish", action="append", type=arguments.node_and_text, metavar="NODE:TOPIC",
        help="publish at a node; may be repeated (default: plant/temp at a random node)",
    )  # fmt: skip
    group.add_argument(
        "--publications", type=whole_number(0, 100_000, "publications"), metavar="N",
        help="publications of each publisher, spread over the duration (default 10)",
    )  # fmt: skip
    group.add_argument(
        "--qos", type=whole_number(0, 2), metavar="N",
        help="QoS of these publications and those of --at; with 1 or 2 agents have disks"
        " (default 0)",
    )  # fmt: skip
    group.add_argument(
        "--faults", metavar="KIND=N,...",
        help="random faults: cuts silent-cuts one-way-cuts partitions flaps crashes power-offs"
        " freezes stalls disk-failures clock-jumps refusals lossy-restarts broker-restarts"
        " link-changes roll-backs clones byzantine",
    )  # fmt: skip
    group.add_argument(
        "--at", action="append", metavar="'S ACTION'",
        help="action at second S of the duration, on nodes N, M: crash N, power-off N, restart N,"
        " restart N without state, freeze N 2 s, stall N 2 s (no sync of its disk completes; with"
        " --qos), fill-disk N 2 s (every write fails; with --qos), fail-disk N"
        " (until it is restarted; with --qos), set-clock N -3600 s (takes effect at the next"
        " start), refuse N 2 s (the broker disconnects the agent and keeps its session), back-up N,"
        " roll-back N (to the backup; with --qos), clone N near M (a copy that runs for"
        " 5 s), byzantine N replay-records (or another attack of a compromised member, see"
        " docs/simulator.md),"
        " restart-broker N, restart-broker N 2 s (clients"
        " reconnect after 2 s), cut N-M, silence N-M, silence N>M (one way), flap N-M 5 Hz 2 s,"
        " restore N-M, partition 0,1|2,3,"
        " heal, link N-M, unlink N-M, subscribe N FILTER, unsubscribe N FILTER, publish N TOPIC;"
        " may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--duration", type=decimal_number(0, 1_000_000, "seconds"), metavar="S",
        help="virtual seconds of traffic and faults, after convergence (default 10)",
    )  # fmt: skip


def _refuse_contradictions(args: argparse.Namespace) -> None:
    _refuse_campaign_options(args)
    if args.scenario is not None:
        from hansa.simulator.scenarios.catalogue import find_scenario

        is_drawn = find_scenario(args.scenario).is_drawn_from_seed
        for name in (*FIXED_BY_SCENARIO, *(DRAWN_BY_SEED if is_drawn else FIXED_BY_CLAIM)):
            if getattr(args, name) is not None:
                flag = name.replace("_", "-")
                raise UsageError(f"a scenario sets --{flag} itself; omit it, or use --topology")
    for name in ("transcript", "telemetry"):
        if getattr(args, name) and args.runs > 1:
            raise UsageError(f"--{name} needs a single run; omit --runs or --{name}")
    if args.seed + args.runs - 1 > SEED_MAX:
        raise UsageError(
            f"{args.runs} runs from seed {args.seed} exceed the largest seed, {SEED_MAX};"
            " give a smaller --seed"
        )


def _refuse_campaign_options(args: argparse.Namespace) -> None:
    if not args.campaign:
        for name in ("seeds", "ledger", "cores", "in_turn"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} needs --campaign")
        return
    if args.in_turn and args.strategy:
        raise UsageError("--in-turn plays every strategy; omit it or --strategy")
    others = ("transcript", "telemetry", *FIXED_BY_SCENARIO, *DRAWN_BY_SEED)
    given = [name for name in others if getattr(args, name) is not None]
    if args.runs > 1:
        given.append("runs")
    if args.seed != DEFAULT_SEED:
        given.append("seed")
    if given:
        flag = given[0].replace("_", "-")
        raise UsageError(f"--campaign sets --{flag} itself; omit it, or use --scenario random")


# ---------------------------------------------------------------- running


def _run_one(args: argparse.Namespace, given: Sequence[str]) -> int:
    from hansa.cli import simulation_tables
    from hansa.simulator.request import run_request

    with ExitStack() as stack:
        listener = _listener(args.transcript, stack) if args.transcript else None
        result = run_request(_make_request(args), args.seed, listener, args.telemetry)
    if args.topology is not None:
        _warn_if_partitioned(args)
    if args.json:
        print(json.dumps(_result_json(args, result, given), indent=2))
    else:
        simulation_tables.print_run(args, result, replay_command(given, args.seed))
    return 0 if result.result.ok else 1


def _make_request(args: argparse.Namespace) -> "SimulationRequest":
    from hansa.simulator.request import SimulationRequest

    names = [field.name for field in fields(SimulationRequest)]
    return SimulationRequest(**{name: getattr(args, name) for name in names})


def _run_many(args: argparse.Namespace, given: Sequence[str]) -> int:
    from hansa.cli import simulation_tables
    from hansa.console.progress import progress_bar
    from hansa.simulator.request import run_request
    from hansa.simulator.seed_runner import find_first_failure

    seeds = range(args.seed, args.seed + args.runs)
    with progress_bar() as progress:
        bar = progress.add_task(f"seeds {seeds[0]} to {seeds[-1]}", total=len(seeds))
        run_seed = partial(run_request, _make_request(args))
        tally = find_first_failure(run_seed, seeds, lambda: progress.advance(bar))
    if args.json:
        failed = _result_json(args, tally.failed, given) if tally.failed else None
        values = {"scenario": args.scenario, "seed": args.seed, "runs": args.runs}
        print(json.dumps({**values, "passed": tally.passed, "failed": failed}, indent=2))
    else:
        simulation_tables.print_tally(args, tally)
    if tally.failed is None:
        return 0
    seed = tally.failed.result.seed
    print(
        f"hansa: seed {seed} breaks a promise; replay: {replay_command(given, seed)}",
        file=sys.stderr,
    )
    return 1


def _listener(path: Path, stack: ExitStack) -> "TranscriptListener":
    from hansa.simulator.world.transcript import format_line

    try:
        file = stack.enter_context(path.open("w", encoding="utf-8"))
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise UsageError(f"cannot write {path}: {reason}") from None

    def write(now: float, place: int | None, what: object) -> None:
        file.write(format_line(now, place, str(what)))

    return write


def _warn_if_partitioned(args: argparse.Namespace) -> None:
    from hansa.simulator.topologies import connected_components, parse_topology

    count = len(connected_components(parse_topology(args.topology, args.seed)))
    if count > 1:
        print(
            f"hansa: {args.topology} consists of {count} parts that are not connected",
            file=sys.stderr,
        )


def replay_command(given: Sequence[str], seed: int) -> str:
    """Return the command that repeats one seed of these arguments."""
    kept: list[str] = []
    words = iter(given)
    for word in words:
        if word in ("--seed", "--runs"):
            next(words, None)
        elif word != "--json" and not word.startswith(("--seed=", "--runs=")):
            kept.append(word)
    return command_line("simulate", *kept, "--seed", str(seed))


def _result_json(
    args: argparse.Namespace, result: "ScenarioResult", given: Sequence[str]
) -> dict[str, object]:
    from hansa.simulator.request import PRESET
    from hansa.simulator.scenarios.catalogue import SCENARIOS

    drawn = args.scenario is not None and SCENARIOS[args.scenario].is_drawn_from_seed
    return {
        **json.loads(result.result.to_json()),
        "scenario": args.scenario,
        "preset": None if drawn else args.preset or PRESET,
        "claims": [asdict(row) for row in result.rows],
        "replay": replay_command(given, result.result.seed),
    }


def _list_scenarios() -> int:
    from hansa.cli import simulation_tables

    simulation_tables.print_scenarios()
    return 0
