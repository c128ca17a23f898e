"""The last events of an agent."""

import pytest

from hansa.agent.admin import history as history_module
from hansa.agent.admin.history import History
from hansa.protocol import effects
from hansa.protocol.model import LinkId, NodeId

NODE = NodeId(5)


def made() -> History:
    return History(lambda node: f"name-{node}", lambda: 7)


@pytest.mark.parametrize(
    ("effect", "kind", "subject", "text"),
    [
        (effects.NeighbourUp(NODE, LinkId(1)), "link up", "", ""),
        (effects.NeighbourDown(NODE, "silent"), "link down", "", "silent"),
        (effects.NodeReachable(NODE), "node reachable", "", ""),
        (effects.NodeUnreachable(NODE), "node unreachable", "", ""),
        (effects.CoreElected("plant/#", NODE), "core elected", "plant/#", ""),
        (effects.CoreLost("plant/#", NODE), "core lost", "plant/#", ""),
        (effects.Gap(NODE, 1, 3, 4, "trimmed"), "gap", "", "positions 3 to 4: trimmed"),
        (effects.DeliveryAbandoned(NODE, 1, 3, 4), "delivery abandoned", "", "positions 3 to 4"),
        (effects.Repaired(NODE, 9), "repaired", "", "9 publications"),
    ],
)
def test_notification_becomes_an_event(effect, kind, subject, text):
    history = made()
    history.add_notification(effect)
    assert history.newest(10) == [
        {
            "number": 1,
            "at_ms": 7,
            "kind": kind,
            "node": "0000000000000005",
            "name": "name-5",
            "subject": subject,
            "text": text,
        }
    ]


def test_refusals_alarms_and_brokers_are_events():
    history = made()
    history.add_notification(effects.LinkRefused(LinkId(1), "another federation"))
    history.add_alarm("clock set back", "by 3 s", "raised")
    history.add_broker_status("connection refused")
    history.add_broker_status("")
    found = [(each["kind"], each["subject"], each["text"]) for each in history.newest(10)]
    assert found == [
        ("link refused", "", "another federation"),
        ("alarm raised", "clock set back", "by 3 s"),
        ("broker lost", "", "connection refused"),
        ("broker connected", "", ""),
    ]


def test_other_notifications_are_no_events():
    history = made()
    history.add_notification(effects.Duplicate(NODE, 1))
    assert (history.newest(10), history.number) == ([], 0)


def test_events_are_bounded_and_elections_push_nothing_else_out(monkeypatch):
    monkeypatch.setattr(history_module, "EVENTS_MAX", 3)
    monkeypatch.setattr(history_module, "ELECTIONS_MAX", 2)
    history = made()
    for _ in range(4):
        history.add_notification(effects.NodeReachable(NODE))
    for number in range(9):
        history.add_notification(effects.CoreElected(f"group {number}" + "x" * 999, NODE))
    assert [each["number"] for each in history.newest(10)] == [2, 3, 4, 12, 13]
    assert [each["number"] for each in history.newest(2)] == [12, 13]
    assert len(history.newest(1)[0]["subject"]) == history_module.TEXT_CHARS_MAX
