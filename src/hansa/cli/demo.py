"""`hansa demo`: a federation carries a message once, loses an agent and a broker, and heals."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hansa.cli import arguments, demo_report, live_demo, simulated_demo
from hansa.cli.arguments import Parser
from hansa.cli.demo_report import Account
from hansa.cli.results import console
from hansa.cli.stopping import run_until_stopped
from hansa.cli.story import Story
from hansa.errors import UsageError
from hansa.local.embedded import has_embedded
from hansa.local.mosquitto import find_mosquitto

EXAMPLES = """\
  hansa demo                  three real Mosquittos in a ring, half a minute
  hansa demo --compare        and the same ring with plain bridges
  hansa demo --keep           and leave it running, to try things
  hansa demo --simulated      without any broker, on virtual time"""


def run(given: Sequence[str]) -> int:
    """Tell one of the stories and return the exit code."""
    args = _parser().parse_args(given)
    if args.simulated:
        return simulated_demo.tell(Story(console()), args.seed)
    try:
        find_mosquitto()
    except UsageError as problem:
        story = Story(console())
        story.say(f"[yellow]{problem}.[/yellow]")
        if not has_embedded():
            story.say("Without it, and without amqtt, this is the simulated demo.\n")
            return simulated_demo.tell(story, args.seed)
        story.say("Until then a small broker in Python, amqtt, inside each agent has to do.\n")
        settings = {"HANSA_BROKER_OBSERVER": "embedded"}
    else:
        settings = {}
    if args.no_report or args.keep:
        return _run(settings, args, None)
    with tempfile.TemporaryDirectory(prefix="hansa-") as directory:
        account = Account(Path(directory))
        code = _run({**settings, **demo_report.SETTINGS}, args, account)
        agrees = demo_report.tell(Story(console()), account, args.report)
    return code if agrees else 1


def _run(settings: dict[str, str], args: argparse.Namespace, account: Account | None) -> int:
    story = Story(console(), beat_s=0.0)
    return run_until_stopped(live_demo.tell(story, settings, args.compare, args.keep, account))


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
        "--report", type=arguments.path, default=Path("demo-report.html"), metavar="FILE",
        help="the page that Spark makes of it (default demo-report.html)",
    )  # fmt: skip
    parser.add_argument(
        "--no-report", action="store_true", help="without that page, so without Spark"
    )
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
