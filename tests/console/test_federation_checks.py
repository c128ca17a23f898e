"""Findings about a running federation, with remedies."""

import pytest
from tests.console.documents import ALPHA, BETA, GAMMA, federation, lost, node

from hansa.console.federation_checks import (
    Importance,
    check_federation_health,
    merge_findings,
)

NOW_MS = 1_800_000_000_000
"""2027-01-15."""

SECURE = {"security": {"valid_until": "2028-01-01T00:00:00+00:00"}, "clock_ms": NOW_MS}


DELIVERY = {
    "in_flight_max": 1_000,
    "inbox_bytes": 10**8,
    "session_loss_policy": "no-loss",
    "retention_seconds": 604_800.0,
    "retention_bytes": 4 * 10**9,
    "interest_lease": 86_400.0,
}


def broker(queued_max=None, **limits):
    """The broker of a node, with the limits of a good one unless changed."""
    good = {"receive_maximum": 100, "qos_max": 2, "session_expiry": 86_400}
    return {
        "address": "b:1",
        "connected": True,
        "queued_max": queued_max,
        "limits": {**good, **limits},
    }


def found(*nodes):
    """Importance, node and text of the findings."""
    return [
        (each.importance.name, each.node, each.text)
        for each in check_federation_health(federation(*nodes))
    ]


def test_healthy_federation_has_no_findings():
    assert found(node("alpha", ALPHA, **SECURE), node("beta", BETA, **SECURE)) == []


def test_most_serious_comes_first_and_has_a_remedy():
    findings = check_federation_health(
        federation(
            node("alpha", ALPHA, **SECURE, alarms={"clock set back": "x"}),
            lost("beta", BETA),
            node("gamma", GAMMA, **SECURE, delivery={"pending": {ALPHA: 3}}),
        )
    )
    ranks = [each.importance for each in findings]
    assert ranks == sorted(ranks)
    assert (findings[0].node, findings[0].text) == ("beta", "unreachable (down 1 min)")
    assert all(each.remedy for each in findings)


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        (
            {"broker": {"address": "b:1", "connected": False, "problem": "refused"}},
            ("ERROR", "beta", "no connection to its broker b:1: refused"),
        ),
        (
            {"alarms": {"broker dropped messages": "9"}},
            ("WARNING", "beta", "alarm broker dropped messages: 9"),
        ),
        (
            {"refused": ["federation 'a' meets 'b'"]},
            ("WARNING", "beta", "a link was refused: federation 'a' meets 'b'"),
        ),
        (
            {"not_reached": {"south:10500": "Connection refused"}},
            ("WARNING", "beta", "does not reach its neighbour south:10500: Connection refused"),
        ),
        (
            {"interest": {"filters": 1, "installed": False}},
            ("WARNING", "beta", "its subscriptions are not in force at every node"),
        ),
        (
            {"delivery": {"pending": {ALPHA: 1_000}}},
            ("NOTE", "beta", "1,000 publications of QoS 1 and 2 are pending at receivers"),
        ),
        (
            {"security": {"valid_until": "2027-01-20T08:00:00+00:00"}},
            ("WARNING", "beta", "its certificate ends in 5 days"),
        ),
        (
            {"security": {"valid_until": "2027-01-01T00:00:00+00:00"}},
            ("ERROR", "beta", "its certificate has ended"),
        ),
        (
            {"security": None},
            (
                "NOTE",
                "beta",
                "has no certificate: its links are neither authenticated nor encrypted",
            ),
        ),
        (
            {"disk": {"free_bytes": 10**9, "total_bytes": 10**11}},
            ("WARNING", "beta", "the disk of its state has 1.0 GB free of 100.0 GB"),
        ),
        (
            {"broker": broker(queued_max=1_000)},
            (
                "WARNING",
                "beta",
                "its broker queues 1,000 messages for a client: while its agent is away or slow,"
                " more are lost",
            ),
        ),
        (
            {"broker": {**broker(), "config_problem": "cannot read m.conf: Permission denied"}},
            (
                "WARNING",
                "beta",
                "the configuration of its broker is unknown: cannot read m.conf: Permission denied",
            ),
        ),
        (
            {"broker": broker(qos_max=1)},
            ("WARNING", "beta", "its broker allows QoS 1 at most"),
        ),
        (
            {"broker": broker(receive_maximum=20), "delivery_settings": DELIVERY},
            (
                "NOTE",
                "beta",
                "its broker accepts 20 publications in flight, fewer than [delivery]"
                " in_flight_max = 1000: QoS 1 and 2 are slower",
            ),
        ),
        (
            {"broker": broker(session_expiry=3_600), "delivery_settings": DELIVERY},
            (
                "WARNING",
                "beta",
                "its broker keeps the session of an absent agent for 3,600 s, not for [protocol]"
                " interest_lease = 86400: later publications are lost",
            ),
        ),
        (
            {"delivery_settings": {**DELIVERY, "retention_seconds": 3_600.0}},
            (
                "WARNING",
                "beta",
                "[delivery] retention_seconds = 3600 is shorter than [protocol] interest_lease ="
                " 86400: publications for an unreachable node are deleted before its lease ends",
            ),
        ),
        (
            {
                "disk": {"free_bytes": 2 * 10**9, "total_bytes": 10**10},
                "delivery": {"journal_bytes": 10**9},
                "delivery_settings": DELIVERY,
            },
            (
                "WARNING",
                "beta",
                "its journals may grow by 3.1 GB, and the disk of its state has 2.0 GB free of"
                " 10.0 GB",
            ),
        ),
        (
            {"counters": {"links lost": 7}, "incarnation": NOW_MS - 3_600_000},
            ("WARNING", "beta", "lost 7 links in 1.0 hours"),
        ),
        (
            {"clock_ms": NOW_MS - 10_000},
            ("WARNING", "beta", "its clock is 10 s behind that of alpha"),
        ),
        (
            {"clock_ms": NOW_MS + 400_000},
            ("ERROR", "beta", "its clock is 400 s ahead of that of alpha"),
        ),
        (
            {"version": "0.3.0"},
            ("NOTE", "federation", "agents of several versions run: 1 of 0.2.0, 1 of 0.3.0"),
        ),
    ],
)
def test_each_problem_is_found(changes, finding):
    assert found(node("alpha", ALPHA, **SECURE), node("beta", BETA, **{**SECURE, **changes})) == [
        finding
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"counters": {"links lost": 7}, "incarnation": NOW_MS - 60_000},
        {"security": {"valid_until": "no date"}},
        {"disk": {"free_bytes": 5 * 10**10, "total_bytes": 10**11}},
        {"clock_ms": NOW_MS - 1_500},
        {"broker": broker(queued_max=0)},
        {"broker": broker(queued_max=100_000)},
        {"broker": broker(), "delivery_settings": DELIVERY},
        {
            "broker": broker(receive_maximum=20),
            "delivery_settings": {**DELIVERY, "in_flight_max": 10},
        },
        {
            "broker": broker(session_expiry=0xFFFFFFFF),
            "delivery_settings": {**DELIVERY, "interest_lease": None, "retention_seconds": None},
        },
        {
            "disk": {"free_bytes": 2 * 10**9, "total_bytes": 10**10},
            "delivery": {"journal_bytes": 5 * 10**9},
            "delivery_settings": DELIVERY,
        },
    ],
)
def test_harmless_states_are_no_findings(changes):
    assert found(node("alpha", ALPHA, **SECURE), node("beta", BETA, **{**SECURE, **changes})) == []


