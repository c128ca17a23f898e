"""A status as Prometheus text; a real Prometheus that scrapes agents is in test_prometheus."""

from typing import Any

from hansa.agent.admin.metrics import (
    AGENT_METRICS,
    FEDERATOR_METRICS,
    render_federator_metrics,
    render_metrics,
)

TRAFFIC = {"bytes_in": 10, "bytes_out": 20, "frames_out": 2, "outstanding_bytes": 3, "dropped": 1}
IDLE = dict.fromkeys(TRAFFIC, 0)

STATUS: dict[str, Any] = {
    "version": "1.2",
    "started_ms": 1_700_000_000_500,
    "node": "0a",
    "name": "north",
    "names": {"0a": "north", "07": 'a "b"\\\n\ud800', "09": "away"},
    "broker": {"connected": True, "observer_complete": False},
    "interest": {"installed": False},
    "reachable_nodes": ["0a", "07"],
    "unreachable_nodes": ["09"],
    "security": {"valid_until": "2027-01-02T03:04:05+00:00"},
    "delivery": {
        "epoch": 1,
        "position": 5,
        "first_position": 2,
        "acknowledged_by_all": 3,
        "pending": {"09": 2},
        "unsynced_bytes": 4,
        "inbox": 6,
        "inbox_bytes": 7,
        "inbox_waiting": 8,
        "gaps": [{"first": 1}, {"first": 2}],
    },
    "alarms": {"delivery gap": "lost"},
    "sizes": {"groups": 3},
    "counters": {"captured": 1, "dropped: expired": 4, "alarms: delivery gap": 5, "gaps": 2},
    "neighbours": {"07": {"rtt_ms": 2.0, **TRAFFIC}, "08": {"rtt_ms": None, **IDLE}},
}


def samples(page: str) -> list[str]:
    return [line for line in page.splitlines() if not line.startswith("#")]


def test_samples_of_agent():
    node = 'node="0a",node_name="north"'
    first = rf'{node},neighbour="07",neighbour_name="a \"b\"\\\n?"'
    second = f'{node},neighbour="08",neighbour_name=""'
    assert samples(render_metrics(STATUS)) == [
        f'hansa_agent_info{{{node},version="1.2"}} 1',
        f"hansa_start_time_seconds{{{node}}} 1700000000.5",
        f"hansa_broker_connected{{{node}}} 1",
        f"hansa_broker_observed{{{node}}} 0",
        f"hansa_interest_installed{{{node}}} 0",
        f"hansa_reachable_nodes{{{node}}} 2",
        f"hansa_unreachable_nodes{{{node}}} 1",
        f"hansa_certificate_expiry_timestamp_seconds{{{node}}} 1798859045.0",
        f"hansa_neighbours{{{node}}} 2",
        f'hansa_table_entries{{{node},table="groups"}} 3',
        f'hansa_alarm_active{{{node},alarm="delivery gap"}} 1',
        f'hansa_alarms_total{{{node},alarm="delivery gap"}} 5',
        f"hansa_captured_publications_total{{{node}}} 1",
        f"hansa_injected_publications_total{{{node}}} 0",
        f'hansa_dropped_publications_total{{{node},reason="expired"}} 4',
        f'hansa_events_total{{{node},event="gaps"}} 2',
        f'hansa_events_total{{{node},event="links lost"}} 0',
        f'hansa_pending_positions{{{node},receiver="09",receiver_name="away"}} 2',
        f"hansa_journal_epoch{{{node}}} 1",
        f"hansa_journal_position{{{node}}} 5",
        f"hansa_journal_first_position{{{node}}} 2",
        f"hansa_journal_acknowledged_position{{{node}}} 3",
        f"hansa_journal_unsynced_bytes{{{node}}} 4",
        f"hansa_inbox_publications{{{node}}} 6",
        f"hansa_inbox_bytes{{{node}}} 7",
        f"hansa_inbox_waiting_publications{{{node}}} 8",
        f"hansa_recorded_gaps{{{node}}} 2",
        f"hansa_link_received_bytes_total{{{first}}} 10",
        f"hansa_link_received_bytes_total{{{second}}} 0",
        f"hansa_link_sent_bytes_total{{{first}}} 20",
        f"hansa_link_sent_bytes_total{{{second}}} 0",
        f"hansa_link_sent_frames_total{{{first}}} 2",
        f"hansa_link_sent_frames_total{{{second}}} 0",
        f"hansa_link_dropped_publications_total{{{first}}} 1",
        f"hansa_link_dropped_publications_total{{{second}}} 0",
        f"hansa_link_outstanding_bytes{{{first}}} 3",
        f"hansa_link_outstanding_bytes{{{second}}} 0",
        f"hansa_link_round_trip_seconds{{{first}}} 0.002",
    ]


def test_metrics_have_help_and_type_once_in_order():
    headers = [line for line in render_metrics(STATUS).splitlines() if line.startswith("#")]
    assert headers == [
        line
        for metric in AGENT_METRICS
        for line in (f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}")
    ]


def test_metric_without_samples_is_omitted():
    page = render_metrics({**STATUS, "alarms": {}})
    assert "hansa_alarm_active" not in page


def test_samples_of_mqttfed_node():
    status = {
        "version": "1.2",
        "node": 1,
        "brokers": {"own": "", "2": "", "3": "Connection refused"},
        "topics": {"t": {}},
        "unsupported_filters": ["federated/#"],
        "counters": {"delivered": 4, "dropped: broker disconnected": 2},
    }
    node = 'node="1",node_name=""'
    page = render_federator_metrics(status)
    assert samples(page) == [
        f'hansa_agent_info{{{node},version="1.2"}} 1',
        f"hansa_broker_connected{{{node}}} 1",
        f'hansa_neighbour_broker_connected{{{node},neighbour="2"}} 1',
        f'hansa_neighbour_broker_connected{{{node},neighbour="3"}} 0',
        f"hansa_topics{{{node}}} 1",
        f"hansa_unsupported_filters{{{node}}} 1",
        f'hansa_dropped_publications_total{{{node},reason="broker disconnected"}} 2',
        f'hansa_events_total{{{node},event="delivered"}} 4',
    ]
    assert [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")] == [
        metric.name for metric in FEDERATOR_METRICS
    ]
