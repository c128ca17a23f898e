"""The systems that `peers` compares: each joins brokers by links, from the first to the second.

A link forwards every topic, at least in this direction. A system that this machine cannot run
raises `Unavailable` with the reason.
"""

import asyncio
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.live import bridge_lines
from hansa import __version__, compiled_core
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import DIRECT_LINKS, LinkProfile, LocalFederation
from hansa.testbed.mosquitto import Mosquitto, find_mosquitto, free_port

Links = Sequence[tuple[int, int]]

ROOT = Path(__file__).parents[1]
RELAYS = ROOT / "bench" / "relays"
NATS_VERSION = "v2.11.9"
INSTALL_TIMEOUT_S = 600
START_TIMEOUT_S = 60.0
POLL_S = 0.01


class Unavailable(Exception):
    """This machine cannot run a system, for this reason."""


def compile_relay(name: str, directory: Path) -> str:
    """Compile a minimal relay in C; return its program."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("there is no C compiler (cc)")
    program = directory / name
    command = [compiler, "-O2", "-o", str(program), str(RELAYS / f"{name}.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"cc failed: {done.stderr.strip()}")
    return str(program)


class Peer(Protocol):
    """One system on several brokers."""

    ports: list[int]
    """Ports for MQTT clients, by place."""
    shares: bool
    """Whether it has shared subscriptions."""
    guarantees: bool
    """Whether it forwards QoS 1."""
    version: str
    """Of what forwards."""
    link_security: str
    """How its links are protected: TLS, or nothing."""

    async def start(self, topology: str, links: Links) -> None: ...

    async def stop(self) -> None: ...

    def pids(self, place: int) -> dict[str, int]:
        """Return the processes at a place, by what they are."""

    async def kill(self, place: int) -> None:
        """Kill (SIGKILL) what forwards at a place, and start it again at once."""


class HansaPeer:
    """Mosquittos and agents. Links use TLS, unless the profile says otherwise."""

    def __init__(self, profile: LinkProfile = DIRECT_LINKS) -> None:
        core = "compiled" if compiled_core.is_enabled() else "pure"  # agents inherit HANSA_PURE
        self.version = f"{__version__} {core}"
        self.link_security = "TLS" if profile.is_secure else "none"
        self._profile = profile
        self.ports: list[int] = []
        self.shares = True
        self.guarantees = True
        self._running: LocalFederation | None = None

    async def start(self, topology: str, links: Links) -> None:
        self._running = LocalFederation(
            parse_topology(topology, seed=1),
            {"HANSA_LOG": "warning"},
            link_profile=self._profile,
        )
        await self._running.start()
        await self._running.wait_until_converged()
        self.ports = [node.broker.port for node in self._running.nodes]

    async def stop(self) -> None:
        if self._running is not None:
            await self._running.stop()

    def pids(self, place: int) -> dict[str, int]:
        assert self._running is not None
        node = self._running.nodes[place]
        assert node.agent is not None and node.broker.process is not None
        return {"broker": node.broker.process.pid, "agent": node.agent.pid}

    async def kill(self, place: int) -> None:
        assert self._running is not None
        agent = self._running.nodes[place].agent
        assert agent is not None
        agent.kill()
        await agent.wait()
        await self._running.start_agent(place)


class _Brokers:
    """Mosquittos in a directory of their own."""

    def __init__(self) -> None:
        self.version = mosquitto_version()
        self.link_security = "none"
        self.ports: list[int] = []
        self.shares = True
        self.guarantees = True
        self.directory = Path(tempfile.mkdtemp(prefix="hansa-bench-"))
        self.brokers: list[Mosquitto] = []

    async def start_brokers(self, configurations: Sequence[Sequence[str]]) -> None:
        """Start one broker on each port, with these lines of configuration."""
        for place, lines in enumerate(configurations):
            directory = self.directory / str(place)
            self.brokers.append(Mosquitto(directory, self.ports[place], tuple(lines)))
        for broker in reversed(self.brokers):
            await broker.start()

    async def stop(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers))
        shutil.rmtree(self.directory, ignore_errors=True)

    def pids(self, place: int) -> dict[str, int]:
        process = self.brokers[place].process
        assert process is not None
        return {"broker": process.pid}


class BridgePeer(_Brokers):
    """Mosquittos with bridges; the bridge is part of the broker."""

    async def start(self, topology: str, links: Links) -> None:
        self.ports = [free_port() for _ in range(_places(links))]
        await self.start_brokers(
            [
                [
                    line
                    for a, b in links
                    if a == place
                    for line in bridge_lines(a, b, self.ports[b], qos=1)
                ]
                for place in range(len(self.ports))
            ]
        )

    async def kill(self, place: int) -> None:
        await self.brokers[place].kill()
        await self.brokers[place].start()


class RelayPeer(_Brokers):
    """Mosquittos and, per link, one relay beside each of its two brokers."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.guarantees = False
        self.version = "-"
        self._language = language
        self._command: list[str] = []
        self._pairs: dict[tuple[int, int], list[subprocess.Popen[bytes]]] = {}

    async def start(self, topology: str, links: Links) -> None:
        self._command = self._prepare()
        self.ports = [free_port() for _ in range(_places(links))]
        await self.start_brokers([[] for _ in self.ports])
        for link in links:
            self._start_pair(link)

    def _prepare(self) -> list[str]:
        if self._language == "Python":
            self.version = platform.python_version()
            return [sys.executable, str(RELAYS / "relay.py")]
        program = compile_relay("relay", self.directory)
        self.version = f"cc {_first_version(['cc', '--version'])} -O2"
        return [program]

    def _start_pair(self, link: tuple[int, int]) -> None:
        near, far = (str(self.ports[place]) for place in link)
        between = str(free_port())
        self._pairs[link] = [
            subprocess.Popen([*self._command, *words], process_group=0)
            for words in (("out", between, far), ("in", near, between))
        ]

    def pids(self, place: int) -> dict[str, int]:
        found = super().pids(place)
        for (a, b), (receiving, sending) in self._pairs.items():
            if a == place:
                found["relay out of it"] = sending.pid
            if b == place:
                found["relay into it"] = receiving.pid
        return found

    async def kill(self, place: int) -> None:
        links = [link for link in self._pairs if place in link]
        for link in links:
            self._end_pair(link)
        for link in links:
            self._start_pair(link)

    def _end_pair(self, link: tuple[int, int]) -> None:
        for process in self._pairs[link]:
            process.kill()
            process.wait()

    async def stop(self) -> None:
        for link in self._pairs:
            self._end_pair(link)
        await super().stop()


