"""Third-party brokers from package registries, installed once and started as processes.

They are installed in `.brokers` beside `.venv`, by version. If an installation fails, the tests are
skipped with the reason.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.agent.live import eventually

from hansa.testbed.mosquitto import free_port

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".brokers"
INSTALL_TIMEOUT_S = 600

NATS = "v2.11.9"

AMQTT = """
import asyncio, sys
from amqtt.broker import Broker

async def serve():
    plugin = "amqtt.plugins.authentication.AnonymousAuthPlugin"
    listener = {"type": "tcp", "bind": sys.argv[1]}
    config = {"listeners": {"default": listener}, "plugins": {plugin: {"allow_anonymous": True}}}
    await Broker(config).start()
    await asyncio.Event().wait()

asyncio.run(serve())
"""


def install(tool: str, command: Sequence[str], made: Path, **environment: str) -> None:
    """Run an installer in its target directory unless that exists."""
    if made.exists():
        return
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    try:
        subprocess.run(
            command,
            cwd=made.parent,
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(command)}: {error.stderr.strip()[-300:]}")


def aedes(port: int, directory: Path) -> list[str]:
    place = CACHE / "npm"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "aedes.mjs"):
        shutil.copy(HERE / name, place)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    install("npm", command, place / "node_modules")
    return ["node", str(place / "aedes.mjs"), str(port)]


def nats(port: int, directory: Path) -> list[str]:
    place = CACHE / f"nats-{NATS}"
    place.mkdir(parents=True, exist_ok=True)
    program = place / "nats-server"
    module = f"github.com/nats-io/nats-server/v2@{NATS}"
    install("go", ["go", "install", module], program, GOBIN=str(place))
    (directory / "nats.conf").write_text(
        f'server_name: "one"\nlisten: "127.0.0.1:{free_port()}"\n'
        f'jetstream {{ store_dir: "{directory}" }}\n'
        f'mqtt {{ listen: "127.0.0.1:{port}" }}\n'
    )
    return [str(program), "-c", str(directory / "nats.conf")]


def amqtt(port: int, directory: Path) -> list[str]:
    return [sys.executable, "-c", AMQTT, f"127.0.0.1:{port}"]


KINDS = {"aedes": aedes, "NATS": nats, "amqtt": amqtt}


class Other:
    """A broker other than Mosquitto."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        command = KINDS[kind](self.port, directory)
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually(self._listens, f"{kind} listening")

    def _listens(self) -> bool:
        assert self._process.poll() is None, "it ended"
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
