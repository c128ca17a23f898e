"""Writing telemetry: rows are gathered in blocks, blocks go into a journal of their own.

A `Recorder` is one life of one node: it numbers what it is given. A `Log` is a directory; the
recorders of all nodes of a simulation share one. Nothing that is told here is waited for: what the
disk cannot take in time is dropped and counted, and readers see it by the numbers that are missing.
"""

import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hansa.errors import JournalUnusable
from hansa.journal.records import TelemetryBlock
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.telemetry import schema

BLOCK_ROWS = 1_024
"""Rows that are gathered before they are encoded."""

_ROWS_BYTES_MAX = 1 << 21
_SHARED_BY_NODES = 0
"""What the segments say: the blocks know whose they are, and a node may get a new id."""

_encode = msgspec.msgpack.Encoder().encode


class TelemetryLog:
    """One directory of telemetry, and its only writer."""

    def __init__(
        self,
        path: Path,
        settings: JournalSettings | None = None,
        clock: Callable[[], int] = time.time_ns,
        identity: int | None = None,
    ) -> None:
        """Open it, make it if need be; raise JournalUnusable or JournalDamaged if it cannot be.

        A new log has an identity, by which readers know it wherever it is moved: by chance, if
        none of 63 bits is given.
        """
        epoch = secrets.randbits(63) if identity is None else identity
        self._writer = JournalWriter(path, _SHARED_BY_NODES, epoch, settings, clock)
        self.dropped = 0
        """Rows that were not written because the disk was behind."""

    def append(self, block: TelemetryBlock, count: int) -> None:
        """Write a block with so many rows; it can be read after the next commit."""
        try:
            is_accepted = self._writer.append_if_room(block)
        except JournalUnusable:  # commit says why; whoever is told about must not suffer
            is_accepted = False
        if not is_accepted:
            self.dropped += count

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes that wait for the next commit."""
        return self._writer.end - self._writer.durable

    def commit(self) -> None:
        """Make everything readable that was taken; may run in another thread."""
        self._writer.commit()

    def close(self) -> None:
        """Commit, and let the next writer in."""
        self._writer.close()


class NodeRecorder:
    """Numbers the records of one life of one node and hands them on in blocks."""

    def __init__(self, log: TelemetryLog, node: int, incarnation: int) -> None:
        """Write to this log."""
        self._log = log
        self._node = node
        self._incarnation = incarnation
        self._next_sequence = 1
        self._rows: list[schema.AnyRecord] = []

    def put(self, record: schema.AnyRecord) -> None:
        """Add a record."""
        rows = self._rows
        rows.append(record)
        if len(rows) >= BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand on what was gathered."""
        rows, self._rows = self._rows, []
        self._write_block(rows)

    def _write_block(self, rows: list[schema.AnyRecord]) -> None:
        if not rows:
            return
        data = _encode(rows)
        if len(data) > _ROWS_BYTES_MAX:  # topics may be long
            half = len(rows) // 2
            self._write_block(rows[:half])
            self._write_block(rows[half:])
            return
        block = TelemetryBlock(
            self._node, self._incarnation, self._next_sequence, msgspec.Raw(data)
        )
        self._next_sequence += len(rows)
        self._log.append(block, len(rows))
