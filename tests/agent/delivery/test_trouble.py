"""Disks, clocks and copies that go wrong, at real agents: an alarm, a counter, no silent loss."""

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.agent.delivery.star import ORIGIN, RECEIVER
from tests.agent.delivery.trouble import Trouble, fill
from tests.agent.live import eventually

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.journal.crash import EXIT_CODE

SIDES = pytest.mark.parametrize(
    ("victim", "journal"),
    [(ORIGIN, "journal"), (RECEIVER, "inbox")],
    ids=["at the origin", "at the receiver"],
)


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


@SIDES
def test_full_disk_delays_delivery(small_disk, trouble, victim, journal):
    trouble.states[victim] = small_disk / "state"
    trouble.live(RECEIVER)
    trouble.live(ORIGIN)
    ballast = fill(small_disk)
    trouble.publish(60)
    assert trouble.alarm(victim, journal).endswith("No space left on device")
    ballast.unlink()
    assert trouble.arrived(60) == list(range(60))
    trouble.wait_without_alarm(victim, journal)


def test_read_only_state_directory_is_reported_at_start(small_disk, scene):
    (small_disk / "state").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    agent = scene.agent(broker_port=1, state=small_disk / "state")
    assert agent.wait() == 2
    where = f"{small_disk}/state"
    assert agent.log == (
        f"hansa: cannot use the state directory {where}: Read-only file system; choose another"
        " one with the setting state or HANSA_STATE\n"
    )


@pytest.mark.long
def test_state_directory_that_becomes_read_only_loses_nothing(small_disk, trouble):
    trouble.states[ORIGIN] = small_disk / "state"
    trouble.live(RECEIVER)
    trouble.live(ORIGIN, delivery_retention_bytes=100_000)
    trouble.publish(5)
    where = str(trouble.states[ORIGIN])
    subprocess.run(["mount", "--bind", where, where], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", where], check=True)
        trouble.publish(95)  # more than the file takes that is open: a new one is needed
        text = trouble.alarm(ORIGIN, "journal")
        assert text.endswith("Read-only file system; start the agent again"), text
        trouble.kill(ORIGIN)
    finally:
        subprocess.run(["umount", where], check=True)
    trouble.start(ORIGIN)
    assert trouble.arrived(100) == list(range(100))
    assert trouble.status(ORIGIN)["alarms"] == {}


@SIDES
def test_failing_disk_loses_nothing(trouble, victim, journal):
    trouble.live(RECEIVER)
    trouble.live(ORIGIN)
    limit = 16 << 10  # bytes of any file: beyond them, writing fails and does not recover
    pid = trouble.agents[victim].process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, limit))
    trouble.publish(30)
    text = trouble.alarm(victim, journal)
    assert text.endswith("File too large; start the agent again"), text
    trouble.publish(30)
    trouble.kill(victim)
    trouble.start(victim)
    assert trouble.arrived(60) == list(range(60))
    assert trouble.status(victim)["alarms"] == {}


