"""The outbox: recovery from a log, receivers and their progress, and the plan of a rollover."""

import pytest
from msgspec.structs import replace
from tests.delivery.shell import ME, OTHER, WALL_NS, YOU, build_epoch

from hansa.delivery.dedup.history import CaptureDedup, CaptureHistory
from hansa.delivery.dedup.redelivery import RedeliveryCandidate, content_digest
from hansa.delivery.outbox import OutboxLog, make_publication
from hansa.delivery.rollover_plan import RolloverPlan
from hansa.journal.records import (
    CapturedRecord,
    JournalRecord,
    RecordedPublication,
    UnreportedRecord,
)
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import Property, encode_properties, message_expiry
from hansa.protocol.model import NodeId, Publication
from hansa.simulator.world.memory_log import MemoryLog

LARGE, SMALL = 1_000, 2
"""Records per segment."""
SEGMENTS = pytest.mark.parametrize("records", [LARGE, SMALL], ids=["one segment", "many"])


def opened(log: MemoryLog) -> OutboxLog:
    """Return the outbox of a new incarnation."""
    made = OutboxLog(log, log.replay(), lambda: WALL_NS)
    made.start_incarnation()
    return made


def reopened(made: OutboxLog) -> OutboxLog:
    """Commit, and return the outbox of the next incarnation."""
    log = made.log
    assert isinstance(log, MemoryLog)
    log.commit(log.end)
    log.crash()
    return opened(log)


def publication(number: int, to: NodeId = YOU, before: int = 0, qos: int = 1) -> Publication:
    payload = b"%d" % number
    return Publication(ME, 7, number, qos, "a", payload, receivers=((to, before),))


def filled(count: int, records: int = LARGE) -> OutboxLog:
    """Return an outbox of `count` publications, alternately for two nodes."""
    made = opened(MemoryLog(7, segment_records=records))
    for number in range(1, count + 1):
        receiver = (YOU, OTHER)[number % 2]
        made.append_publication(publication(number, receiver, max(number - 2, 0)), number)
    return made


def candidates(made: OutboxLog) -> list[tuple[int, int, int]]:
    """Return packet id, QoS and sequence number of the redelivery candidates."""
    found = made.dedup.redelivery.candidates()
    return [(each.packet_id, each.qos, each.sequence) for each in found]


def rolled_over(made: OutboxLog, epoch: int = 9) -> OutboxLog:
    plan = made.plan_rollover(epoch)
    assert isinstance(made.log, MemoryLog)
    made.adopt_epoch(plan, build_epoch(made.log, plan))
    return made


# ---------------------------------------------------------------- recovery


@SEGMENTS
def test_reopened_outbox_continues_positions(records):
    again = reopened(filled(20, records))
    assert (again.log.epoch, again.log.next_sequence) == (7, 21)
    assert again.receivers.last_assigned == {YOU: 20, OTHER: 19}


def test_captured_record_holds_the_whole_publication():
    log = MemoryLog(7)
    made = OutboxLog(log, (), lambda: WALL_NS, is_recorded=lambda topic: topic == "a/b")
    whole = Publication(
        ME, 7, 1, 2, "a/b", b"x", True, receivers=((YOU, 0),), properties=b"\1\1", version=5
    )
    made.append_publication(whole, 6, (3, 4))
    made.append_publication(publication(2, before=1), 7)
    assert log.replay() == [
        CapturedRecord(1, 2, "a/b", b"x", True, b"\1\1", ((YOU, 0),), 6, WALL_NS, True, 5, 3, 4),
        CapturedRecord(2, 1, "a", b"2", False, b"", ((YOU, 1),), 7, WALL_NS),
    ]


def test_redelivery_candidates_are_restored_with_content_digest():
    made = opened(MemoryLog(7))
    for number, qos in ((1, 1), (2, 2), (3, 2)):
        made.append_publication(publication(number, before=number - 1, qos=qos), 100 + number)
    made.append_completed(2)
    again = reopened(made)
    found = {each.packet_id: each.digest for each in again.dedup.redelivery.candidates()}
    assert found == {
        101: content_digest(PublishPacket("a", b"1", 1)),
        103: content_digest(PublishPacket("a", b"3", 2)),
    }
    assert candidates(again) == [(101, 1, 1), (103, 2, 3)]


