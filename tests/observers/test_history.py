"""Reading of a broker's log and tree files, and the target of SIGUSR2."""

import asyncio
import errno
import gzip
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa.errors import UsageError
from hansa.observers import history as module
from hansa.observers.history import BrokerLogFile, PrintedSubscriptionTree


def test_end_of_long_log_is_read(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_bytes(b"old\nnew \xff\n")
    assert asyncio.run(BrokerLogFile(path).read()) == "old\nnew \ufffd\n"
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 6)
    assert asyncio.run(BrokerLogFile(path).read()) == "new \ufffd\n"


def test_line_that_is_being_written_is_left_out(tmp_path):
    """`bob plant` would unsubscribe another filter than `bob plant/1`."""
    path = tmp_path / "log"
    path.write_bytes(b"1: old\n2: bob plant")
    assert asyncio.run(BrokerLogFile(path).read()) == "1: old\n"


def rotated(directory: Path) -> Path:
    """A log with three rotated files; the oldest was not rotated by a reload."""
    path = directory / "log"
    path.write_bytes(b"4\n")
    (directory / "log.1").write_bytes(b"3\n1794789610: Reloading config.\n")
    (directory / "log.2.gz").write_bytes(gzip.compress(b"2\n1794789600: Reloading config.\n"))
    (directory / "log.3.gz").write_bytes(gzip.compress(b"1\n"))
    (directory / "logic").write_bytes(b"another\n")
    for age, name in enumerate(("log", "log.1", "log.2.gz", "log.3.gz")):
        os.utime(directory / name, (1_000 - age, 1_000 - age))
    return path


def test_rotated_files_are_read_while_contiguous(tmp_path):
    path = rotated(tmp_path)
    text = "2\n1794789600: Reloading config.\n3\n1794789610: Reloading config.\n4\n"
    assert asyncio.run(BrokerLogFile(path).read()) == text


def test_only_whole_rotated_files_are_read(tmp_path, monkeypatch):
    path = rotated(tmp_path)
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 40)
    assert asyncio.run(BrokerLogFile(path).read()) == "3\n1794789610: Reloading config.\n4\n"
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 20)
    assert asyncio.run(BrokerLogFile(path).read()) == "4\n"


@pytest.mark.parametrize(
    "data", [b"no gzip", gzip.compress(b"Reloading config.\n")[:-9]], ids=["no gzip", "cut"]
)
def test_damaged_or_empty_rotated_file_ends_reading(tmp_path, data):
    path = rotated(tmp_path)
    (tmp_path / "log.2.gz").write_bytes(data)
    os.utime(tmp_path / "log.2.gz", (998, 998))
    assert asyncio.run(BrokerLogFile(path).read()) == "3\n1794789610: Reloading config.\n4\n"


def test_missing_files_are_reported(tmp_path):
    missing, there = tmp_path / "missing", tmp_path / "there"
    there.touch()
    for history in (
        BrokerLogFile(missing),
        PrintedSubscriptionTree(missing, there),
        PrintedSubscriptionTree(there, missing),
    ):
        with pytest.raises(UsageError, match=f"^{missing}: No such file or directory$"):
            asyncio.run(history.read())


@pytest.mark.parametrize("text", ["", "bob", "999999999"])
def test_pid_file_must_contain_process_id(tmp_path, text):
    pid_file, output = tmp_path / "pid", tmp_path / "out"
    output.touch()
    pid_file.write_text(text)
    with pytest.raises(UsageError, match="is not the number of a mosquitto here"):
        asyncio.run(PrintedSubscriptionTree(pid_file, output).read())


def test_other_program_is_not_signalled(tmp_path):
    """A stale file may hold the id of another process, which SIGUSR2 would end."""
    pid_file, output = tmp_path / "pid", tmp_path / "out"
    output.touch()
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as other:
        pid_file.write_text(f"{other.pid}\n")
        with pytest.raises(UsageError, match="is not the number of a mosquitto here"):
            asyncio.run(PrintedSubscriptionTree(pid_file, output).read())
        assert other.poll() is None
        other.communicate(b"\n")
        assert other.returncode == 0


@pytest.fixture
def mute(tmp_path: Path) -> Iterator[PrintedSubscriptionTree]:
    """A process named mosquitto that prints nothing."""
    if not Path("/proc/self/comm").exists():
        pytest.skip("no /proc here")
    program = tmp_path / "mosquitto"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    started = subprocess.Popen([program, "60"], preexec_fn=_ignore_signal)
    (tmp_path / "pid").write_text(str(started.pid))
    (tmp_path / "out").touch()
    yield PrintedSubscriptionTree(tmp_path / "pid", tmp_path / "out")
    started.kill()
    started.wait()


def _ignore_signal() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def test_broker_that_cannot_be_signalled_is_reported_with_advice(mute, monkeypatch):
    """Tests may run as root, which is permitted everything."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", refuse)
    complaint = "SIGUSR2 cannot be sent to process .*: Operation not permitted; the agent must"
    with pytest.raises(UsageError, match=complaint):
        asyncio.run(mute.read())


def test_missing_tree_is_reported_with_advice(mute, monkeypatch):
    monkeypatch.setattr(module, "TREE_TIMEOUT_S", 0.2)
    with pytest.raises(UsageError, match="no tree of subscriptions came .* stdbuf -oL"):
        asyncio.run(mute.read())


def test_tree_is_used_when_complete(mute):
    async def work() -> str:
        reading = asyncio.create_task(mute.read())
        await asyncio.sleep(0)
        for part in ("    \n      a", " (bob, 1)\n", "    \n"):
            with mute.output_file.open("a") as out:
                out.write(part)
                out.flush()
                os.fsync(out.fileno())
            await asyncio.sleep(0.01)
        return str(await reading)

    assert asyncio.run(work()) == "    \n      a (bob, 1)\n    \n"
