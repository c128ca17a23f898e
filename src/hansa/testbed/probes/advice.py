"""Advice on a broker for `hansa doctor`: problems, and the lines to add to mosquitto.conf. Pure.

`BrokerFindings` holds the results of the probes; a value of None was not found out and gives no
advice. For a broker whose log the agent does not use, only its capabilities matter.
"""

import re
from dataclasses import dataclass, replace
from enum import Enum

from hansa.agent.broker.delivery_class import DeliveryProbeResult
from hansa.agent.broker.mosquitto_conf import QUEUED_BY_DEFAULT
from hansa.console.federation_checks import IN_FLIGHT_RECOMMENDED, QUEUED_RECOMMENDED
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version

PACKET_BYTES_RECOMMENDED = 1 << 20
"""Least `max_packet_size`: the default of the agent's `packet_bytes_max`."""

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
"""Log settings that the observer needs. Always all of them: the first `log_type` in a configuration
turns off the default types. Repeated lines do no harm."""

_VERSION = re.compile(r"mosquitto version (\d+)\.(\d+)\b.*")


class Severity(Enum):
    ERROR = "error"
    """The agent cannot learn the subscriptions."""
    WARNING = "warning"
    """Messages can be lost or duplicated."""
    NOTE = "note"
    """A possible improvement."""


@dataclass(frozen=True, slots=True)
class BrokerAdvice:
    severity: Severity
    problem: str
    lines: tuple[str, ...] = ()
    """Lines to add to mosquitto.conf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFindings:
    """Results of the probes; None: not found out."""

    version: str | None = None
    """Value of `$SYS/broker/version`; empty if nothing was received."""
    limits: BrokerLimits | None = None
    """Limits of the CONNACK."""
    logs_subscribe: bool | None = None
    """Whether a log line arrived for the probe's subscription; the next ones alike."""
    logs_unsubscribe: bool | None = None
    logs_connect: bool | None = None
    logs_takeover: bool | None = None
    publishes_counts: bool | None = None
    """Whether the broker publishes its counters."""
    has_history: bool | None = None
    """Whether the agent can read the broker's log file."""
    earlier_count: int | None = None
    """Subscriptions from before the check, if there is no log file."""
    known_count: int | None = None
    """Subscriptions that an agent would know from the log file."""
    is_observed: bool | None = None
    """Whether log file and counters show that an agent would know every subscription."""
    observer_problem: str = ""
    """Why it would not."""
    restores_sessions: bool = False
    """Whether the log shows that the broker saves its sessions to disk."""
    has_persistence: bool | None = None
    """Whether the broker keeps sessions over a restart."""
    dropped_count: int | None = None
    """Value of `$SYS/broker/publish/messages/dropped`."""
    delivery: DeliveryProbeResult | None = None
    """Delivery to clients that were disconnected."""
    bridges: tuple[str, ...] = ()
    """Names of connected bridges."""
    overlap_copies: int | None = None
    """Copies of one publication that matched two filters of one client."""
    is_open_to_network: bool | None = None
    """Whether clients of other machines connect without a login."""


def advise_on_broker(
    findings: BrokerFindings, observer: str = "mosquitto"
) -> tuple[BrokerAdvice, ...]:
    """Return the advice, the most severe first; only for Mosquitto with lines to add."""
    found = [
        *_check_version(findings),
        *_check_logs(findings),
        *_check_history(findings),
        *_check_bridges(findings),
        *_check_persistence(findings),
        *_check_queue(findings),
        *_check_limits(findings.limits),
        *_check_overlap(findings),
        *_check_access(findings),
    ]
    if observer != "mosquitto":
        found = [
            replace(advice, lines=())
            for advice in (
                *_check_queue(findings),
                *_check_limits(findings.limits),
                *_check_overlap(findings),
                *_check_access(findings),
            )
        ]
    order = list(Severity)
    return tuple(sorted(found, key=lambda advice: order.index(advice.severity)))


def configuration_lines(advices: tuple[BrokerAdvice, ...]) -> tuple[str, ...]:
    """Return the lines of all advice, each once."""
    return tuple(dict.fromkeys(line for advice in advices for line in advice.lines))


