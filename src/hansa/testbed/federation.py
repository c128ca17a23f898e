"""Starts one broker and one agent per node of a topology, on loopback, and stops them.

`stop` ends all processes and removes the directory, unless it was given by the caller. It must be
called also if `start` failed.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hansa.errors import UsageError
from hansa.identity.certificates import DEFAULT_ROLES
from hansa.simulator.topologies import Topology
from hansa.testbed.admin_endpoint import AdminEndpoint, admin_endpoint
from hansa.testbed.cancellation import run_to_completion
from hansa.testbed.certificates import certify_state
from hansa.testbed.datagram_relay import DatagramRelay
from hansa.testbed.embedded import EmbeddedBrokerStub
from hansa.testbed.mosquitto import (
    Mosquitto,
    find_mosquitto,
    free_port,
    require_free_port,
    spawn,
    terminate_process,
)
from hansa.testbed.relay import Relay

PORTS_PER_NODE = 3
CONVERGE_TIMEOUT_S = 60.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class LinkProfile:
    transport: str = "tcp"
    delay_s: float = 0.0
    """In each direction."""
    loss: float = 0.0
    """Probability that a datagram is lost; ignored for streams."""
    can_cut: bool = False
    """Whether links go through relays even without delay and loss."""
    relays_brokers: bool = False
    """Whether agents also reach their brokers through relays."""
    is_secure: bool = True
    """Whether every agent has a certificate, so that links use TLS."""

    @property
    def needs_relay(self) -> bool:
        return bool(self.delay_s or self.loss or self.can_cut)

    def make_relay(self, port: int) -> Relay | DatagramRelay:
        if self.transport == "udp":
            return DatagramRelay(port, self.delay_s, self.loss)
        return Relay(port, self.delay_s)


DIRECT_LINKS = LinkProfile()


@dataclass(slots=True)
class LocalNode:
    """A broker and its agent."""

    name: str
    broker: Mosquitto | EmbeddedBrokerStub
    link_port: int
    admin: AdminEndpoint
    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of this agent only."""
    agent: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def ports(self) -> tuple[int, int, int]:
        """Ports of broker, links and admin endpoints."""
        return self.broker.port, self.link_port, self.admin_port

    @property
    def admin_port(self) -> int:
        return self.admin.port

    @property
    def admin_url(self) -> str:
        return self.admin.url

    @property
    def log_file(self) -> Path:
        """Log of the agent over all its restarts."""
        return self.directory / "agent.log"

    def last_log_line(self) -> str:
        lines = self.log_file.read_text().strip().splitlines()
        return lines[-1] if lines else "no log"

    def status(self) -> dict[str, object]:
        """Fetch `/status` of the agent; raise OSError if it does not answer."""
        return self.admin.status()

    def describe(self) -> dict[str, object]:
        """Return the entry of this node in a ready file."""
        broker, agent = self.broker.process, self.agent
        return {
            "name": self.name,
            "broker": f"127.0.0.1:{self.broker.port}",
            "link": f"127.0.0.1:{self.link_port}",
            "admin": self.admin_url,
            "broker_pid": broker.pid if broker else None,
            "agent_pid": agent.pid if agent else None,
        }

    async def watch_exits(self, on_exit: Callable[[str], None]) -> None:
        """Report when the broker or the agent ends; cancel this before stopping them."""
        parts = {"broker": self.broker.process, "agent": self.agent}
        running = {
            asyncio.create_task(process.wait()): part for part, process in parts.items() if process
        }
        try:
            while running:
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    code, part = task.result(), running.pop(task)
                    how = (
                        f"was killed by {signal.Signals(-code).name}"
                        if code < 0
                        else f"ended: {code}"
                    )
                    log = self.log_file if part == "agent" else self.broker.log_file
                    on_exit(f"the {part} of node {self.name} {how}; its log: {log}")
        finally:
            for task in running:
                task.cancel()


