"""Records and journals for tests."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from hansa.journal import records
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord, JournalRecord
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter

NODE = 0x0123456789ABCDEF
EPOCH = 7
TIME = 1_700_000_000_000_000_000


def captured(number: int, payload: bytes = b"21.5", **fields: Any) -> CapturedRecord:
    values: dict[str, Any] = {
        "sequence": number,
        "qos": 1,
        "topic": "a/b",
        "payload": payload,
        "retain": False,
        "properties": b"",
        "receivers": ((5, number - 1),),
        "packet_id": 1 + number % 65_535,
        "time_ns": TIME,
    }
    return CapturedRecord(**values | fields)


def open_writer(
    path: Path, clock: Callable[[], int] = lambda: TIME, **settings: Any
) -> JournalWriter:
    return JournalWriter(path, NODE, EPOCH, JournalSettings(**settings), clock)


def write(path: Path, *written: JournalRecord, **settings: Any) -> None:
    with open_writer(path, **settings) as writer:
        for record in written:
            writer.append(record)


def read(path: Path) -> list[JournalRecord]:
    return [record for _, record in JournalReader(path).read()]


def numbers(path: Path) -> list[int]:
    return [record.sequence for record in read(path) if isinstance(record, CapturedRecord)]


def logs(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def spoil(monkeypatch: pytest.MonkeyPatch, file: Path, first: int, last: int) -> list[int]:
    """Make some bytes of a file unreadable; return the positions of failed reads."""
    real, bad = os.pread, file.stat().st_ino
    failures: list[int] = []

    def pread(descriptor: int, size: int, position: int) -> bytes:
        if os.fstat(descriptor).st_ino == bad and position <= last and position + size > first:
            failures.append(position)
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread)
    return failures


# ---------------------------------------------------------------- hypothesis strategies

unsigned = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
pairs = st.lists(st.tuples(unsigned, unsigned), max_size=3).map(tuple)
texts = st.text(max_size=12)
blobs = st.one_of(st.binary(max_size=12), st.binary(min_size=200, max_size=400))

_BY_TYPE = {
    int: unsigned,
    str: texts,
    bytes: blobs,
    bool: st.booleans(),
    tuple[tuple[int, int], ...]: pairs,
    msgspec.Raw: st.lists(unsigned, max_size=3).map(msgspec.msgpack.encode).map(msgspec.Raw),
}


def any_of(kind: type[JournalRecord]) -> st.SearchStrategy[JournalRecord]:
    return st.builds(
        kind, *(_BY_TYPE[kind.__annotations__[name]] for name in kind.__struct_fields__)
    )


any_record = st.one_of(*(any_of(kind) for kind in records.RECORD_TYPES.values()))


def renumbered(drawn: list[JournalRecord]) -> list[JournalRecord]:
    """Return the records with consecutive sequence numbers."""

    def counted() -> Iterator[JournalRecord]:
        number = 0
        for record in drawn:
            if isinstance(record, CapturedRecord):
                number += 1
                yield captured(number, record.payload, topic=record.topic)
            else:
                yield record

    return list(counted())


journals = st.lists(any_record, max_size=12).map(renumbered)
