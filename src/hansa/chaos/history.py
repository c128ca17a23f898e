"""What clients saw: every attempt to publish, every acknowledgement, every delivery.

A publication is a stream and a counter: one stream per publisher, topic and QoS, so that order and
holes show. The history is all that the verdict needs; written down, it can be judged again.

A payload says which publication it is and ends with a checksum over that and the properties, so
that a subscriber sees whether all of it came as it was sent.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path


class Op(StrEnum):
    """What happened."""

    INVOKE = "invoke"
    """A client published."""
    OK = "ok"
    """Its broker acknowledged that."""
    REFUSED = "refused"
    """Its broker answered that it does not take it."""
    DELIVER = "deliver"
    """A subscriber got it."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The publications of one client to one topic at one QoS."""

    publisher: str
    topic: str
    qos: int

    def payload(self, counter: int, properties: bytes = b"") -> bytes:
        """Return what is published."""
        head = f"{self.publisher}:{self.topic}:{self.qos}:{counter}".encode()
        return b"%b:%08x" % (head, zlib.crc32(properties, zlib.crc32(head)))


def read_payload(payload: bytes, properties: bytes = b"") -> tuple[Stream, int] | None:
    """Return which publication this is; None if it is none of ours, or not as it was sent."""
    head, _, check = payload.rpartition(b":")
    try:
        publisher, topic, qos, counter = head.decode().split(":")
        stream, number = Stream(publisher, topic, int(qos)), int(counter)
        if int(check, 16) != zlib.crc32(properties, zlib.crc32(head)):
            return None
    except ValueError:
        return None
    return stream, number


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    at: float
    """Seconds, on one clock for all clients."""
    op: Op
    stream: Stream
    counter: int
    subscriber: str = ""
    """Who got it: one per broker."""
    qos: int = 0
    """With which QoS it came."""


def write(events: Iterable[Event], path: Path) -> None:
    """Write a history, one event a line."""
    with path.open("w", encoding="utf-8") as out:
        for event in events:
            out.write(json.dumps(asdict(event), separators=(",", ":")) + "\n")


def read(path: Path) -> list[Event]:
    """Read what `write` wrote."""
    events: list[Event] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            row["stream"], row["op"] = Stream(**row["stream"]), Op(row["op"])
            events.append(Event(**row))
    return events