def test_redelivery_candidates_are_carried_into_every_segment():
    made = opened(MemoryLog(7, segment_records=SMALL))
    made.append_publication(publication(1, qos=2), 101)
    made = reopened(made)
    for number in range(2, 20):
        made.append_publication(publication(number, before=number - 1), number)
    assert (101, 2, 1) in candidates(reopened(made))


def test_new_segment_at_start_carries_redelivery_candidates():
    """The UnreportedRecord at the start may need a new segment."""
    made = opened(MemoryLog(7, segment_records=1))
    made.append_publication(publication(1, qos=2), 5)
    for _ in range(2):
        made = reopened(made)
        assert candidates(made) == [(5, 2, 1)]


def test_last_completed_publication_is_carried_into_new_segment():
    made = opened(MemoryLog(7, segment_records=2))
    made.append_publication(publication(1, qos=2), 5, (1, 2))
    made.append_completed(1)
    for _ in range(2):
        made = reopened(made)
        made.append_acknowledged({YOU: made.receivers.acknowledged.get(YOU, 0) + 1})
        last = made.dedup.overlap.last_captured
        assert last is not None
        assert (last.packet_id, last.subscription, last.newest_subscription) == (5, 1, 2)
        assert candidates(made) == []


def test_recovery_ignores_records_of_other_readers():
    log = MemoryLog(7)
    log.append(RecordedPublication(1, 1, "a", b"21.5", False, b"", 1))
    made = opened(log)
    assert (made.receivers.last_assigned, candidates(made)) == ({}, [])


def test_outbox_is_empty_until_something_is_captured():
    made = opened(MemoryLog(7))
    made.append_session_started()
    made = reopened(made)
    assert made.is_empty, "an older copy of it would look the same"
    made.append_publication(publication(1), 5)
    assert not reopened(made).is_empty
    assert rolled_over(made).is_empty


# ---------------------------------------------------------------- receivers


@SEGMENTS
def test_acknowledgements_are_restored(records):
    made = filled(20, records)
    assert made.append_acknowledged({YOU: 4, OTHER: 3})
    assert not made.append_acknowledged({YOU: 4})
    made.expire_node(OTHER)
    for number in range(21, 40):
        made.append_publication(publication(number, YOU, number - 1), number)
    assert reopened(made).receivers.acknowledged == {YOU: 4}


@pytest.mark.parametrize("segment_records", range(1, 6))
def test_acknowledgements_that_start_a_segment_are_restored(segment_records):
    """A segment may start between two of them."""
    made = filled(2, segment_records)
    made.append_acknowledged({YOU: 2, OTHER: 1})
    assert reopened(made).receivers.acknowledged == {YOU: 2, OTHER: 1}


def test_receiver_that_has_nothing_yet_has_not_advanced():
    made = filled(1)
    assert not made.append_acknowledged({OTHER: 0})
    assert made.receivers.acknowledged == {}


def test_expired_node_stays_removed_after_restart():
    made = filled(4)
    made.append_acknowledged({OTHER: 3})
    assert made.expire_node(OTHER)
    assert not made.expire_node(OTHER)
    for _ in range(2):
        made = reopened(made)
        assert made.receivers.last_assigned == {YOU: 4}
        assert made.receivers.acknowledged == {}


def test_expired_node_is_not_unreported_any_more():
    made = reopened(filled(4))
    assert made.receivers.unreported_since == {YOU: 5, OTHER: 5}
    made.expire_node(OTHER)
    assert made.receivers.unreported_since == {YOU: 5}
    assert reopened(made).receivers.unreported_since == {YOU: 5}


@SEGMENTS
def test_new_receiver_of_a_later_incarnation_is_unreported(records):
    made = reopened(filled(1, records))
    made.append_publication(publication(2, YOU), 2)
    assert made.receivers.unreported_since == {OTHER: 2, YOU: 2}
    made.append_publication(publication(3, YOU, 2), 3)
    made.mark_reported(OTHER)
    again = reopened(made)
    assert again.receivers.unreported_since == {YOU: 2, OTHER: 4}


