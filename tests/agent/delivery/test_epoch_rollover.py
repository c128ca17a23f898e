"""Old copies of a state directory, put back at real agents: a new epoch begins, and whatever
happens meanwhile, nothing is lost that was captured."""

import shutil
from pathlib import Path

import pytest
from tests.agent.delivery.star import ORIGIN, PATIENCE, RECEIVER
from tests.agent.delivery.trouble import Trouble, fill
from tests.agent.live import eventually

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.storage import clone_detection
from hansa.journal.crash import EXIT_CODE
from hansa.journal.reader import JournalReader
from hansa.journal.records import ReceiverAckRecord

POINTS = [point for point in DeliveryCrashPoint if point >= DeliveryCrashPoint.ROLLOVER_STARTED]
FEW = [point for point in POINTS if point != DeliveryCrashPoint.ROLLOVER_COPIED]
"""Those that are passed when nearly everything has arrived before the new epoch begins."""
KNOWN, NEWER, SINCE = 5, 300, 310
"""Publications before the copy was made, those of which it does not know, those that it captures
itself: more than are copied at once, and it uses all the positions again that the others had."""


def journal(state: Path) -> Path:
    (path,) = (path for path in (state / "journal").iterdir() if path.name.isdecimal())
    return path


def acknowledged(state: Path) -> int:
    """Up to where an origin has noted that all arrived."""
    records = (record for _, record in JournalReader(journal(state)).read())
    return max(
        (each.sequence for each in records if isinstance(each, ReceiverAckRecord)), default=0
    )


def copied(trouble: Trouble, count: int, directory: Path) -> Path:
    """Return a copy of the origin's state when so many have been acknowledged."""
    state = trouble.states[ORIGIN]
    eventually(lambda: acknowledged(state) == count, "a note of what was acknowledged")
    return Path(shutil.copytree(state, directory / "old"))


def put_back(trouble: Trouble, old: Path) -> None:
    """End the origin, and let it have its old state again."""
    trouble.kill(ORIGIN)
    state = trouble.states[ORIGIN]
    shutil.rmtree(state)
    shutil.copytree(old, state)


def roll_back(trouble: Trouble, old: Path) -> None:
    """The same, as a snapshot of the whole disk does it: nobody can see it from the files."""
    put_back(trouble, old)
    clone_detection.record_inodes(journal(trouble.states[ORIGIN]))


def crash(trouble: Trouble) -> None:
    """Wait for the origin to end where it should, and start it again."""
    origin = trouble.agents[ORIGIN]
    assert origin.process.wait(PATIENCE) == EXIT_CODE, origin.log
    trouble.start(ORIGIN)


def test_restored_copy_starts_new_epoch(trouble, tmp_path):
    trouble.live(RECEIVER)
    trouble.live(ORIGIN)
    trouble.publish(5)
    old = copied(trouble, 5, tmp_path)
    trouble.publish(5)
    assert trouble.arrived(10) == list(range(10))
    put_back(trouble, old)
    trouble.start(ORIGIN)
    assert "was an old copy" in trouble.alarm(ORIGIN, "journal restored from copy")
    trouble.publish(5)
    assert trouble.arrived(15) == list(range(15))
    assert trouble.status(ORIGIN)["counters"]["epoch rollovers"] == 1
    assert acknowledged(trouble.states[ORIGIN]) <= 5, "positions begin anew"


def rolled_back(trouble: Trouble, directory: Path, count: int, **settings: object) -> None:
    """Let the origin capture so many for a receiver that is away, and that knows more than it."""
    trouble.publish(KNOWN)
    old = copied(trouble, KNOWN, directory)
    trouble.publish(NEWER)
    assert len(trouble.arrived(KNOWN + NEWER)) == KNOWN + NEWER
    trouble.kill(RECEIVER)
    roll_back(trouble, old)
    trouble.start(ORIGIN, **settings)
    trouble.publish(count)
    eventually(lambda: trouble.owes(count), "all captured")


def check_rolled_back(trouble: Trouble, directory: Path, point: DeliveryCrashPoint) -> None:
    trouble.live(RECEIVER)
    trouble.live(ORIGIN)
    rolled_back(trouble, directory, SINCE, crash_point=int(point))
    trouble.start(RECEIVER)
    crash(trouble)
    everything = KNOWN + NEWER + SINCE
    assert trouble.arrived(everything) == list(range(everything))


def check_copied(trouble: Trouble, directory: Path, point: DeliveryCrashPoint) -> None:
    """Crash in a new epoch that begins because the state is seen to be a copy."""
    trouble.live(RECEIVER)
    trouble.live(ORIGIN)
    trouble.publish(KNOWN)
    eventually(lambda: acknowledged(trouble.states[ORIGIN]) == KNOWN, "a note of what arrived")
    trouble.kill(RECEIVER)
    trouble.publish(SINCE)
    eventually(lambda: trouble.owes(SINCE), "all captured")
    put_back(trouble, copied(trouble, KNOWN, directory))
    trouble.start(ORIGIN, crash_point=int(point))
    trouble.start(RECEIVER)
    crash(trouble)
    assert trouble.arrived(KNOWN + SINCE) == list(range(KNOWN + SINCE))


def test_crash_before_rollover_rename_loses_nothing(trouble, tmp_path):
    check_rolled_back(trouble, tmp_path, DeliveryCrashPoint.ROLLOVER_DURABLE)


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_crash_during_rollover_loses_nothing(trouble, tmp_path, point):
    check_rolled_back(trouble, tmp_path, point)


@pytest.mark.long
@pytest.mark.parametrize("point", FEW, ids=lambda point: point.name)
def test_crash_after_rollover_loses_nothing(trouble, tmp_path, point):
    check_copied(trouble, tmp_path, point)


@pytest.mark.long
def test_full_disk_delays_rollover(small_disk, trouble, tmp_path):
    trouble.states[ORIGIN] = small_disk / "state"
    trouble.live(RECEIVER)
    trouble.live(ORIGIN, delivery_retention_bytes=120_000)
    trouble.publish(KNOWN)
    old = copied(trouble, KNOWN, tmp_path)
    trouble.publish(60)
    assert len(trouble.arrived(KNOWN + 60)) == KNOWN + 60
    trouble.kill(RECEIVER)
    roll_back(trouble, old)
    trouble.start(ORIGIN)
    trouble.publish(50)
    eventually(lambda: trouble.owes(50), "all captured")
    ballast = fill(small_disk)
    trouble.start(RECEIVER)
    assert trouble.alarm(ORIGIN, "journal").endswith("No space left on device")
    ballast.unlink()
    assert trouble.arrived(KNOWN + 110) == list(range(KNOWN + 110))
    trouble.wait_without_alarm(ORIGIN, "journal")
