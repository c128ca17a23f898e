"""Writes telemetry: collects records in blocks and appends the blocks to a journal of their own.

A `NodeRecorder` numbers the records of one incarnation of one node. A `TelemetryLog` is a
directory; the recorders of all nodes of a simulation share one. Callers never wait for the disk: if
it is too slow, records are dropped and counted, and readers notice the missing sequence numbers.
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
"""Records that are collected before they are encoded."""

_ROWS_BYTES_MAX = 1 << 21
_SHARED_BY_NODES = 0
"""Node id in the segment headers. Each block names its own node, which may get a new id."""

_encode = msgspec.msgpack.Encoder().encode


class TelemetryLog:
    """The only writer of one directory of telemetry."""

    def __init__(
        self,
        path: Path,
        settings: JournalSettings | None = None,
        clock: Callable[[], int] = time.time_ns,
        identity: int | None = None,
    ) -> None:
        """Open or create the log; raise JournalUnusable or JournalDamaged if that fails.

        `identity` (63 bits, random by default) identifies a new log to readers, also after its
        directory has moved.
        """
        epoch = secrets.randbits(63) if identity is None else identity
        self._writer = JournalWriter(path, _SHARED_BY_NODES, epoch, settings, clock)
        self.dropped = 0
        """Records that were not written because the disk was too slow."""

    def append(self, block: TelemetryBlock, count: int) -> None:
        """Write a block of `count` records; it can be read after the next commit."""
        try:
            is_accepted = self._writer.append_if_room(block)
        except JournalUnusable:  # `commit` reports it; the node must not suffer from it
            is_accepted = False
        if not is_accepted:
            self.dropped += count

    @property
    def uncommitted_bytes(self) -> int:
        """Appended bytes that are not committed yet."""
        return self._writer.end - self._writer.durable

    def commit(self) -> None:
        """Make all appended blocks durable and readable; may run in another thread."""
        self._writer.commit()

    def close(self) -> None:
        """Commit and release the directory."""
        self._writer.close()


class NodeRecorder:
    """Numbers the records of one incarnation of one node and writes them in blocks."""

    def __init__(self, log: TelemetryLog, node: int, incarnation: int) -> None:

        self._log = log
        self._node = node
        self._incarnation = incarnation
        self._next_sequence = 1
        self._rows: list[schema.AnyRecord] = []

    def put(self, record: schema.AnyRecord) -> None:
        rows = self._rows
        rows.append(record)
        if len(rows) >= BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the collected records."""
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