def test_receiver_that_reported_is_not_unreported_any_more():
    outbox = filled(1)
    outbox.receivers.unreported_since[YOU] = 3
    outbox.mark_reported(YOU)
    assert outbox.receivers.unreported_since == {}


def test_receiver_of_the_first_incarnation_is_not_unreported():
    made = filled(2)
    unreported = [each for each in _records(made) if isinstance(each, UnreportedRecord)]
    assert (unreported, made.receivers.unreported_since) == ([], {})


def _records(made: OutboxLog) -> list[JournalRecord]:
    assert isinstance(made.log, MemoryLog)
    return made.log.replay()


def test_progress_is_behind_until_everything_is_acknowledged():
    made = opened(MemoryLog(7))
    assert not made.has_unacknowledged
    made = filled(2)
    made.append_acknowledged({YOU: 2})
    assert made.has_unacknowledged
    made.append_acknowledged({OTHER: 1})
    assert not made.has_unacknowledged


# ---------------------------------------------------------------- epoch rollover


@SEGMENTS
def test_rollover_copies_what_is_not_acknowledged(records):
    made = filled(8, records)
    made.append_acknowledged({YOU: 4, OTHER: 7})
    rolled_over(made)
    assert (made.log.epoch, made.log.next_sequence) == (9, 3)
    assert (made.receivers.last_assigned, made.receivers.acknowledged) == ({YOU: 2}, {})
    again = reopened(made)
    assert (again.log.epoch, again.receivers.last_assigned, candidates(again)) == (9, {YOU: 2}, [])
    assert isinstance(again.log, MemoryLog)
    assert [(each.payload, each.receivers) for each in again.log.captured_records(1, 2)] == [
        (b"6", ((YOU, 0),)),
        (b"8", ((YOU, 1),)),
    ]


def test_rollover_without_receivers_copies_nothing():
    made = rolled_over(opened(MemoryLog(7)))
    assert (made.log.next_sequence, made.receivers.last_assigned) == (1, {})


@pytest.mark.parametrize(
    ("last_assigned", "acknowledged", "first"),
    [
        ({}, {}, 1),
        ({YOU: 5}, {}, 1),
        ({YOU: 5}, {YOU: 5}, 6),
        ({YOU: 5, OTHER: 10}, {YOU: 5, OTHER: 8}, 9),
        ({YOU: 5, OTHER: 10}, {YOU: 3, OTHER: 8}, 4),
    ],
)
def test_rollover_starts_at_the_first_position_that_is_not_acknowledged(
    last_assigned, acknowledged, first
):
    assert RolloverPlan(9, last_assigned, acknowledged, {}).first_pending == first


def test_first_receivers_of_a_new_epoch_are_not_unreported():
    made = rolled_over(reopened(filled(1)))
    made.append_publication(replace(publication(2), sequence=made.log.next_sequence), 2)
    assert made.receivers.unreported_since == {}


def test_rollover_ends_the_clone():
    assert not opened(MemoryLog(7)).is_cloned
    log = MemoryLog(7)
    made = OutboxLog(log, (), lambda: WALL_NS, is_cloned=True)
    assert not rolled_over(made).is_cloned


def test_rollover_excludes_expired_nodes():
    made = filled(4)
    made.expire_node(YOU)
    assert rolled_over(made).receivers.last_assigned == {OTHER: 2}


def test_rollover_carries_redelivery_candidates():
    made = filled(40)
    found = {n: RedeliveryCandidate(n, 1, b"digest", n) for n in (3, 39)}
    made.dedup = CaptureDedup(CaptureHistory(found))
    again = reopened(rolled_over(made))
    assert candidates(again) == [(3, 1, 3), (39, 1, 39)]
    assert again.receivers.last_assigned == {YOU: 40, OTHER: 39}


