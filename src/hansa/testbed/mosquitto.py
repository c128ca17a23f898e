"""Mosquitto processes: found on this machine, configured so that an agent can observe them."""

import asyncio
import getpass
import itertools
import os
import random
import shutil
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hansa.console.federation_checks import IN_FLIGHT_RECOMMENDED, QUEUED_RECOMMENDED
from hansa.errors import UsageError
from hansa.testbed.probes.advice import LOG_SETTINGS

SEARCH_PATHS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
"""Directories outside the PATH in which packages install Mosquitto, as on Debian."""

CANDIDATE_PORTS = range(10_000, 32_768)
"""Range of chosen ports; the ephemeral ports above are used by outgoing connections."""

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
"""Seconds between SIGTERM and SIGKILL: a broker needs time to save its state."""


def find_mosquitto() -> str:
    """Return the path of Mosquitto; raise UsageError with a hint if it is not installed."""
    found = shutil.which("mosquitto") or next(
        (path for place in SEARCH_PATHS if (path := shutil.which("mosquitto", path=place))), None
    )
    if found is None:
        raise UsageError(
            "mosquitto is not installed: run apt-get install mosquitto, or what your system has"
        )
    return found


_next_ports = itertools.cycle(random.sample(CANDIDATE_PORTS, len(CANDIDATE_PORTS)))


def free_port() -> int:
    """Return a free port of loopback that was not returned recently."""
    for port in itertools.islice(_next_ports, len(CANDIDATE_PORTS)):
        with suppress(UsageError):
            require_free_port(port)
            return port
    raise UsageError(
        f"no port from {CANDIDATE_PORTS[0]} to {CANDIDATE_PORTS[-1]} of 127.0.0.1 is free"
    )


def require_free_port(port: int) -> None:
    """Raise UsageError if a port of loopback is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise UsageError(f"port {port} of 127.0.0.1 cannot be used: {error}") from error


def make_configuration(
    port: int, log_file: Path, extra_lines: tuple[str, ...] = (), is_persistent: bool = False
) -> str:
    """Return the configuration of a broker that an agent can observe."""
    lines = [
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        # Started as root, Mosquitto would switch to a user that cannot write here.
        f"user {getpass.getuser()}",
        *LOG_SETTINGS,
        f"log_dest file {log_file}",
        f"max_queued_messages {QUEUED_RECOMMENDED}",
        f"max_inflight_messages {IN_FLIGHT_RECOMMENDED}",
        f"persistence {str(is_persistent).lower()}",
        f"persistence_location {log_file.parent}/",
        *extra_lines,
    ]
    return "\n".join(lines) + "\n"


@dataclass(slots=True)
class Mosquitto:
    directory: Path
    port: int
    extra_lines: tuple[str, ...] = ()
    is_persistent: bool = False
    process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def log_file(self) -> Path:
        return self.directory / "mosquitto.log"

    @property
    def config_file(self) -> Path:
        return self.directory / "mosquitto.conf"

    async def start(self) -> None:
        """Start the broker and wait until it accepts connections."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.config_file
        path.write_text(
            make_configuration(self.port, self.log_file, self.extra_lines, self.is_persistent)
        )
        with (self.directory / "mosquitto.out").open("ab") as out:
            self.process = await spawn(out, {}, find_mosquitto(), "-c", str(path))
        await self._wait_until_listening()

    async def _wait_until_listening(self) -> None:
        assert self.process is not None
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError as error:
                if self.process.returncode is not None:
                    output = (self.directory / "mosquitto.out").read_text().strip()
                    raise UsageError(f"mosquitto ended at once: {output}") from error
                if asyncio.get_running_loop().time() > deadline:
                    raise UsageError(f"mosquitto does not answer on port {self.port}") from error
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return

    async def stop(self) -> None:
        """Stop the broker gracefully: it saves its state if it is persistent."""
        if self.process is not None:
            await terminate_process(self.process)

    async def kill(self) -> None:
        """Send SIGKILL: the broker saves nothing."""
        if self.process is not None:
            _signal(self.process, signal.SIGKILL)
            await self.process.wait()


async def spawn(
    out: IO[bytes], environment: dict[str, str], *command: str
) -> asyncio.subprocess.Process:
    """Start a process in its own process group, so that Ctrl-C does not reach it."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdout=out,
        stderr=out,
        env={**os.environ, **environment},
        process_group=0,  # a new session would be scheduled separately (autogroup), and be slower
    )


async def terminate_process(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM, and SIGKILL after STOP_TIMEOUT_S."""
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):  # it ended, and asyncio has not noticed yet
            process.send_signal(number)
