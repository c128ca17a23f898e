"""`hansa doctor`: check whether an agent can work beside a broker, and print missing settings."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.broker.delivery_class import DeliveryClass, DeliveryProbeResult, classify
from hansa.agent.settings import OBSERVERS, BrokerSettings, broker_address, load_settings
from hansa.cli.arguments import Parser
from hansa.console.terminal import console
from hansa.printable import printable
from hansa.testbed.probes.advice import (
    BrokerAdvice,
    BrokerFindings,
    Severity,
    advise_on_broker,
    configuration_lines,
)
from hansa.testbed.probes.delivery import QUEUE_TRIED, QUEUE_TRIED_BRIEFLY
from hansa.testbed.probes.examination import (
    Examination,
    advise_on_examination,
    examine_broker,
)
from hansa.testbed.probes.mosquitto_conf import make_findings, read_settings

PASSWORD_VARIABLE = "HANSA_BROKER_PASSWORD"

CONFIGURATION_SUFFIX = ".conf"
"""A file with this suffix is a configuration of Mosquitto, not of an agent."""

NO_FILE = "/nonexistent"

EXAMPLES = """\
  hansa doctor localhost:1883
  hansa doctor localhost:1883 --log-file /var/log/mosquitto/mosquitto.log
  hansa doctor --config node.toml                        the broker of an agent
  hansa doctor --config mosquitto.conf                   a configuration, without its broker
  hansa doctor localhost:1884 --observer static          a broker other than Mosquitto
  hansa doctor broker.example:1883 --username hansa      password in HANSA_BROKER_PASSWORD"""

SIGHUP_REMEDY = (
    "Log settings take effect at SIGHUP, but Mosquitto then logs only new subscriptions. If clients"
    " are connected, make them reconnect, or restart the broker instead."
)

MARKS = {
    Severity.ERROR: "[red]✗[/red]",
    Severity.WARNING: "[yellow]![/yellow]",
    Severity.NOTE: "[dim]·[/dim]",
}


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
        "broker", nargs="?", type=_address, metavar="HOST:PORT", help="address of the broker"
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
        default="mosquitto",
        choices=[name for name in OBSERVERS if name != "embedded"],
        help="how the agent will learn of subscriptions (%(default)s); others need no log",
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
    args = parser.parse_args(given)
    if (args.broker is None) == (args.config is None):
        parser.error("give either HOST:PORT or --config FILE")
    if args.config is not None and args.config.suffix == CONFIGURATION_SUFFIX:
        return _check_configuration(args.config)
    settings = _settings(args) if args.config is None else load_settings(args.config).broker
    address = broker_address(settings)
    if args.config is None:
        address = replace(address, credentials_source=f"--username and {PASSWORD_VARIABLE}")
    is_observed = settings.observer == "mosquitto"
    queue_tried = QUEUE_TRIED if args.queue else QUEUE_TRIED_BRIEFLY
    log_file = _log_file(settings, args)
    with Console(stderr=True).status(f"connecting to {address}") as status:
        examination = asyncio.run(
            examine_broker(address, log_file, is_observed, queue_tried, status.update)
        )
    advices = advise_on_examination(examination, settings.observer)
    _show(console(), address, examination, advices, is_observed)
    return _exit_code(advices)


def _exit_code(advices: Sequence[BrokerAdvice]) -> int:
    return 1 if any(advice.severity is Severity.ERROR for advice in advices) else 0


def _check_configuration(path: Path) -> int:
    findings = make_findings(read_settings(path))
    advices, out = advise_on_broker(findings), console()
    if findings.logs_subscribe and findings.has_history:
        text = f"{path}: an agent would know every subscription since the start of the broker"
        out.print(f"[green]✓[/green] {_shown(text)}")
    _show_advices(out, advices)
    return _exit_code(advices)


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
        observer=args.observer,
    )


def _log_file(settings: BrokerSettings, args: argparse.Namespace) -> Path | None:
    """Return the log file to compare; None if its path is unknown. An agent whose settings do not
    name one has none."""
    if args.log_file is not None:
        return Path(args.log_file)
    return None if args.config is None else Path(settings.log_file or NO_FILE)


def _show(
    out: Console,
    address: BrokerAddress,
    examination: Examination,
    advices: Sequence[BrokerAdvice],
    has_log: bool,
) -> None:
    findings, limits = examination.findings, examination.findings.limits
    version = findings.version or "a broker of unknown make"
    out.print(f"[green]✓[/green] {_shown(address)}: {_shown(version)}")
    if limits is not None:
        spoken = "MQTT 5" if limits.version == 5 else "MQTT 3.1.1"
        out.print(f"[green]✓[/green] {spoken}, receive maximum {limits.receive_maximum}")
    if has_log:
        _show_log(out, findings)
    if findings.delivery is not None:
        _show_class(out, findings.delivery)
    _show_advices(out, advices)


def _show_advices(out: Console, advices: Sequence[BrokerAdvice]) -> None:
    for advice in advices:
        out.print(f"{MARKS[advice.severity]} {_shown(advice.problem)}")
    required = [advice for advice in advices if advice.severity is not Severity.NOTE]
    lines = configuration_lines(tuple(required))
    _show_lines(out, "Add to mosquitto.conf:", lines)
    if any(line.startswith("log_") for line in lines):
        out.print(f"\n{SIGHUP_REMEDY}")
    notes = configuration_lines(tuple(a for a in advices if a.severity is Severity.NOTE))
    _show_lines(out, "Recommended, unless set already:", notes)
    if not any(advice.severity is Severity.ERROR for advice in advices):
        limits = ", with the limits named above" if required else ""
        out.print(f"\nAn agent can work here{limits}.")


def _shown(text: object) -> str:
    """Return a text that came from the broker, safe for a line with markup."""
    return escape(printable(str(text)))


def _show_log(out: Console, findings: BrokerFindings) -> None:
    lines = {
        "subscribe": findings.logs_subscribe,
        "unsubscribe": findings.logs_unsubscribe,
        "connect": findings.logs_connect,
        "takeover": findings.logs_takeover,
    }
    seen = [word for word, is_seen in lines.items() if is_seen]
    mark = "[green]✓[/green]" if len(seen) == len(lines) else "[red]✗[/red]"
    out.print(f"{mark} log lines received: {', '.join(seen) or 'none'}")
    if findings.is_observed:
        text = f"all {findings.known_count} subscriptions are known, confirmed by broker counters"
        out.print(f"[green]✓[/green] {text}")


def _show_class(out: Console, delivery: DeliveryProbeResult) -> None:
    verdict = classify(delivery)
    word = verdict.delivery_class.value if verdict.delivery_class else "unknown"
    good = verdict.delivery_class is DeliveryClass.EXACTLY_ONCE
    mark = "[green]✓[/green]" if good else MARKS[Severity.WARNING]
    out.print(f"{mark} guaranteed delivery: {word}: {_shown(verdict.reason)}")
    if delivery.queued_count is not None and not delivery.has_queue_overflowed:
        kept = f"all of {delivery.queued_count} publications for a disconnected client were kept"
        more = "; --queue tries more" if delivery.queue_offered_count <= QUEUE_TRIED_BRIEFLY else ""
        out.print(f"[green]✓[/green] {kept}{more}")


def _show_lines(out: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        out.print(f"\n{heading}")
        for line in lines:
            out.print(f"  {printable(line)}", markup=False, soft_wrap=True)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} must be HOST:PORT, as in localhost:1883")
    return host.strip("[]"), int(port)