def _check_version(findings: BrokerFindings) -> list[BrokerAdvice]:
    if findings.version is None:
        return []
    if not findings.version:
        problem = (
            "no $SYS topics: sys_interval is 0, or an access list hides them from the agent; or it"
            " is not Mosquitto, then try again with --observer beacon or static"
        )
        return [BrokerAdvice(Severity.WARNING, problem, ("sys_interval 10",))]
    found = _VERSION.fullmatch(findings.version)
    if found is None:
        problem = (
            f"{findings.version!r} is not Mosquitto: use the observer beacon or static, and try"
            " again with --observer"
        )
        return [BrokerAdvice(Severity.ERROR, problem)]
    if (int(found[1]), int(found[2])) < (2, 0):
        problem = f"{findings.version} is older than 2.0: its log format is not tested"
        return [BrokerAdvice(Severity.WARNING, problem)]
    return []


def _check_logs(findings: BrokerFindings) -> list[BrokerAdvice]:
    rows = (
        (findings.logs_subscribe, Severity.ERROR, "subscriptions are not logged"),
        (findings.logs_connect, Severity.ERROR, "connections are not logged"),
        (
            findings.logs_unsubscribe,
            Severity.WARNING,
            "unsubscriptions are not logged: the agent keeps forwarding for ended subscriptions",
        ),
        (
            findings.logs_takeover,
            Severity.WARNING,
            "take-overs are not logged: filters may be dropped too early",
        ),
    )
    missing = [(severity, problem) for is_logged, severity, problem in rows if is_logged is False]
    if len(missing) == len(rows):
        problem = (
            "no log lines arrive: the broker does not log to topics, an access list hides them"
            " (the agent's user needs `topic read $SYS/broker/log/#`), or the broker could not"
            " open its `log_dest file`, and then logs nothing"
        )
        return [BrokerAdvice(Severity.ERROR, problem, LOG_SETTINGS)]
    return [BrokerAdvice(severity, problem, LOG_SETTINGS) for severity, problem in missing]


LOG_FILE_LINES = ("log_dest file /var/log/mosquitto/mosquitto.log", "log_type information")

SIGHUP_IS_NOT_ENOUGH = (
    "SIGHUP does not help: Mosquitto logs only new subscriptions. Make the connected clients"
    " reconnect, or restart the broker"
)
RESTART_IS_NOT_ENOUGH = (
    "neither SIGHUP nor a restart helps for persistent sessions: the broker restores them without"
    " logging. Make their clients subscribe again"
)


def _check_history(findings: BrokerFindings) -> list[BrokerAdvice]:
    """Check whether an agent would know subscriptions from before its start."""
    found: list[BrokerAdvice] = []
    if findings.has_history is False:
        problem = (
            "subscriptions from before the agent's start are unknown: let the broker also log to a"
            " file that the agent can read; `information` has the line that marks its start"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem, LOG_FILE_LINES))
    if findings.is_observed is False:
        remedy = RESTART_IS_NOT_ENOUGH if findings.restores_sessions else SIGHUP_IS_NOT_ENOUGH
        problem = (
            f"an agent would not know every subscription: {findings.observer_problem}; {remedy}"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem))
    elif findings.earlier_count and findings.has_history is not True:
        problem = (
            f"the broker had {findings.earlier_count} subscriptions before this check. An agent"
            " learns them only from a log file since the start of the broker: give --log-file"
            f" or --config to compare them. Without a log file, {SIGHUP_IS_NOT_ENOUGH}"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem))
    if findings.publishes_counts is False and findings.version != "":
        problem = (
            "the broker's counters do not arrive: the agent cannot check whether it knows all"
            " subscriptions"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem, ("sys_interval 10",)))
    return found


def _check_bridges(findings: BrokerFindings) -> list[BrokerAdvice]:
    return [
        BrokerAdvice(
            Severity.WARNING,
            f"bridge {name!r}: if it connects to a broker of this federation, messages loop;"
            " remove its `connection` from the configuration",
        )
        for name in findings.bridges
    ]


