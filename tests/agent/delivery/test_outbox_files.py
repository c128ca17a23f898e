"""The files of the outbox log: recovery, reading for repair, damage, epochs, copies."""

import errno
import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from tests.journal.journals import spoil

from hansa.agent.delivery import outbox_files
from hansa.agent.delivery.outbox_files import OutboxFiles
from hansa.agent.recorded_topics import RecordedTopics
from hansa.delivery.dedup.history import CaptureDedup, CaptureHistory
from hansa.delivery.dedup.redelivery import RedeliveryCandidate, content_digest
from hansa.errors import JournalUnusable
from hansa.journal.records import CapturedRecord, RecordedPublication
from hansa.journal.segment import frame_record
from hansa.journal.settings import JournalSettings
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import Property, encode_properties, message_expiry
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import JournalRead
from hansa.protocol.model import NodeId, Publication

ME, YOU, OTHER = NodeId(1), NodeId(2), NodeId(3)
SMALL = JournalSettings(segment_bytes=300, retention_bytes=1_000)
LARGE = JournalSettings()


def opened(path: Path, settings: JournalSettings = LARGE) -> OutboxFiles:
    return OutboxFiles(path, ME, 7, settings)


def publication(number: int, to: NodeId = YOU, before: int = 0, qos: int = 1) -> Publication:
    payload = b"%d" % number
    return Publication(ME, 7, number, qos, "a", payload, receivers=((to, before),))


def filled(path: Path, count: int, settings: JournalSettings = LARGE) -> OutboxFiles:
    """Return a journal of `count` publications, alternately for two nodes."""
    made = opened(path, settings)
    for number in range(1, count + 1):
        made.log_state.append_publication(
            publication(number, (YOU, OTHER)[number % 2], max(number - 2, 0)), number
        )
        made.writer.commit()
    return made


def recall(
    made: OutboxFiles, after: int, upto: int, bytes_max: int = 10_000
) -> tuple[list[int], int]:
    recalled = made.read_journal(ReadJournal(YOU, 7, after, upto, bytes_max))
    assert (recalled.receiver, recalled.epoch, recalled.after) == (YOU, 7, after)
    return [each.sequence for each in recalled.publications], recalled.upto


@pytest.mark.parametrize("settings", [LARGE, SMALL], ids=["one segment", "many"])
def test_reopened_journal_continues_positions(tmp_path, settings):
    filled(tmp_path, 20, settings).close()
    again = opened(tmp_path, settings)
    assert (again.writer.epoch, again.writer.next_sequence) == (7, 21)
    assert again.log_state.receivers.last_assigned == {YOU: 20, OTHER: 19}
    again.close()


def test_redelivery_candidates_are_restored_with_content_digest(tmp_path):
    made = opened(tmp_path)
    for number, qos in ((1, 1), (2, 2), (3, 2)):
        made.log_state.append_publication(
            publication(number, before=number - 1, qos=qos), 100 + number
        )
    made.log_state.append_completed(2)
    made.close()
    again = opened(tmp_path)
    found = {
        (each.packet_id, each.qos, each.sequence): each.digest
        for each in again.log_state.dedup.redelivery.candidates()
    }
    assert found == {
        (101, 1, 1): content_digest(PublishPacket("a", b"1", 1)),
        (103, 2, 3): content_digest(PublishPacket("a", b"3", 2)),
    }
    again.close()


def test_time_in_journal_reduces_expiry(tmp_path, monkeypatch):
    made, now = opened(tmp_path), time.time_ns()
    raw = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, 60),))
    made.log_state.append_publication(msgspec.structs.replace(publication(1), properties=raw), 1)
    made.writer.commit()
    monkeypatch.setattr(time, "time_ns", lambda: now + 10_500_000_000)
    (recalled,) = made.read_journal(ReadJournal(YOU, 7, 0, 1, 99)).publications
    assert message_expiry(recalled.properties) == 50
    made.close()


def test_redelivery_candidates_are_carried_into_every_segment(tmp_path):
    made = opened(tmp_path, SMALL)
    made.log_state.append_publication(publication(1, qos=2), 101)
    made.close()
    first = opened(tmp_path, SMALL)
    for number in range(2, 20):
        first.log_state.append_publication(publication(number, before=number - 1), number)
    first.close()
    last = opened(tmp_path, SMALL)
    assert (101, 2, 1) in [
        (each.packet_id, each.qos, each.sequence)
        for each in last.log_state.dedup.redelivery.candidates()
    ]
    last.close()


