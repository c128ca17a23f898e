"""Ends a journal's writer as a crash does: what was not committed is gone."""

import shutil
from pathlib import Path

from hansa.journal.writer import JournalWriter


def crash(path: Path, writer: JournalWriter) -> None:
    """Close a journal, and put everything back that its files were before."""
    before = path.with_name(f"{path.name}-before")
    shutil.copytree(path, before)
    writer.close()
    shutil.rmtree(path)
    before.rename(path)
