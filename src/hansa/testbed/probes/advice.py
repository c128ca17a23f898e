"""What a broker lacks for an agent beside it: the judgement of `hansa doctor`.

The shell finds out (it connects a probe that subscribes, unsubscribes and is taken over, and sees
which lines arrive); here is what follows from that, with the exact lines to add; those about the
log take effect at SIGHUP. What could not be found out is None, and no reason to complain. Of a
broker that the agent does not observe by its log, what it can do is all that matters.
"""

import re
from dataclasses import dataclass, replace
from enum import Enum

from hansa.agent.broker.delivery_class import DeliveryProbeResult
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version

IN_FLIGHT_RECOMMENDED = 100
"""Publications under way to the broker at QoS 1 and 2; a commit to disk covers about so many."""

QUEUED_RECOMMENDED = 100_000
"""Messages that the broker should keep for an agent that is away or slow."""

QUEUED_BY_DEFAULT = 1_000
"""Messages that Mosquitto keeps if its configuration does not say."""

PACKET_BYTES_RECOMMENDED = 1 << 20
"""Bytes of a packet that passes everywhere, as in `Options.packet_bytes_max`."""

LOG_SETTINGS = (
    "log_dest topic",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
    "log_type error",
    "log_type warning",
    "log_type information",
    "connection_messages true",
)
"""What makes a log that an agent can live on. Always all of it: where no type is named some are on
by default, and the first one that is named turns the others off. To name one twice does no harm."""

_VERSION = re.compile(r"mosquitto version (\d+)\.(\d+)\b.*")


class Severity(Enum):
    """How bad it is."""

    ERROR = "error"
    """The agent cannot learn what is wanted here."""
    WARNING = "warning"
    """It works, but messages can be lost or doubled."""
    NOTE = "note"
    """It works, and could work better."""


@dataclass(frozen=True, slots=True)
class BrokerAdvice:
    """One thing to change."""

    severity: Severity
    problem: str
    lines: tuple[str, ...] = ()
    """What to add to the broker's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFindings:
    """What could be found out about a broker; None for what could not."""

    version: str | None = None
    """What `$SYS/broker/version` says; empty if nothing came."""
    limits: BrokerLimits | None = None
    """What the broker granted when the agent connected."""
    logs_subscribe: bool | None = None
    """Whether a line came for the probe's subscription; and so on."""
    logs_unsubscribe: bool | None = None
    logs_connect: bool | None = None
    logs_takeover: bool | None = None
    publishes_counts: bool | None = None
    """Whether the broker publishes its counters."""
    has_history: bool | None = None
    """Whether the agent can read the broker's log file."""
    earlier_count: int | None = None
    """Subscriptions that the broker counted before it was looked at, where there is no log file."""
    known_count: int | None = None
    """Subscriptions that an agent would know from the log file."""
    is_observed: bool | None = None
    """Whether log file and counters show that an agent would know every subscription."""
    observer_problem: str = ""
    """Why it would not."""
    restores_sessions: bool = False
    """Whether the log shows that the broker saves its sessions to disk."""
    has_persistence: bool | None = None
    """Whether the broker still knew the agent's lasting session after a restart of its own."""
    dropped_count: int | None = None
    """What `$SYS/broker/publish/messages/dropped` says."""
    proof: DeliveryProbeResult | None = None
    """How it treated clients that broke off."""
    bridges: tuple[str, ...] = ()
    """Bridges that the observer noticed."""
    overlap_copies: int | None = None
    """What came of one publication that two filters of one client matched."""


def advise_on_broker(
    findings: BrokerFindings, observer: str = "mosquitto"
) -> tuple[BrokerAdvice, ...]:
    """Return what to change, the worst first; how is only known of Mosquitto."""
    found = [
        *_check_version(findings),
        *_check_logs(findings),
        *_check_history(findings),
        *_check_bridges(findings),
        *_check_persistence(findings),
        *_check_queue(findings),
        *_check_limits(findings.limits),
        *_check_overlap(findings),
    ]
    if observer != "mosquitto":
        found = [
            replace(advice, lines=())
            for advice in (
                *_check_queue(findings),
                *_check_limits(findings.limits),
                *_check_overlap(findings),
            )
        ]
    order = list(Severity)
    return tuple(sorted(found, key=lambda advice: order.index(advice.severity)))