def test_damaged_segment_is_reported_as_gap(trouble):
    trouble.live(RECEIVER)
    trouble.live(ORIGIN, delivery_retention_bytes=200_000)
    trouble.kill(RECEIVER)
    trouble.publish(150)
    eventually(lambda: trouble.owes(150), "all captured")
    first, *later = segments(trouble.states[ORIGIN] / "journal")
    assert later
    flip(first, first.stat().st_size // 2)
    trouble.start(RECEIVER)
    gap = trouble.gap()
    expected = [number for number in range(150) if number not in gap]
    assert 100 < len(expected) < 150
    assert trouble.arrived(len(expected)) == expected
    assert trouble.status(RECEIVER)["counters"]["gaps"] == 1
    assert f"{first} is damaged" in trouble.alarm(ORIGIN, "journal damaged")


def test_journal_damaged_at_start_is_moved(trouble):
    trouble.live(RECEIVER)
    trouble.live(ORIGIN)
    trouble.kill(RECEIVER)
    trouble.publish(10)
    eventually(lambda: trouble.owes(10), "all captured")
    trouble.kill(ORIGIN)
    (file,) = segments(trouble.states[ORIGIN] / "journal")
    flip(file, 5_000)
    trouble.start(ORIGIN)
    trouble.start(RECEIVER)
    assert "pending publications may be lost" in trouble.alarm(ORIGIN, "journal damaged")
    assert list((trouble.states[ORIGIN] / "journal").glob("damaged-*"))
    trouble.wait_installed()
    trouble.publish(10)
    assert trouble.arrived(10) == list(range(10, 20))


def test_inbox_damaged_at_start_is_moved(trouble):
    trouble.live(RECEIVER)
    trouble.live(ORIGIN)
    broker = trouble.brokers[RECEIVER].process
    assert broker is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        trouble.publish(10)
        eventually(lambda: trouble.owes(0) and trouble.inbox() == 10, "all in the inbox, and told")
        trouble.kill(RECEIVER)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    (file,) = segments(trouble.states[RECEIVER] / "inbox")
    flip(file, 5_000)
    trouble.start(RECEIVER)
    assert "publications may be lost" in trouble.alarm(RECEIVER, "inbox damaged")
    trouble.wait_installed()
    trouble.publish(10)
    assert trouble.arrived(10) == list(range(10, 20))


def test_trimmed_publications_are_reported_at_both_ends(trouble):
    trouble.live(RECEIVER)
    trouble.live(ORIGIN, delivery_retention_bytes=40_000)
    receiver = trouble.status(RECEIVER)["node"]
    trouble.kill(RECEIVER)
    trouble.publish(100)
    eventually(lambda: trouble.owes(100), "all captured")
    text = trouble.alarm(ORIGIN, "undelivered publications trimmed")
    assert f"were deleted, not acknowledged by {receiver} ('" in text  # and its name
    trouble.start(RECEIVER)
    lost = len(trouble.gap())
    assert trouble.gap() == range(lost)
    assert 50 < lost < 100
    assert trouble.arrived(100 - lost) == list(range(lost, 100))
    counters = trouble.status(ORIGIN)["counters"]
    assert counters["dropped: retention, not acknowledged"] >= lost
    (gap,) = trouble.status(RECEIVER)["delivery"]["gaps"]
    assert (gap["first"], gap["last"], gap["reason"]) == (
        1,
        lost,
        "retention",
    )
    trouble.kill(RECEIVER)
    trouble.start(RECEIVER)
    trouble.wait_installed()
    assert trouble.status(RECEIVER)["delivery"]["gaps"] == [gap], "known, and not asked for again"


@pytest.mark.parametrize("is_saved", [True, False])
def test_messages_the_broker_drops_while_the_agent_is_away_are_reported(is_saved, scene, tmp_path):
    """Also if the agent was killed before it saved the first snapshot of its observer."""
    trouble = Trouble(scene, tmp_path, "max_queued_messages 10", "sys_interval 1")
    try:
        trouble.live(RECEIVER)
        trouble.live(ORIGIN, broker_observer="mosquitto", broker_filters="")
        snapshot = trouble.states[ORIGIN] / "interest.json"
        eventually(snapshot.exists, "the observer saved what it knows")
        trouble.kill(ORIGIN)
        if not is_saved:
            snapshot.unlink()
        trouble.publish(300)
        trouble.start(ORIGIN, broker_observer="mosquitto", broker_filters="")
        assert "messages for clients that did not take" in trouble.alarm(
            ORIGIN, "broker dropped messages"
        )
        name = "dropped: by the broker, its queue was full"
        # The broker counts by the second, so what is told first may be a part of it.
        eventually(lambda: trouble.status(ORIGIN)["counters"][name] >= 100, "most of it counted")
    finally:
        trouble.close()


SHIFTED = """
import time
from pathlib import Path
real, real_ns = time.time, time.time_ns
def ahead():
    return {seconds} * Path({switch!r}).exists()
time.time = lambda: real() + ahead()
time.time_ns = lambda: real_ns() + ahead() * 1_000_000_000
from hansa.cli.main import main
raise SystemExit(main(["agent"]))
"""


def test_clock_set_back_raises_alarm_and_loses_nothing(trouble, tmp_path):
    switch = tmp_path / "clock is set back"
    program = ("-c", SHIFTED.format(switch=str(switch), seconds=-86_400))
    trouble.live(RECEIVER)
    trouble.live(ORIGIN, program=program)
    trouble.publish(5)
    switch.touch()
    assert trouble.alarm(ORIGIN, "clock set back").startswith("it was set back by 86400 s")
    trouble.publish(5)
    trouble.kill(ORIGIN)
    trouble.publish(5)
    trouble.start(ORIGIN, program=program)
    assert trouble.alarm(ORIGIN, "clock set back").startswith("it was set back by 86")
    trouble.publish(5)
    assert trouble.arrived(20) == list(range(20))
    switch.unlink()
    trouble.wait_without_alarm(ORIGIN, "clock set back")


@pytest.mark.long
def test_clock_set_ahead_trims_with_alarm(trouble, tmp_path):
    switch = tmp_path / "clock is set ahead"
    program = ("-c", SHIFTED.format(switch=str(switch), seconds=8 * 86_400))
    trouble.live(RECEIVER)
    trouble.live(ORIGIN, program=program, delivery_retention_bytes=80_000)
    trouble.kill(RECEIVER)
    trouble.publish(50)
    eventually(lambda: trouble.owes(50), "all captured, in several segments")
    switch.touch()
    trouble.publish(5)
    eventually(lambda: trouble.owes(55), "all captured")
    assert "were deleted, not acknowledged by" in trouble.alarm(
        ORIGIN, "undelivered publications trimmed"
    )
    trouble.start(RECEIVER)
    lost = len(trouble.gap())
    assert trouble.arrived(55 - lost) == list(range(lost, 55))
    assert trouble.status(ORIGIN)["counters"]["dropped: retention, not acknowledged"] == lost > 0


def test_of_two_agents_with_one_state_the_first_delivers(trouble, tmp_path):
    trouble.live(RECEIVER)
    trouble.live(ORIGIN)
    trouble.publish(5)
    copy = tmp_path / "copy"
    shutil.copytree(trouble.states[ORIGIN], copy)
    younger = trouble.twin(ORIGIN, copy)
    assert "a copy of this agent runs elsewhere" in trouble.alarm(ORIGIN, "incarnation raised")
    trouble.publish(5)
    assert trouble.arrived(10) == list(range(10))
    assert younger.process.poll() is None
    younger.close()
    trouble.publish(5)
    assert trouble.arrived(15) == list(range(15))


@pytest.mark.parametrize(
    "point",
    [DeliveryCrashPoint.SESSION_LOST, DeliveryCrashPoint.SESSION_LOSS_DURABLE],
    ids=lambda p: p.name,
)
@pytest.mark.long
def test_session_lost_just_before_crash_is_uncertain(trouble, point):
    trouble.live(RECEIVER, crash_point=f"{int(point)}:2")  # the first start finds no session either
    trouble.live(ORIGIN)
    trouble.publish(5)
    assert trouble.arrived(5) == list(range(5))
    trouble.lose_session()
    assert trouble.agents[RECEIVER].wait() == EXIT_CODE
    trouble.start(RECEIVER)
    text = trouble.alarm(RECEIVER, "broker session uncertain")
    assert "a connection attempt was interrupted" in text
    assert trouble.status(RECEIVER)["counters"]["broker sessions uncertain"] == 1
    trouble.wait_installed()
    trouble.publish(5)
    assert trouble.arrived(5) == list(range(5, 10))
    trouble.kill(RECEIVER)
    trouble.start(RECEIVER)
    trouble.wait_installed()
    assert trouble.status(RECEIVER)["alarms"] == {}
