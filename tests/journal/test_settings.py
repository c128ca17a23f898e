"""Validation of the journal settings."""

import pytest

from hansa.errors import UsageError
from hansa.journal.settings import JournalSettings


@pytest.mark.parametrize(
    "setting, value, problem",
    [
        ("segment_bytes", 0, "segment_bytes is 0, it must be at least 1"),
        ("unsynced_bytes_max", 0, "unsynced_bytes_max is 0, it must be at least 1"),
        ("segment_seconds", 0.0, "segment_seconds is 0.0, it must be above 0"),
        ("retention_seconds", float("nan"), "retention_seconds is nan, it must be above 0"),
        ("retention_bytes", 1, "retention_bytes is 1, it must not be below segment_bytes"),
    ],
)
def test_invalid_settings_are_refused(setting, value, problem):
    with pytest.raises(UsageError, match=problem):
        JournalSettings(**{setting: value})
