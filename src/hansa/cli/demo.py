"""`hansa demo`: a federation carries a message once, loses an agent and a broker, and heals."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hansa.cli import arguments
from hansa.cli.arguments import Parser
from hansa.console.terminal import console
from hansa.errors import UsageError
from hansa.testbed.demo import live, report, simulated
from hansa.testbed.demo.report import DemoRecord, Place
from hansa.testbed.demo.story import DemoOutput
from hansa.testbed.embedded import is_amqtt_installed
from hansa.testbed.mosquitto import find_mosquitto
from hansa.testbed.signals import run_until_stopped

EXAMPLES = """\
  hansa demo                  three real Mosquittos in a ring, half a minute
  hansa demo --compare        and the same ring with plain bridges
  hansa demo --keep           and leave it running, to try things
  hansa demo --simulated      without any broker, on virtual time"""


def run(given: Sequence[str]) -> int:
    """Tell one of the stories and return the exit code."""
    args = _parser().parse_args(given)
    if args.simulated:
        return simulated.run_simulated_demo(DemoOutput(console()), args.seed)
    try:
        find_mosquitto()
    except UsageError as problem:
        story = DemoOutput(console())
        story.say(f"[yellow]{problem}.[/yellow]")
        if not is_amqtt_installed():
            story.say("Without it, and without amqtt, this is the simulated demo.\n")
            return simulated.run_simulated_demo(story, args.seed)
        story.say("Until then a small broker in Python, amqtt, inside each agent has to do.\n")
        settings = {"HANSA_BROKER_OBSERVER": "embedded"}
    else:
        settings = {}
    if args.no_report or args.keep:
        return _run(settings, args, None)
    place = Place(args.out)
    with tempfile.TemporaryDirectory(prefix="hansa-") as directory:
        record = DemoRecord(Path(directory))
        code = _run({**settings, **report.TELEMETRY_ENVIRONMENT}, args, record)
        place.fill(record.directory)
    agrees = report.write_report(DemoOutput(console()), record, place)
    return code if agrees else 1


def _run(settings: dict[str, str], args: argparse.Namespace, record: DemoRecord | None) -> int:
    story = DemoOutput(console(), pause_s=0.0)
    return run_until_stopped(live.run_live_demo(story, settings, args.compare, args.keep, record))


def _parser() -> Parser:
    parser = Parser(
        "hansa demo",
        "Watch three real Mosquittos, joined in a ring by Hansa's agents, carry one message once,\n"
        "lose an agent and a broker, and heal.",
        EXAMPLES,
    )
    parser.add_argument(
        "--compare", action="store_true", help="also show what plain bridges do in the same ring"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the federation running until Ctrl-C; no report"
    )
    parser.add_argument(
        "--out", type=arguments.path, default=Path("hansa-demo"), metavar="DIR",
        help="where to leave what the agents recorded, and the tables and the report that Spark"
        " makes of it; replaces those of an earlier demo (default hansa-demo)",
    )  # fmt: skip
    parser.add_argument(
        "--no-report", action="store_true",
        help="record nothing and leave nothing: no tables and no report, so no Spark",
    )  # fmt: skip
    parser.add_argument(
        "--simulated", action="store_true", help="simulate it, with more nodes and no broker"
    )
    parser.add_argument(
        "--seed",
        type=arguments.seed,
        default=1,
        metavar="N",
        help="with --simulated: decides all that is random (default 1)",
    )
    return parser
