"""The hands that break agents: killed, hung, robbed of their memory, copied."""

import asyncio
import os
import shutil
import signal
from contextlib import suppress

from hansa.agent.state import StateDirectory
from hansa.chaos.harm import Harm
from hansa.errors import UsageError
from hansa.journal.crash import EXIT_CODE
from hansa.local.federation import LocalFederation, LocalNode
from hansa.local.mosquitto import end, free_port

TWIN_TIMEOUT_S = 30.0
DOOM_TIMEOUT_S = 30.0
LOWEST = "lowest"
"""The directory of a node that comes late."""


class Agents:
    """All agents of a federation; those that are not well are remembered."""

    def __init__(self, federation: LocalFederation, harm: Harm) -> None:
        """Break nothing yet."""
        self._federation = federation
        self._harm = harm
        self._dead: set[int] = set()
        self._hanging: set[int] = set()

    async def kill(self, place: int) -> None:
        """Kill -9."""
        self._harm.note("crash", place)
        self._harm.interruptions[place] += 1
        self._hanging.discard(place)
        self._dead.add(place)
        await self._signal(place, signal.SIGKILL)

    async def start(self, place: int) -> None:
        """Start an agent that was killed. It is dead until it runs: this may be cancelled."""
        if place in self._dead:
            self._harm.note("restart", place)
            await self._federation.start_agent(place)
            self._dead.discard(place)

    async def doom(self, place: int, crash_point: str) -> None:
        """Let an agent live until it has passed a step of its work so often, and no longer."""
        await self.kill(place)
        self._harm.note("doom", place)
        self._harm.interruptions[place] += 1
        await self._federation.start_agent(place, HANSA_CRASH_POINT=crash_point)
        agent = self._federation.nodes[place].agent
        assert agent is not None
        try:
            late = f"agent {place} never passes step {crash_point}"
            code = await _end_of(agent, DOOM_TIMEOUT_S, late)
        finally:
            await self._signal(place, signal.SIGKILL)
        if code != EXIT_CODE:
            raise UsageError(f"agent {place} ended with {code}, not at step {crash_point}")
        await self.start(place)

    async def hang(self, place: int) -> None:
        """SIGSTOP."""
        if place not in self._dead:
            self._harm.note("freeze", place)
            self._hanging.add(place)
            await self._signal(place, signal.SIGSTOP)

    async def wake(self, place: int) -> None:
        """SIGCONT."""
        if place in self._hanging:
            self._harm.note("thaw", place)
            self._hanging.discard(place)
            await self._signal(place, signal.SIGCONT)

    async def _signal(self, place: int, number: signal.Signals) -> None:
        agent = self._federation.nodes[place].agent
        if agent is None or agent.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.kill(agent.pid, number)
        if number is signal.SIGKILL:
            await agent.wait()

    # ------------------------------------------------------------ what it remembers

    async def back_up(self, place: int) -> None:
        """Copy an agent's state directory while it runs, as somebody might who means well."""
        node = self._federation.nodes[place]
        copy = node.directory / "backup"
        shutil.rmtree(copy, ignore_errors=True)
        await asyncio.to_thread(_copy, node, "backup")

    async def put_back(self, place: int) -> None:
        """Let an agent come back with the state of its backup."""
        await self._come_back(place, "rejoin-old", "backup")

    async def come_back_empty(self, place: int) -> None:
        """Let an agent come back without any state: as a new node."""
        await self._come_back(place, "rejoin-empty")

    async def come_back_lowest(self, place: int) -> None:
        """Let an agent come back as a new node whose id is the lowest of all."""
        nodes = self._federation.nodes
        ids = [str((await asyncio.to_thread(node.status))["node"]) for node in nodes]
        await asyncio.to_thread(_make_key, nodes[place], min(ids))
        await self._come_back(place, "rejoin-lowest", LOWEST)

    async def _come_back(self, place: int, what: str, copy: str = "") -> None:
        """If this is cancelled, it is not back before all is healed."""
        loop = asyncio.get_running_loop()
        node = self._federation.nodes[place]
        self._harm.note(what, place)
        self._harm.forget(place, loop.time())
        await self.kill(place)
        shutil.rmtree(node.directory / "agent")
        if copy:
            (node.directory / copy).rename(node.directory / "agent")
        await self.start(place)
        await self._federation.wait_until_converged()
        self._harm.remember(place, loop.time())

    async def clone(self, place: int) -> None:
        """Start a second agent with a copy of an agent's state: it has to notice, and stop."""
        self._harm.note("clone", place)
        node = self._federation.nodes[place]
        shutil.rmtree(node.directory / "twin", ignore_errors=True)
        await asyncio.to_thread(_copy, node, "twin")
        twin = await self._federation.spawn_agent(
            place,
            HANSA_STATE=str(node.directory / "twin"),
            HANSA_BROKER_PORT=str(free_port()),  # nobody is there: it has no clients of its own
            HANSA_LINK_PORT="0",
            HANSA_ADMIN_PORT="0",
        )
        try:
            late = f"a copy of agent {node.name} does not stop"
            code = await _end_of(twin, TWIN_TIMEOUT_S, late)
        finally:
            await end(twin)
        if code != 1:
            raise UsageError(f"a copy of agent {node.name} ended with {code}: {node.last_words()}")

    # ------------------------------------------------------------ all of them

    def ended(self) -> list[str]:
        """Return which agents have ended though nobody killed them, with their last words."""
        return [
            f"agent {node.name} ended: {node.last_words()}"
            for place, node in enumerate(self._federation.nodes)
            if place not in self._dead and node.agent and node.agent.returncode is not None
        ]

    async def heal(self) -> None:
        """Let all of them run."""
        for place in list(self._hanging):
            await self.wake(place)
        for place in list(self._dead):
            await self.start(place)


async def _end_of(agent: asyncio.subprocess.Process, seconds: float, late: str) -> int:
    """Wait for the end of an agent and return its code; complain if it does not end in time."""
    try:
        async with asyncio.timeout(seconds):
            return await agent.wait()
    except TimeoutError:
        raise UsageError(late) from None


def _make_key(node: LocalNode, lowest: str) -> None:
    """Make a state directory for a node whose id is below another."""
    path = node.directory / LOWEST
    shutil.rmtree(path, ignore_errors=True)
    state = StateDirectory(path)
    while f"{state.identity('', (), 1.0).node:016x}" >= lowest:
        state.rekey()
    state.close()


def _copy(node: LocalNode, name: str) -> None:
    """Copy the state as it is at the moment; files come and go meanwhile."""
    with suppress(shutil.Error):
        shutil.copytree(node.directory / "agent", node.directory / name)
