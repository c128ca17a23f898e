"""The end of a journal on disk: each step leaves what the next needs, and can be done again."""

import os

import pytest

from hansa.journal import disk, index, mark
from hansa.journal import tail as tails
from hansa.journal.disk import RESERVE_BYTES
from hansa.journal.segment import HEADER_BYTES, SegmentHeader, index_name, log_name, read_header
from hansa.journal.tail import ActiveSegment

FIRST = SegmentHeader(node=1, epoch=7, base=0, next_sequence=1, created_ns=5)
SECOND = SegmentHeader(node=1, epoch=7, base=HEADER_BYTES + 3, next_sequence=2, created_ns=6)


@pytest.fixture
def tail(tmp_path):
    opened = ActiveSegment(tmp_path)
    yield opened
    opened.close()


def content(path, base):
    return (path / log_name(base)).read_bytes()


def test_what_is_written_is_marked_and_indexed(tmp_path, tail):
    tail.begin(FIRST, b"a", [])
    assert mark.read_durable_mark(tmp_path) == HEADER_BYTES + 1
    tail.write(HEADER_BYTES + 1, b"bc", [(1, HEADER_BYTES + 1)])
    assert mark.read_durable_mark(tmp_path) == HEADER_BYTES + 3
    assert content(tmp_path, 0).rstrip(b"\0").endswith(b"abc")
    assert index.read_index(tmp_path, 0) == [(1, HEADER_BYTES + 1)]


def test_a_segment_that_ends_gives_back_what_was_reserved(tmp_path, tail):
    tail.begin(FIRST, b"", [])
    tail.write(HEADER_BYTES, b"abc", [])
    assert len(content(tmp_path, 0)) in (HEADER_BYTES + 3, HEADER_BYTES + 3 + RESERVE_BYTES)
    tail.begin(SECOND, b"d", [])
    assert content(tmp_path, 0) == FIRST.pack() + b"abc"
    assert content(tmp_path, SECOND.base) == SECOND.pack() + b"d"
    assert read_header(tmp_path, SECOND.base) == SECOND
    assert mark.read_durable_mark(tmp_path) == SECOND.base + HEADER_BYTES + 1


def test_every_step_can_be_done_again(tmp_path, tail):
    for _ in range(2):
        tail.begin(FIRST, b"", [])
    for _ in range(2):
        tail.write(HEADER_BYTES, b"abc", [])
    for _ in range(2):
        tail.begin(SECOND, b"d", [])
    assert content(tmp_path, 0) == FIRST.pack() + b"abc"
    assert content(tmp_path, SECOND.base) == SECOND.pack() + b"d"


def test_who_resumes_cuts_what_follows_and_makes_the_index_anew(tmp_path, tail):
    (tmp_path / log_name(0)).write_bytes(FIRST.pack() + b"abctorn")
    (tmp_path / index_name(0)).write_bytes(b"old" * 100)
    tail.resume(0, 0, HEADER_BYTES + 3, [(1, HEADER_BYTES)])
    assert content(tmp_path, 0) == FIRST.pack() + b"abc"
    assert (tmp_path / index_name(0)).read_bytes() == index.pack_entries([(1, HEADER_BYTES)])
    assert mark.read_durable_mark(tmp_path) == HEADER_BYTES + 3
    tail.write(HEADER_BYTES + 3, b"d", [(2, HEADER_BYTES + 3)])
    assert index.read_index(tmp_path, 0) == [(1, HEADER_BYTES), (2, HEADER_BYTES + 3)]


@pytest.mark.parametrize("durable", [0, HEADER_BYTES + 1, HEADER_BYTES + 7])
def test_who_resumes_writes_anew_what_is_not_known_to_be_durable(
    tmp_path, tail, monkeypatch, durable
):
    """After a sync that failed the system may give back what never got to the disk."""
    whole = FIRST.pack() + b"abcdefg"
    (tmp_path / log_name(0)).write_bytes(whole + b"torn")
    done: list[object] = []
    real = os.pwrite

    def pwrite(descriptor, data, position):
        done.append((position, bytes(data)))
        return real(descriptor, data, position)

    monkeypatch.setattr(tails, "PIECE_BYTES", 4)
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(disk, "_sync_data", lambda _: done.append("sync"))
    monkeypatch.setattr(tails, "sync_directory", lambda _: done.append("sync names"))
    tail.resume(0, durable, len(whole), [])
    pieces = [(at, whole[at : at + 4]) for at in range(durable, len(whole), 4)]
    assert done[: len(pieces) + 2] == [*pieces, "sync", "sync names"]
    assert content(tmp_path, 0) == whole
