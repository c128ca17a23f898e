"""A live federation for tests of commands."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

UP_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def ready_file(mosquitto, tmp_path_factory):
    """The ready file of a federation of two nodes."""
    path = tmp_path_factory.mktemp("up") / "up.json"
    command = [sys.executable, "-m", "hansa.cli", "up", "line:2", "--ready-file", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + UP_TIMEOUT_S
    try:
        while not path.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the federation does not come up"
            time.sleep(0.05)
        yield path
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.fixture(scope="session")
def nodes(ready_file: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(ready_file.read_text())["nodes"]
    return found
