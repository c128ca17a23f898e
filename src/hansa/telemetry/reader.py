"""Reads telemetry, from any process and while it is written: a range of offsets always gives the
same rows.

Offsets are those of the journal. `read_bounds` returns the readable range; its end is a valid start
for the next read. Fields and kinds of a newer writer are skipped; a record of an unknown kind still
takes its sequence number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hansa.errors import JournalDamaged
from hansa.journal.reader import JournalReader, OffsetBounds
from hansa.journal.records import TelemetryBlock
from hansa.journal.remote import RemoteJournalReader
from hansa.telemetry import schema
from hansa.telemetry.columns import COLUMNS

_decode = msgspec.msgpack.Decoder(list[schema.AnyRecord]).decode
_decode_raw_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_one = msgspec.msgpack.Decoder(schema.AnyRecord).decode
_decode_tag = msgspec.msgpack.Decoder(list[object]).decode


@dataclass(frozen=True, slots=True)
class TelemetryRow:
    """A record with its key and the offset of its block."""

    offset: int
    node_id: int
    incarnation: int
    record_sequence: int
    record: schema.AnyRecord

    def columns(self) -> dict[str, object]:
        """Return all columns of the table; None for those that this kind does not have."""
        values: dict[str, object] = dict.fromkeys(COLUMNS)
        values |= msgspec.structs.asdict(self.record)
        values |= {
            "node_id": self.node_id,
            "incarnation": self.incarnation,
            "record_sequence": self.record_sequence,
            "kind": schema.KIND_NAMES[type(self.record)],
        }
        return {name: _display_value(name, value) for name, value in values.items()}


TelemetrySource = Path | RemoteJournalReader
"""A directory, or a log that a remote agent serves."""


def read_bounds(source: TelemetrySource) -> OffsetBounds:
    """Return the range of offsets that can be read now."""
    return _reader(source).bounds


def read_blocks(
    source: TelemetrySource, start: int | None = None, end: int | None = None
) -> Iterator[tuple[int, TelemetryBlock]]:
    """Yield the blocks of a log with their offsets, from `start` up to `end`.

    Raises JournalTrimmed if retention dropped part of the range, JournalDamaged if part of it is
    corrupt.
    """
    for offset, record in _reader(source).read(start, end):
        if isinstance(record, TelemetryBlock):
            yield offset, record


def decode_block(block: TelemetryBlock) -> Iterator[tuple[int, schema.AnyRecord]]:
    """Yield the records of a block with their sequence numbers; raise ValueError if it is
    corrupt."""
    try:
        known: list[schema.AnyRecord] = _decode(block.rows)
    except msgspec.ValidationError:  # perhaps a kind of a newer version
        yield from _decode_known_kinds(block)
    else:
        yield from enumerate(known, block.first)


def read_rows(
    source: TelemetrySource, start: int | None = None, end: int | None = None
) -> Iterator[TelemetryRow]:
    """Yield the rows of a log from `start` up to `end`; see `read_blocks` for errors."""
    for offset, block in read_blocks(source, start, end):
        try:
            for sequence, record in decode_block(block):
                yield TelemetryRow(offset, block.node, block.incarnation, sequence, record)
        except ValueError as error:
            text = f"{source}: the block at {offset} cannot be decoded: {error}"
            raise JournalDamaged(text, offset) from None


def _reader(source: TelemetrySource) -> JournalReader | RemoteJournalReader:
    return JournalReader(source) if isinstance(source, Path) else source


def _decode_known_kinds(block: TelemetryBlock) -> Iterator[tuple[int, schema.AnyRecord]]:
    for sequence, raw in enumerate(_decode_raw_list(block.rows), block.first):
        tag = next(iter(_decode_tag(raw)), None)
        if tag in schema.RECORD_TYPES:
            yield sequence, _decode_one(raw)


def _display_value(name: str, value: object) -> object:
    match COLUMNS[name][0], value:
        case "node", int(node):
            return f"{node:016x}"
        case "nodes", tuple(nodes):
            return [f"{node:016x}" for node in nodes]
    return value
