"""Group commit: shared commits, retries, a new log."""

from hansa.delivery.context import Context
from hansa.delivery.effects import Commit, LogName, SetAlarm
from hansa.delivery.group_commit import RETRY_S, GroupCommit
from hansa.journal.records import SessionStartedRecord
from hansa.simulator.world.memory_log import MemoryLog

RECORD = SessionStartedRecord(1)


class Scene:
    """A log and the effects of its group commit."""

    def __init__(self) -> None:
        self.context = Context(lambda: 0)
        self.log = MemoryLog(7)
        self.made = GroupCommit(self.context, LogName.INBOX, self.log)

    def append(self) -> None:
        self.log.append(RECORD)
        self.made.request()

    def commit(self, upto: int) -> None:
        """A commit of the records before an offset has ended."""
        self.log.commit(upto)
        self.made.on_committed()
        self.made.continue_if_needed()


def test_records_appended_during_commit_share_the_next():
    scene = Scene()
    for _ in range(50):
        scene.append()
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]
    scene.commit(upto=1)
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]
    scene.commit(upto=50)
    assert scene.context.take_effects() == []


def test_records_without_request_wait_for_the_next_request():
    scene = Scene()
    scene.log.append(RECORD)
    scene.commit(upto=0)
    assert scene.context.take_effects() == []
    scene.append()
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]


def test_full_disk_is_retried_and_reported():
    scene = Scene()
    scene.append()
    scene.context.take_effects()
    for attempt in range(3):
        scene.context.now = attempt * RETRY_S
        scene.made.on_failed("No space left on device")
        scene.append()
        scene.made.on_timer()
        alarm = [SetAlarm("inbox not writable", "No space left on device")] if attempt == 0 else []
        assert scene.context.take_effects() == alarm
        assert scene.made.deadline == (attempt + 1) * RETRY_S
        scene.context.now = (attempt + 1) * RETRY_S
        scene.made.on_timer()
        assert scene.context.take_effects() == [Commit(LogName.INBOX)]
        assert scene.made.deadline is None
    scene.commit(scene.log.end)
    assert scene.context.take_effects() == [SetAlarm("inbox not writable", "")]


def test_new_log_does_not_wait_for_a_commit_of_the_old_one():
    scene = Scene()
    scene.append()
    scene.made.on_failed("full")
    scene.context.take_effects()
    scene.made.request_within(0.5)
    scene.log = MemoryLog(8)
    scene.made.adopt(scene.log)
    assert scene.made.deadline is None
    scene.append()
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]


def test_commits_follow_the_end_of_the_new_log():
    scene = Scene()
    scene.log = MemoryLog(8)
    scene.made.adopt(scene.log)
    scene.append()
    scene.append()
    scene.context.take_effects()
    scene.commit(upto=1)
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]
    scene.commit(upto=2)
    assert scene.context.take_effects() == []


def test_records_that_can_wait_share_the_next_commit():
    scene = Scene()
    scene.log.append(RECORD)
    scene.made.request_within(0.5)
    scene.context.now = 0.2
    scene.made.request_within(0.5)
    assert scene.made.deadline == 0.5
    scene.made.on_timer()
    assert scene.context.take_effects() == []
    scene.append()
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]
    assert scene.made.deadline is None


def test_records_that_can_wait_are_committed_when_they_are_due():
    scene = Scene()
    scene.log.append(RECORD)
    scene.made.request_within(0.5)
    scene.context.now = 0.5
    scene.made.on_timer()
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]
    assert scene.made.deadline is None


def test_records_that_are_due_during_a_commit_get_the_next_one():
    scene = Scene()
    scene.append()
    scene.context.take_effects()
    scene.log.append(RECORD)
    scene.made.request_within(0.5)
    scene.context.now = 0.5
    scene.made.on_timer()
    assert scene.context.take_effects() == []
    scene.commit(upto=1)
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]


def test_due_records_and_a_retry_have_the_earlier_deadline():
    scene = Scene()
    scene.append()
    scene.made.on_failed("full")
    scene.made.request_within(RETRY_S / 2)
    assert scene.made.deadline == RETRY_S / 2
    scene.context.now = RETRY_S / 2
    scene.made.on_timer()
    assert scene.made.deadline == RETRY_S
    scene.context.take_effects()
    scene.context.now = RETRY_S
    scene.made.on_timer()
    assert scene.context.take_effects() == [Commit(LogName.INBOX)]
