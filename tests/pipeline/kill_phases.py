"""Kills a pipeline with -9 in a chosen phase, which the files of its lake prove.

A poll that finds the phase stops all processes of the pipeline (SIGSTOP) and looks again: they are
killed if the lake is still in that phase, and continue otherwise.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import unquote

POLL_S = 0.005
SILVER = "hansa-silver-events"


class LakeFiles:
    """The files of a lake while a pipeline writes to it, compared with those before it started."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.gold_before = {path.name: self.version(path) for path in lake.glob("gold/*")}
        self._files_before = {
            path for layer in ("bronze", "silver", "gold") for path in self._files(layer)
        }

    def _files(self, place: str) -> set[Path]:
        return {
            path
            for path in (self.lake / place).rglob("*.parquet")
            if "_delta_log" not in path.parts
        }

    @staticmethod
    def version(table: Path) -> int:
        return max((int(path.stem) for path in (table / "_delta_log").glob("*.json")), default=-1)

    def unfinished_batch(self, stream: str) -> int | None:
        """Return the batch that a stream has planned and not completed."""
        checkpoint = self.lake / "_hansa" / "checkpoints" / stream
        planned, completed = (
            max((int(path.name) for path in checkpoint.glob(f"{kind}/[0-9]*")), default=-1)
            for kind in ("offsets", "commits")
        )
        return planned if planned > completed else None

    def commit_of(self, table: str, batch: int, application: str | None = None) -> int | None:
        """Return the version of a table that a batch made."""
        place = self.lake / table
        for version in range(self.version(place), -1, -1):
            for name, number in transactions(place / "_delta_log" / f"{version:020d}.json"):
                if application in (None, name):
                    return version if number == batch else None
        return None

    def has_checksum(self, table: str, version: int) -> bool:
        """Return whether a commit is complete: Delta writes its checksum afterwards."""
        return (self.lake / table / "_delta_log" / f"{version:020d}.crc").exists()

    def uncommitted(self, table: str) -> set[Path]:
        """Return the new files that no commit names."""
        place = self.lake / table
        new = self._files(table) - self._files_before
        if new:
            for commit in (place / "_delta_log").glob("*.json"):
                new -= {place / name for name in added_files(commit)}
        return new


@cache
def transactions(commit: Path) -> list[tuple[str, int]]:
    found = (json.loads(line).get("txn") for line in commit.read_text().splitlines())
    return [(txn["appId"], txn["version"]) for txn in found if txn]


@cache
def added_files(commit: Path) -> frozenset[str]:
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    added = (action.get("add") or action.get("cdc") for action in actions)
    return frozenset(unquote(file["path"]) for file in added if file)


# ---------------------------------------------------------------- phases

Phase = Callable[[LakeFiles], bool]


def bronze_planned(files: LakeFiles) -> bool:
    batch = files.unfinished_batch("bronze_messages")
    return batch is not None and files.commit_of("bronze/messages", batch) is None


def bronze_written(files: LakeFiles) -> bool:
    return bronze_planned(files) and bool(files.uncommitted("bronze/messages"))


def _committed_bronze(files: LakeFiles) -> int | None:
    batch = files.unfinished_batch("bronze_events")
    return None if batch is None else files.commit_of("bronze/events", batch)


def in_bronze_commit(files: LakeFiles) -> bool:
    version = _committed_bronze(files)
    return version is not None and not files.has_checksum("bronze/events", version)


def bronze_committed_without_checkpoint(files: LakeFiles) -> bool:
    version = _committed_bronze(files)
    return version is not None and files.has_checksum("bronze/events", version)


def _silver_commit(files: LakeFiles, table: str) -> int | None:
    batch = files.unfinished_batch("silver_events")
    return None if batch is None else files.commit_of(f"silver/{table}", batch, SILVER)


def silver_has_a_part_of_the_batch(files: LakeFiles) -> bool:
    has_publications = _silver_commit(files, "publications") is not None
    return has_publications and _silver_commit(files, "deliveries") is None


def in_merge(files: LakeFiles) -> bool:
    """Rows are merged into a table that has rows: they are written and not committed."""
    is_merge = files.version(files.lake / "silver" / "deliveries") > 0
    return (
        is_merge
        and silver_has_a_part_of_the_batch(files)
        and bool(files.uncommitted("silver/deliveries"))
    )


def in_merge_commit(files: LakeFiles) -> bool:
    version = _silver_commit(files, "deliveries")
    return version is not None and not files.has_checksum("silver/deliveries", version)


def merged_without_checkpoint(files: LakeFiles) -> bool:
    version = _silver_commit(files, "deliveries")
    return version is not None and files.has_checksum("silver/deliveries", version)


def gold_written(files: LakeFiles) -> bool:
    return any(files.uncommitted(f"gold/{path.name}") for path in files.lake.glob("gold/*"))


def gold_committed_without_progress(files: LakeFiles) -> bool:
    table = files.lake / "gold" / "traffic_matrix"
    progress = json.loads((files.lake / "_hansa" / "progress.json").read_text())
    followed: int = progress[table.name]
    return files.version(table) > max(followed, files.gold_before[table.name])


PHASES: dict[str, Phase] = {
    "a batch of bronze is planned": bronze_planned,
    "files of bronze are written, not committed": bronze_written,
    "inside the commit of bronze": in_bronze_commit,
    "bronze is committed, not in the checkpoint": bronze_committed_without_checkpoint,
    "some tables of silver have the batch": silver_has_a_part_of_the_batch,
    "inside MERGE: files written, not committed": in_merge,
    "inside the commit of MERGE": in_merge_commit,
    "MERGE is committed, not in the checkpoint": merged_without_checkpoint,
    "files of gold are written, not committed": gold_written,
    "gold is committed, progress not stored": gold_committed_without_progress,
}


# ---------------------------------------------------------------- killing


def kill_in_phase(
    process: subprocess.Popen[bytes], files: LakeFiles, phase: Phase, timeout_s: float
) -> bool:
    """Kill a session with -9 when the lake is in a phase; return whether it still is afterwards."""
    deadline = time.monotonic() + timeout_s
    while True:
        assert process.poll() is None, "the pipeline ended early"
        began = time.monotonic()
        assert began < deadline, f"never in the phase {phase.__name__}"
        if phase(files):
            send_signal(process.pid, signal.SIGSTOP)
            while not is_stopped(process.pid):
                time.sleep(POLL_S)
            if phase(files):
                break
            send_signal(process.pid, signal.SIGCONT)
        # The pipeline needs the processor more than its observer.
        time.sleep(max(POLL_S, 3 * (time.monotonic() - began)))
    kill(process)
    return phase(files)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a session with -9: the command, Java, and the Python workers, whose groups differ."""
    while send_signal(process.pid, signal.SIGKILL):
        process.poll()
        time.sleep(POLL_S)
    process.wait()


def send_signal(session: int, number: signal.Signals) -> int:
    """Send a signal to all processes of a session; return how many there are."""
    found = {pid for pid, _ in threads(session)}
    for pid in found:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return len(found)


def is_stopped(session: int) -> bool:
    """Return whether all threads of a session are stopped, or wait in the kernel: a thread of Java
    that starts a program waits for a process that is stopped."""
    return all(state in "TtD" for _, state in threads(session))


def threads(session: int) -> list[tuple[int, str]]:
    """Return process and state of the threads of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(number) == session and state not in "ZX":
            found.append((int(path.parts[2]), state))
    return found
