"""Reading a journal: ranges, sequence numbers, other processes, damage, trimming."""

import errno
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.journal.journals import captured, logs, numbers, open_writer, read, spoil, write

from hansa.errors import JournalDamaged, JournalError, JournalTrimmed, JournalUnusable
from hansa.journal import index
from hansa.journal.reader import JournalReader, OffsetBounds
from hansa.journal.records import CaptureCompletedRecord, CapturedRecord
from hansa.journal.segment import HEADER_BYTES, frame_record, index_name, log_name

COUNT = 3_000


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Return a journal of several segments with several index entries each, and its offsets."""
    path = tmp_path_factory.mktemp("long")
    offsets = []
    with open_writer(path, segment_bytes=200_000, retention_bytes=1 << 30) as writer:
        for number in range(1, COUNT + 1):
            offsets.append(writer.append(captured(number, b"x" * 200)))
            if number % 50 == 0:
                writer.append(CaptureCompletedRecord(number))
            if number % 100 == 0:
                writer.commit()
    assert len(logs(path)) > 3
    return path, offsets


def found(pairs):
    return [
        (offset, record.sequence) for offset, record in pairs if isinstance(record, CapturedRecord)
    ]


# ---------------------------------------------------------------- ranges


def test_missing_journal_is_empty(tmp_path):
    assert JournalReader(tmp_path).bounds == OffsetBounds(0, 0)
    assert (
        list(JournalReader(tmp_path).read())
        == list(JournalReader(tmp_path).captured_records(1, 9))
        == []
    )
    with pytest.raises(JournalUnusable, match="cannot read the journal .*: No such file"):
        JournalReader(tmp_path / "none").bounds  # noqa: B018


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1))
def test_range_of_offsets_returns_records_that_begin_in_it(long, first, last):
    path, offsets = long
    expected = [(offsets[at], at + 1) for at in range(first, last)]
    assert found(JournalReader(path).read(offsets[first], offsets[last])) == expected


def test_adjacent_ranges_return_every_record_once(long):
    path, offsets = long
    bounds = JournalReader(path).bounds
    places = [bounds.start, *offsets[100::777], bounds.end]
    parts = [
        found(JournalReader(path).read(start, end))
        for start, end in zip(places, places[1:], strict=False)
    ]
    assert [each for part in parts for each in part] == list(
        zip(offsets, range(1, COUNT + 1), strict=True)
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(1, COUNT), st.integers(0, COUNT + 5))
def test_range_of_sequence_numbers(long, first, last):
    path, offsets = long
    expected = [(offsets[number - 1], number) for number in range(first, min(last, COUNT) + 1)]
    assert found(JournalReader(path).captured_records(first, last)) == expected


def test_sequence_number_is_found_by_index(long, monkeypatch):
    path, offsets = long
    read_bytes = []
    real = os.pread

    def counted(descriptor, size, position):
        data = real(descriptor, size, position)
        read_bytes.append(len(data))
        return data

    monkeypatch.setattr("hansa.journal.segment.CHUNK_BYTES", 4096)
    monkeypatch.setattr(os, "pread", counted)
    for number in range(1, COUNT, 100):
        read_bytes.clear()
        assert found(JournalReader(path).captured_records(number, number)) == [
            (offsets[number - 1], number)
        ]
        assert sum(read_bytes) <= index.INDEX_SPACING_BYTES + 4 * 4096


def test_wrong_or_missing_index_only_costs_time(tmp_path):
    write(tmp_path, *(captured(number, b"x" * 500) for number in range(1, 1_001)))
    file = tmp_path / index_name(0)
    good = file.read_bytes()
    assert len(good) > 4 * index.ENTRY_BYTES
    shifted = index.pack_entries(
        [(number, offset + 1) for number, offset in index.read_index(tmp_path, 0)]
    )
    renamed = index.pack_entries(
        [(number + 1, offset) for number, offset in index.read_index(tmp_path, 0)]
    )
    for content in (b"", good[:-5], bytes(len(good)), os.urandom(len(good)), shifted, renamed):
        file.write_bytes(content)
        assert [n for _, n in found(JournalReader(tmp_path).captured_records(777, 779))] == [
            777,
            778,
            779,
        ]
    file.unlink()
    assert [n for _, n in found(JournalReader(tmp_path).captured_records(777, 779))] == [
        777,
        778,
        779,
    ]


# ---------------------------------------------------------------- concurrent reading

FOLLOW = """
import sys
from pathlib import Path
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord

reader, at, last = JournalReader(Path(sys.argv[1])), None, 0
print("ready", flush=True)
while last < int(sys.argv[2]):
    end = reader.bounds.end
    for _, record in reader.read(at, end):
        if isinstance(record, CapturedRecord):
            assert record.sequence == last + 1, (last, record.sequence)
            last = record.sequence
    at = end
