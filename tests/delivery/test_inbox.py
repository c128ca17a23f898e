"""The inbox: recovery after truncation at any record, packet ids, memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.delivery.injecting import InjectingIncarnation, incarnation, packet
from tests.delivery.shell import OTHER, YOU

from hansa.delivery.inbox import (
    ENTRY_OVERHEAD_BYTES,
    GAPS_MAX,
    ORIGINS_MAX,
    PUBLISH_PACKET_IDS,
    InboxLog,
)
from hansa.journal.records import (
    InboxRecord,
    InjectionAcceptedRecord,
    JournalRecord,
    SessionStartedRecord,
)
from hansa.mqtt.in_flight import REQUEST_IDS_MIN
from hansa.mqtt.packets import PubAckPacket, PubRecPacket
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.settings import NODES_MAX
from hansa.simulator.world.memory_log import MemoryLog


def opened(log: MemoryLog) -> InboxLog:
    return InboxLog(log, log.replay(), lambda: 1)


def publication(number: int, payload: bytes = b"", retain: bool = False) -> Publication:
    return Publication(YOU, 8, number, 2, "a", payload, retain)


@contextmanager
def cut_off(agent: InjectingIncarnation) -> Iterator[list[list[int]]]:
    """Return, for each record appended meanwhile, the publications that recovery right after it
    would find."""
    found: list[list[int]] = []
    append = agent.log.append

    def append_and_look(record: JournalRecord) -> int:
        offset = append(record)
        agent.log.commit(agent.log.end)
        entries = opened(agent.log.copy()).entries
        found.append([each.record.sequence for each in entries.values()])
        return offset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.log, "append", append_and_look)
        yield found


@pytest.mark.pure
def test_rewrite_after_session_loss_keeps_entries_once_and_in_order():
    agent = incarnation()
    agent.connect(receive_maximum=3)
    agent.deliver(1, 2, 3, 4, 5)
    agent.expect_sent(packet(1), packet(2), packet(3))
    agent.receive(PubRecPacket(2))
    agent.disconnect()
    with cut_off(agent) as found:
        agent.connect(session_present=False)
    assert found == [[1, 2, 3, 4, 5]] * 3


@pytest.mark.pure
def test_cleared_value_is_not_stored_again():
    agent = incarnation()
    agent.connect()
    agent.store(publication(1, retain=True), publication(2, retain=True))
    assert len(agent.sent) == 2
    with cut_off(agent) as found:
        agent.receive(PubAckPacket(2, 0x97))
    assert found == [[1, 2]]


def test_packet_id_of_waiting_entry_is_not_reused(monkeypatch):
    monkeypatch.setattr("hansa.delivery.inbox.PUBLISH_PACKET_IDS", 3)
    inbox = opened(MemoryLog(5))
    waits = inbox.add(publication(1))
    ids = []
    for number in range(2, 8):
        entry = inbox.add(publication(number))
        ids.append(entry.packet_id)
        inbox.mark_completed(entry)
    assert waits.packet_id == 2
    assert ids == [3, 1, 3, 1, 3, 1]
    inbox.mark_completed(waits)
    assert inbox.add(publication(8)).packet_id == 2


def test_publications_use_all_packet_ids_below_those_of_requests():
    assert PUBLISH_PACKET_IDS == REQUEST_IDS_MIN - 1


def test_inbox_is_full_when_all_packet_ids_are_in_use(monkeypatch):
    for module in ("inbox", "injection"):
        monkeypatch.setattr(f"hansa.delivery.{module}.PUBLISH_PACKET_IDS", 3)
    agent = incarnation()
    agent.deliver(1, 2, 3, 4)
    assert (len(agent.inbox.entries), agent.injection.waiting_count) == (3, 1)


def test_upper_bound_of_the_next_index_skips_packet_ids_in_use(monkeypatch):
    monkeypatch.setattr("hansa.delivery.inbox.PUBLISH_PACKET_IDS", 3)
    inbox = opened(MemoryLog(5))
    for number in (1, 2):
        inbox.add(publication(number))
    assert inbox.index_after(0) == 3
    bound = inbox.index_after(1)
    inbox.add(publication(3))
    assert inbox.next_index <= bound


def test_index_of_a_completed_entry_is_not_used_again():
    """The broker may not know yet that its packet id is free."""
    log = MemoryLog(5)
    inbox = opened(log)
    inbox.mark_completed(inbox.add(publication(1)))
    log.commit(log.end)
    assert opened(log).add(publication(2)).record.index == 2


def test_packet_ids_differ_after_a_lost_log():
    log = MemoryLog(5)
    inbox = InboxLog(log, (), lambda: 1, first_index=100)
    assert inbox.add(publication(1)).packet_id == 101
    assert PUBLISH_PACKET_IDS > 101


def test_memory_is_accounted_for():
    inbox = opened(MemoryLog(5))
    entry = inbox.add(publication(1, b"12345"))
    assert inbox.total_bytes == ENTRY_OVERHEAD_BYTES + 6
    inbox.mark_redelivered(entry)
    marked = ENTRY_OVERHEAD_BYTES + 6 + len(entry.record.properties)
    assert inbox.total_bytes == marked > ENTRY_OVERHEAD_BYTES + 6
    inbox.log.durable = inbox.log.end
    assert opened_again(inbox).total_bytes == marked, "an entry that was rewritten counts once"
    inbox.mark_completed(entry)
    assert inbox.total_bytes == 0


def opened_again(inbox: InboxLog) -> InboxLog:
    assert isinstance(inbox.log, MemoryLog)
    return opened(inbox.log.copy())


def test_recovery_ignores_records_of_completed_entries_and_unknown_records():
    log = MemoryLog(5)
    for record in (SessionStartedRecord(1), InjectionAcceptedRecord(4)):
        log.append(record)
    log.commit(log.end)
    inbox = opened(log)
    assert (inbox.entries, inbox.next_index) == ({}, 5)


def test_gaps_are_bounded_and_restored():
    log = MemoryLog(5)
    inbox = opened(log)
    for number in range(GAPS_MAX + 1):
        inbox.record_gap(OTHER, 8, 2 * number + 1, 2 * number + 2, "retention")
    log.commit(log.end)
    again = opened(log)
    assert [each.first for each in again.gaps] == [2 * n + 1 for n in range(1, GAPS_MAX + 1)]
    assert again.origin_progress == {OTHER: (8, 2 * GAPS_MAX + 2)}


def test_carried_state_restores_everything():
    log = MemoryLog(5)
    inbox = opened(log)
    accepted, other = inbox.add(publication(1)), inbox.add(publication(2))
    inbox.mark_completed(inbox.add(publication(3)))
    inbox.mark_pubrec_received(accepted)
    inbox.record_gap(OTHER, 8, 1, 2, "retention")
    carried = list(log.carried_state())
    again = InboxLog(MemoryLog(5), carried, lambda: 1)
    assert [(each.record, each.accepted_offset is not None) for each in again.entries.values()] == [
        (accepted.record, True),
        (other.record, False),
    ]
    assert (again.origin_progress, again.next_index) == (inbox.origin_progress, inbox.next_index)
    assert list(again.gaps) == list(inbox.gaps)


def test_position_reached_does_not_step_back():
    inbox = opened(MemoryLog(5))
    inbox.add(publication(5))
    inbox.add(Publication(YOU, 7, 9, 2, "a", b""))
    inbox.add(Publication(YOU, 8, 0, 2, "a", b"", True))
    assert inbox.origin_progress == {YOU: (8, 5)}


@pytest.mark.pure
def test_number_of_origins_is_bounded(monkeypatch):
    """Nodes come and go for years. The origins that advanced last are kept, also in a new
    segment."""
    monkeypatch.setattr("hansa.delivery.inbox.ORIGINS_MAX", 2)
    log = MemoryLog(5)
    inbox = opened(log)
    for origin, number in ((1, 1), (2, 1), (1, 2), (3, 1), (3, 1)):
        inbox.skip_publication(Publication(NodeId(origin), 8, number, 2, "a", b""))
    assert list(inbox.origin_progress.items()) == [(1, (8, 2)), (3, (8, 1))]
    again = InboxLog(MemoryLog(5), list(log.carried_state()), lambda: 1)
    assert list(again.origin_progress.items()) == list(inbox.origin_progress.items())


def test_origin_that_repeats_its_position_does_not_advance(monkeypatch):
    monkeypatch.setattr("hansa.delivery.inbox.ORIGINS_MAX", 2)
    inbox = opened(MemoryLog(5))
    for origin in (1, 2, 1, 3):
        inbox.skip_publication(Publication(NodeId(origin), 8, 1, 2, "a", b""))
    assert list(inbox.origin_progress) == [2, 3]


def test_more_origins_are_kept_than_a_node_can_know():
    assert ORIGINS_MAX > NODES_MAX


def test_recorded_gap_counts_at_once():
    inbox = opened(MemoryLog(5))
    inbox.record_gap(OTHER, 8, 1, 2, "retention")
    assert [(each.first, each.last) for each in inbox.gaps] == [(1, 2)]
    assert inbox.origin_progress == {OTHER: (8, 2)}


def test_entry_holds_the_whole_publication():
    inbox = opened(MemoryLog(5))
    entry = inbox.add(Publication(YOU, 8, 3, 1, "a/b", b"x", True, properties=b"\1\1"))
    assert entry.record == InboxRecord(1, YOU, 8, 3, 1, "a/b", b"x", True, b"\1\1", 1)
    assert entry.packet_id == 2


def test_acceptance_of_a_completed_publication_is_ignored():
    """A new segment carries nothing of it, and the record may be the first one that follows."""
    made = InboxLog(MemoryLog(1), [InjectionAcceptedRecord(5)], lambda: 1)
    assert (made.entries, made.next_index) == ({}, 6)