def test_read_journal_returns_publications_of_receiver(tmp_path):
    made = filled(tmp_path, 10)
    assert recall(made, 0, 10) == ([2, 4, 6, 8, 10], 10)
    assert recall(made, 4, 7) == ([6], 6)
    assert recall(made, 4, 10, bytes_max=1) == ([6], 6)
    made.close()


def test_read_publication_equals_captured_one(tmp_path):
    made = opened(tmp_path)
    whole = Publication(
        ME, 7, 1, 2, "a/b", b"x", True, receivers=((YOU, 0),), properties=b"\x01\x01"
    )
    made.log_state.append_publication(whole, 5)
    made.writer.commit()
    assert made.read_journal(ReadJournal(YOU, 7, 0, 1, 99)) == JournalRead(YOU, 7, 0, 1, (whole,))
    made.close()


def test_trimmed_publications_are_not_read(tmp_path):
    made = filled(tmp_path, 60, SMALL)
    first = made.writer.first_sequence
    assert first > 10
    numbers, upto = recall(made, 0, 60)
    assert numbers == [n for n in range(first, 61) if n % 2 == 0]
    assert upto == 60
    made.close()


def test_damage_splits_read_result(tmp_path):
    made = filled(tmp_path, 40, JournalSettings(segment_bytes=300))
    files = sorted((tmp_path / f"{7:020d}").glob("*.log"))
    damaged = bytearray(files[2].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    files[2].write_bytes(damaged)
    numbers, upto = recall(made, 0, 40)
    assert numbers[-1] == upto < 40
    more, end = recall(made, upto, 40)
    assert end == 40
    assert more[0] > upto + 2, "something is missing between the two answers"
    assert more == [n for n in range(more[0], 41) if n % 2 == 0]
    made.close()


def test_unreadable_sector_ends_epoch_only_in_newest_segment(tmp_path, monkeypatch):
    settings = JournalSettings(segment_bytes=300)
    made = filled(tmp_path, 40, settings)
    files = sorted((tmp_path / f"{7:020d}").glob("*.log"))
    spoil(monkeypatch, files[2], 200, 711)
    numbers, upto = recall(made, 0, 40)
    assert numbers[-1] == upto < 40
    more, end = recall(made, upto, 40)
    assert (more[-1], end) == (40, 40)
    assert more[0] > upto + 2, "something is missing between the two answers"
    assert (made.read_error, "is damaged at offset" in made.damage_text) == ("", True)
    made.close()
    made = opened(tmp_path, settings)
    assert made.writer.epoch == 7
    made.close()
    newest = max((tmp_path / f"{7:020d}").glob("*.log"))
    spoil(monkeypatch, newest, 0, 511)
    made = opened(tmp_path, settings)
    assert made.writer.epoch == 8
    assert "moved to damaged-7" in made.damage_text
    made.close()


def test_invalid_record_discards_all_recovered_state(tmp_path):
    made = opened(tmp_path)
    made.log_state.append_publication(publication(1, qos=2), 101)
    made.close()
    with next((tmp_path / f"{7:020d}").glob("*.log")).open("ab") as file:
        file.write(frame_record(CapturedRecord.KIND, b"nonsense"))
    again = opened(tmp_path)
    assert "is invalid" in again.damage_text
    assert (
        again.log_state.receivers.last_assigned,
        again.log_state.dedup.redelivery.candidates(),
        again.log_state.dedup.overlap.last_captured,
    ) == (
        {},
        [],
        None,
    )
    again.close()


def test_missing_publications_end_result_and_are_lost_in_the_next(tmp_path):
    made = filled(tmp_path, 10)
    assert recall(made, 0, 12) == ([2, 4, 6, 8, 10], 10)
    assert recall(made, 10, 12) == ([], 12)
    made.close()


@pytest.mark.parametrize("change", ["deleted", "damaged"])
def test_read_journal_works_without_durable_mark(tmp_path, change):
    made = filled(tmp_path, 10)
    mark = tmp_path / f"{7:020d}" / "durable"
    if change == "deleted":
        mark.unlink()
    else:
        mark.write_bytes(b"\xff" + mark.read_bytes()[1:])
    assert recall(made, 0, 10) == ([2, 4, 6, 8, 10], 10)
    assert (made.damage_text, made.read_error) == ("", "")
    made.close()


def test_unreadable_journal_reports_nothing_as_lost(tmp_path, monkeypatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    made = filled(tmp_path, 4)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert recall(made, 0, 4) == ([], 0)
    assert "Too many open files" in made.read_error
    made.close()


def renewed(made: OutboxFiles, epoch: int = 9) -> OutboxFiles:
    plan = made.log_state.plan_rollover(epoch)
    made.start_epoch(made.build_epoch(plan))
    made.log_state.adopt_epoch(plan, made.writer)
    made.remove_ended_epochs()
    return made


@pytest.mark.parametrize("settings", [LARGE, SMALL], ids=["one segment", "many"])
def test_rollover_copies_unacknowledged_and_deletes_old_epoch(tmp_path, settings):
    made = filled(tmp_path, 8, settings)
    made.log_state.append_acknowledged({YOU: 4, OTHER: 7})
    renewed(made)
    assert (made.writer.epoch, made.writer.next_sequence) == (9, 3)
    assert (made.log_state.receivers.last_assigned, made.log_state.receivers.acknowledged) == (
        {YOU: 2},
        {},
    )
    made.close()
    again = opened(tmp_path, settings)
    assert (
        again.writer.epoch,
        again.log_state.receivers.last_assigned,
        again.log_state.dedup.redelivery.candidates(),
    ) == (
        9,
        {YOU: 2},
        [],
    )
    found = again.read_journal(ReadJournal(YOU, 9, 0, 2, 1_000)).publications
    assert [(each.payload, each.receivers) for each in found] == [
        (b"6", ((YOU, 0),)),
        (b"8", ((YOU, 1),)),
    ]
    assert [path.name for path in tmp_path.iterdir()] == [f"{9:020d}"]
    again.close()


def test_rollover_excludes_expired_nodes(tmp_path):
    made = filled(tmp_path, 4)
    made.log_state.expire_node(YOU)
    assert renewed(made).log_state.receivers.last_assigned == {OTHER: 2}
    made.close()


def test_rollover_copies_in_steps_and_carries_redelivery_candidates(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox_files, "COPY_COMMIT_BYTES", 100)
    settings = JournalSettings(segment_bytes=300)
    made = filled(tmp_path, 40, settings)
    candidates = {n: RedeliveryCandidate(n, 1, b"digest", n) for n in (3, 39)}
    made.log_state.dedup = CaptureDedup(CaptureHistory(candidates))
    renewed(made).close()
    again = opened(tmp_path, settings)
    assert {
        (seen.packet_id, seen.sequence) for seen in again.log_state.dedup.redelivery.candidates()
    } == {
        (3, 3),
        (39, 39),
    }
    assert again.log_state.receivers.last_assigned == {YOU: 40, OTHER: 39}
    again.close()


def test_unfinished_rollover_is_deleted(tmp_path):
    filled(tmp_path, 4).close()
    opened(tmp_path / "other").close()
    (tmp_path / "other" / f"{7:020d}").rename(tmp_path / f"{9:020d}.new")
    (tmp_path / "other").rmdir()
    again = opened(tmp_path)
    assert (again.writer.epoch, again.writer.next_sequence) == (7, 5)
    assert [path.name for path in tmp_path.iterdir()] == [f"{7:020d}"]
    again.close()


def test_copy_is_detected_and_moved_journal_is_not(tmp_path):
    filled(tmp_path / "first", 4).close()
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    shutil.copytree(moved, tmp_path / "copy")
    original, copy = opened(moved), opened(tmp_path / "copy")
    assert (original.log_state.is_cloned, copy.log_state.is_cloned) == (False, True)
    renewed(copy).close()
    original.close()
    again = opened(tmp_path / "copy")
    assert not again.log_state.is_cloned
    again.close()


def test_acknowledgements_are_restored(tmp_path):
    made = filled(tmp_path, 20, SMALL)
    assert made.log_state.append_acknowledged({YOU: 4, OTHER: 3})
    assert not made.log_state.append_acknowledged({YOU: 4})
    made.log_state.expire_node(OTHER)
    for number in range(21, 40):
        made.log_state.append_publication(publication(number, YOU, number - 1), number)
        made.writer.commit()
    made.close()
    again = opened(tmp_path, SMALL)
    assert again.log_state.receivers.acknowledged == {YOU: 4}
    again.close()


def test_expired_node_stays_removed_after_restart(tmp_path):
    made = filled(tmp_path, 4)
    last_assigned = dict(made.log_state.receivers.last_assigned)
    made.log_state.append_acknowledged({OTHER: 3})
    assert made.log_state.expire_node(OTHER)
    assert not made.log_state.expire_node(OTHER)
    made.writer.commit()
    made.close()
    for _ in range(2):
        again = opened(tmp_path)
        assert again.log_state.receivers.last_assigned == {
            node: number for node, number in last_assigned.items() if node != OTHER
        }
        assert again.log_state.receivers.acknowledged == {}
        again.close()


def test_damaged_journal_is_replaced_by_new_epoch(tmp_path):
    made = filled(tmp_path, 4)
    made.close()
    (file,) = (tmp_path / f"{7:020d}").glob("*.log")
    file.write_bytes(file.read_bytes()[:-20])
    again = opened(tmp_path)
    assert "is damaged at offset" in again.damage_text
    assert (
        again.writer.epoch,
        again.log_state.receivers.last_assigned,
        again.log_state.dedup.redelivery.candidates(),
    ) == (8, {}, [])
    again.close()


def test_journal_without_segments_is_replaced_by_new_epoch(tmp_path):
    filled(tmp_path, 4).close()
    (file,) = (tmp_path / f"{7:020d}").glob("*.log")
    file.unlink()
    again = opened(tmp_path)
    assert "are missing" in again.damage_text
    assert again.writer.epoch == 8
    again.close()


def test_damaged_header_loses_no_publication(tmp_path):
    made = filled(tmp_path, 40, JournalSettings(segment_bytes=300))
    files = sorted((tmp_path / f"{7:020d}").glob("*.log"))
    damaged = bytearray(files[2].read_bytes())
    damaged[20] ^= 1
    files[2].write_bytes(damaged)
    for _ in range(2):
        assert recall(made, 0, 40) == (list(range(2, 41, 2)), 40)
        assert "the header is damaged" in made.damage_text
        made.close()
        made = opened(tmp_path)
        assert "the header is damaged" in made.damage_text
        assert (made.writer.epoch, made.log_state.receivers.last_assigned[YOU]) == (7, 40)
    made.close()


def test_new_segment_at_start_carries_redelivery_candidates(tmp_path):
    """The UnreportedRecord at the start may need a new segment."""
    settings = JournalSettings(segment_seconds=1e-9)
    made = OutboxFiles(tmp_path, ME, 7, JournalSettings())
    made.log_state.append_publication(publication(1, qos=2), 5)
    made.close()
    for _ in range(2):
        made = OutboxFiles(tmp_path, ME, 7, settings)
        assert [seen.packet_id for seen in made.log_state.dedup.redelivery.candidates()] == [5]
        made.close()


def test_last_completed_publication_is_carried_into_new_segment(tmp_path):
    made = OutboxFiles(tmp_path, ME, 7, JournalSettings())
    made.log_state.append_publication(publication(1, qos=2), 5, (1, 2))
    made.log_state.append_completed(1)
    made.close()
    for _ in range(2):
        made = OutboxFiles(tmp_path, ME, 7, JournalSettings(segment_seconds=1e-9))
        last = made.log_state.dedup.overlap.last_captured
        assert last is not None and (
            last.packet_id,
            last.subscription,
            last.newest_subscription,
        ) == (5, 1, 2)
        assert made.log_state.dedup.redelivery.candidates() == []
        made.close()


def test_copied_publications_of_former_sessions_are_no_candidates(tmp_path):
    made = OutboxFiles(tmp_path, ME, 7, JournalSettings())
    made.log_state.append_publication(publication(1, qos=2), 5)
    made.log_state.append_session_started()
    made.log_state.append_publication(publication(2, qos=2, before=1), 6)
    made.close()
    made = OutboxFiles(tmp_path, ME, 7, JournalSettings())
    renewed(made).log_state.append_session_started()
    made.close()
    assert (
        OutboxFiles(tmp_path, ME, 9, JournalSettings()).log_state.dedup.redelivery.candidates()
        == []
    )


def test_empty_journal_is_replaced_by_new_epoch(tmp_path):
    """It may be an old copy of a journal that is not empty. Incarnations that capture nothing leave
    no journal, also with recorded topics."""
    for incarnation in (7, 8, 9):
        made = OutboxFiles(tmp_path, ME, incarnation, JournalSettings(), RecordedTopics(("#",)))
        assert (made.writer.epoch, made.writer.next_sequence) == (incarnation, 1)
        made.log_state.append_session_started()
        made.close()
        assert [path.name for path in tmp_path.iterdir()] == [f"{incarnation:020d}"]
    made = OutboxFiles(tmp_path, ME, 3, JournalSettings())
    assert made.writer.epoch == 10, "also if the clock was set back"
    made.log_state.append_publication(publication(1), 5)
    made.close()
    made = OutboxFiles(tmp_path, ME, 99, JournalSettings())
    assert (made.writer.epoch, made.writer.next_sequence) == (10, 2)
    made.close()


def test_journal_with_recorded_qos_0_publications_is_kept(tmp_path):
    for incarnation in (7, 8, 9):
        made = OutboxFiles(tmp_path, ME, incarnation, JournalSettings(), RecordedTopics(("#",)))
        if incarnation < 9:
            made.writer.append(RecordedPublication(incarnation, 1, "a", b"21.5", False, b"", 1))
        made.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n:020d}" for n in (7, 8, 9)]
    OutboxFiles(tmp_path, ME, 10, JournalSettings()).close()  # without recorded topics
    assert [path.name for path in tmp_path.iterdir()] == [f"{10:020d}"]


def test_redelivery_candidates_survive_empty_epochs(tmp_path):
    made = OutboxFiles(tmp_path, ME, 7, JournalSettings())
    made.log_state.append_publication(publication(1, qos=2), 5)
    made.log_state.append_acknowledged({YOU: 1})
    made.close()
    made = opened(tmp_path)
    renewed(made, 8)
    assert made.writer.next_sequence == 1
    made.close()
    for incarnation in (9, 10):
        made = OutboxFiles(tmp_path, ME, incarnation, JournalSettings())
        assert [
            (seen.packet_id, seen.sequence) for seen in made.log_state.dedup.redelivery.candidates()
        ] == [(5, -5)]
        made.close()


def test_empty_copied_journal_is_not_replaced_at_start(tmp_path):
    opened(tmp_path / "one").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    made = OutboxFiles(tmp_path / "two", ME, 9, JournalSettings())
    assert (made.writer.epoch, made.log_state.is_cloned) == (7, True)
    made.close()


def test_stop_during_rollover_keeps_old_epoch(tmp_path):
    made = filled(tmp_path, 4)
    made.is_stopping = True
    with pytest.raises(JournalUnusable, match="the agent stopped during the epoch rollover"):
        made.build_epoch(made.log_state.plan_rollover(9))
    made.close()
    again = opened(tmp_path)
    assert (again.writer.epoch, again.writer.next_sequence) == (7, 5)
    assert [path.name for path in tmp_path.iterdir()] == [f"{7:020d}"]
    again.close()


def test_rollover_is_built_again_after_a_full_disk(tmp_path, monkeypatch):
    made = filled(tmp_path, 4)
    plan = made.log_state.plan_rollover(9)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(JournalUnusable, match="No space left on device"):
            made.build_epoch(plan)
    assert [path.name for path in tmp_path.iterdir()] == [f"{7:020d}"]
    made.start_epoch(made.build_epoch(plan))
    made.log_state.adopt_epoch(plan, made.writer)
    assert made.log_state.receivers.last_assigned == {YOU: 4, OTHER: 3}
    made.close()


def test_ended_log_that_cannot_be_closed_is_deleted(tmp_path, monkeypatch):
    made = filled(tmp_path, 4)
    plan = made.log_state.plan_rollover(9)
    writer = made.build_epoch(plan)
    made.log_state.append_session_started()  # the new log gets this, too
    made.start_epoch(writer)
    made.log_state.adopt_epoch(plan, writer)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        made.remove_ended_epochs()
    assert [path.name for path in tmp_path.iterdir()] == [f"{9:020d}"]
    made.close()
