"""`hansa doctor`: is a broker ready for an agent, and what does its configuration lack?"""

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
from hansa.printable import printable
from hansa.terminal import console
from hansa.testbed.probes.advice import (
    BrokerAdvice,
    BrokerFindings,
    Severity,
    advise_on_broker,
    configuration_lines,
)
from hansa.testbed.probes.delivery import QUEUE_TRIED, QUEUE_TRIED_BRIEFLY, probe_delivery
from hansa.testbed.probes.examination import Examination, examine, spoken_version
from hansa.testbed.probes.mosquitto_conf import learn, read_settings
from hansa.testbed.probes.observation import Observation, ObservationProbe

PASSWORD_VARIABLE = "HANSA_BROKER_PASSWORD"

CONFIGURATION_SUFFIX = ".conf"
"""How the name of a Mosquitto's configuration ends."""

NO_FILE = "/nonexistent"

EXAMPLES = """\
  hansa doctor localhost:1883
  hansa doctor localhost:1883 --log-file /var/log/mosquitto/mosquitto.log
  hansa doctor --config node.toml                        the broker of an agent
  hansa doctor --config mosquitto.conf                   a configuration; no broker is asked
  hansa doctor localhost:1884 --observer static          a broker that is no Mosquitto
  hansa doctor broker.example:1883 --username hansa      password in HANSA_BROKER_PASSWORD"""

SIGHUP_REMEDY = (
    "Log settings take effect at SIGHUP, but Mosquitto then logs only new subscriptions. If clients"
    " are connected, let them reconnect, or restart the broker instead."
)

MARKS = {
    Severity.ERROR: "[red]✗[/red]",
    Severity.WARNING: "[yellow]![/yellow]",
    Severity.NOTE: "[dim]·[/dim]",
}


