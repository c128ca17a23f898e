"""Recovery: what is truncated, kept, reported or refused."""

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.journal.journals import (
    EPOCH,
    captured,
    journals,
    logs,
    numbers,
    open_writer,
    read,
    spoil,
    write,
)

from hansa.errors import JournalDamaged
from hansa.journal.reader import JournalReader
from hansa.journal.records import CaptureCompletedRecord
from hansa.journal.segment import HEADER_BYTES, index_name, log_name


@pytest.fixture(autouse=True)
def fast(without_syncs):
    """Syncs do not matter here; test_power_failure covers them."""


shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def fresh(tmp_path):
    """Return a fresh directory for each hypothesis example."""
    path = tmp_path / "journal"
    shutil.rmtree(path, ignore_errors=True)
    return path


@shared
@given(journals, st.data())
def test_prefix_of_journal_is_prefix_of_records(tmp_path, written, data):
    """As after a power failure that lost the mark."""
    path = fresh(tmp_path)
    write(path, *written)
    (path / "durable").unlink()
    file = path / log_name(0)
    whole = file.read_bytes()
    cut = data.draw(st.integers(HEADER_BYTES, len(whole)))
    file.write_bytes(whole[:cut])
    with open_writer(path) as writer:
        kept = list(writer.replay_last_segment())
        assert kept == written[: len(kept)]
        assert writer.truncated_bytes <= cut - (writer.end - 0)
        assert whole.startswith(file.read_bytes())
        writer.append(CaptureCompletedRecord(5))
    assert read(path) == [*kept, CaptureCompletedRecord(5)]
    if cut == len(whole):
        assert kept == written


@shared
@given(journals, journals, st.binary(max_size=80), st.data())
def test_any_bytes_after_durable_records_keep_them(tmp_path, durable, torn, garbage, data):
    path = fresh(tmp_path)
    write(path, *durable)
    file = path / log_name(0)
    end = file.stat().st_size
    saved = (path / "durable").read_bytes()
    write(path, *(record for record in torn if record.KIND != 1))
    whole = file.read_bytes()
    (path / "durable").write_bytes(saved)
    file.write_bytes(whole[: data.draw(st.integers(end, len(whole)))] + garbage)
    with open_writer(path) as writer:
        kept = list(writer.replay_last_segment())
    assert kept[: len(durable)] == durable
    assert read(path) == kept


def test_torn_tail_is_truncated_and_counted_without_reserved_zeros(tmp_path):
    write(tmp_path, captured(1))
    file = tmp_path / log_name(0)
    whole = file.read_bytes()
    torn = whole[HEADER_BYTES:-9]
    file.write_bytes(whole + torn + bytes(3_000_000))
    with open_writer(tmp_path) as writer:
        assert writer.truncated_bytes == len(
            torn.rstrip(b"\0")
        )  # its trailing zeros look like reserved space
        assert writer.damage == ""
    assert file.read_bytes() == whole


def test_whole_record_after_torn_one_is_reported(tmp_path):
    """The mark is older than both, as after a power failure: either may have been durable."""
    with open_writer(tmp_path) as writer:
        offsets = [writer.append(captured(n)) for n in range(1, 4)]
    (tmp_path / "durable").write_bytes(b"")
    file = tmp_path / log_name(0)
    data = bytearray(file.read_bytes())
    data[offsets[1] + 20] ^= 1
    file.write_bytes(data)
    with open_writer(tmp_path) as writer:
        assert writer.damage == (
            f"{file} is damaged at offset {offsets[1]}, and truncated there although a whole"
            " record follows: durable data may be lost"
        )
    assert numbers(tmp_path) == [1]


def test_records_after_torn_one_do_not_reappear(tmp_path):
    """Not even if a record of the same length is written there and a crash follows."""
    path = tmp_path / "journal"
    with open_writer(path) as writer:
        offsets = [writer.append(captured(n)) for n in range(1, 4)]
    (path / "durable").unlink()
    data = bytearray((path / log_name(0)).read_bytes())
    data[offsets[1] + 20] ^= 1
    (path / log_name(0)).write_bytes(data)
    with open_writer(path) as writer:
        writer.append(captured(2))
        writer.commit()
        shutil.copytree(path, tmp_path / "crashed")
    open_writer(tmp_path / "crashed").close()
    assert numbers(tmp_path / "crashed") == [1, 2]


