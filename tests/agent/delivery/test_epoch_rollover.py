"""Restored copies of a state directory, with real agents: a new epoch starts, and crashes meanwhile
lose no captured publication."""

import shutil
from pathlib import Path

import pytest
from tests.agent.delivery.pair import Pair, fill
from tests.agent.delivery.star import ORIGIN, PATIENCE, RECEIVER
from tests.agent.live import eventually

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.storage import clone_detection
from hansa.journal.crash import EXIT_CODE
from hansa.journal.reader import JournalReader
from hansa.journal.records import ReceiverAckRecord

POINTS = [point for point in DeliveryCrashPoint if point >= DeliveryCrashPoint.ROLLOVER_STARTED]
FEW = [point for point in POINTS if point != DeliveryCrashPoint.ROLLOVER_COPIED]
"""Points that are passed even if little has to be copied."""
KNOWN, NEWER, SINCE = 5, 300, 310
"""Publications before the copy was made, after it, and by the restored agent: enough for several
copy steps, and to assign all newer positions again."""


def journal(state: Path) -> Path:
    (path,) = (path for path in (state / "journal").iterdir() if path.name.isdecimal())
    return path


def acknowledged(state: Path) -> int:
    """Return the position up to which the origin recorded acknowledgements."""
    records = (record for _, record in JournalReader(journal(state)).read())
    return max(
        (each.sequence for each in records if isinstance(each, ReceiverAckRecord)), default=0
    )


def copied(pair: Pair, count: int, directory: Path) -> Path:
    """Copy the origin's state when `count` are recorded as acknowledged."""
    state = pair.states[ORIGIN]
    eventually(lambda: acknowledged(state) == count, "a note of what was acknowledged")
    return Path(shutil.copytree(state, directory / "old"))


def put_back(pair: Pair, old: Path) -> None:
    """Stop the origin and restore its old state."""
    pair.kill(ORIGIN)
    state = pair.states[ORIGIN]
    shutil.rmtree(state)
    shutil.copytree(old, state)


def roll_back(pair: Pair, old: Path) -> None:
    """As a disk snapshot does it: the inode numbers are those of the original."""
    put_back(pair, old)
    clone_detection.record_inodes(journal(pair.states[ORIGIN]))


def crash(pair: Pair) -> None:
    """Wait until the origin crashes at its crash point, and restart it."""
    origin = pair.agents[ORIGIN]
    assert origin.process.wait(PATIENCE) == EXIT_CODE, origin.log
    pair.start(ORIGIN)


def test_restored_copy_starts_new_epoch(pair, tmp_path):
    pair.live(RECEIVER)
    pair.live(ORIGIN)
    pair.publish(5)
    old = copied(pair, 5, tmp_path)
    pair.publish(5)
    assert pair.arrived(10) == list(range(10))
    put_back(pair, old)
    pair.start(ORIGIN)
    assert "was an old copy" in pair.alarm(ORIGIN, "journal restored from copy")
    pair.publish(5)
    assert pair.arrived(15) == list(range(15))
    assert pair.status(ORIGIN)["counters"]["epoch rollovers"] == 1
    assert acknowledged(pair.states[ORIGIN]) <= 5, "positions begin anew"


def rolled_back(pair: Pair, directory: Path, count: int, **settings: object) -> None:
    """Let a rolled-back origin capture `count` for a receiver that knows later positions."""
    pair.publish(KNOWN)
    old = copied(pair, KNOWN, directory)
    pair.publish(NEWER)
    assert len(pair.arrived(KNOWN + NEWER)) == KNOWN + NEWER
    pair.kill(RECEIVER)
    roll_back(pair, old)
    pair.start(ORIGIN, **settings)
    pair.publish(count)
    eventually(lambda: pair.has_pending(count), "all captured")


def check_rolled_back(pair: Pair, directory: Path, point: DeliveryCrashPoint) -> None:
    pair.live(RECEIVER)
    pair.live(ORIGIN)
    rolled_back(pair, directory, SINCE, crash_point=int(point))
    pair.start(RECEIVER)
    crash(pair)
    everything = KNOWN + NEWER + SINCE
    assert pair.arrived(everything) == list(range(everything))


def check_copied(pair: Pair, directory: Path, point: DeliveryCrashPoint) -> None:
    """Crash in a rollover that clone detection started."""
    pair.live(RECEIVER)
    pair.live(ORIGIN)
    pair.publish(KNOWN)
    eventually(lambda: acknowledged(pair.states[ORIGIN]) == KNOWN, "a note of what arrived")
    pair.kill(RECEIVER)
    pair.publish(SINCE)
    eventually(lambda: pair.has_pending(SINCE), "all captured")
    put_back(pair, copied(pair, KNOWN, directory))
    pair.start(ORIGIN, crash_point=int(point))
    pair.start(RECEIVER)
    crash(pair)
    assert pair.arrived(KNOWN + SINCE) == list(range(KNOWN + SINCE))


def test_crash_before_rollover_rename_loses_nothing(pair, tmp_path):
    check_rolled_back(pair, tmp_path, DeliveryCrashPoint.ROLLOVER_DURABLE)


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_crash_during_rollover_of_disk_snapshot_loses_nothing(pair, tmp_path, point):
    check_rolled_back(pair, tmp_path, point)


@pytest.mark.long
@pytest.mark.parametrize("point", FEW, ids=lambda point: point.name)
def test_crash_during_rollover_of_copied_state_loses_nothing(pair, tmp_path, point):
    check_copied(pair, tmp_path, point)


@pytest.mark.long
def test_full_disk_delays_rollover(small_disk, pair, tmp_path):
    pair.states[ORIGIN] = small_disk / "state"
    pair.live(RECEIVER)
    pair.live(ORIGIN, delivery_retention_bytes=120_000)
    pair.publish(KNOWN)
    old = copied(pair, KNOWN, tmp_path)
    pair.publish(60)
    assert len(pair.arrived(KNOWN + 60)) == KNOWN + 60
    pair.kill(RECEIVER)
    roll_back(pair, old)
    pair.start(ORIGIN)
    pair.publish(50)
    eventually(lambda: pair.has_pending(50), "all captured")
    ballast = fill(small_disk)
    pair.start(RECEIVER)
    assert pair.alarm(ORIGIN, "journal not writable").endswith("No space left on device")
    ballast.unlink()
    assert pair.arrived(KNOWN + 110) == list(range(KNOWN + 110))
    pair.wait_without_alarm(ORIGIN, "journal not writable")
