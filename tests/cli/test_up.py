"""`hansa up` as a process: ready file, signals, clean-up."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.agent.live import PATIENCE, Client, eventually

from hansa.cli import up
from hansa.errors import UsageError

pytestmark = pytest.mark.usefixtures("mosquitto")


class Up:
    """A running `hansa up` with its temporary files in a directory of the test."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.ready_file = directory / "ready.json"
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self._out = (directory / "out").open("wb+")
        command = [sys.executable, "-m", "hansa.cli", "up", *arguments]
        self.process = subprocess.Popen(
            [*command, "--ready-file", str(self.ready_file)],
            stdout=self._out,
            stderr=self._out,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            start_new_session=True,
        )

    def nodes(self, patience: float = PATIENCE) -> list[Any]:
        eventually(self.ready_file.exists, "ready file", patience)
        found: list[Any] = json.loads(self.ready_file.read_text())["nodes"]
        return found

    def said(self) -> str:
        return Path(self._out.name).read_text()

    def wait(self) -> tuple[int, str]:
        code = self.process.wait(PATIENCE)
        self._out.close()
        return code, self.said()

    def children(self) -> list[int]:
        """Running child processes."""
        mark = f"TMPDIR={self.temporary}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # ended meanwhile, or of another user
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def left_behind(self) -> list[Path]:
        return [*self.temporary.iterdir(), *self.ready_file.parent.glob("*ready.json*")]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_prints_addresses_and_cleans_up(tmp_path, number):
    (tmp_path / "ready.json").write_text("of a run that was killed")
    up = Up(tmp_path, "line:2", "--link-delay", "30", "--redundancy", "1", "--strategy", "mesh")
    eventually(lambda: not up.ready_file.exists(), "the old ready file is gone")
    nodes = up.nodes()
    keys = {"name", "broker", "link", "admin", "broker_pid", "agent_pid"}
    assert [set(node) for node in nodes] == [keys, keys]
    pids = [node[key] for node in nodes for key in ("broker_pid", "agent_pid")]
    assert all(is_running(pid) for pid in pids)
    Client(int(nodes[0]["broker"].split(":")[1])).close()
    up.process.send_signal(number)
    code, said = up.wait()
    assert code == 0, said
    assert "line:2: starting 2 brokers and 2 agents" in said
    assert not [pid for pid in pids if is_running(pid)]
    assert up.left_behind() == []


MOMENTS = {
    "directory made": "hansa-*",
    "first broker configured": "hansa-*/0/broker/mosquitto.conf",
    "a broker up": "hansa-*/?/broker/mosquitto.log",
    "first agent started": "hansa-*/0/agent.log",
    "first agent has its state": "hansa-*/0/agent/lock",
    "last agent started": "hansa-*/2/agent.log",
    "last agent has its state": "hansa-*/2/agent/incarnation",
}


@pytest.mark.parametrize("pattern", MOMENTS.values(), ids=MOMENTS)
def test_up_cleans_up_when_interrupted_at_any_moment(tmp_path, pattern):
    up = Up(tmp_path, "ring:3")
    eventually(lambda: [*up.temporary.glob(pattern)], pattern)
    os.killpg(up.process.pid, signal.SIGINT)  # as Ctrl-C does
    code, said = up.wait()
    assert code == 0, said
    assert "Traceback" not in said
    assert up.left_behind() == []
    assert up.children() == []


def test_unexpected_exit_is_reported(tmp_path):
    up = Up(tmp_path, "line:2")
    nodes = up.nodes()
    os.kill(nodes[1]["agent_pid"], signal.SIGKILL)
    os.kill(nodes[0]["broker_pid"], signal.SIGTERM)
    eventually(lambda: up.said().count("its log:") == 2, "both ends were told")
    up.process.terminate()
    code, said = up.wait()
    assert code == 0
    assert "the agent of node 1 was killed by SIGKILL" in said
    assert "the broker of node 0 ended: 0" in said
    assert said.count("its log:") == 2  # the others were stopped by the command


def test_port_in_use_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = Up(tmp_path, "line:2", "--base-port", str(port))
        code, said = up.wait()
    assert code == 2
    assert f"hansa: port {port} of 127.0.0.1 cannot be used" in said
    assert up.left_behind() == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ring:3", "--strategy", "x"], "there is no 'x'; there are mesh"),
        (["ring:3", "--redundancy", "0"], "0 must be from 1 to 16 parents"),
        (["ring:3", "--link-delay", "-1"], "-1 must be from 0 to 60000 ms"),
        (["ring:3", "--link", "x"], "there is no 'x'; there are tcp, udp, mqtt"),
        (["ring:3", "--link-loss", "0.1"], "--link-loss needs --link udp"),
        (["ring:3", "--base-port", "80"], "80 must be from 1024 to 65000"),
        (["ring:3", "--ready-file", ""], "name a file"),
        (["ring:3", "--ready-file", "/nowhere/up.json"], "/nowhere/up.json: No such file"),
        (["ring:3", "--ready-file", "/"], "--ready-file /: Is a directory"),
        (["ring:101"], "101 nodes are 202 processes; at most 100 nodes run live"),
        (["circle:3"], "circle"),
        ([], "topology"),
    ],
)
def test_bad_arguments_are_refused(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        up.run(arguments)


def test_telemetry_requires_keep():
    for given in (["--telemetry", "all"], ["--record", "plant/#"]):
        with pytest.raises(UsageError, match="--telemetry and --record need --keep DIR"):
            up.run(["ring:3", *given])


def test_manager_plans_the_links(tmp_path):
    up_ = Up(tmp_path, "ring:3", "--manager")
    try:
        nodes = up_.nodes()
        said = json.loads(up_.ready_file.read_text())
        with urllib.request.urlopen(f"{said['manager']}/api/v1/links", timeout=20) as answer:
            links = json.load(answer)
        assert len(nodes) == len(links) == 3
    finally:
        up_.process.send_signal(signal.SIGTERM)
        assert up_.wait()[0] == 0
    with pytest.raises(UsageError, match="--manager excludes --link"):
        up.run(["ring:3", "--manager", "--link-delay", "5"])


def listens(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            sockets.add(os.readlink(link))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {
        int(row[1].partition(":")[2], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
    }


@pytest.mark.long
def test_mqtt_links_use_only_broker_ports(tmp_path):
    """Agents listen only on their admin ports; a publication at one corner reaches the other."""
    up = Up(tmp_path, "grid:3x3", "--link", "mqtt")
    try:
        nodes = up.nodes(patience=120.0)
        brokers = [int(node["broker"].rpartition(":")[2]) for node in nodes]
        for node, port in zip(nodes, brokers, strict=True):
            assert listens(node["agent_pid"]) == {int(node["admin"].rpartition(":")[2])}
            assert listens(node["broker_pid"]) == {port}
            assert node["link"] == node["broker"]
        subscriber, publisher = Client(brokers[8]).subscribe("t/#"), Client(brokers[0])

        def installed() -> bool:
            with urllib.request.urlopen(nodes[8]["admin"] + "/status") as answer:
                interest = json.load(answer)["interest"]
            return interest["installed"] and "t/#" in interest["local"]

        eventually(installed, "installed", 60.0)
        publisher.publish("t/a", b"end")
        assert subscriber.wait_for(b"end", 60.0) == [("t/a", b"end")]
        subscriber.close()
        publisher.close()
    finally:
        up.process.send_signal(signal.SIGTERM)
        code, said = up.wait()
    assert (code, up.left_behind()) == (0, []), said
