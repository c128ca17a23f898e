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
from hansa.journal.reader import Bounds, Reader
from hansa.journal.records import Block
from hansa.journal.remote import RemoteReader
from hansa.telemetry import schema
from hansa.telemetry.columns import COLUMNS

_decode = msgspec.msgpack.Decoder(list[schema.Any]).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_one = msgspec.msgpack.Decoder(schema.Any).decode
_tag = msgspec.msgpack.Decoder(list[object]).decode


@dataclass(frozen=True, slots=True)
class Row:
    """A record with its key and place."""

    offset: int
    """Of the block that has it."""
    node: int
    incarnation: int
    number: int
    record: schema.Any

    def columns(self) -> dict[str, object]:
        """Return the row as a table has it: all columns, None where its kind has no such field."""
        values: dict[str, object] = dict.fromkeys(COLUMNS)
        values |= msgspec.structs.asdict(self.record)
        values |= {
            "node": self.node,
            "incarnation": self.incarnation,
            "number": self.number,
            "kind": schema.NAMES[type(self.record)],
        }
        return {name: _as_shown(name, value) for name, value in values.items()}


Source = Path | RemoteReader
"""A directory, or a log of an agent somewhere else."""


def bounds(source: Source) -> Bounds:
    """Return the offsets between which a log can be read now."""
    return _reader(source).bounds


def blocks(
    source: Source, start: int | None = None, end: int | None = None
) -> Iterator[tuple[int, Block]]:
    """Yield the blocks of a log with their offsets, from one offset up to another.

    Raises JournalTrimmed for what retention dropped, JournalDamaged for what cannot be read.
    """
    for offset, record in _reader(source).read(start, end):
        if isinstance(record, Block):
            yield offset, record


def records_of(block: Block) -> Iterator[tuple[int, schema.Any]]:
    """Yield the records of a block with their numbers; raise ValueError if it is none."""
    try:
        known: list[schema.Any] = _decode(block.rows)
    except msgspec.ValidationError:  # a kind of a newer version, perhaps
        yield from _known_ones(block)
    else:
        yield from enumerate(known, block.first)


def rows(source: Source, start: int | None = None, end: int | None = None) -> Iterator[Row]:
    """Yield every row of a log, from one offset up to another; see `blocks`."""
    for offset, block in blocks(source, start, end):
        try:
            for number, record in records_of(block):
                yield Row(offset, block.node, block.incarnation, number, record)
        except ValueError as error:
            text = f"{source}: the block at {offset} means nothing: {error}"
            raise JournalDamaged(text, offset) from None


def _reader(source: Source) -> Reader | RemoteReader:
    return Reader(source) if isinstance(source, Path) else source


def _known_ones(block: Block) -> Iterator[tuple[int, schema.Any]]:
    for number, raw in enumerate(_split(block.rows), block.first):
        tag = next(iter(_tag(raw)), None)
        if tag in schema.KINDS:
            yield number, _one(raw)


def _as_shown(name: str, value: object) -> object:
    match COLUMNS[name][0], value:
        case "node", int(node):
            return f"{node:016x}"
        case "nodes", tuple(nodes):
            return [f"{node:016x}" for node in nodes]
    return value
