"""A status as Prometheus reads it."""

from hansa.agent.metrics import as_metrics, fed_as_metrics

STATUS = {
    "broker": {"connected": True},
    "interest": {"installed": False},
    "members": [1, 2],
    "delivery": {"position": 5, "inbox": 6, "owed": {"7": 2}},
    "alarms": {"gap": "lost"},
    "sizes": {"groups": 3},
    "counters": {'a "reason"\\\n': 4},
    "neighbours": {
        "7": {"rtt_ms": 2.0, "bytes_in": 10, "bytes_out": 20, "outstanding_bytes": 3, "dropped": 1},
        "8": {"rtt_ms": None, "bytes_in": 0, "bytes_out": 5, "outstanding_bytes": 0, "dropped": 0},
    },
}


def test_all_lines():
    assert as_metrics(STATUS).splitlines() == [
        "# TYPE hansa_broker_connected gauge",
        "hansa_broker_connected 1",
        "# TYPE hansa_interest_installed gauge",
        "hansa_interest_installed 0",
        "# TYPE hansa_members gauge",
        "hansa_members 2",
        "# TYPE hansa_size gauge",
        'hansa_size{of="groups"} 3',
        "# TYPE hansa_owed gauge",
        'hansa_owed{receiver="7"} 2',
        "# TYPE hansa_delivery gauge",
        'hansa_delivery{of="inbox"} 6',
        'hansa_delivery{of="position"} 5',
        "# TYPE hansa_alarm gauge",
        'hansa_alarm{name="gap"} 1',
        "# TYPE hansa_events_total counter",
        'hansa_events_total{event="a \\"reason\\"\\\\\\n"} 4',
        "# TYPE hansa_link_bytes_in_total counter",
        'hansa_link_bytes_in_total{neighbour="7"} 10',
        'hansa_link_bytes_in_total{neighbour="8"} 0',
        "# TYPE hansa_link_bytes_out_total counter",
        'hansa_link_bytes_out_total{neighbour="7"} 20',
        'hansa_link_bytes_out_total{neighbour="8"} 5',
        "# TYPE hansa_link_dropped_total counter",
        'hansa_link_dropped_total{neighbour="7"} 1',
        'hansa_link_dropped_total{neighbour="8"} 0',
        "# TYPE hansa_link_outstanding_bytes gauge",
        'hansa_link_outstanding_bytes{neighbour="7"} 3',
        'hansa_link_outstanding_bytes{neighbour="8"} 0',
        "# TYPE hansa_link_rtt_seconds gauge",
        'hansa_link_rtt_seconds{neighbour="7"} 0.002',
    ]


def test_all_lines_of_a_node_of_mqtt_fed():
    status = {
        "brokers": {"own": "", "2": "", "3": "Connection refused"},
        "topics": {"t": {}},
        "left_out": ["federated/#"],
        "counters": {"delivered": 4},
    }
    assert fed_as_metrics(status).splitlines() == [
        "# TYPE hansa_broker_connected gauge",
        "hansa_broker_connected 1",
        "# TYPE hansa_neighbour_broker_connected gauge",
        'hansa_neighbour_broker_connected{neighbour="2"} 1',
        'hansa_neighbour_broker_connected{neighbour="3"} 0',
        "# TYPE hansa_topics gauge",
        "hansa_topics 1",
        "# TYPE hansa_filters_left_out gauge",
        "hansa_filters_left_out 1",
        "# TYPE hansa_events_total counter",
        'hansa_events_total{event="delivered"} 4',
    ]
