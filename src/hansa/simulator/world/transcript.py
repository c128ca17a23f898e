"""The transcript of a run: readable lines, and one hash of everything.

A line is ` 0.0123 n3 CoreElected(group='a/#', core=1)`: virtual seconds, place, event. Frames are
too many for lines, but the hash covers each with its time, ends, size and content.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

TranscriptListener = Callable[[float, int | None, object], None]
"""Called for every line: time, place (None for the world), event."""

_FRAME = struct.Struct("<dIIII")
_BUFFER_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class MessagePublished:
    """A client published a message; its number is unique in the run."""

    number: int
    topic: str
    qos: int


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """A broker got a publication from its agent."""

    number: int
    topic: str
    hops: int


class Transcript:
    __slots__ = ("_buffer", "_formats", "_hash", "_listener")

    def __init__(self, listener: TranscriptListener | None = None) -> None:
        """`listener` is called for every line."""
        self._hash = hashlib.blake2b(digest_size=16)
        self._buffer = bytearray()
        self._formats: dict[type, Callable[[object], str]] = {}
        self._listener = listener

    def add_line(self, now: float, place: int | None, event: object) -> None:
        self._buffer += format_line(now, place, self._text(event)).encode()
        if self._listener:
            self._listener(now, place, event)

    def add_frame(self, now: float, ends: tuple[int, int], size: int, checksum: int) -> None:
        """Add a frame sent from one place to another to the hash."""
        self._buffer += _FRAME.pack(now, ends[0], ends[1], size, checksum)
        if len(self._buffer) > _BUFFER_BYTES:
            self._flush()

    def fingerprint(self) -> str:
        """Return the hash of everything so far."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update(self._buffer)
        self._buffer.clear()

    def _text(self, event: object) -> str:
        """Return `repr(event)`, faster: a large federation has millions of lines."""
        if isinstance(event, str):
            return event
        kind = type(event)
        if kind not in self._formats:
            self._formats[kind] = _make_formatter(kind)
        return self._formats[kind](event)


def format_line(now: float, place: int | None, text: str) -> str:
    return f"{now:10.4f} {'--' if place is None else f'n{place}'} {text}\n"


def _make_formatter(kind: type) -> Callable[[object], str]:
    """Return a function equivalent to the `repr` of this dataclass or struct."""
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
    template = f"{kind.__name__}({', '.join(f'{name}=%r' for name in names)})"
    if not names:
        return lambda _: template
    get: Callable[[object], Any] = attrgetter(*names)  # a tuple, or one value
    if len(names) == 1:
        return lambda event: template % (get(event),)
    return lambda event: template % get(event)
