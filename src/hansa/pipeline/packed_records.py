"""Decodes many MessagePack records of one kind at once, field by field, into arrays.

Each record is an array of fields (`hansa.journal.records`). `PackedRecords` holds the position of
the next field in every record. A step looks at the type byte of all records and then moves all
positions, so it costs a few array operations instead of a Python object per field.

A field of an unexpected type, or a record that ends too early, raises UnexpectedLayout. The caller
then decodes the records one by one, which also gives the exact error.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
TypeBytes: TypeAlias = npt.NDArray[np.uint8]
Slices: TypeAlias = tuple[Integers, Integers]
"""Begin and end of a text, or of bytes, in the data of all records."""

SMALL_INTEGER = 0x7F
"""Type bytes up to this are integers themselves."""
SHORT_ARRAY, SHORT_TEXT = 0x90, 0xA0
"""Type bytes whose low bits are the length."""
ARRAY_MASK, ARRAY_ITEMS = 0xF0, 0x0F
TEXT_MASK, TEXT_BYTES = 0xE0, 0x1F
FALSE, TRUE = 0xC2, 0xC3
LONG_ARRAY = 0xDC
INTEGER = {SMALL_INTEGER: 0, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Size of an unsigned integer, by its type byte."""
TEXT = {SHORT_TEXT: 0, 0xD9: 1, 0xDA: 2, 0xDB: 4}
BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""Size of the length of a text, and of bytes, by the type byte."""
DATA_BYTES_MAX = (1 << 31) - 64
"""Arrow's arrays of texts have 32-bit positions."""
PADDING = bytes(8)
"""After the last record: an integer that the data cuts off can still be read."""


class UnexpectedLayout(ValueError):
    """The records are not laid out as this reader expects."""


class PackedRecords:
    """Records, with the position of the next field in each."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        joined = b"".join((*bodies, PADDING))
        if len(joined) > DATA_BYTES_MAX:
            raise UnexpectedLayout
        self._buffer = pa.py_buffer(joined)
        self._data = np.frombuffer(joined, np.uint8)
        lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
        self._ends = np.cumsum(lengths)
        self._at = self._ends - lengths

    def begin(self, fields: int) -> None:
        """Step into the records, which must have so many fields."""
        if np.any(self._array_lengths() != fields):
            raise UnexpectedLayout

    def integers(self) -> Integers:
        """Read an unsigned integer of each record."""
        values, self._at = self._integers(self._at)
        if np.any(values < 0):  # above 63 bits
            raise UnexpectedLayout
        return values

    def booleans(self) -> Mask:
        types = self._types(self._at)
        if np.any((types != FALSE) & (types != TRUE)):
            raise UnexpectedLayout
        self._at = self._at + 1
        found: Mask = types == TRUE
        return found

    def texts(self) -> Slices:
        """Read where a text of each record is."""
        return self._slices(TEXT)

    def byte_strings(self) -> Slices:
        return self._slices(BYTES)

    def skip_pairs(self) -> None:
        """Skip an array of pairs of integers in each record."""
        lengths, at = self._array_lengths(), self._at.copy()
        for number in range(int(lengths.max(initial=0))):
            longer = lengths > number
            pairs = at[longer]
            if np.any(self._types(pairs) != SHORT_ARRAY + 2):
                raise UnexpectedLayout
            _, seconds = self._integers(pairs + 1)
            _, at[longer] = self._integers(seconds)
        self._at = at

    def end(self) -> None:
        """Check that all records end here."""
        if np.any(self._at != self._ends):
            raise UnexpectedLayout

    def array(self, slices: Slices, chosen: Mask, kind: pa.DataType) -> pa.Array:
        """Return the texts or bytes of the chosen records as an Arrow array."""
        # In an array over all data, every second item is one of the slices: Arrow copies these.
        bounds = np.stack(slices, axis=1).astype(np.int32)
        buffers = [None, pa.py_buffer(bounds), self._buffer]
        items = pa.Array.from_buffers(kind, bounds.size - 1, buffers)
        found = items.take(pa.array(2 * np.flatnonzero(chosen)))
        try:
            found.validate(full=True)
        except pa.ArrowInvalid:  # not UTF-8
            raise UnexpectedLayout from None
        return found

    # ------------------------------------------------------------ inside

    def _types(self, at: Integers) -> TypeBytes:
        try:
            return self._data[at]
        except IndexError:
            raise UnexpectedLayout from None

    def _slices(self, widths: dict[int, int]) -> Slices:
        types = self._types(self._at)
        is_short = types & TEXT_MASK == SHORT_TEXT
        begins, sizes = self._at + 1, (types & TEXT_BYTES).astype(np.int64)
        for kind, mask in _by_type(np.where(is_short, SHORT_TEXT, types)):
            width = _width(widths, kind)
            if width:
                sizes[mask] = self._big_endian(begins[mask], width)
                begins[mask] += width
        self._at = begins + sizes
        return begins, self._at

    def _integers(self, at: Integers) -> tuple[Integers, Integers]:
        """Return the integers at some positions, and the positions after them."""
        types = self._types(at)
        values, after = types.astype(np.int64), at + 1
        for kind, mask in _by_type(np.maximum(types, SMALL_INTEGER)):
            width = _width(INTEGER, kind)
            if width:
                values[mask] = self._big_endian(after[mask], width)
                after[mask] += width
        return values, after

    def _array_lengths(self) -> Integers:
        """Read the head of an array of each record."""
        types = self._types(self._at)
        is_long = types == LONG_ARRAY
        if np.any((types & ARRAY_MASK != SHORT_ARRAY) & ~is_long):
            raise UnexpectedLayout
        lengths, after = (types & ARRAY_ITEMS).astype(np.int64), self._at + 1
        if np.any(is_long):
            lengths[is_long] = self._big_endian(after[is_long], 2)
            after[is_long] += 2
        self._at = after
        return lengths

    def _big_endian(self, at: Integers, width: int) -> Integers:
        try:
            digits = self._data[at[:, np.newaxis] + np.arange(width)]
        except IndexError:
            raise UnexpectedLayout from None
        values: Integers = digits.view(f">u{width}")[:, 0].astype(np.int64)
        return values


def _by_type(types: TypeBytes) -> Iterator[tuple[int, Mask]]:
    """Yield each type byte that occurs, and where."""
    for kind in np.flatnonzero(np.bincount(types)):
        yield int(kind), types == kind


def _width(widths: dict[int, int], kind: int) -> int:
    if kind not in widths:
        raise UnexpectedLayout
    return widths[kind]
