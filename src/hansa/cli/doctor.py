"""`hansa doctor`: is a broker ready for an agent, and what does its configuration lack?"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from hansa.agent.brokers.advice import Advice, Learned, Severity, advise, missing_lines
from hansa.agent.brokers.classes import DeliveryClass, Proof, classify
from hansa.agent.brokers.connection import BrokerAddress
from hansa.agent.settings import OBSERVERS, BrokerSettings, broker_address, load
from hansa.cli.arguments import Parser
from hansa.cli.broker_probe import Examination, examine, spoken_version
from hansa.cli.delivery_probe import prove
from hansa.cli.results import console

PASSWORD_VARIABLE = "HANSA_BROKER_PASSWORD"

EXAMPLES = """\
  hansa doctor localhost:1883
  hansa doctor --config node.toml
  hansa doctor localhost:1884 --observer static          a broker that is no Mosquitto
  hansa doctor broker.example:1883 --username hansa      password in HANSA_BROKER_PASSWORD"""

MARKS = {
    Severity.ERROR: "[red]✗[/red]",
    Severity.WARNING: "[yellow]![/yellow]",
    Severity.NOTE: "[dim]·[/dim]",
}


def run(given: Sequence[str]) -> int:
    """Examine a broker; exit code 1 if an agent could not work beside it."""
    parser = Parser(
        "hansa doctor",
        "Check a broker: reachable, version, what its log tells, limits, bridges; how it delivers\n"
        "QoS 1 and 2 when clients break off, tried on a topic of its own below hansa/doctor/.\n"
        "Print the lines that a Mosquitto's configuration lacks; of others what they cannot do.",
        EXAMPLES,
    )
    parser.add_argument(
        "broker", nargs="?", type=_address, metavar="HOST:PORT", help="where the broker is"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="take all from an agent's settings instead"
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
    args = parser.parse_args(given)
    if (args.broker is None) == (args.config is None):
        parser.error("give either HOST:PORT or --config FILE")
    settings = _settings(args) if args.config is None else load(args.config).broker
    address = broker_address(settings)
    examination = asyncio.run(_examine(address, _history(settings, args.config)))
    advices = judge(examination, settings.observer)
    _show(console(), address, examination, advices, settings.observer == "mosquitto")
    return 1 if any(advice.severity is Severity.ERROR for advice in advices) else 0


async def _examine(address: BrokerAddress, log_file: Path | None) -> Examination:
    """Find out all at the same time; say on a terminal what is being tried."""
    with Console(stderr=True).status(f"asking {address}") as status:
        version = await spoken_version(address)
        examination, proof = await asyncio.gather(
            examine(address, log_file, version),
            prove(address, lambda text: status.update(f"trying {text}"), version),
        )
    return replace(examination, learned=replace(examination.learned, proof=proof))


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


def _history(settings: BrokerSettings, config: Path | None) -> Path | None:
    """Return the log file to judge; without an agent's settings nobody knows where it is."""
    return None if config is None else Path(settings.log_file or os.devnull)


def judge(examination: Examination, observer: str = "mosquitto") -> tuple[Advice, ...]:
    """Return what to change, the worst first."""
    found: list[Advice] = []
    if not examination.delivers:
        problem = "a publication of one client did not reach another: an access list forbids it"
        found.append(Advice(Severity.ERROR, problem))
    if examination.refused and observer == "mosquitto":
        problem = f"this user may not subscribe to {', '.join(examination.refused)}"
        found.append(Advice(Severity.ERROR, problem))
    return (*found, *advise(examination.learned, observer))


def _show(
    out: Console,
    address: BrokerAddress,
    examination: Examination,
    advices: Sequence[Advice],
    has_log: bool,
) -> None:
    learned, limits = examination.learned, examination.learned.limits
    version = learned.version or "a broker that does not say which"
    out.print(f"[green]✓[/green] {address}: {escape(version)}")
    if limits is not None:
        spoken = "MQTT 5" if limits.version == 5 else "MQTT 3.1.1"
        out.print(f"[green]✓[/green] {spoken}, receive maximum {limits.receive_maximum}")
    if has_log:
        _show_log(out, learned)
    if learned.proof is not None:
        _show_class(out, learned.proof)
    for advice in advices:
        out.print(f"{MARKS[advice.severity]} {escape(advice.problem)}")
    wanted = [advice for advice in advices if advice.severity is not Severity.NOTE]
    _show_lines(out, "Add to mosquitto.conf:", missing_lines(tuple(wanted)))
    notes = missing_lines(tuple(a for a in advices if a.severity is Severity.NOTE))
    _show_lines(out, "Worth adding, if it is not there:", notes)
    if not any(advice.severity is Severity.ERROR for advice in advices):
        but = ", with what is said above" if wanted else ""
        out.print(f"\nAn agent can work here{but}.")


def _show_log(out: Console, learned: Learned) -> None:
    lines = {
        "subscribe": learned.logs_subscribe,
        "unsubscribe": learned.logs_unsubscribe,
        "connect": learned.logs_connect,
        "takeover": learned.logs_takeover,
    }
    seen = [word for word, is_seen in lines.items() if is_seen]
    mark = "[green]✓[/green]" if len(seen) == len(lines) else "[red]✗[/red]"
    out.print(f"{mark} lines of the log that arrived: {', '.join(seen) or 'none'}")


def _show_class(out: Console, proof: Proof) -> None:
    verdict = classify(proof)
    word = verdict.delivery_class.value if verdict.delivery_class else "not known"
    good = verdict.delivery_class is DeliveryClass.EXACTLY_ONCE
    mark = "[green]✓[/green]" if good else MARKS[Severity.WARNING]
    out.print(f"{mark} guaranteed delivery: {word}: {verdict.reason}")
    if proof.queued is not None and not proof.queue_overflowed:
        kept = f"all of {proof.queued} publications for a client that was away were kept"
        out.print(f"[green]✓[/green] {kept}")


def _show_lines(out: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        out.print(f"\n{heading}")
        for line in lines:
            out.print(f"  {line}", markup=False, soft_wrap=True)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} must be HOST:PORT, as in localhost:1883")
    return host.strip("[]"), int(port)
