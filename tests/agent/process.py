"""Agents as processes, each with a broker chosen by the test."""

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.agent.live import PATIENCE, Client, LoopThread, eventually

from hansa.compiled_core import PURE
from hansa.testbed.mosquitto import Mosquitto, free_port
from hansa.testbed.service_manager import activate

_C = TypeVar("_C", bound=Client)


class Process:
    """An agent process that ends with the test."""

    def __init__(
        self,
        directory: Path,
        program: Sequence[str] = ("-m", "hansa.cli", "agent"),
        listening: socket.socket | None = None,
        **settings: object,
    ) -> None:
        """`listening` is passed to it as by a service manager."""
        self.admin_port = free_port()
        self.log_file = directory / f"agent-{self.admin_port}.log"
        environment = {
            **{
                name: text
                for name, text in os.environ.items()
                if name == PURE or not name.startswith("HANSA_")
            },
            **({PURE: "1"} if "-c" in program else {}),  # such programs replace code
            "HANSA_STATE": str(directory / f"state-{self.admin_port}"),
            "HANSA_ADMIN_PORT": str(self.admin_port),
            "HANSA_LINK_PORT": "0",
            **{f"HANSA_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command, inherited = [sys.executable, *program], tuple[int, ...]()
        if listening is not None:
            command, inherited = activate(command, listening)
        with self.log_file.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                env=environment,
                pass_fds=inherited,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def page(self, path: str) -> tuple[int, Any]:
        """Return status and content of an endpoint; 0 if it is not available yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()  # also if the agent ends during the answer

    def says(self, text: str) -> None:
        eventually(lambda: text in self.log, f"{text!r} in the log, which is:\n{self.log}")

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Scene:
    """Brokers and agents of one test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread = LoopThread()
        self.agents: list[Process] = []
        self._brokers: list[Mosquitto] = []
        self._clients: list[Client] = []

    def broker(self, *extra: str, port: int | None = None) -> Mosquitto:
        port = port or free_port()
        made = Mosquitto(self._directory / f"broker-{port}", port, extra)
        self._brokers.append(made)
        self._thread.run(made.start())
        return made

    def forget(self, broker: Mosquitto) -> None:
        """Kill a broker and restart it without its saved state."""
        self._thread.run(broker.kill())
        self._thread.run(broker.start())

    def agent(self, **settings: Any) -> Process:
        made = Process(self._directory, **settings)
        self.agents.append(made)
        return made

    def client(self, port: int, name: str = "", **options: Any) -> Client:
        return self.client_of(Client, port, name=name, **options)

    def client_of(self, kind: type[_C], port: int, **options: Any) -> _C:
        made = kind(port, **options)
        self._clients.append(made)
        return made

    def close(self) -> None:
        for client in self._clients:
            client.kill()
        for agent in self.agents:
            agent.close()
        for broker in self._brokers:
            self._thread.run(broker.stop())
        self._thread.close()
