"""Making bytes durable: the few system calls of a journal, and what their failure means."""

import os
from pathlib import Path

from hansa.journal import crash

RESERVE_BYTES = 4 << 20
"""Disk space taken at once: a sync that need not grow the file takes three quarters of the
time, where nobody else keeps the disk busy."""

# Where there is no fdatasync (macOS), fsync is what the system has.
_sync_data = getattr(os, "fdatasync", os.fsync)
_reserve = getattr(os, "posix_fallocate", None)


class SyncFailed(OSError):
    """The system could not make something durable. What of it is on disk is unknown, and asking
    again proves nothing: the pages may already count as clean."""


def write_at(descriptor: int, data: bytes, position: int) -> None:
    """Write all of it."""
    if crash.ARMED_POINT == crash.JournalCrashPoint.HALF_WRITTEN:
        os.pwrite(descriptor, data[: len(data) // 2], position)
        crash.pass_crash_point(crash.JournalCrashPoint.HALF_WRITTEN)
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def sync_file(descriptor: int) -> None:
    """Return when what was written is durable."""
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


def reserve_space(descriptor: int, position: int) -> int:
    """Take disk space behind a position; return up to where, which is `position` if there is none.

    The file reads as zeros there. When the disk is full, the write itself will say so.
    """
    if _reserve is None:
        return position
    try:
        _reserve(descriptor, position, RESERVE_BYTES)
    except OSError:
        return position
    return position + RESERVE_BYTES
