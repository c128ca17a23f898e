"""The record log in memory: commits, segments, crashes, copies."""

import pytest

from hansa.errors import JournalUnusable
from hansa.journal.records import CaptureCompletedRecord, CapturedRecord
from hansa.simulator.world.memory_log import MemoryLog


def captured(sequence):
    return CapturedRecord(sequence, 1, "a", b"%d" % sequence, False, b"", (), sequence, 0)


def log_of(count, **bounds):
    log = MemoryLog(7, **bounds)
    for sequence in range(1, count + 1):
        log.append(captured(sequence))
    return log


def sequences(log):
    return [record.sequence for record in log.captured_records(1, log.next_sequence)]


def test_a_record_is_durable_after_a_commit_that_covers_it():
    log = log_of(3)
    assert (log.end, log.durable, sequences(log)) == (3, 0, [])
    log.commit(2)
    assert (log.durable, sequences(log)) == (2, [1, 2])


@pytest.mark.parametrize(("fraction", "left"), [(0.0, 1), (0.5, 3), (0.99, 5)])
def test_a_crash_keeps_what_is_durable_and_the_first_part_of_the_rest(fraction, left):
    log = log_of(5)
    log.commit(1)
    log.crash(fraction)
    assert (log.end, log.durable, log.next_sequence) == (left, left, left + 1)
    assert sequences(log) == [*range(1, left + 1)]


def test_the_last_segment_restores_the_state():
    log = log_of(2, segment_records=2)
    log.carried_state = lambda: [CaptureCompletedRecord(1), CaptureCompletedRecord(2)]
    log.append(captured(3))
    assert log.replay() == [CaptureCompletedRecord(1), CaptureCompletedRecord(2), captured(3)]
    log.commit(log.end)
    log.crash()
    assert log.replay() == [CaptureCompletedRecord(1), CaptureCompletedRecord(2), captured(3)]
    assert sequences(log) == [1, 2, 3]


def test_a_segment_without_all_of_its_carried_state_does_not_count():
    log = log_of(2, segment_records=2)
    log.carried_state = lambda: [CaptureCompletedRecord(1), CaptureCompletedRecord(2)]
    log.append(captured(3))
    log.commit(3)  # half of the carried state
    log.crash()
    assert (log.replay(), log.next_sequence) == ([captured(1), captured(2)], 3)


def test_retention_keeps_the_newest_publications():
    log = log_of(5, captured_max=2)
    log.commit(log.end)
    assert (sequences(log), log.first_sequence, log.trimmed_upto) == ([4, 5], 4, 3)


def test_a_failed_log_refuses_records_until_a_crash():
    log = log_of(1)
    log.failure = "broken"
    with pytest.raises(JournalUnusable, match="broken"):
        log.append(captured(2))
    log.crash()
    assert log.append(captured(1)) == 0


def test_a_copy_holds_what_is_durable_and_is_independent():
    log = log_of(3)
    log.commit(2)
    twin = log.copy()
    log.commit(3)
    assert (sequences(twin), twin.next_sequence, twin.epoch) == ([1, 2], 3, 7)
    assert sequences(log) == [1, 2, 3]