class NatsPeer:
    """NATS servers with MQTT, as leaf nodes: the second of each link connects to the first."""

    def __init__(self) -> None:
        self.version = NATS_VERSION.removeprefix("v")
        self.link_security = "none"
        self.ports: list[int] = []
        self.shares = False  # NATS has no shared subscriptions of MQTT
        self.guarantees = True
        self._directory = Path(tempfile.mkdtemp(prefix="hansa-bench-"))
        self._program = ""
        self._servers: list[subprocess.Popen[bytes]] = []

    async def start(self, topology: str, links: Links) -> None:
        self._program = await asyncio.to_thread(_install_nats)
        places = _places(links)
        self.ports = [free_port() for _ in range(places)]
        leaf_ports = [free_port() for _ in range(places)]
        for place in range(places):
            remotes = [leaf_ports[a] for a, b in links if b == place]
            self._write_configuration(place, leaf_ports[place], remotes)
            self._servers.append(self._spawn(place))
        for place in range(places):
            await self._wait_until_listening(place)

    def _write_configuration(self, place: int, leaf_port: int, remotes: Sequence[int]) -> None:
        directory = self._directory / str(place)
        directory.mkdir()
        urls = ", ".join(f'{{ url: "nats-leaf://127.0.0.1:{port}" }}' for port in remotes)
        (directory / "nats.conf").write_text(
            f'server_name: "n{place}"\nlisten: "127.0.0.1:{free_port()}"\n'
            f'jetstream {{ store_dir: "{directory}", domain: "d{place}" }}\n'
            f'mqtt {{ listen: "127.0.0.1:{self.ports[place]}" }}\n'
            f'leafnodes {{ listen: "127.0.0.1:{leaf_port}", reconnect: "1s", remotes: [{urls}] }}\n'
        )

    def _spawn(self, place: int) -> subprocess.Popen[bytes]:
        directory = self._directory / str(place)
        with (directory / "log").open("ab") as log:
            return subprocess.Popen(
                [self._program, "-c", str(directory / "nats.conf")],
                stdout=log,
                stderr=log,
                process_group=0,
            )

    async def _wait_until_listening(self, place: int) -> None:
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while not _listens(self.ports[place]):
            ended = self._servers[place].poll() is not None
            if ended or asyncio.get_running_loop().time() > deadline:
                log = (self._directory / str(place) / "log").read_text().strip().splitlines()
                raise Unavailable(f"NATS does not start: {log[-1] if log else 'no log'}")
            await asyncio.sleep(POLL_S)

    def pids(self, place: int) -> dict[str, int]:
        return {"server": self._servers[place].pid}

    async def kill(self, place: int) -> None:
        self._servers[place].kill()
        self._servers[place].wait()
        self._servers[place] = self._spawn(place)
        await self._wait_until_listening(place)

    async def stop(self) -> None:
        for server in self._servers:
            server.kill()
            server.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def make_peer(name: str) -> Peer:
    """Return a system by its name in the table."""
    if name == "Hansa":
        return HansaPeer()
    if name == "Hansa, no TLS":
        return HansaPeer(LinkProfile(is_secure=False))
    if name == "Mosquitto bridge":
        return BridgePeer()
    if name == "NATS leaf nodes":
        return NatsPeer()
    return RelayPeer(name.removeprefix("relays in "))


def _install_nats() -> str:
    """Return the NATS server that tests and benchmarks share, built if necessary."""
    place = ROOT / ".brokers" / f"nats-{NATS_VERSION}"
    program = place / "nats-server"
    if program.exists():
        return str(program)
    if shutil.which("go") is None:
        raise Unavailable("there is no Go, with which NATS is built")
    place.mkdir(parents=True, exist_ok=True)
    module = f"github.com/nats-io/nats-server/v2@{NATS_VERSION}"
    try:
        done = subprocess.run(
            ["go", "install", module],
            env={**os.environ, "GOBIN": str(place)},
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable("building NATS took too long") from error
    if done.returncode:
        raise Unavailable(f"go install failed: {done.stderr.strip().splitlines()[-1]}")
    return str(program)


def mosquitto_version() -> str:
    """Return the version of the Mosquitto that all systems but NATS use."""
    return _first_version([find_mosquitto(), "-h"])


def _first_version(command: list[str]) -> str:
    shown = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", shown)
    return found.group() if found else "?"


def _places(links: Links) -> int:
    return 1 + max(map(max, links))


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
