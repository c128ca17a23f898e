"""Headers and records as bytes in a file."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.errors import JournalDamaged
from hansa.journal.segment import (
    CHUNK_BYTES,
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    SegmentHeader,
    TornRecord,
    frame_record,
    log_name,
    read_header,
    scan_records,
    segment_bases,
)

HEADER = SegmentHeader(node=2**64 - 1, epoch=7, base=4096, next_sequence=3, created_ns=5)


def scanned(path, data, start=0):
    """Return the records that a scan of these bytes yields, and the torn position or None."""
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    found: list[tuple[int, int, bytes]] = []
    try:
        found.extend(scan_records(descriptor, start, len(data)))
    except TornRecord as torn:
        return found, torn.position
    finally:
        os.close(descriptor)
    return found, None


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("segment") / "file"


def test_header_round_trip(tmp_path):
    (tmp_path / log_name(4096)).write_bytes(HEADER.pack() + b"more")
    assert len(HEADER.pack()) == HEADER_BYTES
    assert read_header(tmp_path, 4096) == HEADER


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_corrupt_header_is_damaged(tmp_path, at):
    data = bytearray(HEADER.pack())
    data[at] ^= 1
    (tmp_path / log_name(4096)).write_bytes(data)
    with pytest.raises(JournalDamaged, match="the header is damaged"):
        read_header(tmp_path, 4096)


def test_short_header_is_damaged(tmp_path):
    (tmp_path / log_name(4096)).write_bytes(HEADER.pack()[:-1])
    with pytest.raises(JournalDamaged, match="the header is damaged"):
        read_header(tmp_path, 4096)


def test_renamed_segment_is_damaged(tmp_path):
    (tmp_path / log_name(1)).write_bytes(replace(HEADER, base=2).pack())
    with pytest.raises(JournalDamaged, match="not a segment of format 1, or renamed"):
        read_header(tmp_path, 1)


def test_only_segments_are_listed_in_order(tmp_path):
    for name in (log_name(10**19), log_name(9), "lock", "00000000000000000009.idx", "notes.log"):
        (tmp_path / name).touch()
    assert segment_bases(tmp_path) == [9, 10**19]


@given(
    written=st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=6),
    torn=st.binary(max_size=8),
)
def test_scan_yields_framed_records_and_detects_torn_ones(file, written, torn):
    data = b"".join(frame_record(kind, body) for kind, body in written)
    found, position = scanned(file, data + torn)
    assert [(kind, body) for _, kind, body in found] == written
    assert position == (len(data) if torn else None)


@given(st.binary(max_size=60), st.data())
def test_any_flipped_bit_is_detected(file, body, data):
    good = frame_record(1, body)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    assert scanned(file, frame_record(2, b"before") + bytes(bad)) == (
        [(0, 2, b"before")],
        len(frame_record(2, b"before")),
    )


def test_zeros_are_not_a_record(file):
    assert scanned(file, frame_record(1, b"x") + bytes(100)) == (
        [(0, 1, b"x")],
        RECORD_HEADER_BYTES + 1,
    )


@pytest.mark.parametrize(
    "size", [CHUNK_BYTES - RECORD_HEADER_BYTES, CHUNK_BYTES, 3 * CHUNK_BYTES + 1]
)
def test_records_across_chunk_boundaries_are_whole(file, size):
    bodies = [b"a" * 5, b"b" * size, b"c" * 5, b"d" * size]
    found, position = scanned(file, b"".join(frame_record(1, body) for body in bodies))
    assert [body for _, _, body in found] == bodies
    assert position is None


def test_scan_stops_at_end(file):
    data = frame_record(1, b"x") + frame_record(2, b"y")
    file.write_bytes(data)
    descriptor = os.open(file, os.O_RDONLY)
    assert list(scan_records(descriptor, 0, RECORD_HEADER_BYTES + 1)) == [(0, 1, b"x")]
    os.close(descriptor)