def configuration_lines(advices: tuple[BrokerAdvice, ...]) -> tuple[str, ...]:
    """Return all lines to add, each once, in the order of the advice."""
    return tuple(dict.fromkeys(line for advice in advices for line in advice.lines))


def _check_version(learned: BrokerFindings) -> list[BrokerAdvice]:
    if learned.version is None:
        return []
    if not learned.version:
        problem = (
            "no $SYS topics: sys_interval is 0, or an access list hides them from the agent; or it"
            " is no Mosquitto, then try again with --observer beacon or static"
        )
        return [BrokerAdvice(Severity.WARNING, problem, ("sys_interval 10",))]
    found = _VERSION.fullmatch(learned.version)
    if found is None:
        problem = (
            f"{learned.version!r} is no Mosquitto: use the observer beacon or static, and try again"
            " with --observer"
        )
        return [BrokerAdvice(Severity.ERROR, problem)]
    if (int(found[1]), int(found[2])) < (2, 0):
        problem = f"{learned.version} is older than 2.0: what it logs has not been tried"
        return [BrokerAdvice(Severity.WARNING, problem)]
    return []


def _check_logs(learned: BrokerFindings) -> list[BrokerAdvice]:
    """Look at the four kinds of lines."""
    rows = (
        (learned.logs_subscribe, Severity.ERROR, "who subscribes is not told"),
        (learned.logs_connect, Severity.ERROR, "who connects and leaves is not told"),
        (
            learned.logs_unsubscribe,
            Severity.WARNING,
            "who unsubscribes is not told: messages keep coming that nobody wants",
        ),
        (
            learned.logs_takeover,
            Severity.WARNING,
            "who is taken over is not told: its filters may be dropped too early",
        ),
    )
    lacking = [(severity, problem) for is_told, severity, problem in rows if is_told is False]
    if len(lacking) == len(rows):
        problem = (
            "nothing of the log arrives: it does not go to topics, an access list hides it"
            " (the agent's user needs `topic read $SYS/broker/log/#`), or the broker could not"
            " open its `log_dest file`, and logs nowhere then"
        )
        return [BrokerAdvice(Severity.ERROR, problem, LOG_SETTINGS)]
    return [BrokerAdvice(severity, problem, LOG_SETTINGS) for severity, problem in lacking]


LOG_FILE_LINES = ("log_dest file /var/log/mosquitto/mosquitto.log", "log_type information")

SIGHUP_IS_NOT_ENOUGH = (
    "SIGHUP does not help: Mosquitto logs only new subscriptions. Let the clients that are"
    " connected reconnect, or restart the broker"
)
RESTART_IS_NOT_ENOUGH = (
    "neither SIGHUP nor a restart helps for persistent sessions: the broker restores them and logs"
    " nothing. Let their clients subscribe again"
)


def _check_history(learned: BrokerFindings) -> list[BrokerAdvice]:
    """Look at what was subscribed before."""
    found: list[BrokerAdvice] = []
    if learned.has_history is False:
        problem = (
            "what was subscribed before the agent came is unknown: let the broker also log to a"
            " file that the agent may read; `information` has the line that shows its beginning"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem, LOG_FILE_LINES))
    if learned.is_observed is False:
        remedy = RESTART_IS_NOT_ENOUGH if learned.restores_sessions else SIGHUP_IS_NOT_ENOUGH
        problem = (
            f"an agent would not know every subscription: {learned.observer_problem}; {remedy}"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem))
    elif learned.earlier_count and learned.has_history is not True:
        problem = (
            f"the broker had {learned.earlier_count} subscriptions before this check. An agent"
            " knows them only from the broker's log file since the broker's start: give --log-file"
            f" or --config to compare them. Where there is none, {SIGHUP_IS_NOT_ENOUGH}"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem))
    if learned.publishes_counts is False and learned.version != "":
        problem = "the broker's counts do not arrive: the agent cannot see whether it knows all"
        found.append(BrokerAdvice(Severity.WARNING, problem, ("sys_interval 10",)))
    return found


