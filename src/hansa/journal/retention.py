"""Retention: deletes the oldest segments when they are too old or the journal is too large.

The active segment always stays. `count_expired` decides, `drop_segments` deletes.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from hansa.journal import crash
from hansa.journal.disk import sync_directory
from hansa.journal.records import TrimmedRecord
from hansa.journal.segment import SegmentHeader, index_name, log_name
from hansa.journal.settings import JournalSettings

SECOND_NS = 1_000_000_000


def count_expired(
    headers: Sequence[SegmentHeader], end: int, settings: JournalSettings, now_ns: int
) -> int:
    """Return how many of the oldest segments have expired. The last segment ends at `end`."""
    for count, (header, following) in enumerate(zip(headers, headers[1:], strict=False)):
        age_ns = now_ns - following.created_ns
        if (
            end - header.base <= settings.retention_bytes
            and age_ns <= settings.retention_seconds * SECOND_NS
        ):
            return count
    return max(0, len(headers) - 1)


def drop_segments(
    path: Path, headers: Sequence[SegmentHeader], count: int, now_ns: int
) -> list[TrimmedRecord]:
    """Delete the oldest `count` segments; return the records about them."""
    trimmed = []
    for header, following in list(zip(headers, headers[1:], strict=False))[:count]:
        (path / log_name(header.base)).unlink(missing_ok=True)
        crash.pass_crash_point(crash.JournalCrashPoint.SEGMENT_DROPPED)
        (path / index_name(header.base)).unlink(missing_ok=True)
        # Sync after each one, so that a power failure cannot leave a hole between segments.
        sync_directory(path)
        trimmed.append(
            TrimmedRecord(
                epoch=header.epoch,
                first=header.next_sequence,
                last=following.next_sequence - 1,
                segment_bytes=following.base - header.base,
                time_ns=now_ns,
            )
        )
    return trimmed


def remove_leftovers(path: Path, bases: Sequence[int]) -> None:
    """Delete what a crash left: unfinished segments and indexes without a segment."""
    indexes = {index_name(base) for base in bases}
    for name in os.listdir(path):
        if name.endswith(".new") or (name.endswith(".idx") and name not in indexes):
            (path / name).unlink()