@pytest.mark.parametrize("change", ["flip", "cut"])
def test_lost_durable_bytes_are_reported_and_nothing_is_truncated(tmp_path, change):
    with open_writer(tmp_path) as writer:
        offsets = [writer.append(captured(n)) for n in range(1, 11)]
    file = tmp_path / log_name(0)
    data = bytearray(file.read_bytes())
    if change == "flip":
        data[offsets[6] + 20] ^= 64
    else:
        del data[offsets[6] :]
    file.write_bytes(data)
    with pytest.raises(JournalDamaged, match=f"is damaged at offset {offsets[6]}, and") as damage:
        open_writer(tmp_path)
    assert damage.value.offset == offsets[6]
    assert file.read_bytes() == data


@pytest.mark.parametrize("where", ["durable", "reserved"])
def test_unreadable_sector_is_damage_only_in_durable_data(tmp_path, monkeypatch, where):
    with open_writer(tmp_path) as writer:
        offsets = [writer.append(captured(n)) for n in range(1, 11)]
    file = tmp_path / log_name(0)
    end = file.stat().st_size
    file.write_bytes(file.read_bytes() + bytes(3_000_000))
    bad = offsets[6] + 20 if where == "durable" else end
    spoil(monkeypatch, file, bad, bad + 511)
    if where == "durable":
        with pytest.raises(JournalDamaged, match=f"is damaged at offset {offsets[6]}, and"):
            open_writer(tmp_path)
    else:
        open_writer(tmp_path).close()
        assert file.stat().st_size == end


def test_journal_without_segments_is_damaged(tmp_path):
    write(tmp_path, captured(1))
    end = JournalReader(tmp_path).bounds.end
    (tmp_path / log_name(0)).unlink()
    for attempt in (lambda: open_writer(tmp_path), lambda: read(tmp_path)):
        with pytest.raises(JournalDamaged, match=f"segments up to offset {end} are missing"):
            attempt()


def test_damage_in_earlier_segment_does_not_stop_writer(tmp_path):
    write(tmp_path, *(captured(n) for n in range(1, 41)), segment_bytes=400)
    with logs(tmp_path)[0].open("r+b") as file:
        file.seek(HEADER_BYTES + 12)
        file.write(b"\xff\xff\xff\xff")
    with open_writer(tmp_path) as writer:
        assert writer.next_sequence == 41
    with pytest.raises(JournalDamaged):
        read(tmp_path)


@pytest.mark.parametrize("lost", [0, 2], ids=["the first", "a later one"])
@pytest.mark.parametrize("more", [0, 20], ids=["header", "header and record"])
def test_damaged_header_of_earlier_segment_does_not_stop_writer(tmp_path, lost, more):
    write(tmp_path, *(captured(n) for n in range(1, 41)), segment_bytes=400)
    headers = JournalReader(tmp_path).headers()
    file, following = logs(tmp_path)[lost], headers[lost + 1]
    with file.open("r+b") as opened:
        opened.seek(20)
        opened.write(bytes((255,)) * (HEADER_BYTES - 20 + more))
    with open_writer(tmp_path) as writer:
        assert writer.damage.startswith(f"{file}: the header is damaged")
        assert (writer.epoch, writer.next_sequence) == (EPOCH, 41)
        first = following.next_sequence if more else headers[lost].next_sequence
        assert writer.first_sequence == (1 if lost else first)
        assert list(writer.replay_last_segment())


def test_damaged_header_of_last_segment_is_refused(tmp_path):
    write(tmp_path, *(captured(n) for n in range(1, 41)), segment_bytes=400)
    with logs(tmp_path)[-1].open("r+b") as opened:
        opened.seek(20)
        opened.write(bytes((255,)))
    with pytest.raises(JournalDamaged, match="the header is damaged"):
        open_writer(tmp_path)


def test_leftovers_of_crash_are_deleted(tmp_path):
    write(tmp_path, captured(1))
    remains = [tmp_path / "00000000000000009999.new", tmp_path / index_name(77)]
    for file in remains:
        file.write_bytes(b"half")
    open_writer(tmp_path).close()
    assert [file for file in remains if file.exists()] == []
    assert numbers(tmp_path) == [1]


def test_index_of_last_segment_is_rebuilt(tmp_path):
    write(tmp_path, *(captured(n, b"x" * 1_000) for n in range(1, 301)))
    file = tmp_path / index_name(0)
    good = file.read_bytes()
    file.write_bytes(b"bad")
    write(tmp_path, *(captured(n, b"x" * 1_000) for n in range(301, 501)))
    assert good
    assert file.read_bytes().startswith(good)
    once = tmp_path / "once"
    write(once, *(captured(n, b"x" * 1_000) for n in range(1, 501)))
    assert (once / index_name(0)).read_bytes() == file.read_bytes()
