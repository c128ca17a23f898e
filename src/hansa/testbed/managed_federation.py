"""A live federation whose links are planned by a topology manager."""

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from hansa.errors import UsageError
from hansa.simulator.topologies import make_topology
from hansa.testbed.admin_endpoint import STATUS_TIMEOUT_S
from hansa.testbed.federation import POLL_S, LocalFederation, LocalNode
from hansa.testbed.mosquitto import free_port, spawn, terminate_process

START_TIMEOUT_S = 30.0
NEIGHBOURS_PER_NODE = 2
"""Number of neighbours that the planner gives to every node, if there are enough nodes."""


class ManagedFederation(LocalFederation):
    """A manager, and brokers with agents that join through it."""

    def __init__(
        self,
        count: int,
        environment: dict[str, str] | None = None,
        manager_environment: dict[str, str] | None = None,
        base_port: int | None = None,
        directory: Path | None = None,
    ) -> None:
        super().__init__(
            make_topology(f"{count} through a manager", count, []),
            dict(environment or {}),
            base_port,
            directory=directory,
        )
        self._manager_environment = manager_environment or {}
        self.manager_port = free_port()
        self.manager: asyncio.subprocess.Process | None = None
        self._node_port = free_port()
        self.environment["HANSA_TOPOLOGY_MANAGER"] = self.node_url

    @property
    def manager_url(self) -> str:
        return f"http://127.0.0.1:{self.manager_port}"

    @property
    def node_url(self) -> str:
        """Where agents join, with their certificates."""
        return f"hansa://127.0.0.1:{self._node_port}"

    async def start(self) -> None:
        """Start the manager, then everything else."""
        await self.start_manager()
        await super().start()

    async def start_manager(self) -> None:
        """Start the manager and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        database = f"sqlite:///{self.directory / 'manager.db'}"
        command = [sys.executable, "-m", "hansa.cli", "manager", "--database", database]
        state = self.directory / "manager"
        await asyncio.to_thread(self._certify, state, "manager", ("manager",))
        command += ["--port", str(self.manager_port), "--state", str(state)]
        command += ["--node-host", "127.0.0.1", "--node-port", str(self._node_port)]
        with self.manager_log.open("ab") as out:
            self.manager = await spawn(out, self._manager_environment, *command)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while True:
            try:
                await asyncio.to_thread(self.request_manager, "/settings")
                return
            except OSError as error:
                if self.manager.returncode is not None or loop.time() > deadline:
                    lines = self.manager_log.read_text().strip().splitlines()
                    raise UsageError(f"the manager does not start: {lines[-1:]}") from error
            await asyncio.sleep(POLL_S)

    async def kill_manager(self) -> None:
        if self.manager is not None:
            self.manager.kill()
            await self.manager.wait()
            self.manager = None

    @property
    def manager_log(self) -> Path:
        """Log of the manager over all its restarts."""
        return self.directory / "manager.log"

    def request_manager(self, path: str, method: str = "GET", body: object = None) -> Any:
        """Send a request to the manager; return the JSON of the response."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        token = self._manager_environment.get("HANSA_MANAGER_TOKEN") or os.environ.get(
            "HANSA_MANAGER_TOKEN"
        )
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(
            f"{self.manager_url}/api/v1{path}", data, headers, method=method
        )
        with urllib.request.urlopen(request, timeout=STATUS_TIMEOUT_S) as response:
            text = response.read()
            return json.loads(text) if text else None

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "manager": self.manager_url}

    def neighbours_of(self, number: int) -> list[int]:
        """Return the neighbours that the manager assigned to a node."""
        nodes = self.request_manager("/nodes")
        places = {node["id"]: int(node["name"]) for node in nodes}
        return sorted(
            places[near["id"]]
            for node in nodes
            if places[node["id"]] == number
            for near in node["neighbors"]
        )

    def _has_links(self, node: LocalNode, count: int) -> bool:
        return count >= self._degree(node)

    def _degree(self, node: LocalNode) -> int:
        return min(NEIGHBOURS_PER_NODE, len(self.nodes) - 1)

    async def _stop(self) -> None:
        if self.manager is not None:
            await terminate_process(self.manager)
        await super()._stop()
