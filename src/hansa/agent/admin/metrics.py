"""An agent's status in the Prometheus text format 0.0.4.

The tables below are the metrics: name, type, help, labels. Every sample also has the labels `node`
and `node_name` of the agent. docs/reference/metrics.md is generated from the tables.

Decision 0018 says why the agent writes this format without a library.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4"

DROPPED_PREFIX = "dropped: "
"""Prefix of the counters of dropped publications."""

ALARMS_PREFIX = "alarms: "
"""Prefix of the counters of raised alarms."""

ZERO_COUNTERS = {"gaps": 0, "links lost": 0}
"""Counters that are exported before they count anything: Prometheus' `increase` does not see the
first value of a series, and alert rules need the first one."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    name: str
    kind: str
    """`gauge` or `counter`."""
    help: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, "counter", text, labels)


_LINK_LABELS = ("neighbour", "neighbour_name")

AGENT_METRICS = (
    _gauge("hansa_agent_info", "Version of the agent; the value is always 1.", "version"),
    _gauge("hansa_start_time_seconds", "When the agent was started, in seconds since 1970."),
    _gauge("hansa_broker_connected", "1 if the agent is connected to its broker."),
    _gauge("hansa_broker_observed", "1 if the agent knows every subscription at its broker."),
    _gauge("hansa_interest_installed", "1 if every reachable node acts on this node's interest."),
    _gauge("hansa_reachable_nodes", "Nodes that can be reached, this one included."),
    _gauge("hansa_unreachable_nodes", "Nodes that are known and cannot be reached."),
    _gauge(
        "hansa_certificate_expiry_timestamp_seconds",
        "When the certificate of the node ends, in seconds since 1970; none without a certificate.",
    ),
    _gauge("hansa_neighbours", "Nodes that this one has a link to."),
    _gauge("hansa_table_entries", "Entries in bounded tables of the protocol.", "table"),
    _gauge("hansa_alarm_active", "1 for each alarm that is active.", "alarm"),
    _counter("hansa_alarms_total", "How often each alarm was raised.", "alarm"),
    _counter(
        "hansa_captured_publications_total",
        "Publications that the agent took from its broker for other nodes.",
    ),
    _counter(
        "hansa_injected_publications_total",
        "Publications of other nodes that the agent gave to its broker.",
    ),
    _counter("hansa_dropped_publications_total", "Publications that were not passed on.", "reason"),
    _counter("hansa_events_total", "All other counters of /status, by name.", "event"),
    _gauge(
        "hansa_pending_positions",
        "How far a receiver is behind, in positions of the journal.",
        "receiver",
        "receiver_name",
    ),
    _gauge("hansa_journal_epoch", "Epoch of the journal."),
    _gauge("hansa_journal_position", "Position of the newest publication in the journal."),
    _gauge("hansa_journal_first_position", "Oldest position that the journal still holds."),
    _gauge(
        "hansa_journal_acknowledged_position", "Position up to which all receivers have everything."
    ),
    _gauge("hansa_journal_unsynced_bytes", "Bytes in the journal that are not durable yet."),
    _gauge("hansa_inbox_publications", "Publications of other nodes that wait for the broker."),
    _gauge("hansa_inbox_bytes", "Bytes of the publications that wait for the broker."),
    _gauge(
        "hansa_inbox_waiting_publications",
        "Publications beyond the limit of the inbox; they wait at their origins, too.",
    ),
    _gauge("hansa_recorded_gaps", "Gaps that /status lists, at most 64, including past runs."),
    _counter("hansa_link_received_bytes_total", "Bytes received on the link.", *_LINK_LABELS),
    _counter("hansa_link_sent_bytes_total", "Bytes sent on the link.", *_LINK_LABELS),
    _counter("hansa_link_sent_frames_total", "Frames sent on the link.", *_LINK_LABELS),
    _counter(
        "hansa_link_dropped_publications_total",
        "Publications dropped because the link could not take them.",
        *_LINK_LABELS,
    ),
    _gauge(
        "hansa_link_outstanding_bytes",
        "Bytes sent that the neighbour has not confirmed, or, over UDP, that wait to be sent.",
        *_LINK_LABELS,
    ),
    _gauge(
        "hansa_link_round_trip_seconds", "Last measured round-trip time of the link.", *_LINK_LABELS
    ),
)

FEDERATOR_METRICS = (
    _gauge("hansa_agent_info", "Version of the agent; the value is always 1.", "version"),
    _gauge("hansa_broker_connected", "1 if the agent is connected to its broker."),
    _gauge(
        "hansa_neighbour_broker_connected",
        "1 if the agent is connected to a neighbour's broker.",
        "neighbour",
    ),
    _gauge("hansa_topics", "Topics that have a mesh."),
    _gauge("hansa_unsupported_filters", "Filters of clients that mqtt-fed cannot express."),
    _counter("hansa_dropped_publications_total", "Publications that were not passed on.", "reason"),
    _counter("hansa_events_total", "All other counters of /status, by name.", "event"),
)
"""Metrics of an agent in mode mqtt-fed."""

_DELIVERY_FIELDS = {
    "hansa_journal_epoch": "epoch",
    "hansa_journal_position": "position",
    "hansa_journal_first_position": "first_position",
    "hansa_journal_acknowledged_position": "acknowledged_by_all",
    "hansa_journal_unsynced_bytes": "unsynced_bytes",
    "hansa_inbox_publications": "inbox",
    "hansa_inbox_bytes": "inbox_bytes",
    "hansa_inbox_waiting_publications": "inbox_waiting",
}
"""Metrics and the field of `delivery` in /status that each shows."""

