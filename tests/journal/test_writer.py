"""Writing a journal: offsets, durability, segments, errors."""

import os
import stat
import subprocess
import threading
from typing import Any

import pytest
from tests.journal.journals import (
    EPOCH,
    NODE,
    TIME,
    captured,
    logs,
    numbers,
    open_writer,
    read,
    write,
)

from hansa.errors import JournalUnusable
from hansa.journal import disk
from hansa.journal.reader import JournalReader
from hansa.journal.records import (
    CaptureCompletedRecord,
    InboxRecord,
    InjectionAcceptedRecord,
    InjectionCompletedRecord,
    JournalRecord,
    OriginProgressRecord,
    RecordedPublication,
    TrimmedRecord,
)
from hansa.journal.segment import HEADER_BYTES, RECORD_HEADER_BYTES
from hansa.journal.writer import JournalWriter

SMALL: dict[str, Any] = {"segment_bytes": 400, "retention_bytes": 1 << 20}
SECOND = 10**9


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "journal"


def test_new_journal_is_empty_and_has_given_epoch(path):
    with open_writer(path) as writer:
        assert (writer.epoch, writer.next_sequence, writer.first_sequence) == (EPOCH, 1, 1)
        assert writer.durable == writer.end == HEADER_BYTES
        assert list(writer.replay_last_segment()) == []


def test_append_returns_offset_of_record(path):
    with open_writer(path) as writer:
        first, second = writer.append(InjectionAcceptedRecord(1)), writer.append(captured(1))
        assert (first, second) == (HEADER_BYTES, HEADER_BYTES + RECORD_HEADER_BYTES + 2)
        assert writer.commit() == writer.durable == writer.end
    assert list(JournalReader(path).read()) == [
        (first, InjectionAcceptedRecord(1)),
        (second, captured(1)),
    ]


def test_uncommitted_records_are_not_written(path):
    with open_writer(path) as writer:
        before = writer.durable
        writer.append(captured(1))
        assert writer.durable == before
        assert numbers(path) == []
        writer.commit()
        assert numbers(path) == [1]


def test_reopened_journal_keeps_epoch_and_sequence(path):
    write(path, captured(1), captured(2))
    with JournalWriter(path, NODE, EPOCH + 1) as writer:
        assert (writer.epoch, writer.next_sequence, writer.truncated_bytes) == (EPOCH, 3, 0)
        assert list(writer.replay_last_segment()) == [captured(1), captured(2)]
        writer.append(captured(3))
    assert numbers(path) == [1, 2, 3]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_sequence_numbers_must_be_consecutive(path, number):
    with open_writer(path) as writer:
        writer.append(captured(1))
        with pytest.raises(ValueError, match=f"sequence number {number}, expected 2"):
            writer.append(captured(number))
        writer.append(captured(2))
    assert numbers(path) == [1, 2]


