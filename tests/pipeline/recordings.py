"""Journals and telemetry as agents leave them, small and known."""

from collections.abc import Iterable
from pathlib import Path

from hansa.journal.records import Captured, Record, Recorded, Settled
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import Writer
from hansa.telemetry import schema
from hansa.telemetry.log import Log, Recorder

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def captured(number: int, topic: str = "a/b", payload: bytes = b"21.5", qos: int = 1) -> Captured:
    time_ns = START + number * SECOND // 1_000
    return Captured(number, qos, topic, payload, False, b"", (), 1, time_ns, True)


def recorded(number: int, topic: str = "a/c", payload: bytes = b"on") -> Recorded:
    return Recorded(3, number, topic, payload, True, b"\x01", START + number)


def journal(
    path: Path, node: int, records: Iterable[Record], settings: JournalSettings | None = None
) -> None:
    """Append to the journal of a node, made if need be."""
    with Writer(path, node, 7, settings) as writer:
        for record in records:
            writer.append(record)
            if writer.end - writer.durable > 1 << 20:
                writer.commit()
        writer.commit()


def many(first: int, last: int) -> list[Record]:
    """Captured publications with these numbers, and what is no message between them."""
    return [
        record
        for number in range(first, last + 1)
        for record in (captured(number), Settled(number))
    ]


def telemetry(path: Path, node: int, records: Iterable[schema.Any], incarnation: int = 1) -> None:
    """A log with one life of one node."""
    log = Log(path)
    recorder = Recorder(log, node, incarnation)
    for record in records:
        recorder.put(record)
    recorder.flush()
    log.close()