_LINK_FIELDS = {
    "hansa_link_received_bytes_total": "bytes_in",
    "hansa_link_sent_bytes_total": "bytes_out",
    "hansa_link_sent_frames_total": "frames_out",
    "hansa_link_dropped_publications_total": "dropped",
    "hansa_link_outstanding_bytes": "outstanding_bytes",
}
"""Metrics and the field of a neighbour in /status that each shows."""

MetricSamples = Mapping[tuple[str, ...], float]
"""Samples of one metric: a value for each combination of its labels."""


def render_metrics(status: Mapping[str, Any]) -> str:
    """Return the document that Prometheus scrapes, from /status."""
    counters, delivery = status["counters"], status["delivery"]
    neighbours, names = status["neighbours"], status["names"]
    named = {node: (node, names.get(node, "")) for node in [*neighbours, *delivery["pending"]]}
    round_trips = {n: seen["rtt_ms"] for n, seen in neighbours.items()}
    samples: dict[str, MetricSamples | float] = {
        "hansa_agent_info": {(status["version"],): 1},
        "hansa_start_time_seconds": status["started_ms"] / 1000,
        "hansa_broker_connected": int(status["broker"]["connected"]),
        "hansa_broker_observed": int(status["broker"]["observer_complete"]),
        "hansa_interest_installed": int(status["interest"]["installed"]),
        "hansa_reachable_nodes": len(status["reachable_nodes"]),
        "hansa_unreachable_nodes": len(status["unreachable_nodes"]),
        "hansa_certificate_expiry_timestamp_seconds": _certificate_expiry(status["security"]),
        "hansa_neighbours": len(neighbours),
        "hansa_table_entries": _by_one_label(status["sizes"]),
        "hansa_alarm_active": {(alarm,): 1 for alarm in status["alarms"]},
        "hansa_alarms_total": _with_prefix(counters, ALARMS_PREFIX),
        "hansa_captured_publications_total": counters.get("captured", 0),
        "hansa_injected_publications_total": counters.get("injected", 0),
        "hansa_dropped_publications_total": _with_prefix(counters, DROPPED_PREFIX),
        "hansa_events_total": _unassigned_counters({**ZERO_COUNTERS, **counters}),
        "hansa_pending_positions": {named[n]: count for n, count in delivery["pending"].items()},
        "hansa_recorded_gaps": len(delivery["gaps"]),
        "hansa_link_round_trip_seconds": {
            named[n]: milliseconds / 1000
            for n, milliseconds in round_trips.items()
            if milliseconds is not None
        },
    }
    for metric, field in _DELIVERY_FIELDS.items():
        samples[metric] = delivery[field]
    for metric, field in _LINK_FIELDS.items():
        samples[metric] = {named[n]: seen[field] for n, seen in neighbours.items()}
    return _render_families(AGENT_METRICS, (status["node"], status["name"]), samples)


def _certificate_expiry(security: Mapping[str, Any] | None) -> MetricSamples | float:
    if security is None:
        return {}
    return datetime.fromisoformat(security["valid_until"]).timestamp()


def render_federator_metrics(status: Mapping[str, Any]) -> str:
    """Return the same for mode mqtt-fed."""
    connected = {name: int(not problem) for name, problem in status["brokers"].items()}
    samples: dict[str, MetricSamples | float] = {
        "hansa_agent_info": {(status["version"],): 1},
        "hansa_broker_connected": connected.pop("own"),
        "hansa_neighbour_broker_connected": _by_one_label(connected),
        "hansa_topics": len(status["topics"]),
        "hansa_unsupported_filters": len(status["unsupported_filters"]),
        "hansa_dropped_publications_total": _with_prefix(status["counters"], DROPPED_PREFIX),
        "hansa_events_total": _unassigned_counters(status["counters"]),
    }
    return _render_families(FEDERATOR_METRICS, (str(status["node"]), ""), samples)


def _by_one_label(values: Mapping[str, float]) -> MetricSamples:
    return {(key,): value for key, value in values.items()}


def _with_prefix(counters: Mapping[str, int], prefix: str) -> MetricSamples:
    found = ((name, count) for name, count in counters.items() if name.startswith(prefix))
    return {(name.removeprefix(prefix),): count for name, count in found}


def _unassigned_counters(counters: Mapping[str, int]) -> MetricSamples:
    """Return the counters that have no metric of their own."""
    own = ("captured", "injected")
    return {
        (name,): count
        for name, count in counters.items()
        if name not in own and not name.startswith((DROPPED_PREFIX, ALARMS_PREFIX))
    }


# ------------------------------------------------------------ the text format


def _render_families(
    metrics: Iterable[MetricFamily],
    node: tuple[str, str],
    samples: Mapping[str, MetricSamples | float],
) -> str:
    lines = [
        line for metric in metrics for line in _render_family(metric, node, samples[metric.name])
    ]
    return "\n".join([*lines, ""])


def _render_family(
    metric: MetricFamily, node: tuple[str, str], values: MetricSamples | float
) -> Iterator[str]:
    """Return the lines of one metric; nothing for a metric without samples."""
    if not isinstance(values, Mapping):
        values = {(): values}
    if not values:
        return
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    names = ("node", "node_name", *metric.labels)
    for labels, value in sorted(values.items()):
        pairs = zip(names, (*node, *labels), strict=True)
        text = ",".join(f'{name}="{_escape(label)}"' for name, label in pairs)
        yield f"{metric.name}{{{text}}} {value}"


def _escape(text: str) -> str:
    """Return a label value escaped; characters that UTF-8 cannot encode are replaced."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
