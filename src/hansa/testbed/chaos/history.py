"""The history of clients: every publication, acknowledgement and delivery.

A publication is identified by a stream (publisher, topic, QoS) and a counter, so reordering and
losses are visible. The payload contains both and a checksum over them and the properties, so a
subscriber detects altered publications.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

CHECKSUM_BYTES = 9
"""A colon and the checksum."""


class HistoryOperation(StrEnum):
    INVOKE = "invoke"
    """A client published."""
    OK = "ok"
    """The broker acknowledged the publication."""
    REFUSED = "refused"
    """The broker refused the publication with a reason code."""
    DELIVER = "deliver"
    """A subscriber received the publication."""


@dataclass(frozen=True, slots=True)
class PublisherStream:
    """The publications of one client to one topic at one QoS."""

    publisher: str
    topic: str
    qos: int

    def make_payload(self, counter: int, properties: bytes = b"", size: int = 0) -> bytes:
        """Return the payload, padded to `size` bytes."""
        head = f"{self.publisher}:{self.topic}:{self.qos}:{counter}:".encode()
        head = head.ljust(size - CHECKSUM_BYTES, b".")
        return b"%b:%08x" % (head, zlib.crc32(properties, zlib.crc32(head)))


def parse_payload(payload: bytes, properties: bytes = b"") -> tuple[PublisherStream, int] | None:
    """Return stream and counter of a payload; None if it is not ours or was altered."""
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
    at: float
    """Seconds, on one clock for all clients."""
    op: HistoryOperation
    stream: PublisherStream
    counter: int
    subscriber: str = ""
    """Receiver of a delivery."""
    qos: int = 0
    """QoS of a delivery."""


class OutstandingDeliveries:
    """A history with the count of missing deliveries, updated with every event.

    An acknowledged publication of QoS 1 or 2 is missing at each subscriber of its topic until it is
    delivered there.
    """

    def __init__(self, subscribers: Mapping[str, Iterable[str]]) -> None:
        """`subscribers` maps each subscriber to its topics."""
        self.history: list[HistoryEvent] = []
        self.missing_count = 0
        self._topics = {name: frozenset(topics) for name, topics in subscribers.items()}
        self._acknowledged: defaultdict[PublisherStream, set[int]] = defaultdict(set)
        self._arrived: defaultdict[tuple[str, PublisherStream], set[int]] = defaultdict(set)

    def add_event(self, event: HistoryEvent) -> None:
        self.history.append(event)
        stream, counter = event.stream, event.counter
        if not stream.qos:
            return
        if event.op is HistoryOperation.OK and counter not in self._acknowledged[stream]:
            self._acknowledged[stream].add(counter)
            for name, topics in self._topics.items():
                if stream.topic in topics and counter not in self._arrived[name, stream]:
                    self.missing_count += 1
        elif (
            event.op is HistoryOperation.DELIVER and stream.topic in self._topics[event.subscriber]
        ):
            arrived = self._arrived[event.subscriber, stream]
            if counter in self._acknowledged[stream] and counter not in arrived:
                self.missing_count -= 1
            arrived.add(counter)
