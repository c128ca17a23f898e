"""Real brokers, alone and as a small federation, for the tests that look at some."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hansa.local.mosquitto import free_port

UP_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def ready_file(mosquitto, tmp_path_factory):
    """Two brokers with their agents: what `hansa up` wrote about them."""
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
    """The nodes that the ready file names."""
    found: list[dict[str, str]] = json.loads(ready_file.read_text())["nodes"]
    return found


class Brokers:
    """Mosquittos with some lines of configuration; `broker(*lines)` starts one."""

    def __init__(self, mosquitto: str, directory: Path) -> None:
        self._mosquitto = mosquitto
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __call__(self, *lines: str) -> str:
        """Start one; return its address."""
        port = free_port()
        config = self._directory / f"{port}.conf"
        text = (f"listener {port} 127.0.0.1", "user root", *lines)
        config.write_text("\n".join(text) + "\n")
        process = subprocess.Popen(
            [self._mosquitto, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        address = f"127.0.0.1:{port}"
        self._running[address] = process
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return address
            except ConnectionRefusedError:
                assert process.poll() is None, "mosquitto does not start"

    def stop(self, address: str) -> None:
        """Stop one."""
        process = self._running.pop(address)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        """Stop the others."""
        for address in tuple(self._running):
            self.stop(address)


@pytest.fixture
def broker(mosquitto, tmp_path):
    """What starts brokers; they stop with the test."""
    brokers = Brokers(mosquitto, tmp_path)
    yield brokers
    brokers.stop_all()
