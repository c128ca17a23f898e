"""The system calls that write and sync a journal. A failed sync raises SyncFailed, which a retry
cannot repair; other failures raise OSError."""

import os
from pathlib import Path

from hansa.journal import crash

RESERVE_BYTES = 4 << 20
"""Disk space that is reserved at a time. On an idle disk, a sync that does not grow the file takes
three quarters of the time."""

# macOS has no fdatasync.
_sync_data = getattr(os, "fdatasync", os.fsync)
_reserve = getattr(os, "posix_fallocate", None)


class SyncFailed(OSError):
    """A sync failed, and it is unknown what is on disk. A second sync proves nothing, because the
    kernel may have marked the pages as clean."""


def write_at(descriptor: int, data: bytes, position: int) -> None:
    """Write all bytes at a position of a file."""
    if crash.ARMED_POINT == crash.JournalCrashPoint.HALF_WRITTEN:
        os.pwrite(descriptor, data[: len(data) // 2], position)
        crash.pass_crash_point(crash.JournalCrashPoint.HALF_WRITTEN)
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def sync_file(descriptor: int) -> None:
    """Return when everything written to the file is durable."""
    try:
        _sync_data(descriptor)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Return when a file with this content, readable by its owner only, is durable in its place."""
    temporary = path.with_name(f"{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def reserve_space(descriptor: int, position: int) -> int:
    """Reserve disk space after a position and return its end, or `position` if that is impossible.

    The file reads as zeros there. If the disk is full, the following write raises the error.
    """
    if _reserve is None:
        return position
    try:
        _reserve(descriptor, position, RESERVE_BYTES)
    except OSError:
        return position
    return position + RESERVE_BYTES
