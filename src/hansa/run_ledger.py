"""A ledger of long work: one JSON object per line, in a file that is only appended to.

Each line is written when its piece of work is complete, so an interruption loses only the pieces
that were running. A line that a crash left incomplete is removed when the file is opened again.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from hansa.errors import UsageError

Row = TypeVar("Row")


class MadeByCode(Protocol):
    """A row that says which code made it."""

    @property
    def code(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def commit(self) -> str | None: ...


class RunLedger(Generic[Row]):
    """An open ledger. No other process can open it meanwhile."""

    def __init__(self, path: Path, row_type: type[Row]) -> None:
        """Open a ledger, or create an empty one; raise UsageError if that is impossible."""
        self.path = path
        self.rows: list[Row] = []
        """All rows, in the order in which they were written."""
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {_reason(error)}") from None
        try:
            self._lock()
            self._read(msgspec.json.Decoder(row_type))
        except BaseException:
            self._file.close()
            raise

    def append(self, row: Row) -> None:
        self.rows.append(row)
        self._file.write(msgspec.json.encode(row) + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"{self.path} is in use by another process; wait for it, or name another file"
            ) from None

    def _read(self, decoder: msgspec.json.Decoder[Row]) -> None:
        self._file.seek(0)
        complete = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            complete += len(line)
            try:
                self.rows.append(decoder.decode(line))
            except ValueError as error:  # msgspec.DecodeError, or not UTF-8
                raise UsageError(
                    f"{self.path}, line {number} is not of such a ledger ({error});"
                    " name another file"
                ) from None
        os.ftruncate(self._file.fileno(), complete)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def describe_other_code(rows: Sequence[MadeByCode], code: str) -> str:
    """Return how many rows other code made; empty if there are none."""
    others = [row for row in rows if row.code != code]
    if not others:
        return ""
    last = others[-1]
    made = f"version {last.version}, commit {last.commit}, code {last.code}"
    return f"{len(others):,} entries of other code (the last one of {made}; this is {code})"
