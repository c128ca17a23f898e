"""What certificates cost at the start: 50 nodes with and without them, in turn, and enrolment."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.console import say
from bench.live import cpu_seconds, pids_of
from bench.live_tls import PROFILES
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

TOPOLOGY = "grid:5x10"
CONVERGE_TIMEOUT_S = 600.0
ENROLMENTS = 5


def measure(rounds: int = 3) -> dict[str, object]:
    """Start of 50 nodes with TLS against plain links (goal 1.2); enrolment of a node (goal 2 s)."""
    seconds: dict[str, list[float]] = {name: [] for name in PROFILES}
    cpu: dict[str, list[float]] = {name: [] for name in PROFILES}
    for number in range(rounds):
        names = list(PROFILES) if number % 2 == 0 else list(reversed(PROFILES))
        for name in names:
            wall, spent = asyncio.run(_start(name))
            seconds[name].append(wall)
            cpu[name].append(spent)
            load = os.getloadavg()[0]
            say(
                f"start of {TOPOLOGY}, {name}",
                f"{wall:12.1f} s, CPU of agents {spent:.1f} s, load {load:.1f}",
            )
    enrolments = [_enrol_seconds() for _ in range(ENROLMENTS)]
    answers: dict[str, object] = {"seconds": seconds, "cpu_s": cpu, "enrolment_s": enrolments}
    for what, values in (("seconds", seconds), ("CPU of agents", cpu)):
        ratios = [tls / plain for tls, plain in zip(values["tls"], values["plain"], strict=True)]
        middle = statistics.median(ratios)
        all_of_them = ", ".join(f"{each:.2f}" for each in ratios)
        say(f"start of {TOPOLOGY}, {what}, TLS of plain", f"{middle:12.2f} median of {all_of_them}")
        answers[f"{what.split()[0].lower()}_ratio_median"] = round(middle, 3)
    empty = [_command_seconds("--version") for _ in range(ENROLMENTS)]
    load = os.getloadavg()[0]
    say(
        "hansa join with a token",
        f"{statistics.median(enrolments):12.2f} s median, {min(enrolments):.2f} s best,"
        f" load {load:.1f}",
    )
    say("hansa --version, for comparison", f"{statistics.median(empty):12.2f} s")
    return answers


async def _start(name: str) -> tuple[float, float]:
    """Return the seconds until a new federation has converged, and the CPU time of its agents."""
    topology = parse_topology(TOPOLOGY, 1)
    running = LocalFederation(topology, {"HANSA_LOG": "warning"}, link_profile=PROFILES[name])
    began = time.monotonic()
    try:
        await running.start()
        await running.wait_until_converged(CONVERGE_TIMEOUT_S)
        wall = time.monotonic() - began
        pids = [pid for part, pid in pids_of(running).items() if part.startswith("agent")]
        return wall, sum(map(cpu_seconds, pids))
    finally:
        await running.stop()


def _enrol_seconds() -> float:
    """Return how long `hansa join` takes, from its start to the installed certificate, while
    `hansa invite` waits."""
    with tempfile.TemporaryDirectory() as directory:
        ca, state = Path(directory, "ca"), Path(directory, "state")
        _hansa("ca", "init", "bench", "--ca", str(ca))
        address = ("--listen", "127.0.0.1", "--port", "0", "--address", "127.0.0.1")
        invite = subprocess.Popen(
            [*HANSA, "invite", "--ca", str(ca), *address, "--ttl", "60s"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert invite.stdout is not None
        with invite:
            token = invite.stdout.readline().strip()
            took = _command_seconds("join", token, "--state", str(state))
        assert invite.returncode == 0 and any(state.iterdir())
        return took


HANSA = (sys.executable, "-m", "hansa.cli")


def _command_seconds(*arguments: str) -> float:
    began = time.monotonic()
    _hansa(*arguments)
    return time.monotonic() - began


def _hansa(*arguments: str) -> None:
    subprocess.run([*HANSA, *arguments], check=True, capture_output=True)
