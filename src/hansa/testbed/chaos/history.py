"""What clients saw: every attempt to publish, every acknowledgement, every delivery.

A publication is a stream and a counter: one stream per publisher, topic and QoS, so that order and
holes show.

A payload says which publication it is and ends with a checksum over that and the properties, so
that a subscriber sees whether all of it came as it was sent.
"""

import zlib
from dataclasses import dataclass
from enum import StrEnum

CHECKSUM_BYTES = 9
"""A colon and the checksum."""


class HistoryOperation(StrEnum):
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
class PublisherStream:
    """The publications of one client to one topic at one QoS."""

    publisher: str
    topic: str
    qos: int

    def make_payload(self, counter: int, properties: bytes = b"", size: int = 0) -> bytes:
        """Return what is published, filled up to a size."""
        head = f"{self.publisher}:{self.topic}:{self.qos}:{counter}:".encode()
        head = head.ljust(size - CHECKSUM_BYTES, b".")
        return b"%b:%08x" % (head, zlib.crc32(properties, zlib.crc32(head)))


def parse_payload(payload: bytes, properties: bytes = b"") -> tuple[PublisherStream, int] | None:
    """Return which publication this is; None if it is none of ours, or not as it was sent."""
    head, _, check = payload.rpartition(b":")
    try:
        publisher, topic, qos, counter, _ = head.decode().split(":")
        stream, number = PublisherStream(publisher, topic, int(qos)), int(counter)
        if int(check, 16) != zlib.crc32(properties, zlib.crc32(head)):
            return None
    except ValueError:
        return None
    return stream, number


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One line."""

    at: float
    """Seconds, on one clock for all clients."""
    op: HistoryOperation
    stream: PublisherStream
    counter: int
    subscriber: str = ""
    """Who got it: one per broker."""
    qos: int = 0
    """With which QoS it came."""
