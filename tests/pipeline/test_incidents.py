"""Incidents of a recorded run, without Spark."""

from datetime import UTC, datetime, timedelta

import pytest

from hansa.pipeline.report.incidents import DEFINITIONS, count_active, find_incidents

START = datetime(2026, 1, 1, tzinfo=UTC)


def records(text):
    """Return records; each is written as node, second, kind and peer."""
    found = []
    for words in text.split(", "):
        node, second, kind, *peer = words.split()
        record = dict.fromkeys(("peer_id", "origin_id", "first_sequence", "last_sequence"))
        record |= {"node_id": node, "recorded_at": START + timedelta(seconds=int(second))}
        name = peer[0] if peer else None
        is_alarm = kind.startswith("alarm_")
        record |= {"kind": kind, "peer_id": None if is_alarm else name}
        record |= {"alarm": name if is_alarm else None}
        if kind == "gap":
            record |= {"origin_id": "o", "first_sequence": 3, "last_sequence": 5}
        found.append(record)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a 1 node_unreachable c, b 2 node_unreachable c, a 5 node_reachable c,"
            " b 7 node_reachable c",
            [("node unreachable", ("c",), 1, 6.0, 1)],
        ),
        ("a 1 node_unreachable c", [("node unreachable", ("c",), 1, None, 1)]),
        ("b 3 node_stopped, a 2 node_unreachable b", []),
        (
            "b 1 node_stopped, b 8 node_started, a 9 node_unreachable b",
            [("node unreachable", ("b",), 9, None, 1)],
        ),
        (
            "b 1 link_down a, a 2 link_down b, a 4 link_up b, b 4 link_up a",
            [("link down", ("a", "b"), 1, 3.0, 1)],
        ),
        ("a 1 link_down b, b 1 link_down a, a 2 node_stopped", []),
        ("a 1 link_down", []),
        ("a 4 gap", [("publications lost", ("o", "a"), 4, 0.0, 3)]),
    ],
)
def test_incidents_are_found_with_begin_and_end(text, expected):
    found = find_incidents(records(text))
    assert [
        (each.kind, each.node_ids, (each.at - START).seconds, each.seconds, each.count)
        for each in found
    ] == expected
    assert {each.kind for each in found} <= DEFINITIONS.keys()


def test_alarm_lasts_until_it_is_cleared_or_the_agent_ends():
    found = find_incidents(
        records(
            "a 1 alarm_raised full, b 2 alarm_raised full, a 3 alarm_raised clock, a 4"
            " alarm_cleared full, a 5 alarm_cleared none, a 6 node_started, b 9 link_up a"
        )
    )
    assert [(each.alarm, each.node_ids, each.seconds) for each in found] == [
        ("full", ("a",), 3.0),
        ("full", ("b",), None),
        ("clock", ("a",), 3.0),
    ]
    times = [START + timedelta(seconds=second) for second in range(8)]
    assert count_active(found, times, timedelta(seconds=1)) == [0, 1, 2, 3, 2, 2, 1, 1]
    # An alarm that is shorter than the period counts.
    assert count_active(found, times[::4], timedelta(seconds=4)) == [3, 2]
