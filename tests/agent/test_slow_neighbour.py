"""A neighbour that never reads in a live federation of three: others are not affected."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.live import Live, eventually

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

WINDOW = 1 << 20
PAYLOAD = b"x" * 10_000
DROPPED = "dropped: the neighbour's window is full"


@pytest.fixture
def patient(mosquitto: str) -> Iterator[Live]:
    """A star of three with long timeouts: only the send window protects the agents."""
    settings = {"HANSA_LINK_WINDOW_BYTES": str(WINDOW), "HANSA_PROTOCOL_HEARTBEAT_LIMIT": "600"}
    with Live(LocalFederation(parse_topology("star:3", 1), settings)) as live:
        yield live


def memory_bytes(pid: int) -> int:
    """Return the peak memory of a process."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) << 10


def test_slow_neighbour_delays_no_other_and_memory_stays_bounded(patient):
    reader, sleeper = patient.subscriber(1, "flood"), patient.subscriber(2, "flood")
    publisher, asleep, agent = patient.client(0), patient.nodes[2], patient.nodes[0].agent
    memory = memory_bytes(agent.pid)
    os.kill(asleep.agent.pid, signal.SIGSTOP)
    try:
        for number in range(200):  # 40 MB in small parts
            publisher.publish("flood", *[PAYLOAD] * 19, b"%d" % number)
            assert len(reader.wait_for(b"%d" % number, pause=0)) == 20
        assert patient.counter(0, DROPPED) > 3_000
        neighbours: Any = patient.nodes[0].status()["neighbours"]
        waiting = sorted(seen["outstanding_bytes"] for seen in neighbours.values())
        assert waiting[0] < WINDOW < waiting[1] < 3 * WINDOW
        assert memory_bytes(agent.pid) - memory < 16 << 20
        late = patient.client(1).subscribe("late")
    finally:
        os.kill(asleep.agent.pid, signal.SIGCONT)
    patient.wait_installed(1, "late")  # this requires a confirmation of the suspended agent
    eventually(lambda: sleeper.silent(0.2) or sleeper.received.clear(), "it has caught up")
    patient.client(2).publish("late", b"end")
    assert late.wait_for(b"end") == [("late", b"end")]
    publisher.publish("flood", b"end")
    assert reader.wait_for(b"end") == [("flood", b"end")]
    caught_up = [payload for _, payload in sleeper.wait_for(b"end")]
    assert (caught_up[-1], caught_up.count(b"end")) == (b"end", 1)
