"""`hansa doctor`: check whether an agent can work beside a broker, and print missing settings."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from hansa.agent.broker.mosquitto_conf import read_settings
from hansa.agent.broker.settings import OBSERVERS, BrokerSettings, RestSettings, check_rest
from hansa.agent.settings import AgentSettings, load_settings
from hansa.cli.arguments import Parser, broker_address
from hansa.cli.broker_report import (
    advice_rows,
    report_document,
    show_advices,
    show_report,
    shown,
)
from hansa.cli.target import print_json
from hansa.console.terminal import console
from hansa.printable import printable
from hansa.testbed.probes.advice import (
    BrokerAdvice,
    Severity,
    advise_on_broker,
    configuration_lines,
)
from hansa.testbed.probes.delivery import QUEUE_TRIED, QUEUE_TRIED_BRIEFLY
from hansa.testbed.probes.mosquitto_conf import (
    change_file,
    make_findings,
    missing_lines,
    needs_restart,
)
from hansa.testbed.probes.report import add_configuration, check_broker

PASSWORD_VARIABLE = "HANSA_BROKER_PASSWORD"
API_USERNAME, API_PASSWORD = "HANSA_REST_USERNAME", "HANSA_REST_PASSWORD"

RESTART = "then restart the broker: after SIGHUP it logs only new subscriptions"
RELOAD = "then send the broker SIGHUP: systemctl reload mosquitto"

CONFIGURATION_SUFFIX = ".conf"
"""A file with this suffix is a configuration of Mosquitto, not of an agent."""

NO_FILE = "/nonexistent"

EXAMPLES = """\
  hansa doctor localhost:1883
  hansa doctor localhost:1883 --log-file /var/log/mosquitto/mosquitto.log
  hansa doctor --config node.toml                        the broker of an agent
  hansa doctor --config mosquitto.conf                   a configuration, without its broker
  hansa doctor --config mosquitto.conf --fix             the same, and add what is missing
  hansa doctor localhost:1884 --api http://127.0.0.1:8222    a broker with an HTTP API
  hansa doctor localhost:1884 --observer static          a broker with configured filters
  hansa doctor broker.example:1883 --username hansa      password in HANSA_BROKER_PASSWORD
  hansa doctor federation                                a running federation; see its --help"""


def run(given: Sequence[str]) -> int:
    """Check a broker; exit code 1 if an agent cannot work beside it."""
    parser = Parser(
        "hansa doctor",
        "Check a broker: connection, version, log, whether an agent would know all\n"
        "subscriptions, limits, bridges, and delivery at QoS 1 and 2 when clients disconnect\n"
        "(tried on a topic below hansa/doctor/). Print the lines missing in mosquitto.conf, or\n"
        "the limits of another broker. Exit code 1 if an agent cannot work here.",
        EXAMPLES,
    )
    parser.add_argument(
        "broker", nargs="?", type=broker_address, metavar="HOST:PORT", help="address of the broker"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of an agent, whose broker is checked; or a configuration of Mosquitto"
        " (*.conf)",
    )
    parser.add_argument(
        "--log-file",
        type=Path,
        metavar="FILE",
        help="the broker's `log_dest file`, to compare with the broker's counters",
    )
    parser.add_argument(
        "--observer",
        choices=[name for name in OBSERVERS if name != "embedded"],
        help="how the agent will learn of subscriptions; by default as the make of the broker"
        " requires",
    )
    parser.add_argument(
        "--api",
        metavar="URL",
        help="HTTP API of the broker, to recognise it and to list its subscriptions;"
        f" user and password in {API_USERNAME} and {API_PASSWORD}",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="print only the lines missing in mosquitto.conf, and whether the broker must be"
        " restarted; with --config FILE.conf add them to the file, which is copied before",
    )
    parser.add_argument("--username", default="", metavar="NAME", help="user of the agent")
    parser.add_argument(
        "--password", metavar="TEXT", help=f"better in the variable {PASSWORD_VARIABLE}"
    )
    parser.add_argument("--tls", action="store_true", help="use TLS")
    parser.add_argument(
        "--tls-ca", default="", metavar="FILE", help="CA certificates to trust; implies --tls"
    )
    parser.add_argument(
        "--queue",
        action="store_true",
        help=f"try whether the broker keeps {QUEUE_TRIED} publications for a disconnected client;"
        " if it drops some, agents at this broker may raise the alarm `broker dropped messages`",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(given)
    if (args.broker is None) == (args.config is None):
        parser.error("give either HOST:PORT or --config FILE")
    _refuse_ignored(parser, args)
    if args.config is not None and args.config.suffix == CONFIGURATION_SUFFIX:
        return _check_configuration(args.config, args.fix, args.json)
    agent = None if args.config is None else load_settings(args.config)
    settings = _settings(args) if agent is None else agent.broker
    address = settings.address()
    if agent is None:
        address = replace(address, credentials_source=f"--username and {PASSWORD_VARIABLE}")
    with Console(stderr=True).status(f"connecting to {address}") as status:
        report = asyncio.run(
            check_broker(
                address,
                agent.broker.observer if agent is not None else args.observer or "",
                _log_file(settings, args),
                status.update,
                rest=_rest_settings(agent, args),
                queue_tried=QUEUE_TRIED if args.queue else QUEUE_TRIED_BRIEFLY,
            )
        )
    if settings.config_file:
        report = add_configuration(report, settings.config_file)
    if args.fix:
        return _show_fix(console(), configuration_lines(report.advices))
    if args.json:
        print_json(report_document(report))
    else:
        show_report(console(), report)
    return 0 if report.is_usable else 1


def _refuse_ignored(parser: Parser, args: argparse.Namespace) -> None:
    """Refuse options that another one makes useless."""
    of_address = ("--observer", "--api", "--username", "--password", "--tls", "--tls-ca")
    given = [each for each in of_address if getattr(args, each[2:].replace("-", "_"))]
    if args.config is not None and given:
        parser.error(f"{given[0]} is for HOST:PORT: with --config the settings in the file count")
    if args.password and not args.username:
        parser.error("--password needs --username")
    if args.json and args.fix:
        parser.error("--fix prints lines for mosquitto.conf: leave out --json")


def _rest_settings(agent: AgentSettings | None, args: argparse.Namespace) -> RestSettings | None:
    if agent is not None:
        return agent.rest if agent.broker.observer == "rest" else None
    if not args.api:
        return None
    login = (os.environ.get(API_USERNAME, ""), os.environ.get(API_PASSWORD, ""))
    settings = RestSettings("nats", args.api, *login)
    check_rest(settings)
    return settings


def _show_fix(out: Console, lines: Sequence[str]) -> int:
    """Print the missing lines, ready for mosquitto.conf."""
    for line in lines:
        out.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    if lines:
        remedy = RESTART if needs_restart(lines) else RELOAD
        out.print(f"# {remedy}", markup=False, highlight=False, soft_wrap=True)
    return 1 if lines else 0


def _exit_code(advices: Sequence[BrokerAdvice]) -> int:
    return 1 if any(advice.severity is Severity.ERROR for advice in advices) else 0


def _check_configuration(path: Path, fixes: bool, as_json: bool) -> int:
    settings = read_settings(path)
    findings = make_findings(settings)
    advices, out = advise_on_broker(findings), console()
    if as_json:
        print_json({"findings": advice_rows(advices)})
        return _exit_code(advices)
    if fixes:
        return _fix_configuration(out, path, missing_lines(settings, configuration_lines(advices)))
    if findings.logs_subscribe and findings.has_history:
        text = f"{path}: an agent would know every subscription since the start of the broker"
        out.print(f"[green]✓[/green] {shown(text)}")
    show_advices(out, advices)
    return _exit_code(advices)


def _fix_configuration(out: Console, path: Path, lines: Sequence[str]) -> int:
    if lines:
        copy = change_file(path, lines)
        out.print(f"# {printable(str(path))} was changed; {printable(str(copy))} is as before")
    return _show_fix(out, lines) and 0


def _settings(args: argparse.Namespace) -> BrokerSettings:
    host, port = args.broker
    password = args.password or os.environ.get(PASSWORD_VARIABLE, "")
    return BrokerSettings(
        host=host,
        port=port,
        username=args.username,
        password=password if args.username else "",
        tls=args.tls or bool(args.tls_ca),
        tls_ca=args.tls_ca,
    )


def _log_file(settings: BrokerSettings, args: argparse.Namespace) -> Path | None:
    """Return the log file to compare; None if its path is unknown. An agent whose settings do not
    name one has none."""
    if args.log_file is not None:
        return Path(args.log_file)
    return None if args.config is None else Path(settings.log_file or NO_FILE)
