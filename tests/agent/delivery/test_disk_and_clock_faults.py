"""Faults of disks and clocks, and copied state, with real agents: no silent loss."""

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.agent.delivery.pair import Pair, fill
from tests.agent.delivery.star import ORIGIN, RECEIVER
from tests.agent.live import eventually

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.journal.crash import EXIT_CODE

SIDES = pytest.mark.parametrize(
    ("victim", "alarm"),
    [(ORIGIN, "journal not writable"), (RECEIVER, "inbox not writable")],
    ids=["at the origin", "at the receiver"],
)


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


@SIDES
def test_full_disk_delays_delivery(small_disk, pair, victim, alarm):
    pair.states[victim] = small_disk / "state"
    pair.live(RECEIVER)
    pair.live(ORIGIN)
    ballast = fill(small_disk)
    pair.publish(60)
    assert pair.alarm(victim, alarm).endswith("No space left on device")
    ballast.unlink()
    assert pair.arrived(60) == list(range(60))
    pair.wait_without_alarm(victim, alarm)


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
def test_state_directory_that_becomes_read_only_loses_nothing(small_disk, pair):
    pair.states[ORIGIN] = small_disk / "state"
    pair.live(RECEIVER)
    pair.live(ORIGIN, delivery_retention_bytes=100_000)
    pair.publish(5)
    where = str(pair.states[ORIGIN])
    subprocess.run(["mount", "--bind", where, where], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", where], check=True)
        pair.publish(95)  # more than one segment
        text = pair.alarm(ORIGIN, "journal not writable")
        assert text.endswith("Read-only file system; start the agent again"), text
        pair.kill(ORIGIN)
    finally:
        subprocess.run(["umount", where], check=True)
    pair.start(ORIGIN)
    assert pair.arrived(100) == list(range(100))
    eventually(lambda: pair.status(ORIGIN)["alarms"] == {}, "no alarm is left")


@SIDES
def test_failing_disk_loses_nothing(pair, victim, alarm):
    pair.live(RECEIVER)
    pair.live(ORIGIN)
    limit = 16 << 10  # bytes per file: larger writes fail permanently
    pid = pair.agents[victim].process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, limit))
    pair.publish(30)
    text = pair.alarm(victim, alarm)
    assert text.endswith("File too large; start the agent again"), text
    pair.publish(30)
    pair.kill(victim)
    pair.start(victim)
    assert pair.arrived(60) == list(range(60))
    eventually(lambda: pair.status(victim)["alarms"] == {}, "no alarm is left")