@pytest.mark.parametrize("segment_records", range(1, 9))
def test_every_segment_of_a_copy_restores_what_was_copied(segment_records):
    """The log of the new epoch starts segments while it is filled. The agent may be killed after
    the log is in place and before the core has appended anything to it."""
    made = filled(4)
    found = {n: RedeliveryCandidate(n, 1, b"digest", n) for n in (1, 2, 3)}
    made.dedup = CaptureDedup(CaptureHistory(found))
    made.append_acknowledged({OTHER: 3})  # so 1 and 3 are not copied
    plan = made.plan_rollover(9)
    assert isinstance(made.log, MemoryLog)
    made.log.commit(made.log.end)
    copy = MemoryLog(9, segment_records=segment_records)
    for _ in plan.copy_records(made.log.captured_records(1, 4), copy, WALL_NS):
        pass
    copy.commit(copy.end)
    again = opened(copy)
    assert again.receivers.last_assigned == {YOU: 2}
    assert sorted(candidates(again)) == [(1, 1, -1), (2, 1, 1), (3, 1, -3)]


def test_copied_publications_have_no_overlap_copies():
    """They may be of a former session: only what is carried after them counts."""
    made = opened(MemoryLog(7))
    made.append_publication(publication(1, qos=2), 5)
    made.append_completed(1)
    log = made.log
    assert isinstance(log, MemoryLog)
    again = opened(build_epoch(log, reopened(made).plan_rollover(9)))
    assert again.dedup.overlap.last_captured is None


def test_copy_that_failed_starts_again():
    """What an unfinished copy has assigned does not count."""
    made = filled(4)
    made.dedup = CaptureDedup(CaptureHistory({2: RedeliveryCandidate(2, 1, b"digest", 2)}))
    plan = made.plan_rollover(9)
    log = made.log
    assert isinstance(log, MemoryLog)
    log.commit(log.end)
    unfinished = plan.copy_records(log.captured_records(1, 4), MemoryLog(9), WALL_NS)
    for _ in range(3):
        next(unfinished)
    assert (plan.last_assigned, plan.new_sequences) == ({OTHER: 3, YOU: 2}, {2: 2})
    copy = MemoryLog(9)
    for _ in plan.copy_records(log.captured_records(3, 4), copy, WALL_NS):
        pass
    copy.commit(copy.end)
    assert (plan.last_assigned, plan.new_sequences) == ({OTHER: 1, YOU: 2}, {})
    assert [each.receivers for each in copy.captured_records(1, 2)] == [((OTHER, 0),), ((YOU, 0),)]


def test_copied_publications_of_former_sessions_are_no_candidates():
    made = opened(MemoryLog(7))
    made.append_publication(publication(1, qos=2), 5)
    made.append_session_started()
    made.append_publication(publication(2, qos=2, before=1), 6)
    made = rolled_over(reopened(made))
    made.append_session_started()
    assert candidates(reopened(made)) == []


def test_redelivery_candidates_survive_empty_epochs():
    made = opened(MemoryLog(7))
    made.append_publication(publication(1, qos=2), 5)
    made.append_acknowledged({YOU: 1})
    made = rolled_over(reopened(made), 8)
    assert made.log.next_sequence == 1
    for epoch in (9, 10):
        made = reopened(made)
        assert candidates(made) == [(5, 2, -5)]
        rolled_over(made, epoch)


@pytest.mark.parametrize(
    ("count", "incarnation", "is_cloned", "epoch"),
    [(0, 7, False, 7), (0, 12, False, 12), (0, 5, False, 8), (0, 12, True, 7), (1, 12, False, 7)],
    ids=["just made", "empty", "clock set back", "copied", "not empty"],
)
def test_empty_log_of_an_earlier_incarnation_is_replaced(count, incarnation, is_cloned, epoch):
    made = filled(count)
    made = reopened(made)
    made.is_cloned = is_cloned
    made.replace_if_empty(incarnation, lambda plan: MemoryLog(plan.epoch))
    assert (made.log.epoch, made.is_cloned) == (epoch, is_cloned)


def test_captured_publication_expires_while_it_waits_in_the_log():
    raw = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, 60),))
    record = CapturedRecord(3, 1, "a", b"x", True, raw, ((YOU, 2),), 9, 1_000_000_000, version=4)
    made = make_publication(record, ME, 7, wall_ns=11_000_000_000)
    assert message_expiry(made.properties) == 50
    expected = Publication(ME, 7, 3, 1, "a", b"x", True, receivers=((YOU, 2),), version=4)
    assert replace(made, properties=b"") == expected
