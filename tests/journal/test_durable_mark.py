"""The durable mark."""

import pytest

from hansa.errors import JournalDamaged
from hansa.journal import durable_mark
from hansa.journal.segment import log_name


def test_last_write_counts(tmp_path):
    written = durable_mark.DurableMark(tmp_path)
    for offset in (52, 2**64 - 1, 1_000):
        written.write(offset)
        assert durable_mark.read_durable_mark(tmp_path) == offset
    written.close()
    assert durable_mark.read_durable_mark(tmp_path) == 1_000


def test_deleted_mark_is_created_again(tmp_path):
    written = durable_mark.DurableMark(tmp_path)
    written.write(5)
    (tmp_path / durable_mark.MARK_FILE).unlink()
    written.write(7)
    written.close()
    assert durable_mark.read_durable_mark(tmp_path) == 7


def test_mark_is_kept_when_reopened(tmp_path):
    for offset in (52, None):
        written = durable_mark.DurableMark(tmp_path)
        if offset:
            written.write(offset)
        written.close()
    assert durable_mark.read_durable_mark(tmp_path) == 52


@pytest.mark.parametrize("content", [None, b"", b"\0" * 12])
def test_empty_mark_is_zero(tmp_path, content):
    if content is not None:
        (tmp_path / durable_mark.MARK_FILE).write_bytes(content)
        (tmp_path / log_name(0)).touch()
    assert durable_mark.read_durable_mark(tmp_path) == 0


@pytest.mark.parametrize("content", [None, b"\0" * 8 + b"\1" * 4, b"x" * 13])
def test_corrupt_mark_is_damaged(tmp_path, content):
    (tmp_path / log_name(0)).touch()
    if content is not None:
        (tmp_path / durable_mark.MARK_FILE).write_bytes(content)
    with pytest.raises(JournalDamaged, match="durable is (missing|damaged): the durable part"):
        durable_mark.read_durable_mark(tmp_path)


def test_half_written_mark_is_read_again(tmp_path, monkeypatch):
    written = durable_mark.DurableMark(tmp_path)
    written.write(77)
    written.close()
    whole = (tmp_path / durable_mark.MARK_FILE).read_bytes()
    contents = iter([b"\0" * 8 + whole[8:], whole[:5], whole])
    monkeypatch.setattr(type(tmp_path), "read_bytes", lambda _: next(contents))
    assert durable_mark.read_durable_mark(tmp_path) == 77
