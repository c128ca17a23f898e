"""Starts one broker and one agent per node of a topology, and stops them without a trace."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from hansa.errors import UsageError
from hansa.local.mosquitto import Mosquitto, end, find_mosquitto, free_port
from hansa.simulator.topologies import Topology

PORTS_PER_NODE = 3
CONVERGE_TIMEOUT_S = 60.0
POLL_S = 0.05


@dataclass(slots=True)
class LocalNode:
    """A broker with its agent."""

    name: str
    mosquitto: Mosquitto
    link_port: int
    admin_port: int
    directory: Path
    agent: asyncio.subprocess.Process | None = field(default=None, init=False)

    def status(self) -> dict[str, object]:
        """Read the agent's status page."""
        with urllib.request.urlopen(f"{self.admin}/status", timeout=2.0) as answer:
            status: dict[str, object] = json.load(answer)
            return status

    @property
    def admin(self) -> str:
        """Where the agent's pages are."""
        return f"http://127.0.0.1:{self.admin_port}"

    def describe(self) -> dict[str, object]:
        """Return what a ready file says of this node."""
        broker, agent = self.mosquitto.process, self.agent
        return {
            "name": self.name,
            "broker": f"127.0.0.1:{self.mosquitto.port}",
            "link": f"127.0.0.1:{self.link_port}",
            "admin": self.admin,
            "broker_pid": broker.pid if broker else None,
            "agent_pid": agent.pid if agent else None,
        }


class LocalFederation:
    """All nodes of one federation on loopback."""

    def __init__(
        self, topology: Topology, settings: dict[str, str], base_port: int | None = None
    ) -> None:
        """Choose ports; `settings` are environment variables for all agents."""
        find_mosquitto()
        self.topology = topology
        self._settings = settings
        self._directory = Path(tempfile.mkdtemp(prefix="hansa-"))
        self.nodes = [self._node(number, base_port) for number in range(topology.nodes)]

    def _node(self, number: int, base_port: int | None) -> LocalNode:
        if base_port is None:
            ports = [free_port() for _ in range(PORTS_PER_NODE)]
        else:
            first = base_port + PORTS_PER_NODE * number
            ports = list(range(first, first + PORTS_PER_NODE))
        directory = self._directory / str(number)
        broker = Mosquitto(directory / "broker", ports[0])
        return LocalNode(str(number), broker, ports[1], ports[2], directory)

    async def start(self) -> None:
        """Start brokers, then agents."""
        await asyncio.gather(*(node.mosquitto.start() for node in self.nodes))
        for number in range(len(self.nodes)):
            await self.start_agent(number)

    async def start_agent(self, number: int) -> None:
        """Start one agent; the smaller number of two neighbours is dialled by the larger."""
        node = self.nodes[number]
        neighbours = [
            f"127.0.0.1:{self.nodes[a].link_port}" for a, b in self.topology.links if b == number
        ]
        environment = {
            **os.environ,
            **self._settings,
            "HANSA_NAME": node.name,
            "HANSA_STATE": str(node.directory / "agent"),
            "HANSA_BROKER_PORT": str(node.mosquitto.port),
            "HANSA_BROKER_LOG_FILE": str(node.mosquitto.log_file),
            "HANSA_LINK_PORT": str(node.link_port),
            "HANSA_LINK_NEIGHBOURS": ",".join(neighbours),
            "HANSA_ADMIN_PORT": str(node.admin_port),
        }
        with (node.directory / "agent.log").open("ab") as out:
            node.agent = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "hansa.cli", "agent", stdout=out, stderr=out, env=environment
            )

    async def wait_until_converged(self, timeout_s: float = CONVERGE_TIMEOUT_S) -> float:
        """Wait until all agents know each other and all interest is installed; return how long."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not all(await asyncio.gather(*(self._is_settled(node) for node in self.nodes))):
            for node in self.nodes:
                if node.agent is not None and node.agent.returncode is not None:
                    raise UsageError(f"agent {node.name} ended: {self._last_words(node)}")
            if loop.time() - began > timeout_s:
                raise UsageError(f"not converged after {timeout_s:.0f} s; see {self._directory}")
            await asyncio.sleep(POLL_S)
        return loop.time() - began

    async def _is_settled(self, node: LocalNode) -> bool:
        try:
            status = await asyncio.to_thread(node.status)
        except OSError:
            return False
        members, interest, broker = status["members"], status["interest"], status["broker"]
        assert isinstance(members, list)
        assert isinstance(interest, dict)
        assert isinstance(broker, dict)
        return (
            len(members) == len(self.nodes)
            and bool(interest["installed"])
            and bool(broker["connected"])
            and bool(broker["observed"])
        )

    def _last_words(self, node: LocalNode) -> str:
        lines = (node.directory / "agent.log").read_text().strip().splitlines()
        return lines[-1] if lines else "without a word"

    async def stop(self) -> None:
        """Stop everything and leave nothing behind."""
        agents = [node.agent for node in self.nodes if node.agent is not None]
        await asyncio.gather(*(end(agent) for agent in agents))
        await asyncio.gather(*(node.mosquitto.stop() for node in self.nodes))
        shutil.rmtree(self._directory, ignore_errors=True)
