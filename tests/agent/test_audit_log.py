"""The audit log: what is written, and what a flood cannot do to it."""

import asyncio
from pathlib import Path

from hansa.agent.alarms import Alarms
from hansa.agent.audit_log import EVENTS_PER_S, TEXT_CHARS_MAX, AuditLog
from hansa.agent.links.budget import BURST_S
from hansa.protocol.model import NodeId
from hansa.telemetry import schema
from hansa.telemetry.reader import read_rows

SELF = (NodeId(1), 7)


def events(path: Path) -> list[tuple[str, int | None, str, str]]:
    records = [row.record for row in read_rows(path)]
    return [
        (each.security_event, each.peer_id, each.address, each.reason)
        for each in records
        if isinstance(each, schema.SecurityEvent)
    ]


def test_events_are_appended_over_restarts(tmp_path):
    for number in (1, 2):
        log = AuditLog(tmp_path, SELF, Alarms())
        log.record("strike", f"reason {number}", NodeId(5), "192.0.2.1:5")
        asyncio.run(log.stop())
    assert events(log.path) == [
        ("strike", 5, "192.0.2.1:5", "reason 1"),
        ("strike", 5, "192.0.2.1:5", "reason 2"),
    ]


def test_flood_of_one_kind_is_cut_and_does_not_hide_others(tmp_path):
    log = AuditLog(tmp_path, SELF, Alarms())
    for _ in range(10_000):
        log.record("peer_refused", "x" * 10_000, address="y" * 10_000)
    log.record("quarantine", "1 s: forged", NodeId(5))
    asyncio.run(log.stop())
    found = events(log.path)
    assert found[-1] == ("quarantine", 5, "", "1 s: forged")
    assert len(found) <= 2 * EVENTS_PER_S * BURST_S
    assert found[0] == ("peer_refused", None, "y" * TEXT_CHARS_MAX, "x" * TEXT_CHARS_MAX)
    assert log.counters["security: peer_refused"] == 10_000
    assert log.counters["audit events not written"] == 10_001 - len(found)


def test_without_a_disk_events_are_counted_and_an_alarm_is_raised(tmp_path):
    (tmp_path / "audit").write_text("in the way")
    alarms = Alarms()
    log = AuditLog(tmp_path, SELF, alarms)
    log.record("strike", "forged")
    asyncio.run(log.stop())
    assert "audit log not written" in alarms.active
    assert log.counters == {"security: strike": 1, "audit events not written": 1}


def test_damaged_log_is_set_aside(tmp_path):
    log = AuditLog(tmp_path, SELF, Alarms())
    log.record("strike", "forged")
    asyncio.run(log.stop())
    (segment,) = log.path.glob("*.log")
    segment.write_bytes(b"\xff" * 100)
    again = AuditLog(tmp_path, SELF, Alarms())
    again.record("strike", "again")
    asyncio.run(again.stop())
    assert [reason for *_, reason in events(again.path)] == ["again"]
    assert (tmp_path / "audit-damaged-7").is_dir()