class LocalFederation:
    def __init__(
        self,
        topology: Topology,
        environment: dict[str, str],
        base_port: int | None = None,
        link_profile: LinkProfile = DIRECT_LINKS,
        persistent: bool = False,
        directory: Path | None = None,
    ) -> None:
        """Choose ports, free ones unless `base_port` is given.

        `environment` holds variables for all agents. Persistent brokers save sessions and messages
        when they are stopped gracefully. State and logs are kept only in a given `directory`.
        """
        self._is_persistent = persistent
        self._is_embedded = environment.get("HANSA_BROKER_OBSERVER") == "embedded"
        if not self._is_embedded:
            find_mosquitto()
        self.topology = topology
        self.environment = environment
        self._link_profile = link_profile
        self._relays: dict[tuple[int, int], Relay | DatagramRelay] = {}
        self._dialled_ports: dict[tuple[int, int], int] = {}
        self.broker_relays: list[Relay] = []
        """Relays between agents and brokers, by node, if the link profile has them."""
        self._broker_relay_ports: list[int] = []
        self._is_stopped = False
        self._certify_lock = threading.Lock()
        """Held while a thread signs: the directory is removed only afterwards."""
        self._is_kept = directory is not None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="hansa-"))
        self.nodes = [self._node(number, base_port) for number in range(topology.nodes)]

    def _node(self, number: int, base_port: int | None) -> LocalNode:
        if base_port is None:
            ports = [free_port() for _ in range(PORTS_PER_NODE)]
        else:
            first = base_port + PORTS_PER_NODE * number
            ports = list(range(first, first + PORTS_PER_NODE))
        directory = self.directory / str(number)
        broker: Mosquitto | EmbeddedBrokerStub = (
            EmbeddedBrokerStub(ports[0])
            if self._is_embedded
            else Mosquitto(directory / "broker", ports[0], is_persistent=self._is_persistent)
        )
        link_port = ports[0] if self._link_profile.transport == "mqtt" else ports[1]
        admin = admin_endpoint(ports[2], {**os.environ, **self.environment})
        return LocalNode(str(number), broker, link_port, admin, directory)

    async def start(self) -> None:
        """Start brokers, then agents."""
        for node in self.nodes:
            for port in node.ports:
                require_free_port(port)
        await self._start_relays()
        certify = asyncio.to_thread(self._certify_all)
        starts = [certify, *(node.broker.start() for node in self.nodes)]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome  # after the gather, so that no start continues during `stop`
        for number in range(len(self.nodes)):
            await self.start_agent(number)

    async def _start_relays(self) -> None:
        """Choose the port that each link dials: the neighbour's, or that of a relay."""
        for near, far in self.topology.links:
            port = self.nodes[near].link_port
            if self._link_profile.needs_relay:
                relay = self._relays[near, far] = self._link_profile.make_relay(port)
                port = await relay.start()
            self._dialled_ports[near, far] = port
        if self._link_profile.relays_brokers:
            self.broker_relays = [Relay(node.broker.port, 0.0) for node in self.nodes]
            self._broker_relay_ports = [await relay.start() for relay in self.broker_relays]

    def describe(self) -> dict[str, object]:
        """Return the content of a ready file."""
        return {"nodes": [node.describe() for node in self.nodes]}

    def neighbours_of(self, number: int) -> list[int]:
        return [b if a == number else a for a, b in self.topology.links if number in (a, b)]

    def link_relay(self, a: int, b: int) -> Relay | DatagramRelay:
        return self._relays[min(a, b), max(a, b)]

    def cut_link(self, a: int, b: int) -> None:
        """Cut a link without notifying its ends, like an unplugged cable."""
        self.link_relay(a, b).cut()

    def restore_link(self, a: int, b: int) -> None:
        self.link_relay(a, b).restore()

    async def start_agent(self, number: int, **overrides: str) -> None:
        """Start the agent of a node; `overrides` are environment variables."""
        node = self.nodes[number]
        node.directory.mkdir(parents=True, exist_ok=True)
        node.agent = await self.spawn_agent(number, **overrides)

    async def spawn_agent(self, number: int, **overrides: str) -> asyncio.subprocess.Process:
        """Start a process with the settings of a node. Of two neighbours the one with the larger
        number dials."""
        node = self.nodes[number]
        ports = [self._dialled_ports[link] for link in self.topology.links if link[1] == number]
        broker_port = self._broker_relay_ports[number] if self.broker_relays else node.broker.port
        state = Path(overrides.get("HANSA_STATE", node.directory / "agent"))
        if self._link_profile.is_secure:
            await asyncio.to_thread(self._certify, state, node.name)
        environment = {
            **self.environment,
            **node.environment,
            "HANSA_NAME": node.name,
            "HANSA_STATE": str(state),
            "HANSA_BROKER_PORT": str(broker_port),
            "HANSA_BROKER_LOG_FILE": str(node.broker.log_file),
            "HANSA_BROKER_CONFIG_FILE": str(node.broker.config_file),
            "HANSA_LINK_PORT": str(node.link_port),
            "HANSA_LINK_TRANSPORT": self._link_profile.transport,
            "HANSA_LINK_NEIGHBOURS": ",".join(f"127.0.0.1:{port}" for port in ports),
            "HANSA_ADMIN_PORT": str(node.admin_port),
            **overrides,
        }
        with node.log_file.open("ab") as out:
            return await spawn(out, environment, sys.executable, "-m", "hansa.cli", "agent")

    def _certify_all(self) -> None:
        """Sign the certificates of all agents while their brokers start."""
        if self._link_profile.is_secure:
            for node in self.nodes:
                self._certify(node.directory / "agent", node.name)

    def _certify(self, state: Path, name: str, roles: tuple[str, ...] = DEFAULT_ROLES) -> None:
        """Sign a certificate, in a thread, which continues if its caller is cancelled."""
        with self._certify_lock:
            if not self._is_stopped:
                certify_state(self.directory / "ca", state, name, roles)

    async def wait_until_converged(
        self,
        timeout_s: float = CONVERGE_TIMEOUT_S,
        on_progress: Callable[[list[str]], None] = lambda waiting: None,
    ) -> float:
        """Wait until all links are up, all agents know each other and all interest is installed.

        `on_progress` gets the pending reasons at each poll. Return the seconds that it took. Raise
        UsageError at the timeout, or if an agent ends.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while pending := await self.pending_reasons():
            on_progress(pending)
            for node in self.nodes:
                if node.agent is not None and node.agent.returncode is not None:
                    raise UsageError(f"agent {node.name} ended: {node.last_log_line()}")
            if loop.time() - began > timeout_s:
                raise UsageError(f"not converged after {timeout_s:.0f} s: {'; '.join(pending)}")
            await asyncio.sleep(POLL_S)
        return loop.time() - began

    async def pending_reasons(self) -> list[str]:
        """Return for each node why it has not converged; empty if all have."""
        reasons = await asyncio.gather(*(self._pending_reason(node) for node in self.nodes))
        return [reason for reason in reasons if reason]

    async def _pending_reason(self, node: LocalNode) -> str:
        try:
            status = await asyncio.to_thread(node.status)
        except OSError:
            return f"agent {node.name} does not answer"
        members, interest, broker = status["reachable_nodes"], status["interest"], status["broker"]
        neighbours = status["neighbours"]
        assert isinstance(neighbours, dict)
        assert isinstance(members, list)
        assert isinstance(interest, dict)
        assert isinstance(broker, dict)
        if not broker["connected"]:
            return f"agent {node.name}: {broker['problem']}"
        if not broker["observer_complete"]:
            return f"agent {node.name}: {broker['observer_problem']}"
        if not self._has_links(node, len(neighbours)):
            return f"agent {node.name} has {len(neighbours)} of {self._degree(node)} links"
        if len(members) != len(self.nodes):
            return f"agent {node.name} knows {len(members)} of {len(self.nodes)} nodes"
        return "" if interest["installed"] else f"agent {node.name}: interest not installed"

    def _has_links(self, node: LocalNode, count: int) -> bool:
        return count == self._degree(node)

    def _degree(self, node: LocalNode) -> int:
        return sum(self.nodes.index(node) in link for link in self.topology.links)

    async def stop(self) -> None:
        """Stop all processes, even if this is cancelled."""
        await run_to_completion(self._stop())

    async def _stop(self) -> None:
        self._is_stopped = True
        agents = [node.agent for node in self.nodes if node.agent is not None]
        await asyncio.gather(*(terminate_process(agent) for agent in agents))
        await asyncio.gather(*(node.broker.stop() for node in self.nodes))
        relays = (*self._relays.values(), *self.broker_relays)
        await asyncio.gather(*(relay.stop() for relay in relays))
        if not self._is_kept:
            with self._certify_lock:
                shutil.rmtree(self.directory, ignore_errors=True)