print(last)
"""


def test_another_process_follows_a_journal_while_it_is_written(tmp_path):
    with open_writer(tmp_path, segment_bytes=10_000, retention_bytes=1 << 30) as writer:
        command = [sys.executable, "-c", FOLLOW, str(tmp_path), "2000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout
            assert follower.stdout.readline() == "ready\n"
            for number in range(1, 2_001):
                writer.append(captured(number))
                if number % 10 == 0:
                    writer.commit()
            assert follower.communicate(timeout=100)[0] == "2000\n"


def test_records_that_are_not_durable_are_not_returned(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.append(captured(1))
        end = writer.commit()
        with (tmp_path / log_name(0)).open("r+b") as file:
            file.seek(end)
            file.write(frame_record(CaptureCompletedRecord.KIND, b"\x91\x01"))
        assert read(tmp_path) == [captured(1)]
        assert JournalReader(tmp_path).bounds == OffsetBounds(0, end)


def test_without_mark_all_but_last_segment_are_durable(tmp_path):
    """As after a power failure: the mark is not synced."""
    write(tmp_path, *(captured(n) for n in range(1, 21)), segment_bytes=400)
    (tmp_path / "durable").write_bytes(b"")
    last = JournalReader(tmp_path).headers()[-1].next_sequence
    assert numbers(tmp_path) == list(range(1, last))
    with open_writer(tmp_path) as writer:
        assert writer.damage == ""
    assert numbers(tmp_path) == list(range(1, 21))


@pytest.mark.parametrize("content", [None, b"short", b"x" * 12])
def test_damaged_mark_is_reported_and_rewritten_by_next_writer(tmp_path, content):
    write(tmp_path, *(captured(n) for n in range(1, 21)), segment_bytes=400)
    if content is None:
        (tmp_path / "durable").unlink()
    else:
        (tmp_path / "durable").write_bytes(content)
    with pytest.raises(JournalDamaged, match="the durable part of the last segment is unknown"):
        read(tmp_path)
    with open_writer(tmp_path) as writer:
        assert "durable is" in writer.damage
    assert numbers(tmp_path) == list(range(1, 21))


# ---------------------------------------------------------------- damage and trimming


def test_unknown_kinds_are_skipped_except_in_raw_records(tmp_path):
    write(tmp_path, captured(1))
    with (tmp_path / log_name(0)).open("ab") as file:
        file.write(
            frame_record(200, b"news") + frame_record(CaptureCompletedRecord.KIND, b"\x91\x01")
        )
    with open_writer(tmp_path) as writer:
        assert writer.truncated_bytes == 0
        assert list(writer.replay_last_segment()) == [captured(1), CaptureCompletedRecord(1)]
    assert [kind for _, kind, _ in JournalReader(tmp_path).raw_records()] == [1, 200, 2]


def flip(file, position):
    with file.open("r+b") as opened:
        opened.seek(position)
        byte = opened.read(1)[0]
        opened.seek(position)
        opened.write(bytes((byte ^ 1,)))


def salvaged(path):
    """Return the readable numbers, continuing after each damage, and the damaged offsets."""
    numbers_read, damages, at = [], [], None
    while True:
        try:
            for _, record in JournalReader(path).read(at):
                assert isinstance(record, CapturedRecord)
                numbers_read.append(record.sequence)
        except JournalDamaged as damage:
            damages.append(damage.offset)
            at = damage.resume
        else:
            return numbers_read, damages


def test_damage_is_reported_and_reading_can_continue(tmp_path):
    count = 2_000
    with open_writer(tmp_path, segment_bytes=500_000) as writer:
        offsets = [writer.append(captured(n, b"x" * 300)) for n in range(1, count + 1)]
    flip(logs(tmp_path)[0], offsets[500] + 100)
    with pytest.raises(JournalDamaged, match=rf"is damaged at offset {offsets[500]}; the next"):
        read(tmp_path)
    good, damages = salvaged(tmp_path)
    lost = sorted(set(range(1, count + 1)) - set(good))
    assert damages == [offsets[500]]
    assert good == sorted(good)
    assert lost == list(range(501, 501 + len(lost)))
    assert len(lost) <= index.INDEX_SPACING_BYTES // 300


def test_unreadable_sector_is_damage(tmp_path, monkeypatch):
    count = 2_000
    with open_writer(tmp_path, segment_bytes=500_000) as writer:
        offsets = [writer.append(captured(n, b"x" * 300)) for n in range(1, count + 1)]
    spoil(monkeypatch, logs(tmp_path)[0], offsets[500] + 100, offsets[500] + 611)
    good, damages = salvaged(tmp_path)
    lost = sorted(set(range(1, count + 1)) - set(good))
    assert damages == [offsets[500]]
    assert lost == list(range(501, 501 + len(lost)))
    assert len(lost) <= index.INDEX_SPACING_BYTES // 300


def test_unreadable_sector_is_tried_a_few_times_only(tmp_path, monkeypatch):
    with open_writer(tmp_path) as writer:
        offsets = [writer.append(captured(n, b"x" * 50)) for n in range(1, 4_001)]
    failures = spoil(monkeypatch, logs(tmp_path)[0], offsets[3_000], offsets[3_000] + 511)
    salvaged(tmp_path)
    assert 0 < len(failures) < 100


def test_unreadable_header_is_damage(tmp_path, monkeypatch):
    write(tmp_path, *(captured(n) for n in range(1, 21)), segment_bytes=400)
    spoil(monkeypatch, logs(tmp_path)[0], 0, 20)
    with pytest.raises(JournalDamaged, match="the header is damaged"):
        JournalReader(tmp_path).headers()


def test_transient_error_is_no_damage(tmp_path, monkeypatch):
    def pread(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    write(tmp_path, captured(1))
    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(JournalUnusable, match="cannot read the journal .*: Cannot allocate"):
        read(tmp_path)


def test_deleted_segment_is_reported(tmp_path):
    write(tmp_path, *(captured(n) for n in range(1, 41)), segment_bytes=400)
    second, third = JournalReader(tmp_path).headers()[1:3]
    logs(tmp_path)[1].unlink()
    good, damages = salvaged(tmp_path)
    assert damages == [second.base]
    assert good == [n for n in range(1, 41) if not second.next_sequence <= n < third.next_sequence]


def test_invalid_body_is_reported(tmp_path):
    write(tmp_path)
    with (tmp_path / log_name(0)).open("ab") as file:
        file.write(
            frame_record(CaptureCompletedRecord.KIND, b"nonsense")
            + frame_record(CaptureCompletedRecord.KIND, b"\x91\x01")
        )
    open_writer(tmp_path).close()
    with pytest.raises(
        JournalDamaged, match=f"the record at offset {HEADER_BYTES} is invalid"
    ) as damage:
        read(tmp_path)
    behind = JournalReader(tmp_path).read(damage.value.resume)
    assert [record for _, record in behind] == [CaptureCompletedRecord(1)]


def test_trimmed_records_are_reported(tmp_path):
    with open_writer(tmp_path, segment_bytes=400, retention_bytes=1_000) as writer:
        for number in range(1, 101):
            writer.append(captured(number))
            writer.commit()
        first = writer.first_sequence
    start = JournalReader(tmp_path).bounds.start
    with pytest.raises(JournalTrimmed, match=f"the first offset is {start}") as offsets:
        list(JournalReader(tmp_path).read(0))
    with pytest.raises(JournalTrimmed, match=f"publication 1 .* the first is {first}") as trimmed:
        list(JournalReader(tmp_path).captured_records(1, 5))
    assert (offsets.value.first, trimmed.value.first) == (start, first)


def test_segment_trimmed_while_read_is_read_to_its_end(
    tmp_path,
):
    write(tmp_path, *(captured(n) for n in range(1, 41)), segment_bytes=400)
    headers = JournalReader(tmp_path).headers()
    reading = JournalReader(tmp_path).read()
    seen = [next(reading)]
    for file in logs(tmp_path)[:2]:
        file.unlink()
    with pytest.raises(JournalTrimmed) as trimmed:
        seen.extend(reading)
    assert [record.sequence for _, record in seen if isinstance(record, CapturedRecord)] == list(
        range(1, headers[1].next_sequence)
    )
    assert trimmed.value.first == headers[2].base


@pytest.mark.parametrize("begun", [False, True], ids=["before it is read", "while it is read"])
def test_trim_during_search_is_reported_by_sequence_number(tmp_path, monkeypatch, begun):
    write(tmp_path, *(captured(n) for n in range(1, 41)), segment_bytes=400)
    headers = JournalReader(tmp_path).headers()
    seen = []

    def drop():
        for file in logs(tmp_path)[:2]:
            file.unlink()

    def look(*_):
        monkeypatch.undo()
        if not begun:
            drop()
        return []

    monkeypatch.setattr(index, "read_index", look)
    with pytest.raises(JournalTrimmed, match=f"the first is {headers[2].next_sequence}") as trimmed:
        for _, record in JournalReader(tmp_path).captured_records(1, 40):
            seen.append(record.sequence)
            if record.sequence == 1:
                drop()
    assert trimmed.value.first == headers[2].next_sequence
    assert seen == (list(range(1, headers[1].next_sequence)) if begun else [])


def reopened(path):
    open_writer(path).close()
    return read(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.binary(max_size=300), st.integers(0, 900), st.binary(max_size=40))
@pytest.mark.usefixtures("without_syncs")
def test_any_corruption_raises_journal_errors_only(tmp_path, garbage, at, marks):
    for file in tmp_path.iterdir():
        file.unlink()
    write(tmp_path, *(captured(n) for n in range(1, 16)), segment_bytes=400)
    before = read(tmp_path)
    for file in (logs(tmp_path)[at % 2], tmp_path / index_name(0)):
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(garbage)
    if marks:
        (tmp_path / "durable").write_bytes(marks)
    for attempt in (
        lambda: read(tmp_path),
        lambda: [record for _, record in JournalReader(tmp_path).captured_records(3, 9)],
        lambda: reopened(tmp_path),
    ):
        try:
            after = attempt()
        except JournalError:
            continue
        assert all(record in before for record in after)
