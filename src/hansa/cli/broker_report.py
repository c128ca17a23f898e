"""The report of `hansa doctor` about a broker, for people."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.broker.delivery_class import DeliveryClass, DeliveryProbeResult, classify
from hansa.printable import printable
from hansa.testbed.probes.advice import (
    BrokerAdvice,
    BrokerFindings,
    Severity,
    configuration_lines,
)
from hansa.testbed.probes.delivery import QUEUE_TRIED_BRIEFLY
from hansa.testbed.probes.examination import Examination
from hansa.testbed.probes.makes import Recognition
from hansa.testbed.probes.report import BrokerReport

SIGHUP_REMEDY = (
    "Log settings take effect at SIGHUP, but Mosquitto then logs only new subscriptions. If clients"
    " are connected, make them reconnect, or restart the broker instead."
)

MARKS = {
    Severity.ERROR: "[red]✗[/red]",
    Severity.WARNING: "[yellow]![/yellow]",
    Severity.NOTE: "[dim]·[/dim]",
}


def show_report(out: Console, report: BrokerReport) -> None:
    """Print what was found at a broker, and what to change."""
    make = "" if report.recognition.make is None else report.recognition.make.name
    _show(out, report.address, report.examination, report.observer == "mosquitto", make)
    _show_make(out, report.recognition)
    show_advices(out, report.advices)


def report_document(report: BrokerReport) -> dict[str, object]:
    """Return the report for programs."""
    findings, make = report.examination.findings, report.recognition.make
    verdict = None if findings.delivery is None else classify(findings.delivery).delivery_class
    return {
        "broker": str(report.address),
        "version": findings.version or ("" if make is None else make.name),
        "usable": report.is_usable,
        "observer": report.observer,
        "delivery_class": None if verdict is None else verdict.value,
        "findings": advice_rows(report.advices),
    }


def advice_rows(advices: Sequence[BrokerAdvice]) -> list[dict[str, object]]:
    return [
        {"severity": each.severity.value, "problem": each.problem, "lines": list(each.lines)}
        for each in advices
    ]


def _show_make(out: Console, recognition: Recognition) -> None:
    make, count = recognition.make, recognition.filter_count
    if count is not None:
        text = f"its HTTP API lists all subscriptions: {count} different filters"
        out.print(f"[green]✓[/green] {text}")
    if make is not None:
        needs = f" ({make.settings})" if make.settings else ""
        text = f'{make.name}: use observer = "{make.observer}"{needs}'
        out.print(f"[green]✓[/green] {shown(text)}")
        for limit in make.limits:
            out.print(f"{MARKS[Severity.NOTE]} {shown(limit)}")


def _show(
    out: Console,
    address: BrokerAddress,
    examination: Examination,
    has_log: bool,
    make: str,
) -> None:
    findings, limits = examination.findings, examination.findings.limits
    version = findings.version or make or "a broker of unknown make"
    out.print(f"[green]✓[/green] {shown(address)}: {shown(version)}")
    if limits is not None:
        spoken = "MQTT 5" if limits.version == 5 else "MQTT 3.1.1"
        out.print(f"[green]✓[/green] {spoken}, receive maximum {limits.receive_maximum}")
    if has_log:
        _show_log(out, findings)
    if findings.delivery is not None:
        _show_class(out, findings.delivery)


def show_advices(out: Console, advices: Sequence[BrokerAdvice]) -> None:
    for advice in advices:
        out.print(f"{MARKS[advice.severity]} {shown(advice.problem)}")
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


def shown(text: object) -> str:
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
    out.print(f"{mark} guaranteed delivery: {word}: {shown(verdict.reason)}")
    if delivery.queued_count is not None and not delivery.has_queue_overflowed:
        kept = f"all of {delivery.queued_count} publications for a disconnected client were kept"
        more = "; --queue tries more" if delivery.queue_offered_count <= QUEUE_TRIED_BRIEFLY else ""
        out.print(f"[green]✓[/green] {kept}{more}")


def _show_lines(out: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        out.print(f"\n{heading}")
        for line in lines:
            out.print(f"  {printable(line)}", markup=False, soft_wrap=True)