def test_damaged_segment_is_reported_as_gap(pair):
    pair.live(RECEIVER)
    pair.live(ORIGIN, delivery_retention_bytes=200_000)
    pair.kill(RECEIVER)
    pair.publish(150)
    eventually(lambda: pair.has_pending(150), "all captured")
    first, *later = segments(pair.states[ORIGIN] / "journal")
    assert later
    flip(first, first.stat().st_size // 2)
    pair.start(RECEIVER)
    gap = pair.gap()
    expected = [number for number in range(150) if number not in gap]
    assert 100 < len(expected) < 150
    assert pair.arrived(len(expected)) == expected
    assert pair.status(RECEIVER)["counters"]["gaps"] == 1
    assert f"{first} is damaged" in pair.alarm(ORIGIN, "journal damaged")


def test_journal_damaged_at_start_is_moved(pair):
    pair.live(RECEIVER)
    pair.live(ORIGIN)
    pair.kill(RECEIVER)
    pair.publish(10)
    eventually(lambda: pair.has_pending(10), "all captured")
    pair.kill(ORIGIN)
    (file,) = segments(pair.states[ORIGIN] / "journal")
    flip(file, 5_000)
    pair.start(ORIGIN)
    pair.start(RECEIVER)
    assert "pending publications may be lost" in pair.alarm(ORIGIN, "journal damaged")
    assert list((pair.states[ORIGIN] / "journal").glob("damaged-*"))
    pair.wait_installed()
    pair.publish(10)
    assert pair.arrived(10) == list(range(10, 20))


def test_inbox_damaged_at_start_is_moved(pair):
    pair.live(RECEIVER)
    pair.live(ORIGIN)
    broker = pair.brokers[RECEIVER].process
    assert broker is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        pair.publish(10)
        eventually(lambda: pair.has_pending(0) and pair.inbox() == 10, "all in the inbox, and told")
        pair.kill(RECEIVER)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    (file,) = segments(pair.states[RECEIVER] / "inbox")
    flip(file, 5_000)
    pair.start(RECEIVER)
    assert "publications may be lost" in pair.alarm(RECEIVER, "inbox damaged")
    pair.wait_installed()
    pair.publish(10)
    assert pair.arrived(10) == list(range(10, 20))


def test_trimmed_publications_are_reported_at_both_ends(pair):
    pair.live(RECEIVER)
    pair.live(ORIGIN, delivery_retention_bytes=40_000)
    receiver = pair.status(RECEIVER)["node"]
    pair.kill(RECEIVER)
    pair.publish(100)
    eventually(lambda: pair.has_pending(100), "all captured")
    text = pair.alarm(ORIGIN, "undelivered publications trimmed")
    assert f"were deleted, not acknowledged by {receiver} ('" in text  # and its name
    pair.start(RECEIVER)
    lost = len(pair.gap())
    assert pair.gap() == range(lost)
    assert 50 < lost < 100
    assert pair.arrived(100 - lost) == list(range(lost, 100))
    counters = pair.status(ORIGIN)["counters"]
    assert counters["dropped: retention, not acknowledged"] >= lost
    (gap,) = pair.status(RECEIVER)["delivery"]["gaps"]
    assert (gap["first"], gap["last"], gap["reason"]) == (
        1,
        lost,
        "retention",
    )
    pair.kill(RECEIVER)
    pair.start(RECEIVER)
    pair.wait_installed()
    assert pair.status(RECEIVER)["delivery"]["gaps"] == [gap], "known, and not asked for again"


@pytest.mark.parametrize("is_saved", [True, False])
def test_messages_the_broker_drops_while_the_agent_is_away_are_reported(is_saved, scene, tmp_path):
    """Also if the agent was killed before the first snapshot of its observer."""
    pair = Pair(scene, tmp_path, "max_queued_messages 10", "sys_interval 1")
    try:
        pair.live(RECEIVER)
        pair.live(ORIGIN, broker_observer="mosquitto", broker_filters="")
        snapshot = pair.states[ORIGIN] / "interest.json"
        eventually(snapshot.exists, "the observer saved what it knows")
        pair.kill(ORIGIN)
        if not is_saved:
            snapshot.unlink()
        pair.publish(300)
        pair.start(ORIGIN, broker_observer="mosquitto", broker_filters="")
        assert "messages for slow clients" in pair.alarm(ORIGIN, "broker dropped messages")
        name = "dropped: by the broker, its queue was full"
        # The broker reports once per second, so the first alarm may count only some.
        eventually(lambda: pair.status(ORIGIN)["counters"][name] >= 100, "most of it counted")
    finally:
        pair.close()


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


def test_clock_set_back_raises_alarm_and_loses_nothing(pair, tmp_path):
    switch = tmp_path / "clock is set back"
    program = ("-c", SHIFTED.format(switch=str(switch), seconds=-86_400))
    pair.live(RECEIVER)
    pair.live(ORIGIN, program=program)
    pair.publish(5)
    switch.touch()
    assert pair.alarm(ORIGIN, "clock set back").startswith("it was set back by 86400 s")
    pair.publish(5)
    pair.kill(ORIGIN)
    pair.publish(5)
    pair.start(ORIGIN, program=program)
    assert pair.alarm(ORIGIN, "clock set back").startswith("it was set back by 86")
    pair.publish(5)
    assert pair.arrived(20) == list(range(20))
    switch.unlink()
    pair.wait_without_alarm(ORIGIN, "clock set back")


@pytest.mark.long
def test_clock_set_ahead_trims_with_alarm(pair, tmp_path):
    switch = tmp_path / "clock is set ahead"
    program = ("-c", SHIFTED.format(switch=str(switch), seconds=8 * 86_400))
    pair.live(RECEIVER)
    pair.live(ORIGIN, program=program, delivery_retention_bytes=80_000)
    pair.kill(RECEIVER)
    pair.publish(50)
    eventually(lambda: pair.has_pending(50), "all captured, in several segments")
    switch.touch()
    pair.publish(5)
    eventually(lambda: pair.has_pending(55), "all captured")
    assert "were deleted, not acknowledged by" in pair.alarm(
        ORIGIN, "undelivered publications trimmed"
    )
    pair.start(RECEIVER)
    lost = len(pair.gap())
    assert pair.arrived(55 - lost) == list(range(lost, 55))
    assert pair.status(ORIGIN)["counters"]["dropped: retention, not acknowledged"] == lost > 0


def test_first_of_two_agents_with_one_state_delivers(pair, tmp_path):
    pair.live(RECEIVER)
    pair.live(ORIGIN)
    pair.publish(5)
    copy = tmp_path / "copy"
    # A file that is being replaced may be gone before it is copied.
    shutil.copytree(pair.states[ORIGIN], copy, ignore=shutil.ignore_patterns("*.new"))
    younger = pair.twin(ORIGIN, copy)
    assert "a copy of this agent runs elsewhere" in pair.alarm(ORIGIN, "incarnation raised")
    pair.publish(5)
    assert pair.arrived(10) == list(range(10))
    assert younger.process.poll() is None
    younger.close()
    pair.publish(5)
    assert pair.arrived(15) == list(range(15))


@pytest.mark.parametrize(
    "point",
    [DeliveryCrashPoint.SESSION_LOST, DeliveryCrashPoint.SESSION_LOSS_DURABLE],
    ids=lambda p: p.name,
)
@pytest.mark.long
def test_session_lost_just_before_crash_is_uncertain(pair, point):
    pair.live(RECEIVER, crash_point=f"{int(point)}:2")  # the first start has no session, either
    pair.live(ORIGIN)
    pair.publish(5)
    assert pair.arrived(5) == list(range(5))
    pair.lose_session()
    assert pair.agents[RECEIVER].wait() == EXIT_CODE
    pair.start(RECEIVER)
    text = pair.alarm(RECEIVER, "broker session uncertain")
    assert "a connection attempt was interrupted" in text
    assert pair.status(RECEIVER)["counters"]["broker sessions uncertain"] == 1
    pair.wait_installed()
    pair.publish(5)
    assert pair.arrived(5) == list(range(5, 10))
    pair.kill(RECEIVER)
    pair.start(RECEIVER)
    pair.wait_installed()
    assert pair.status(RECEIVER)["alarms"] == {}