def test_slow_answer_is_no_difference_of_clocks():
    slow = {**node("beta", BETA, **{**SECURE, "clock_ms": NOW_MS + 2_500}), "asked_ms": 2_400.0}
    assert found(node("alpha", ALPHA, **SECURE), slow) == []


def test_node_without_an_answer_is_found():
    silent = {
        "id": BETA,
        "name": "beta",
        "reachable": True,
        "problem": "no answer within 3 s",
        "summary": None,
    }
    assert found(node("alpha", ALPHA, **SECURE), silent) == [
        ("ERROR", "beta", "no answer within 3 s")
    ]


def test_node_with_one_link_is_noted_in_larger_federations():
    three = (("alpha", ALPHA), ("beta", BETA), ("gamma", GAMMA))
    notes = found(*(node(name, each, **SECURE) for name, each in three))
    text = "has one link only: if it fails, the node is cut off"
    assert notes == [("NOTE", "alpha", text), ("NOTE", "beta", text)]
    assert Importance.NOTE > Importance.WARNING > Importance.ERROR


def test_settings_that_differ_are_listed_with_their_nodes():
    def with_settings(name, node_id, settings):
        return node(name, node_id, **SECURE, settings=settings)

    same = {"interest_lease": 60.0}
    assert [
        text
        for _, where, text in found(
            with_settings("alpha", ALPHA, {**same, "heartbeat_limit": 9.0}),
            with_settings("beta", BETA, same),
            with_settings("gamma", GAMMA, same),
        )
        if where == "federation"
    ] == ["[protocol] heartbeat_limit differs: 9.0 at alpha; the default at beta, gamma"]


def test_delivery_settings_that_differ_are_listed_and_a_policy_is_more_serious():
    changed = {**DELIVERY, "session_loss_policy": "no-dup", "retention_bytes": 10**9}
    assert found(
        node("alpha", ALPHA, **SECURE, delivery_settings=changed),
        node("beta", BETA, **SECURE, delivery_settings=DELIVERY),
    ) == [
        (
            "WARNING",
            "federation",
            "[delivery] session_loss_policy differs: no-dup at alpha; no-loss at beta",
        ),
        (
            "NOTE",
            "federation",
            "[delivery] retention_bytes differs: 1000000000 at alpha; 4000000000 at beta",
        ),
    ]


def test_the_same_finding_of_many_nodes_takes_one_line():
    nodes = [node(f"n{number}", f"{number:016x}", security=None) for number in range(5)]
    findings = check_federation_health(federation(*nodes))
    merged = merge_findings(findings)
    assert [each.node for each in merged] == ["n0, n1, n2 and 2 others"]
    assert len(findings) == 5


def test_agent_without_settings_in_its_summary_is_not_compared():
    changed = node("alpha", ALPHA, **SECURE, settings={"redundancy": 3})
    assert found(changed, node("beta", BETA, **SECURE)) == []


def test_many_nodes_with_one_setting_are_counted():
    others = [node(f"n{number}", f"{number:016x}", **SECURE, settings={}) for number in range(5)]
    first = node("alpha", ALPHA, **SECURE, settings={"redundancy": 3})
    text = "[protocol] redundancy differs: 3 at alpha; the default at n0, n1, n2 and 2 others"
    assert ("WARNING", "federation", text) in found(first, *others)
