"""Retention: which segments are deleted, and the records about them."""

import pytest

from hansa.journal import retention
from hansa.journal.records import TrimmedRecord
from hansa.journal.segment import SegmentHeader, index_name, log_name
from hansa.journal.settings import JournalSettings

SECOND = 10**9
SETTINGS = JournalSettings(segment_bytes=100, retention_bytes=300, retention_seconds=60)
# Five segments of 100 bytes; each ends when the next begins, 10 s later.
HEADERS = [
    SegmentHeader(1, 7, base=100 * at, next_sequence=10 * at + 1, created_ns=10 * at * SECOND)
    for at in range(5)
]


@pytest.mark.parametrize("count, end, gone", [(3, 300, 0), (4, 301, 1), (5, 500, 2), (5, 9_999, 4)])
def test_size_limit_expires_oldest_but_never_last(count, end, gone):
    assert retention.count_expired(HEADERS[:count], end, SETTINGS, 0) == gone


@pytest.mark.parametrize("now, gone", [(70, 0), (71, 1), (80, 1), (81, 2), (10_000, 2)])
def test_age_limit_counts_from_end_of_segment(now, gone):
    assert retention.count_expired(HEADERS[:3], 250, SETTINGS, now * SECOND) == gone


def test_empty_journal_has_nothing_expired():
    assert retention.count_expired([], 0, SETTINGS, 0) == 0


def test_each_deleted_segment_gets_a_record(tmp_path):
    for header in HEADERS:
        (tmp_path / log_name(header.base)).touch()
        (tmp_path / index_name(header.base)).touch()
    assert retention.drop_segments(tmp_path, HEADERS, 2, now_ns=99) == [
        TrimmedRecord(epoch=7, first=1, last=10, segment_bytes=100, time_ns=99),
        TrimmedRecord(epoch=7, first=11, last=20, segment_bytes=100, time_ns=99),
    ]
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == sorted(
        name(header.base) for header in HEADERS[2:] for name in (log_name, index_name)
    )
