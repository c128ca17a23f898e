"""What is wrong with a running federation, and what to do about it: the most serious first.

The findings follow from one document of `/federation`; nothing else is asked.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum

from hansa.console.federation import Federation, NodeInfo
from hansa.console.node_answers import BrokerInfo, DeliverySettingsInfo, NodeSummary

CLOCK_WARNING_S = 2.0
CLOCK_ERROR_S = 300.0
"""Retained values that are further ahead of an agent's clock are refused."""

CERTIFICATE_WARNING_DAYS = 14

FLAPPING_PER_HOUR = 6.0
"""Lost links of one node per hour, from which on they flap."""

UPTIME_MIN_S = 600.0
"""An agent that started later says nothing about the rate of lost links."""

IN_FLIGHT_RECOMMENDED = 100
"""Publications in flight to the broker at QoS 1 and 2; one group commit covers about as many."""

QUEUED_RECOMMENDED = 100_000
"""Messages that the broker should queue for a disconnected or slow agent."""

DISK_FREE_WARNING = 0.1
"""Free part of the disk below which there is a warning."""

NAMES_SHOWN_MAX = 3
"""Names of nodes with one value of a setting, or with the same finding."""

DELIVERY_SETTINGS = (
    *("in_flight_max", "inbox_bytes", "retention_bytes", "retention_seconds"),
    "session_loss_policy",
)
"""Settings of [delivery] that are compared."""

NEVER_EXPIRES = 0xFFFFFFFF
"""The session expiry of MQTT 5 that means no end."""

LINKS_LOST = "links lost"
"""The counter of an agent of links to neighbours that closed."""


class Importance(IntEnum):
    ERROR = 0
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, order=True)
class Finding:
    importance: Importance
    node: str
    text: str
    remedy: str


def check_federation_health(federation: Federation) -> list[Finding]:
    """Return the findings, ordered by importance and name."""
    names = federation.names()
    found: list[Finding] = []
    for node in federation.nodes:
        name = names[node.id]
        found += _reachability(node, name)
        if node.summary is not None:
            found += _node(node.summary, name)
    found += _clocks(federation)
    found += _versions(federation)
    found += _settings(federation)
    found += _delivery_settings(federation)
    found += _single_links(federation)
    return sorted(found)


def _reachability(node: NodeInfo, name: str) -> Iterator[Finding]:
    if not node.reachable:
        yield Finding(
            Importance.ERROR,
            name,
            f"unreachable ({node.state})",
            "look at its agent and network; if it was stopped for good, nothing is lost: it is"
            " forgotten when its lease ends",
        )
    elif node.summary is None:
        yield Finding(
            Importance.ERROR, name, node.problem, "its agent is overloaded, or an older version"
        )


def _node(summary: NodeSummary, name: str) -> Iterator[Finding]:
    if not summary.broker.connected:
        yield Finding(
            Importance.ERROR,
            name,
            f"no connection to its broker {summary.broker.address}: {summary.broker.problem}",
            f"start the broker, or correct [broker]; then hansa doctor {summary.broker.address}",
        )
    for alarm, text in summary.alarms.items():
        remedy = "docs/how-to/troubleshoot.md has the remedy of each alarm"
        if alarm == "broker dropped messages":
            remedy = "raise max_queued_messages of the broker; hansa doctor --queue measures it"
        yield Finding(Importance.WARNING, name, f"alarm {alarm}: {text}", remedy)
    for reason in summary.refused:
        yield Finding(
            Importance.WARNING,
            name,
            f"a link was refused: {reason}",
            "correct what the reason names at one of the two agents: federation, shared settings,"
            " version or certificate",
        )
    for address, reason in summary.not_reached.items():
        yield Finding(
            Importance.WARNING,
            name,
            f"does not reach its neighbour {address}: {reason}",
            "start the agent there, open the port on the way, or correct [link] neighbours",
        )
    if not summary.interest.installed:
        yield Finding(
            Importance.WARNING,
            name,
            "its subscriptions are not in force at every node",
            "look for `subscription denied` in the logs of the other agents: ACL of their user",
        )
    if pending := sum(summary.delivery.pending.values()):
        yield Finding(
            Importance.NOTE,
            name,
            f"{pending:,} publications of QoS 1 and 2 are pending at receivers",
            "normal for a moment; otherwise the receivers or their brokers are down or slow",
        )
    yield from _broker_limits(summary.broker, name)
    if summary.delivery_settings is not None:
        yield from _in_flight(summary.broker, summary.delivery_settings, name)
        yield from _retention(summary.broker, summary.delivery_settings, name)
    yield from _certificate(summary, name)
    yield from _disk(summary, name)
    yield from _flapping(summary, name)