def test_everything_is_for_the_owner_only(path):
    write(path, captured(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}


# ---------------------------------------------------------------- segments


def test_segments_are_read_as_one_journal(path):
    write(path, *(captured(number) for number in range(1, 41)), **SMALL)
    assert len(logs(path)) > 3
    assert numbers(path) == list(range(1, 41))
    headers = JournalReader(path).headers()
    assert [header.base for header in headers] == [int(file.stem) for file in logs(path)]
    for header, following in zip(headers, headers[1:], strict=False):
        assert following.base == header.base + logs(path)[headers.index(header)].stat().st_size


def test_next_append_ends_old_segment(path):
    now = [TIME]
    with open_writer(path, lambda: now[0], segment_seconds=10) as writer:
        writer.append(captured(1))
        now[0] += 10 * SECOND - 1
        writer.append(captured(2))
        now[0] += 1
        writer.append(captured(3))
        writer.commit()
    assert [header.next_sequence for header in JournalReader(path).headers()] == [1, 3]


def test_empty_segment_does_not_end(path):
    now = [TIME]
    with open_writer(path, lambda: now[0], segment_seconds=10) as writer:
        now[0] += 100 * SECOND
        writer.append(captured(1))
    assert len(logs(path)) == 1


def test_segment_starts_with_carried_state(path):
    state = OriginProgressRecord(1, 2, 3, 0)
    with open_writer(path, **SMALL) as writer:
        writer.carried_state = lambda: [state]
        for number in range(1, 21):
            state = OriginProgressRecord(1, 2, 3, number)
            writer.append(captured(number))
    headers = JournalReader(path).headers()
    firsts = [next(JournalReader(path).read(header.base))[1] for header in headers[1:]]
    assert firsts == [OriginProgressRecord(1, 2, 3, header.next_sequence) for header in headers[1:]]
    with open_writer(path, **SMALL) as writer:
        assert next(writer.replay_last_segment()) == firsts[-1]


def test_large_carried_state_does_not_start_segment_per_record(path):
    with open_writer(path, **SMALL) as writer:
        writer.carried_state = lambda: [
            OriginProgressRecord(1, 2, 3, number) for number in range(100)
        ]
        for number in range(1, 31):
            writer.append(captured(number))
    assert len(logs(path)) < 10


def test_large_carried_state_does_not_start_segment_per_restart(path):
    state = [OriginProgressRecord(1, 2, 3, number) for number in range(100)]
    with open_writer(path, **SMALL) as writer:
        writer.carried_state = lambda: state
        while len(logs(path)) < 2:
            writer.append(CaptureCompletedRecord(1))
            writer.commit()
    for starts in range(1, 100):
        with open_writer(path, **SMALL) as writer:
            writer.carried_state = lambda: state
            writer.append(captured(starts))
        if len(logs(path)) > 2:
            break
    assert 3 < starts < 20, "it ends when as much is new as in one start"


def test_retention_writes_trimmed_records(path):
    with open_writer(path, segment_bytes=400, retention_bytes=1500) as writer:
        for number in range(1, 101):
            writer.append(captured(number))
            writer.commit()
        first = writer.first_sequence
        writer.append(CaptureCompletedRecord(1))  # records what the last commit trimmed
        size = writer.size
    said = [record for record in read(path) if isinstance(record, TrimmedRecord)]
    assert 1 < first < 101
    assert numbers(path) == list(range(first, 101))
    assert sum(file.stat().st_size for file in logs(path)) == size <= 1500 + 400 + 200
    assert said[-1].last in (first - 1, JournalReader(path).headers()[0].next_sequence - 1)
    assert len(list(path.glob("*.idx"))) == len(logs(path))


# ---------------------------------------------------------------- append_if_room and threads


def test_append_if_room_refuses_and_counts_above_limit(path):
    record = RecordedPublication(1, 1, "a", b"x" * 100, False, b"", TIME)
    with open_writer(path, unsynced_bytes_max=300) as writer:
        assert [writer.append_if_room(record) for _ in range(5)] == [True, True, True, False, False]
        assert writer.dropped == 2
        writer.commit()
        assert writer.append_if_room(record)
    assert read(path) == [record] * 4


def test_appends_continue_during_commit(path, monkeypatch):
    syncing, synced = threading.Event(), threading.Event()

    def slow(descriptor):
        syncing.set()
        assert synced.wait(60)
        os.fsync(descriptor)

    with open_writer(path) as writer:
        writer.append(captured(1))
        monkeypatch.setattr(disk, "_sync_data", slow)
        thread = threading.Thread(target=writer.commit)
        thread.start()
        assert syncing.wait(60)
        offset = writer.append(captured(2))
        assert numbers(path) == []
        synced.set()
        thread.join()
        assert writer.durable == offset
        assert numbers(path) == [1]
    assert numbers(path) == [1, 2]


def test_many_threads_may_append_and_commit(path):
    def work(origin):
        for number in range(200):
            writer.append(OriginProgressRecord(origin, 1, 1, number))
            if number % 20 == 0:
                writer.commit()

    with open_writer(path, segment_bytes=5_000, retention_bytes=1 << 20) as writer:
        threads = [threading.Thread(target=work, args=(origin,)) for origin in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for origin in range(4):
        mine = [
            r.sequence
            for r in read(path)
            if isinstance(r, OriginProgressRecord) and r.origin == origin
        ]
        assert mine == list(range(200))


# ---------------------------------------------------------------- errors


def test_nothing_is_written_after_a_commit_that_raised(path, monkeypatch):
    """Its records are gone. Later ones would follow a hole, and the journal would be damaged."""
    writer = open_writer(path)
    writer.append(captured(1))
    writer.commit()
    writer.append(captured(2))
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(JournalWriter, "_write_batch", raise_memory_error)
        writer.commit()
    with pytest.raises(JournalUnusable, match="MemoryError"):
        writer.append(captured(3))
    writer.close()
    assert numbers(path) == [1]
    open_writer(path).close()


def raise_memory_error(*_):
    raise MemoryError


def test_two_writers_cannot_share_a_journal(path):
    with (
        open_writer(path),
        pytest.raises(JournalUnusable, match=f"another process writes the journal {path}"),
    ):
        open_writer(path)
    open_writer(path).close()


def test_journal_of_other_node_is_refused(path):
    write(path, captured(1))
    with pytest.raises(JournalUnusable, match="belongs to node 0123456789abcdef, not to 0000"):
        JournalWriter(path, 1, 1)
    write(path, captured(2))


def test_path_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalUnusable, match=r"cannot write the journal .*file: "):
        open_writer(tmp_path / "file")


def test_missing_permission_is_reported(path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    write(path, captured(1))
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(JournalUnusable, match="cannot write the journal .*: Permission denied"):
        open_writer(path)


def test_full_disk_loses_nothing_and_is_retried(path, monkeypatch):
    real = os.pwrite

    def full(descriptor, data, position):
        real(descriptor, bytes(data)[:5], position)
        raise OSError(28, "No space left on device")

    with open_writer(path, **SMALL) as writer:
        writer.append(captured(1))
        writer.commit()
        for number in range(2, 30):
            writer.append(captured(number))
        monkeypatch.setattr(os, "pwrite", full)
        for number in range(30, 60):
            with pytest.raises(JournalUnusable, match="No space left on device"):
                writer.commit()
            writer.append(captured(number))
        assert numbers(path) == [1]
        monkeypatch.setattr(os, "pwrite", real)
        writer.append(captured(60))
        writer.commit()
        assert numbers(path) == list(range(1, 61))


def test_repeated_commits_on_full_disk_do_not_grow(path, monkeypatch):
    def full(descriptor, data, position):
        raise OSError(28, "No space left on device")

    with open_writer(path) as writer, monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        writer.append(captured(1))
        for _ in range(10):
            with pytest.raises(JournalUnusable):
                writer.commit()
        assert len(writer._unwritten) == 1  # noqa: SLF001
        broken.undo()


def test_real_full_disk(small_disk):
    path = small_disk / "journal"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(128 << 10))
    with open_writer(path) as writer:
        number, acknowledged = 1, 0
        with pytest.raises(JournalUnusable, match="No space left on device"):
            while True:
                writer.append(captured(number, bytes(3_000)))
                number += 1
                writer.commit()
                acknowledged = number - 1
        assert acknowledged > 10
        assert numbers(path) == list(range(1, acknowledged + 1))
        ballast.unlink()
        writer.commit()
        assert numbers(path) == list(range(1, number))


def test_read_only_disk(small_disk):
    path = small_disk / "journal"
    write(path, captured(1))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(JournalUnusable, match=f"cannot write the journal {path}: Read-only file"):
        open_writer(path)
    with pytest.raises(JournalUnusable, match="Read-only file"):
        open_writer(small_disk / "new")
    assert numbers(path) == [1]


def test_failed_opening_closes_files(path, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")

    write(path, captured(1))
    before = os.listdir("/dev/fd")
    for node, sync in ((1, os.fsync), (NODE, fail)):
        monkeypatch.setattr(disk, "_sync_data", sync)
        with pytest.raises(JournalUnusable):
            JournalWriter(path, node, EPOCH)
    assert os.listdir("/dev/fd") == before


def test_writer_refuses_everything_after_failed_sync(path, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")

    writer = open_writer(path)
    writer.append(captured(1))
    with monkeypatch.context() as broken:
        broken.setattr(disk, "_sync_data", fail)
        with pytest.raises(JournalUnusable, match="Input/output error"):
            writer.commit()
    for refused in (writer.commit, lambda: writer.append(captured(2))):
        with pytest.raises(JournalUnusable, match="start the agent again"):
            refused()
    with monkeypatch.context() as broken:
        broken.setattr(disk, "_sync_data", fail)
        writer.close()
    assert writer.durable == HEADER_BYTES
    open_writer(path).close()


def test_injection_records_are_read_in_order(path):
    written: list[JournalRecord] = [
        InboxRecord(1, 9, 8, 7, 2),
        InjectionAcceptedRecord(1),
        InjectionCompletedRecord(1),
    ]
    write(path, *written)
    assert read(path) == written
