"""docs/walk-of-a-message.md follows a live publication: each function that its tables name is
called for one, and each file of the data path that is used has a place there."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.process import Process, Scene

from hansa.testbed.mosquitto import free_port

WALK = Path(__file__).parents[2] / "docs" / "walk-of-a-message.md"

TRACED = """
import os, signal, sys, threading
seen = {}
def note(frame, event, arg):
    if event == "call" and "/src/hansa/" in frame.f_code.co_filename:
        code = frame.f_code
        seen[code.co_filename.partition("/src/hansa/")[2], code.co_qualname] = None
def write(*_):
    lines = [" ".join(each) for each in list(seen)]
    seen.clear()
    place = os.environ["TRACE"]
    with open(place + ".new", "w") as file:
        file.write("\\n".join(lines))
    os.rename(place + ".new", place)
signal.signal(signal.SIGUSR1, write)
threading.setprofile(note)
sys.setprofile(note)
from hansa.cli.main import main
raise SystemExit(main(["agent"]))
"""
"""An agent that writes at SIGUSR1 which functions were called since the last one."""

QOS1_FILES_MAX = 16
"""Files and packages that a reader of the path at QoS 1 has to know. It may shrink."""

NOT_ALWAYS = {"agent/delivery/outbox_files.py", "OutboxFiles.read_journal"}
"""Files and functions of the walk for cases that do not occur here."""


class Traced:
    """Three agents in a line; a client of the last one is subscribed."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        brokers = [scene.broker() for _ in range(3)]
        ports = [free_port() for _ in range(3)]
        self._traces = [directory / f"trace-{number}" for number in range(3)]
        self._agents: list[Process] = []
        for number, broker in enumerate(brokers):
            os.environ["TRACE"] = str(self._traces[number])
            agent = scene.agent(
                program=("-c", TRACED),
                pure=1,  # a profiler does not see compiled functions
                broker_port=broker.port,
                broker_log_file=broker.log_file,
                link_port=ports[number],
                link_neighbours=f"127.0.0.1:{ports[number - 1]}" if number else "",
            )
            self._agents.append(agent)
        self.subscriber = scene.client_of(GuaranteedClient, brokers[2].port)
        self.subscriber.subscribe_qos2("plant/+")
        eventually(self._is_installed, "interest in force")
        self.publisher = scene.client_of(GuaranteedClient, brokers[0].port)
        self.calls()

    def _is_installed(self) -> bool:
        status = json.loads(self._agents[2].page("/status")[1] or "{}")
        if not status or len(status["reachable_nodes"]) < 3:
            return False
        interest = status["interest"]
        return bool(interest["installed"] and "plant/+" in interest["local"])

    def is_settled(self) -> bool:
        """Whether the receiver has acknowledged everything."""
        delivery = json.loads(self._agents[0].page("/status")[1])["delivery"]
        return bool(delivery["acknowledged_by_all"] == delivery["position"] > 0)

    def calls(self) -> dict[str, set[str]]:
        """The functions that all agents have called since the last time, by file."""
        found: dict[str, set[str]] = {}
        for agent, trace in zip(self._agents, self._traces, strict=True):
            trace.unlink(missing_ok=True)
            os.kill(agent.process.pid, signal.SIGUSR1)
            eventually(trace.exists, "a trace")
            for line in trace.read_text().splitlines():
                file, name = line.split(" ", 1)
                found.setdefault(file, set()).add(name)
        return found


@pytest.fixture
def traced(scene: Scene, tmp_path: Path) -> Iterator[Traced]:
    yield Traced(scene, tmp_path)
    del os.environ["TRACE"]


def lines_of(section: str) -> list[str]:
    text = WALK.read_text(encoding="utf-8").partition(f"## {section}\n")[2]
    return text.partition("\n## ")[0].splitlines()


def other_files() -> set[str]:
    """The files and packages that run beside a publication, by the last section of the walk."""
    rows = [line for line in lines_of("Other files") if line.startswith("| ")]
    return {word for line in rows for word in re.findall(r"`([^`]+(?:\.py|/))`", line)}


def named(section: str) -> tuple[set[str], set[str]]:
    """The files, or whole packages, and the functions that the third column of a section's table
    names."""
    cells = [line.split(" | ")[2] for line in lines_of(section) if re.match(r"\| \d", line)]
    words = [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]
    files = {word for word in words if word.endswith((".py", "/"))}
    return files, set(words) - files


def test_publication_passes_through_every_file_and_function_of_the_walk(traced):
    qos0_files, qos0_functions = named("QoS 0")
    qos1_files, qos1_functions = named("QoS 1 and 2")
    for number in range(3):  # the second and third publication take the fast path
        traced.publisher.publish("plant/temp", b"%d" % number)
        traced.subscriber.wait_for(b"%d" % number)
    used = traced.calls()
    assert not_called(used, qos0_files, qos0_functions) == (set(), set())
    traced.publisher.publish_guaranteed(1, "plant/temp", b"guaranteed")
    traced.subscriber.wait_for(b"guaranteed")
    eventually(traced.is_settled, "a receipt")
    for file, names in traced.calls().items():
        used.setdefault(file, set()).update(names)
    assert not_called(used, qos1_files, qos1_functions) == (set(), set())
    known = qos0_files | qos1_files | other_files()
    assert {file for file in used if "/" in file and not is_named(file, known)} == set()
    assert len(qos1_files) <= QOS1_FILES_MAX


def is_named(file: str, known: set[str]) -> bool:
    """Whether the walk names a file or a package that holds it."""
    return file in known or any(file.startswith(name) for name in known if name.endswith("/"))


def not_called(
    used: dict[str, set[str]], files: set[str], functions: set[str]
) -> tuple[set[str], set[str]]:
    called = {name for names in used.values() for name in names}
    classes = {name.partition(".")[0] for name in called}
    unused = {name for name in files if not any(is_named(file, {name}) for file in used)}
    return unused - NOT_ALWAYS, functions - called - classes - NOT_ALWAYS