def _certificate(summary: NodeSummary, name: str) -> Iterator[Finding]:
    if summary.security is None:
        yield Finding(
            Importance.NOTE,
            name,
            "has no certificate: its links are neither authenticated nor encrypted",
            "hansa ca init, hansa invite, hansa join",
        )
        return
    try:
        end = datetime.fromisoformat(str(summary.security.get("valid_until"))).timestamp()
    except (ValueError, OverflowError):
        return
    days = (end - summary.clock_ms / 1000) / 86_400
    if days < CERTIFICATE_WARNING_DAYS:
        yield Finding(
            Importance.ERROR if days < 0 else Importance.WARNING,
            name,
            f"its certificate {'has ended' if days < 0 else f'ends in {days:.0f} days'}",
            f"hansa ca renew {name}, then hansa join FILE there; no restart is needed",
        )


def _broker_limits(broker: BrokerInfo, name: str) -> Iterator[Finding]:
    """Check the queue of the broker for its agent, and the QoS that it allows."""
    if broker.config_problem:
        yield Finding(
            Importance.WARNING,
            name,
            f"the configuration of its broker is unknown: {broker.config_problem}",
            "let the user of the agent read it, or correct [broker] config_file",
        )
    if broker.queued_max is not None and 0 < broker.queued_max < QUEUED_RECOMMENDED:
        yield Finding(
            Importance.WARNING,
            name,
            f"its broker queues {broker.queued_max:,} messages for a client: while its agent is"
            " away or slow, more are lost",
            f"max_queued_messages {QUEUED_RECOMMENDED} in its mosquitto.conf; then SIGHUP",
        )
    if broker.limits is not None and broker.limits.qos_max < 2:
        yield Finding(
            Importance.WARNING,
            name,
            f"its broker allows QoS {broker.limits.qos_max} at most",
            "allow QoS 2 at the listener of the agent (Mosquitto: max_qos 2)",
        )


def _in_flight(broker: BrokerInfo, delivery: DeliverySettingsInfo, name: str) -> Iterator[Finding]:
    limits = broker.limits
    if limits is None or limits.receive_maximum >= min(
        delivery.in_flight_max, IN_FLIGHT_RECOMMENDED
    ):
        return
    yield Finding(
        Importance.NOTE,
        name,
        f"its broker accepts {limits.receive_maximum:,} publications in flight, fewer than"
        f" [delivery] in_flight_max = {delivery.in_flight_max}: QoS 1 and 2 are slower",
        f"max_inflight_messages {IN_FLIGHT_RECOMMENDED} in its mosquitto.conf, then SIGHUP; look"
        " at max_queued_messages, too",
    )


def _retention(broker: BrokerInfo, delivery: DeliverySettingsInfo, name: str) -> Iterator[Finding]:
    """Check that nothing is forgotten before the lease of an unreachable node ends."""
    lease = float("inf") if delivery.interest_lease is None else delivery.interest_lease
    if delivery.retention_seconds is not None and delivery.retention_seconds < lease:
        yield Finding(
            Importance.WARNING,
            name,
            f"[delivery] retention_seconds = {delivery.retention_seconds:g} is shorter than"
            f" [protocol] interest_lease = {lease:g}: publications for an unreachable node are"
            " deleted before its lease ends",
            "raise retention_seconds, or lower interest_lease at all nodes",
        )
    if broker.limits is not None and broker.limits.session_expiry + 1 < min(lease, NEVER_EXPIRES):
        yield Finding(
            Importance.WARNING,
            name,
            f"its broker keeps the session of an absent agent for {broker.limits.session_expiry:,}"
            f" s, not for [protocol] interest_lease = {lease:g}: later publications are lost",
            "raise the session expiry that the broker allows",
        )


def _disk(summary: NodeSummary, name: str) -> Iterator[Finding]:
    free, total = summary.disk.get("free_bytes", 0), summary.disk.get("total_bytes", 0)
    if total and (growth := _possible_growth(summary)) > free:
        yield Finding(
            Importance.WARNING,
            name,
            f"its journals may grow by {growth / 1e9:.1f} GB, and the disk of its state has"
            f" {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB",
            "lower [delivery] retention_bytes, or free some of the disk",
        )
    elif total and free < DISK_FREE_WARNING * total:
        yield Finding(
            Importance.WARNING,
            name,
            f"the disk of its state has {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB",
            "free some, or limit the journal: [delivery] retention settings",
        )


def _possible_growth(summary: NodeSummary) -> int:
    """Return the bytes that the journals may need in addition."""
    settings, delivery = summary.delivery_settings, summary.delivery
    if settings is None:
        return 0
    outbox = max(0, settings.retention_bytes - delivery.journal_bytes)
    return outbox + max(0, settings.inbox_bytes - delivery.inbox_bytes)


