"""The active segment: each step can be repeated after a failure."""

import os

import pytest

from hansa.journal import active_segment, disk, durable_mark, index
from hansa.journal.active_segment import ActiveSegment
from hansa.journal.disk import RESERVE_BYTES
from hansa.journal.segment import HEADER_BYTES, SegmentHeader, index_name, log_name, read_header

FIRST = SegmentHeader(node=1, epoch=7, base=0, next_sequence=1, created_ns=5)
SECOND = SegmentHeader(node=1, epoch=7, base=HEADER_BYTES + 3, next_sequence=2, created_ns=6)


@pytest.fixture
def segment(tmp_path):
    opened = ActiveSegment(tmp_path)
    yield opened
    opened.close()


def content(path, base):
    return (path / log_name(base)).read_bytes()


def test_append_updates_mark_and_index(tmp_path, segment):
    segment.start_segment(FIRST, b"a", [])
    assert durable_mark.read_durable_mark(tmp_path) == HEADER_BYTES + 1
    segment.append(HEADER_BYTES + 1, b"bc", [(1, HEADER_BYTES + 1)])
    assert durable_mark.read_durable_mark(tmp_path) == HEADER_BYTES + 3
    assert content(tmp_path, 0).rstrip(b"\0").endswith(b"abc")
    assert index.read_index(tmp_path, 0) == [(1, HEADER_BYTES + 1)]


def test_finished_segment_releases_reserved_space(tmp_path, segment):
    segment.start_segment(FIRST, b"", [])
    segment.append(HEADER_BYTES, b"abc", [])
    assert len(content(tmp_path, 0)) in (HEADER_BYTES + 3, HEADER_BYTES + 3 + RESERVE_BYTES)
    segment.start_segment(SECOND, b"d", [])
    assert content(tmp_path, 0) == FIRST.pack() + b"abc"
    assert content(tmp_path, SECOND.base) == SECOND.pack() + b"d"
    assert read_header(tmp_path, SECOND.base) == SECOND
    assert durable_mark.read_durable_mark(tmp_path) == SECOND.base + HEADER_BYTES + 1


def test_every_step_can_be_repeated(tmp_path, segment):
    for _ in range(2):
        segment.start_segment(FIRST, b"", [])
    for _ in range(2):
        segment.append(HEADER_BYTES, b"abc", [])
    for _ in range(2):
        segment.start_segment(SECOND, b"d", [])
    assert content(tmp_path, 0) == FIRST.pack() + b"abc"
    assert content(tmp_path, SECOND.base) == SECOND.pack() + b"d"


def test_continue_truncates_tail_and_rebuilds_index(tmp_path, segment):
    (tmp_path / log_name(0)).write_bytes(FIRST.pack() + b"abctorn")
    (tmp_path / index_name(0)).write_bytes(b"old" * 100)
    segment.continue_segment(0, 0, HEADER_BYTES + 3, [(1, HEADER_BYTES)])
    assert content(tmp_path, 0) == FIRST.pack() + b"abc"
    assert (tmp_path / index_name(0)).read_bytes() == index.pack_entries([(1, HEADER_BYTES)])
    assert durable_mark.read_durable_mark(tmp_path) == HEADER_BYTES + 3
    segment.append(HEADER_BYTES + 3, b"d", [(2, HEADER_BYTES + 3)])
    assert index.read_index(tmp_path, 0) == [(1, HEADER_BYTES), (2, HEADER_BYTES + 3)]


@pytest.mark.parametrize("durable", [0, HEADER_BYTES + 1, HEADER_BYTES + 7])
def test_continue_rewrites_records_above_durable_mark(tmp_path, segment, monkeypatch, durable):
    """After a failed sync the kernel may return data that never reached the disk."""
    whole = FIRST.pack() + b"abcdefg"
    (tmp_path / log_name(0)).write_bytes(whole + b"torn")
    done: list[object] = []
    real = os.pwrite

    def pwrite(descriptor, data, position):
        done.append((position, bytes(data)))
        return real(descriptor, data, position)

    monkeypatch.setattr(active_segment, "COPY_BYTES", 4)
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(disk, "_sync_data", lambda _: done.append("sync"))
    monkeypatch.setattr(active_segment, "sync_directory", lambda _: done.append("sync names"))
    segment.continue_segment(0, durable, len(whole), [])
    pieces = [(at, whole[at : at + 4]) for at in range(durable, len(whole), 4)]
    assert done[: len(pieces) + 2] == [*pieces, "sync", "sync names"]
    assert content(tmp_path, 0) == whole
