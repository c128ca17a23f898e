"""The Spark example of the README, run as a program on recorded data of agents."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hansa.agent.broker.connection import BrokerAddress
from hansa.simulator.topologies import parse_topology
from hansa.testbed.clients import RecordingClient
from hansa.testbed.federation import LocalFederation, LocalNode

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
DIRECTORY = "/var/lib/hansa"
"""The state directory of an agent, as the README names it."""
COUNTS = {"plant/line1/temp": 7, "plant/line2/temp": 3}
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def recorded(mosquitto: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which two agents recorded ten publications."""
    directory = tmp_path_factory.mktemp("recorded")
    asyncio.run(record(directory))
    return directory


async def record(directory: Path) -> None:
    settings = {"HANSA_RECORD": "plant/#"}
    federation = LocalFederation(parse_topology("line:2", 1), settings, directory=directory)
    try:
        await federation.start()
        await federation.wait_until_converged()
        near = federation.nodes[0]
        client = RecordingClient(BrokerAddress("127.0.0.1", near.broker.port), "sensor")
        await client.start()
        for topic, count in COUNTS.items():
            for _ in range(count):
                client.publish(topic, b'{"celsius": 21.5}')
        expected = sum(COUNTS.values())
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while await asyncio.to_thread(recorded_count, near) < expected:
            assert asyncio.get_running_loop().time() < deadline, "not all were recorded"
            await asyncio.sleep(0.05)
        await client.stop()
    finally:
        await federation.stop()


def recorded_count(node: LocalNode) -> int:
    counters = node.status()["counters"]
    assert isinstance(counters, dict)
    return int(counters.get("recorded", 0))


def path_without(directory: Path, *prefixes: str) -> str:
    """A PATH with all programs of the system but those whose names begin with a prefix."""
    directory.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = directory / program.name
            if not program.name.startswith(prefixes) and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def test_example_runs_without_activated_environment_and_java(recorded, tmp_path):
    (example,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "hansa" in block
    ]
    assert example.count(f'"{DIRECTORY}"') == 1
    program = tmp_path / "example.py"
    program.write_text(example.replace(DIRECTORY, str(recorded)))
    prefixes = ("JAVA_", "SPARK_", "PYSPARK_", "PYTHON", "VIRTUAL_ENV")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(prefixes)}
    environment["PATH"] = path_without(tmp_path / "bin", "java", "python", "pypy")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\|(plant/\S+) *\| *(\d+)\|$", done.stdout, re.MULTILINE)
    assert {topic: int(count) for topic, count in rows} == COUNTS
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "example.py"}