def _check_bridges(learned: BrokerFindings) -> list[BrokerAdvice]:
    return [
        BrokerAdvice(
            Severity.WARNING,
            f"bridge {name!r}: if it leads to a broker of this federation, messages will loop;"
            " remove its `connection` from the configuration on either side",
        )
        for name in learned.bridges
    ]


def _check_persistence(learned: BrokerFindings) -> list[BrokerAdvice]:
    lines = ("persistence true", "autosave_interval 60")
    if learned.has_persistence is False:
        problem = "the broker forgets its sessions when it restarts, and with them what is queued"
        return [BrokerAdvice(Severity.WARNING, problem, lines)]
    if (
        learned.has_persistence is None
        and learned.proof is not None
        and learned.proof.resumes_session
    ):
        problem = "whether the broker keeps its sessions when it restarts cannot be seen from here"
        return [BrokerAdvice(Severity.NOTE, problem, lines)]
    return []


def _check_queue(learned: BrokerFindings) -> list[BrokerAdvice]:
    """Look at how much waits for a client.

    What was tried counts for more than what is usual, and than what was dropped before: that may
    have been for a doctor's client.
    """
    lines = (f"max_queued_messages {QUEUED_RECOMMENDED}",)
    proof = learned.proof or DeliveryProbeResult()
    if proof.has_queue_overflowed:
        problem = (
            f"of {proof.queue_offered_count} publications for a disconnected client the broker kept"
            f" {proof.queued_count} and dropped the rest"
        )
        return [BrokerAdvice(Severity.WARNING, problem, lines)]
    if (proof.queued_count or 0) > QUEUED_BY_DEFAULT:
        return []
    if learned.dropped_count:
        problem = f"the broker has dropped {learned.dropped_count} messages for slow clients"
        return [BrokerAdvice(Severity.WARNING, problem, lines)]
    if learned.dropped_count == 0:
        problem = (
            f"by default the broker keeps {QUEUED_BY_DEFAULT} messages for a client, and drops the"
            " rest"
        )
        return [BrokerAdvice(Severity.NOTE, problem, lines)]
    return []


def _check_limits(limits: BrokerLimits | None) -> list[BrokerAdvice]:
    if limits is None:
        return []
    found: list[BrokerAdvice] = []
    if limits.version is not Version.V5:
        problem = (
            "the broker speaks no MQTT 5: properties and the retain flag of what is published here"
            " do not cross; what is published while the agent is away is lost, and when it comes"
            " back after a crash some may come twice"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem))
    elif limits.receive_maximum < IN_FLIGHT_RECOMMENDED:
        problem = f"only {limits.receive_maximum} messages of QoS 1 and 2 may be under way to it"
        lines = (f"max_inflight_messages {IN_FLIGHT_RECOMMENDED}",)
        found.append(BrokerAdvice(Severity.NOTE, problem, lines))
    if limits.qos_max < 2:
        problem = f"the agent's listener allows QoS {limits.qos_max} at most"
        found.append(BrokerAdvice(Severity.WARNING, problem, ("max_qos 2",)))
    if not limits.retain_available:
        problem = "the broker takes no retained messages"
        found.append(BrokerAdvice(Severity.WARNING, problem, ("retain_available true",)))
    if limits.packet_bytes_max < PACKET_BYTES_RECOMMENDED:
        problem = f"the broker takes packets of at most {limits.packet_bytes_max} bytes"
        lines = (f"max_packet_size {PACKET_BYTES_RECOMMENDED}",)
        found.append(BrokerAdvice(Severity.WARNING, problem, lines))
    return found


def _check_overlap(learned: BrokerFindings) -> list[BrokerAdvice]:
    """MQTT 5 tells copies apart; before it, how many there are has to be known."""
    limits = learned.limits
    if limits is None or limits.version is Version.V5 or learned.overlap_copies != 1:
        return []
    problem = (
        "of a publication that two filters of one client match it sends one copy: write"
        ' overlap_copies = "once" in [broker] of the agent\'s settings'
    )
    return [BrokerAdvice(Severity.WARNING, problem)]
