"""A ledger: rows survive an interruption, and nobody else writes to it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from hansa.errors import UsageError
from hansa.run_ledger import RunLedger


@dataclass(frozen=True, slots=True)
class Piece:
    number: int
    text: str = ""


def read_rows(path: Path) -> list[Piece]:
    with RunLedger(path, Piece) as ledger:
        return ledger.rows


def test_rows_are_read_again_in_order(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for number in (2, 1):
        with RunLedger(path, Piece) as ledger:
            ledger.append(Piece(number, "a\nb"))
    assert read_rows(path) == [Piece(2, "a\nb"), Piece(1, "a\nb")]
    assert len(path.read_text().splitlines()) == 2


def test_row_is_in_the_file_when_it_was_appended(tmp_path: Path) -> None:
    with RunLedger(tmp_path / "ledger.jsonl", Piece) as ledger:
        ledger.append(Piece(1))
        assert (tmp_path / "ledger.jsonl").read_bytes() == b'{"number":1,"text":""}\n'


@pytest.mark.parametrize("rest", [b"{", b'{"number":2}', b"\xff"])
def test_incomplete_last_line_is_removed(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"number":1}\n' + rest)
    with RunLedger(path, Piece) as ledger:
        assert ledger.rows == [Piece(1)]
        ledger.append(Piece(3))
    assert read_rows(path) == [Piece(1), Piece(3)]


@pytest.mark.parametrize("line", [b"hello\n", b'{"seed":1}\n', b"\xff\n"])
def test_file_of_another_kind_is_refused_and_not_changed(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"number":1}\n' + line)
    with pytest.raises(UsageError, match=r"ledger.jsonl, line 2 is not of such a ledger"):
        RunLedger(path, Piece)
    assert path.read_bytes() == b'{"number":1}\n' + line


def test_ledger_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with RunLedger(path, Piece), pytest.raises(UsageError, match="in use by another process"):
        RunLedger(path, Piece)
    assert read_rows(path) == []


def test_ledger_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^cannot write .*: is a directory$"):
        RunLedger(tmp_path, Piece)
