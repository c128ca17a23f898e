"""System calls: short writes, failed syncs, reserved space."""

import os

import pytest

from hansa.journal import disk


@pytest.fixture
def file(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def test_short_writes_are_continued(file, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda d, data, at: real(d, bytes(data)[:3], at))
    disk.write_at(file, b"0123456789", 5)
    assert os.pread(file, 100, 0) == bytes(5) + b"0123456789"


def test_failed_sync_raises_sync_failed(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(28, "No space left on device")

    read_only, write = os.pipe()
    with pytest.raises(disk.SyncFailed):
        disk.sync_file(write)
    os.close(read_only)
    os.close(write)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(disk.SyncFailed, match="No space left on device"):
        disk.sync_directory(tmp_path)


def test_reserved_space_reads_as_zeros(file):
    disk.write_at(file, b"abc", 0)
    end = disk.reserve_space(file, 3)
    assert os.pread(file, end + 100, 0).rstrip(b"\0") == b"abc"
    assert os.fstat(file).st_size == max(end, 3)


def test_reserve_returns_position_if_unsupported(file, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    for how in (None, refuse):
        monkeypatch.setattr(disk, "_reserve", how)
        assert disk.reserve_space(file, 3) == 3
    assert os.fstat(file).st_size == 0
