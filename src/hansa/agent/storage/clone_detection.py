"""Detects copies of a journal directory by the inode numbers of a few empty files in it.

A list in the directory holds their inode numbers; in a copy the files have others. File systems
reuse the lowest free inode numbers, so the files are drawn at random from many: a copy that takes
the original's place does not get the same numbers.

A snapshot of the whole disk keeps the numbers. The node notices it when a receiver knows later
positions than the journal.
"""

import os
from pathlib import Path
from random import SystemRandom

from hansa.errors import JournalUnusable
from hansa.journal.disk import sync_directory

INODE_LIST = "inodes"
INODE_FILES = ("inode-1", "inode-2", "inode-3", "inode-4")
CANDIDATE_FILES = 32


def record_inodes(directory: Path) -> None:
    """Mark a directory as the original; durable on return."""
    (directory / INODE_LIST).unlink(missing_ok=True)
    drawn = [directory / f"inode-{number}.drawn" for number in range(CANDIDATE_FILES)]
    for path in drawn:
        path.touch(mode=0o600)
    for path, name in zip(SystemRandom().sample(drawn, len(INODE_FILES)), INODE_FILES, strict=True):
        path.replace(directory / name)
    for path in drawn:
        path.unlink(missing_ok=True)
    descriptor = os.open(directory / INODE_LIST, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, _inode_numbers(directory))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(directory)


def is_cloned(directory: Path) -> bool:
    """Whether the directory is a copy. A directory without a mark is marked as an original."""
    try:
        recorded = (
            (directory / INODE_LIST).read_bytes() if (directory / INODE_LIST).exists() else b""
        )
        if recorded.endswith(b"\n"):
            return not all((directory / name).exists() for name in INODE_FILES) or (
                recorded != _inode_numbers(directory)
            )
        record_inodes(directory)
    except OSError as error:
        raise JournalUnusable(f"cannot use {directory}: {error.strerror}") from error
    return False


def _inode_numbers(directory: Path) -> bytes:
    return b"%d %d %d %d\n" % tuple((directory / name).stat().st_ino for name in INODE_FILES)