def _check_persistence(findings: BrokerFindings) -> list[BrokerAdvice]:
    lines = ("persistence true", "autosave_interval 60")
    if findings.has_persistence is False:
        problem = "the broker loses its sessions and their queued messages when it restarts"
        return [BrokerAdvice(Severity.WARNING, problem, lines)]
    if (
        findings.has_persistence is None
        and findings.delivery is not None
        and findings.delivery.resumes_session
    ):
        problem = "it is unknown whether the broker keeps its sessions when it restarts"
        return [BrokerAdvice(Severity.NOTE, problem, lines)]
    return []


def _check_queue(findings: BrokerFindings) -> list[BrokerAdvice]:
    """Check the queue of a disconnected client. A probe has precedence over the default and over
    earlier drops, which may have been caused by a probe."""
    lines = (f"max_queued_messages {QUEUED_RECOMMENDED}",)
    delivery = findings.delivery or DeliveryProbeResult()
    if delivery.has_queue_overflowed:
        problem = (
            f"of {delivery.queue_offered_count} publications for a disconnected client the"
            f" broker kept {delivery.queued_count} and dropped the rest"
        )
        return [BrokerAdvice(Severity.WARNING, problem, lines)]
    if (delivery.queued_count or 0) > QUEUED_BY_DEFAULT:
        return []
    if findings.dropped_count:
        problem = f"the broker has dropped {findings.dropped_count} messages for slow clients"
        return [BrokerAdvice(Severity.WARNING, problem, lines)]
    if findings.dropped_count == 0:
        problem = (
            f"by default the broker queues {QUEUED_BY_DEFAULT} messages for a client and drops the"
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
            "the broker does not support MQTT 5: properties and retain flags of publications here"
            " do not reach other brokers; after a crash of the agent some publications may be"
            " duplicated, also at QoS 2"
        )
        found.append(BrokerAdvice(Severity.WARNING, problem))
    elif limits.receive_maximum < IN_FLIGHT_RECOMMENDED:
        problem = f"only {limits.receive_maximum} messages of QoS 1 and 2 may be in flight to it"
        lines = (f"max_inflight_messages {IN_FLIGHT_RECOMMENDED}",)
        found.append(BrokerAdvice(Severity.NOTE, problem, lines))
    if limits.qos_max < 2:
        problem = f"the agent's listener allows QoS {limits.qos_max} at most"
        found.append(BrokerAdvice(Severity.WARNING, problem, ("max_qos 2",)))
    if not limits.retain_available:
        problem = "the broker does not accept retained messages"
        found.append(BrokerAdvice(Severity.WARNING, problem, ("retain_available true",)))
    if limits.packet_bytes_max < PACKET_BYTES_RECOMMENDED:
        problem = f"the broker accepts packets of at most {limits.packet_bytes_max} bytes"
        lines = (f"max_packet_size {PACKET_BYTES_RECOMMENDED}",)
        found.append(BrokerAdvice(Severity.WARNING, problem, lines))
    return found


def _check_overlap(findings: BrokerFindings) -> list[BrokerAdvice]:
    """MQTT 5 identifies copies by subscription identifiers; for 3.1.1 the agent must know their
    number."""
    limits = findings.limits
    if limits is None or limits.version is Version.V5 or findings.overlap_copies != 1:
        return []
    problem = (
        "the broker sends one copy of a publication that matches two filters of a client: set"
        ' overlap_copies = "once" in [broker] of the agent\'s settings; publications are then lost'
        ' while the agent is disconnected, unless session_3_1_1 = "lasting"'
    )
    return [BrokerAdvice(Severity.WARNING, problem)]


def _check_access(findings: BrokerFindings) -> list[BrokerAdvice]:
    """Certificates of agents protect links; clients of a broker are the broker's business."""
    if not findings.is_open_to_network:
        return []
    problem = (
        "clients of other machines need no login: each can read and publish everything in the"
        " federation, and one that uses the agent's client id ends the agent's session. Require a"
        " login and an access list (Mosquitto: allow_anonymous false, password_file, acl_file) in"
        " which only the agent may read $SYS/broker/log/#, which shows client ids, and use the"
        " topics below [link.mqtt] prefix; and set [broker] client_id to a random text"
    )
    return [BrokerAdvice(Severity.WARNING, problem)]
