"""Simulates a crash of a journal writer: uncommitted records are lost."""

import shutil
from pathlib import Path

from hansa.journal.writer import JournalWriter


def crash(path: Path, writer: JournalWriter) -> None:
    """Close a journal and restore its files as they were before."""
    before = path.with_name(f"{path.name}-before")
    shutil.copytree(path, before)
    writer.close()
    shutil.rmtree(path)
    before.rename(path)