def run(given: Sequence[str]) -> int:
    """Examine a broker; exit code 1 if an agent could not work beside it."""
    parser = Parser(
        "hansa doctor",
        "Check a broker: reachable, version, what its log tells, whether an agent would know all\n"
        "subscriptions, limits, bridges; how it delivers QoS 1 and 2 when clients break off,\n"
        "tried on a topic of its own below hansa/doctor/.\n"
        "Print the lines that a Mosquitto's configuration lacks; of others what they cannot do.",
        EXAMPLES,
    )
    parser.add_argument(
        "broker", nargs="?", type=_address, metavar="HOST:PORT", help="where the broker is"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="an agent's settings, for its broker; or a Mosquitto's configuration (*.conf)",
    )
    parser.add_argument(
        "--log-file",
        type=Path,
        metavar="FILE",
        help="the broker's `log_dest file`: compare it with the broker's counters",
    )
    parser.add_argument(
        "--observer",
        default="mosquitto",
        choices=[name for name in OBSERVERS if name != "embedded"],
        help="how the agent will learn who subscribes (%(default)s); others need no log",
    )
    parser.add_argument("--username", default="", metavar="NAME", help="as the agent will connect")
    parser.add_argument(
        "--password", metavar="TEXT", help=f"better in the variable {PASSWORD_VARIABLE}"
    )
    parser.add_argument("--tls", action="store_true", help="speak TLS to the broker")
    parser.add_argument(
        "--tls-ca", default="", metavar="FILE", help="authorities to trust; implies --tls"
    )
    parser.add_argument(
        "--queue",
        action="store_true",
        help=f"try whether the broker keeps {QUEUE_TRIED} publications for a client that is away;"
        " what it drops, it counts, and agents at this broker may raise the alarm `broker queue`",
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
    examination = asyncio.run(_examine(address, log_file, is_observed, queue_tried))
    advices = advise_on_examination(examination, settings.observer)
    _show(console(), address, examination, advices, is_observed)
    return _exit_code(advices)


def _exit_code(advices: Sequence[BrokerAdvice]) -> int:
    return 1 if any(advice.severity is Severity.ERROR for advice in advices) else 0


def _check_configuration(path: Path) -> int:
    """Judge a Mosquitto's configuration file."""
    learned = learn(read_settings(path))
    advices, out = advise_on_broker(learned), console()
    if learned.logs_subscribe and learned.has_history:
        text = f"{path}: an agent would know every subscription since the broker's start"
        out.print(f"[green]✓[/green] {_shown(text)}")
    _show_advices(out, advices)
    return _exit_code(advices)


async def _examine(
    address: BrokerAddress, log_file: Path | None, is_observed: bool, queue_tried: int
) -> Examination:
    """Find out all at the same time; say on a terminal what is being tried."""
    with Console(stderr=True).status(f"asking {address}") as status:
        version = await spoken_version(address)
        probe = ObservationProbe(address, version, log_file) if is_observed else None
        if probe is not None:
            await probe.start()
        examination, proof = await asyncio.gather(
            examine(address, version),
            probe_delivery(
                address, lambda text: status.update(f"trying {text}"), version, queue_tried
            ),
        )
        status.update("waiting for the broker's counters")
        observed = Observation() if probe is None else await probe.finish()
    learned = replace(
        examination.learned,
        proof=proof,
        has_history=None if log_file is None else observed.known_count is not None,
        earlier_count=observed.earlier_count,
        known_count=observed.known_count,
        is_observed=observed.is_complete,
        unobserved=observed.reason,
        restores_sessions=observed.has_persistence,
    )
    return replace(examination, learned=learned)


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
    """Return the log file to compare; None if its place is unknown. An agent without a setting for
    it has none."""
    if args.log_file is not None:
        return Path(args.log_file)
    return None if args.config is None else Path(settings.log_file or NO_FILE)


def advise_on_examination(
    examination: Examination, observer: str = "mosquitto"
) -> tuple[BrokerAdvice, ...]:
    """Return what to change, the worst first."""
    found: list[BrokerAdvice] = []
    if not examination.delivers:
        problem = "a publication of one client did not reach another: an access list forbids it"
        found.append(BrokerAdvice(Severity.ERROR, problem))
    if examination.refused and observer == "mosquitto":
        problem = f"this user may not subscribe to {', '.join(examination.refused)}"
        found.append(BrokerAdvice(Severity.ERROR, problem))
    return (*found, *advise_on_broker(examination.learned, observer))


def _show(
    out: Console,
    address: BrokerAddress,
    examination: Examination,
    advices: Sequence[BrokerAdvice],
    has_log: bool,
) -> None:
    learned, limits = examination.learned, examination.learned.limits
    version = learned.version or "a broker that does not say which"
    out.print(f"[green]✓[/green] {_shown(address)}: {_shown(version)}")
    if limits is not None:
        spoken = "MQTT 5" if limits.version == 5 else "MQTT 3.1.1"
        out.print(f"[green]✓[/green] {spoken}, receive maximum {limits.receive_maximum}")
    if has_log:
        _show_log(out, learned)
    if learned.proof is not None:
        _show_class(out, learned.proof)
    _show_advices(out, advices)


def _show_advices(out: Console, advices: Sequence[BrokerAdvice]) -> None:
    for advice in advices:
        out.print(f"{MARKS[advice.severity]} {_shown(advice.problem)}")
    wanted = [advice for advice in advices if advice.severity is not Severity.NOTE]
    added = configuration_lines(tuple(wanted))
    _show_lines(out, "Add to mosquitto.conf:", added)
    if any(line.startswith("log_") for line in added):
        out.print(f"\n{SIGHUP_REMEDY}")
    notes = configuration_lines(tuple(a for a in advices if a.severity is Severity.NOTE))
    _show_lines(out, "Worth adding, if it is not there:", notes)
    if not any(advice.severity is Severity.ERROR for advice in advices):
        but = ", with what is said above" if wanted else ""
        out.print(f"\nAn agent can work here{but}.")


def _shown(text: object) -> str:
    """Return a text of the broker's for a line with markup."""
    return escape(printable(str(text)))


def _show_log(out: Console, learned: BrokerFindings) -> None:
    lines = {
        "subscribe": learned.logs_subscribe,
        "unsubscribe": learned.logs_unsubscribe,
        "connect": learned.logs_connect,
        "takeover": learned.logs_takeover,
    }
    seen = [word for word, is_seen in lines.items() if is_seen]
    mark = "[green]✓[/green]" if len(seen) == len(lines) else "[red]✗[/red]"
    out.print(f"{mark} lines of the log that arrived: {', '.join(seen) or 'none'}")
    if learned.is_observed:
        text = (
            f"all {learned.known_count} subscriptions are known, as the broker's counters confirm"
        )
        out.print(f"[green]✓[/green] {text}")


def _show_class(out: Console, proof: DeliveryProbeResult) -> None:
    verdict = classify(proof)
    word = verdict.delivery_class.value if verdict.delivery_class else "not known"
    good = verdict.delivery_class is DeliveryClass.EXACTLY_ONCE
    mark = "[green]✓[/green]" if good else MARKS[Severity.WARNING]
    out.print(f"{mark} guaranteed delivery: {word}: {_shown(verdict.reason)}")
    if proof.queued_count is not None and not proof.has_queue_overflowed:
        kept = f"all of {proof.queued_count} publications for a disconnected client were kept"
        more = "; --queue tries more" if proof.queue_offered_count <= QUEUE_TRIED_BRIEFLY else ""
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
