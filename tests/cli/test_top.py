"""`hansa top`: live on a terminal, once without one."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from hansa.cli.main import main


def test_top_without_a_terminal_prints_once(ready_file, capsys):
    assert main(["top", str(ready_file)]) == 0
    assert "Neighbours" in capsys.readouterr().out


def test_bad_interval_is_refused(capsys):
    assert main(["top", "h:1", "--interval", "0"]) == 2
    assert capsys.readouterr().err == (
        "hansa: argument --interval: 0 must be from 0.1 to 3600 seconds; see `hansa top --help`\n"
    )


def shown_on_a_terminal(command: list[str], keys: bytes) -> tuple[int, bytes]:
    """Run a command on a pseudo-terminal; send keys after its first output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 30
    pressed = False
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 1.0)[0]:
                shown += os.read(ours, 65_536)
            if b"Neighbours" in shown and not pressed:
                os.write(ours, keys)
                pressed = True
    except OSError:  # the terminal was closed
        pass
    finally:
        os.close(ours)
        if process.poll() is None and not pressed:
            process.kill()
    return process.wait(timeout=30), shown


@pytest.mark.long  # failed once on a busy machine without output; cause unknown
def test_q_quits(nodes):
    command = [sys.executable, "-m", "hansa.cli", "top", nodes[0]["admin"]]
    code, shown = shown_on_a_terminal(command, b"xq")
    assert (code, b"q quits" in shown) == (0, True)
