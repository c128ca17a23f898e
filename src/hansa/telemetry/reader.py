"""Reading telemetry, in any process and while it is written: a range of offsets is the same rows
every time.

Offsets are the journal's: `bounds` tells between which there is something, and an end is always a
good start. Fields and kinds that a newer writer added are left out; a kind that is not known here
still counts in the numbers.
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
    """A record with its key and place."""

    offset: int
    """Of the block that has it."""
    node: int
    incarnation: int
    record_sequence: int
    record: schema.AnyRecord

    def columns(self) -> dict[str, object]:
        """Return the row as a table has it: all columns, None where its kind has no such field."""
        values: dict[str, object] = dict.fromkeys(COLUMNS)
        values |= msgspec.structs.asdict(self.record)
        values |= {
            "node": self.node,
            "incarnation": self.incarnation,
            "number": self.record_sequence,
            "kind": schema.KIND_NAMES[type(self.record)],
        }
        return {name: _display_value(name, value) for name, value in values.items()}


TelemetrySource = Path | RemoteJournalReader
"""A directory, or a log of an agent somewhere else."""


def read_bounds(source: TelemetrySource) -> OffsetBounds:
    """Return the offsets between which a log can be read now."""
    return _reader(source).bounds


def read_blocks(
    source: TelemetrySource, start: int | None = None, end: int | None = None
) -> Iterator[tuple[int, TelemetryBlock]]:
    """Yield the blocks of a log with their offsets, from one offset up to another.

    Raises JournalTrimmed for what retention dropped, JournalDamaged for what cannot be read.
    """
    for offset, record in _reader(source).read(start, end):
        if isinstance(record, TelemetryBlock):
            yield offset, record


def decode_block(block: TelemetryBlock) -> Iterator[tuple[int, schema.AnyRecord]]:
    """Yield the records of a block with their numbers; raise ValueError if it is none."""
    try:
        known: list[schema.AnyRecord] = _decode(block.rows)
    except msgspec.ValidationError:  # a kind of a newer version, perhaps
        yield from _decode_known_kinds(block)
    else:
        yield from enumerate(known, block.first)


def read_rows(
    source: TelemetrySource, start: int | None = None, end: int | None = None
) -> Iterator[TelemetryRow]:
    """Yield every row of a log, from one offset up to another; see `blocks`."""
    for offset, block in read_blocks(source, start, end):
        try:
            for number, record in decode_block(block):
                yield TelemetryRow(offset, block.node, block.incarnation, number, record)
        except ValueError as error:
            text = f"{source}: the block at {offset} means nothing: {error}"
            raise JournalDamaged(text, offset) from None


def _reader(source: TelemetrySource) -> JournalReader | RemoteJournalReader:
    return JournalReader(source) if isinstance(source, Path) else source


def _decode_known_kinds(block: TelemetryBlock) -> Iterator[tuple[int, schema.AnyRecord]]:
    for number, raw in enumerate(_decode_raw_list(block.rows), block.first):
        tag = next(iter(_decode_tag(raw)), None)
        if tag in schema.RECORD_TYPES:
            yield number, _decode_one(raw)


def _display_value(name: str, value: object) -> object:
    match COLUMNS[name][0], value:
        case "node", int(node):
            return f"{node:016x}"
        case "nodes", tuple(nodes):
            return [f"{node:016x}" for node in nodes]
    return value
