"""`hansa demo`: a live federation, a killed agent and a killed broker; or a simulation of it."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hansa.cli import arguments
from hansa.cli.arguments import Parser
from hansa.console.terminal import console
from hansa.errors import UsageError
from hansa.testbed.cancellation import run_until_stopped
from hansa.testbed.demo import live, report, simulated
from hansa.testbed.demo.output import DemoOutput
from hansa.testbed.demo.report import DemoDirectory, DemoRecord
from hansa.testbed.embedded import is_amqtt_installed
from hansa.testbed.mosquitto import find_mosquitto

EXAMPLES = """\
  hansa demo                  three real Mosquittos in a ring, then tables and a report
  hansa demo --no-report      without Spark, about 20 seconds
  hansa demo --compare        and the same ring with plain bridges
  hansa demo --keep           and keep it running afterwards
  hansa demo --simulated      without any broker, in virtual time"""


def run(given: Sequence[str]) -> int:
    args = _parser().parse_args(given)
    if args.simulated:
        return simulated.run_simulated_demo(DemoOutput(console()), args.seed)
    try:
        find_mosquitto()
    except UsageError as problem:
        output = DemoOutput(console())
        output.say(f"[yellow]{problem}.[/yellow]")
        if not is_amqtt_installed():
            output.say("Neither Mosquitto nor amqtt is installed: this is the simulated demo.\n")
            return simulated.run_simulated_demo(output, args.seed)
        output.say("Without it, each agent runs amqtt, a small broker in Python.\n")
        settings = {"HANSA_BROKER_OBSERVER": "embedded"}
    else:
        settings = {}
    if args.no_report or args.keep:
        return _run(settings, args, None)
    directory = DemoDirectory(args.out)
    with tempfile.TemporaryDirectory(prefix="hansa-") as temporary:
        record = DemoRecord(Path(temporary))
        code = _run({**settings, **report.TELEMETRY_ENVIRONMENT}, args, record)
        directory.fill(record.directory)
    agrees = report.write_report(DemoOutput(console()), record, directory)
    return code if agrees else 1


def _run(settings: dict[str, str], args: argparse.Namespace, record: DemoRecord | None) -> int:
    output = DemoOutput(console(), pause_s=0.0)
    return run_until_stopped(live.run_live_demo(output, settings, args.compare, args.keep, record))


def _parser() -> Parser:
    parser = Parser(
        "hansa demo",
        "Join three real Mosquittos in a ring with Hansa's agents: a publication arrives once\n"
        "at each broker, and the federation recovers from a killed agent and a killed broker.",
        EXAMPLES,
    )
    parser.add_argument(
        "--compare", action="store_true", help="also show the same ring with plain bridges"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the federation running until Ctrl-C; no report"
    )
    parser.add_argument(
        "--out", type=arguments.path, default=Path("hansa-demo"), metavar="DIR",
        help="directory for the recordings of the agents, and for tables and report made by Spark;"
        " replaces those of an earlier demo (default hansa-demo)",
    )  # fmt: skip
    parser.add_argument(
        "--no-report", action="store_true",
        help="record nothing, and make no tables and no report: does not need Spark",
    )  # fmt: skip
    parser.add_argument(
        "--simulated", action="store_true", help="simulate it, with more nodes and no broker"
    )
    parser.add_argument(
        "--seed",
        type=arguments.seed,
        default=1,
        metavar="N",
        help="with --simulated: seed of everything random (default 1)",
    )
    return parser
