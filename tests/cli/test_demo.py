"""`hansa demo`: live with Mosquitto, with embedded brokers, simulated."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hansa.cli import demo
from hansa.cli.main import main
from hansa.errors import UsageError
from hansa.testbed.demo import bridge_ring

HANSA = [sys.executable, "-m", "hansa.cli"]


def left_behind(directory: Path) -> list[str]:
    """Return processes that use a directory, and files that are left in it."""
    found = subprocess.run(["pgrep", "-f", str(directory)], capture_output=True, text=True)
    return [*found.stdout.split(), *(path.name for path in directory.iterdir())]


def started(*arguments: str, until: str) -> subprocess.Popen[str]:
    """Start a command, and return when it has printed a line that starts with `until`."""
    process = subprocess.Popen(
        [*HANSA, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert any(line.startswith(until) for line in process.stdout), process.communicate()
    return process


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Temporary directory of the federations of a test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("mosquitto")
def test_live_demo_delivers_once_recovers_and_cleans_up(place):
    end = subprocess.run(
        [*HANSA, "demo", "--compare", "--no-report"], capture_output=True, text=True
    )
    assert (end.returncode, end.stderr) == (0, ""), end.stdout
    summary = end.stdout.partition("measured result")[2]
    duration = r"(?:none|[\d.]+ m?s)"
    for row in (
        r"one publication in a ring of 3 brokers +3 delivered, 0 twice",
        r"plant/\+/speed at another broker +2 of 2 topics, 0 twice",
        r"readings of 3 sensors at 3 brokers +9\d\d of 9\d\d delivered, 0 twice",
        rf"kill agent \d, \d to \d +interruption {duration}; \d+ of \d+ lost, 0 twice",
        r"kill agent \d, \d to \d +interruption until the next event; \d+ of \d+ lost, 0 twice",
        rf"start agent \d, \d to \d +interruption {duration}; \d+ of \d+ lost, 0 twice",
        r"100 orders per second at QoS 2, \d to \d +(\d+) of \1 delivered, 0 twice",
        rf"kill broker 2, 0 to 2 +interruption {duration}; \d+ of \d+ lost, 0 twice",
        r"kill broker 2, 0 to 1 +interruption none; 0 of \d+ lost, 0 twice",
        r"one publication in a ring of plain bridges +[\d,]+ deliveries to one subscriber in 2 s",
    ):
        assert re.search(row, summary), f"{row} in {end.stdout}"
    assert left_behind(place) == []


@pytest.mark.usefixtures("mosquitto")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_demo_cleans_up(number, place):
    process = started("demo", "--keep", until="1. One publication")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "hansa: stopped\n")
    assert left_behind(place) == []


@pytest.fixture
def no_mosquitto(monkeypatch):
    def missing():
        raise UsageError("no mosquitto on this machine: apt-get install mosquitto")

    monkeypatch.setattr(demo, "find_mosquitto", missing)


@pytest.mark.usefixtures("no_mosquitto")
def test_demo_without_mosquitto_uses_embedded_brokers(place, capsys):
    assert main(["demo", "--no-report"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == "no mosquitto on this machine: apt-get install mosquitto."
    assert second == "Without it, each agent runs amqtt, a small broker in Python."
    summary = "\n".join(rest).partition("measured result")[2]
    for row in (
        r"one publication in a ring of 3 brokers +3 delivered, 0 twice",
        r"plant/\+/speed at another broker +2 of 2 topics, 0 twice",
        r"kill agent \d, \d to \d +interruption (none|[\d.]+ m?s); \d+ of \d+ lost, 0 twice",
    ):
        assert re.search(row, summary), f"{row} in {rest}"
    assert left_behind(place) == []


@pytest.mark.usefixtures("no_mosquitto")
def test_demo_without_any_broker_is_simulated(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "amqtt", None)  # importing it fails
    monkeypatch.delitem(sys.modules, "amqtt.broker", raising=False)
    assert main(["demo", "--no-report"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == "no mosquitto on this machine: apt-get install mosquitto."
    assert second == "Neither Mosquitto nor amqtt is installed: this is the simulated demo."
    assert "Hansa, simulated" in "\n".join(rest)


def test_bridge_loop_is_short():
    assert bridge_ring.LOOP_S <= 2.0


def test_bad_seed_is_refused(capsys):
    assert main(["demo", "--seed", "x"]) == 2
    assert capsys.readouterr().err == (
        "hansa: argument --seed: 'x' is not a whole number; see `hansa demo --help`\n"
    )
