"""Fixtures of the journal tests."""

import pytest

from hansa.journal import disk


@pytest.fixture
def without_syncs(monkeypatch):
    """Disable syncs, for tests that open hundreds of journals."""
    monkeypatch.setattr(disk, "_sync_data", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)
