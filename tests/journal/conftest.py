"""What the journal's tests may ask for."""

import pytest

from hansa.journal import disk


@pytest.fixture
def without_syncs(monkeypatch):
    """Let nobody wait for the disk: for tests that open hundreds of journals."""
    monkeypatch.setattr(disk, "_sync_data", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)
