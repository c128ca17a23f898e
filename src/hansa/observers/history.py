"""Files of a broker that show subscriptions from before the agent connected.

This module only reads them; an observer interprets the text.
"""

import asyncio
import gzip
import os
import signal
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hansa.errors import UsageError
from hansa.observers.mosquitto import database, subscription_tree

LOG_BYTES_MAX = 32 << 20
"""Bytes read from the end of a log, rotated files included; a longer log is read incompletely."""

ROTATED_MAX = 64
"""Most rotated files that are read."""

LAST_BEFORE_ROTATION = b"Reloading config."
"""End of the last line of a file rotated by logrotate (renamed, then SIGHUP). Nothing is missing
between such a file and the next one."""

TREE_TIMEOUT_S = 5.0
TREE_POLL_S = 0.05


class SubscriptionHistory(Protocol):
    """A text from which an observer can resync."""

    async def read(self) -> str:
        """Return the current text; raise UsageError if it is unavailable."""


@dataclass(frozen=True, slots=True)
class BrokerLogFile:
    """The broker's `log_dest file`, with its rotated files."""

    path: Path
    persistence_file: Path | None = None
    """Mosquitto's mosquitto.db: shows the sessions that it restored at its start."""

    async def read(self) -> str:
        """Return the end of the log, read in a thread."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> str:
        text = self._read_log()
        if self.persistence_file is not None:
            text = database.insert_restored(text, self.persistence_file)
        return text

    def _read_log(self) -> str:
        text = _read_from(self.path, -LOG_BYTES_MAX)
        text = text[: text.rfind("\n") + 1]  # the last line may not be written to its end yet
        left = LOG_BYTES_MAX - len(text.encode())
        older: list[bytes] = []
        for path in self._rotated():
            data = _unpacked(path, left) if left > 0 else None
            if data is None or not data.rstrip(b"\n").endswith(LAST_BEFORE_ROTATION):
                break
            left -= len(data)
            older.append(data)
        return b"".join(reversed(older)).decode(errors="replace") + text

    def _rotated(self) -> list[Path]:
        """Return rotated files, the newest first: `log.1`, `log.2.gz`, `log-20260109`."""
        name = self.path.name
        try:
            found = [
                (-path.stat().st_mtime, path)
                for path in self.path.parent.iterdir()
                if path.name.startswith((f"{name}.", f"{name}-"))
            ]
        except OSError:
            return []
        return [path for _, path in sorted(found)][:ROTATED_MAX]


@dataclass(frozen=True, slots=True)
class PrintedSubscriptionTree:
    """Mosquitto prints all subscriptions on its standard output when it gets SIGUSR2.

    The output must go to a file line by line, which Mosquitto does not do by itself:
    `stdbuf -oL mosquitto -c … >> output_file`.
    """

    pid_file: Path
    output_file: Path

    async def read(self) -> str:
        """Request the tree, and wait until all of it is written."""
        start = _size(self.output_file)
        pid = self._pid()
        try:
            os.kill(pid, signal.SIGUSR2)
        except OSError as error:
            reason = f"SIGUSR2 cannot be sent to process {pid}: {error.strerror}"
            raise UsageError(f"{self.pid_file}: {reason}; the agent must be its user") from error
        before = ""
        try:
            async with asyncio.timeout(TREE_TIMEOUT_S):
                while True:
                    await asyncio.sleep(TREE_POLL_S)
                    text = _read_from(self.output_file, start)
                    tree = subscription_tree.find_last_tree(text)
                    if tree is not None and tree.is_complete and text == before:
                        return text
                    before = text
        except TimeoutError as error:
            reason = "no tree of subscriptions came after SIGUSR2"
            hint = "the broker's output must go there line by line, as with stdbuf -oL"
            raise UsageError(f"{self.output_file}: {reason}; {hint}") from error

    def _pid(self) -> int:
        """Return the process to signal. SIGUSR2 ends other programs, so a stale pid file must
        not hit one."""
        text = _read_from(self.pid_file, 0).strip()
        try:
            name = Path(f"/proc/{int(text)}/comm").read_text().strip()
        except (OSError, ValueError):
            name = ""
        if name != "mosquitto":
            raise UsageError(f"{self.pid_file}: {text!r} is not the number of a mosquitto here")
        return int(text)


def _unpacked(path: Path, bytes_max: int) -> bytes | None:
    """Return the content of a file, compressed or not; None if it is too large or unreadable."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except (OSError, EOFError, zlib.error):
        return None
    return data if len(data) <= bytes_max else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _read_from(path: Path, start: int) -> str:
    """Read a file from an offset; a negative one counts from the end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size + start, 0) if start < 0 else start)
            return file.read().decode(errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