def _flapping(summary: NodeSummary, name: str) -> Iterator[Finding]:
    seconds = (summary.clock_ms - summary.incarnation) / 1000
    lost = summary.counters.get(LINKS_LOST, 0)
    if seconds >= UPTIME_MIN_S and lost * 3_600 / seconds > FLAPPING_PER_HOUR:
        yield Finding(
            Importance.WARNING,
            name,
            f"lost {lost} links in {seconds / 3_600:.1f} hours",
            "its log has the reason of each: an unstable network, or an overloaded machine",
        )


def _clocks(federation: Federation) -> Iterator[Finding]:
    """Compare all clocks with that of the asked node; the time of the question is no difference."""
    names, summaries = federation.names(), federation.summaries()
    asked = summaries.get(federation.asked)
    for node in federation.nodes:
        if asked is None or node.summary is None or not node.summary.clock_ms:
            continue
        behind_s = (asked.clock_ms - node.summary.clock_ms) / 1000
        difference_s = abs(behind_s) - node.asked_ms / 1000
        if difference_s > CLOCK_WARNING_S:
            yield Finding(
                Importance.ERROR if difference_s > CLOCK_ERROR_S else Importance.WARNING,
                names[node.id],
                f"its clock is {abs(behind_s):.0f} s {'behind' if behind_s > 0 else 'ahead of'}"
                f" that of {names[federation.asked]}",
                "run NTP on all machines: the order of retained values depends on clocks",
            )


def _versions(federation: Federation) -> Iterator[Finding]:
    versions = Counter(each.version for each in federation.summaries().values())
    if len(versions) > 1:
        shown = ", ".join(f"{count} of {version}" for version, count in sorted(versions.items()))
        yield Finding(
            Importance.NOTE,
            "federation",
            f"agents of several versions run: {shown}",
            "finish the upgrade: docs/how-to/upgrade.md",
        )


def _settings(federation: Federation) -> Iterator[Finding]:
    """Settings of the protocol that differ between nodes."""
    names = federation.names()
    known = {
        names[id_]: each.settings
        for id_, each in federation.summaries().items()
        if each.settings is not None
    }
    for setting, shown in _differences(known):
        yield Finding(
            Importance.WARNING,
            "federation",
            f"[protocol] {setting} differs: {shown}",
            f"write one value of {setting} into the settings of all agents, and restart them"
            " one after the other",
        )


def _delivery_settings(federation: Federation) -> Iterator[Finding]:
    """Settings of [delivery] that differ: only the policy changes a promise; nodes with small disks
    may keep less."""
    names = federation.names()
    known = {
        names[id_]: {name: getattr(each.delivery_settings, name) for name in DELIVERY_SETTINGS}
        for id_, each in federation.summaries().items()
        if each.delivery_settings is not None
    }
    for setting, shown in _differences(known):
        is_promise = setting == "session_loss_policy"
        yield Finding(
            Importance.WARNING if is_promise else Importance.NOTE,
            "federation",
            f"[delivery] {setting} differs: {shown}",
            "write one value into the settings of all agents: whether publications are lost or"
            " duplicated depends on the node"
            if is_promise
            else "write one value into the settings of all agents, unless their machines differ",
        )


def _differences(known: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Yield each setting whose values differ, with the values and the names of their nodes."""
    for setting in sorted({name for values in known.values() for name in values}):
        nodes: dict[str, list[str]] = {}
        for node in sorted(known):
            nodes.setdefault(str(known[node].get(setting, "the default")), []).append(node)
        if len(nodes) > 1:
            ordered = sorted(nodes.items(), key=lambda item: (len(item[1]), item[0]))
            yield setting, "; ".join(f"{value} at {some_names(each)}" for value, each in ordered)


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for nodes with the same one, so that a screen shows all."""
    nodes: dict[Finding, list[str]] = {}
    for each in findings:
        nodes.setdefault(replace(each, node=""), []).append(each.node)
    return [replace(each, node=some_names(names)) for each, names in nodes.items()]


def some_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    return (
        shown
        if len(names) <= NAMES_SHOWN_MAX
        else f"{shown} and {len(names) - NAMES_SHOWN_MAX} others"
    )


def _single_links(federation: Federation) -> Iterator[Finding]:
    names = federation.names()
    degrees = Counter(end for link in federation.links for end in (link.a, link.b))
    if len(federation.nodes) < 3:
        return
    for node in federation.nodes:
        if node.reachable and degrees[node.id] == 1:
            yield Finding(
                Importance.NOTE,
                names[node.id],
                "has one link only: if it fails, the node is cut off",
                "add a second one: [link] neighbours, or hansa link add",
            )
