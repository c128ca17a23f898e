"""The hands that break agents: killed, hung, robbed of their memory, copied."""

import asyncio
import http.client
import os
import shutil
import signal
from collections import defaultdict
from contextlib import suppress
from typing import Any

from hansa.agent.state import KEY, StateDirectory
from hansa.errors import PromiseBroken
from hansa.journal.crash import EXIT_CODE
from hansa.protocol.membership.overlay import CONTESTED
from hansa.testbed.chaos.fault_effects import Harm, Memory
from hansa.testbed.federation import LocalFederation, LocalNode
from hansa.testbed.mosquitto import end, free_port
from hansa.testbed.shutdown import to_the_end

TWIN_TIMEOUT_S = 30.0
DOOM_TIMEOUT_S = 30.0
LEAVE_TIMEOUT_S = 15.0
"""Seconds until an agent must have stopped: its own limit is 8 s, and cores may be busy."""
RENEWAL_TIMEOUT_S = 60.0
"""Seconds until an agent with an old state must have begun a new epoch."""
POLL_S = 0.25
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
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """An agent that one starts, another does not kill before it is known to run."""

    async def kill(self, place: int) -> None:
        """Kill -9. If it had ended by itself, that is not forgotten."""
        async with self._locks[place]:
            self._harm.problems += self._ended(place)
            self._harm.note("crash", place)
            self._hanging.discard(place)
            self._dead.add(place)
            await self._signal(place, signal.SIGKILL)

    async def leave(self, place: int) -> None:
        """SIGTERM: it takes its leave, and must do so in time and without a complaint."""
        self._harm.problems += self._ended(place)
        self._harm.note("leave", place)
        self._dead.add(place)
        await self._signal(place, signal.SIGTERM)
        agent = self._federation.nodes[place].agent
        assert agent is not None
        code = await _end_of(agent, LEAVE_TIMEOUT_S, f"agent {place} does not leave")
        if code:
            raise PromiseBroken(f"agent {place} left with {code}: {self._last_words(place)}")

    async def start(self, place: int) -> None:
        """Start an agent that was killed. It is dead until it runs: this may be cancelled."""
        async with self._locks[place]:
            if place not in self._dead:
                return
            await self._signal(place, signal.SIGKILL)  # it may still be about to leave
            self._harm.mended("restart", place)
            self._interrupted(place)
            await self._federation.start_agent(place)
            self._dead.discard(place)

    async def doom(self, place: int, crash_point: str) -> None:
        """Let an agent live until it has passed a step of its work so often, and no longer."""
        await self.kill(place)
        self._harm.note("doom", place)
        self._interrupted(place)
        await self._federation.start_agent(place, HANSA_CRASH_POINT=crash_point)
        agent = self._federation.nodes[place].agent
        assert agent is not None
        try:
            late = f"agent {place} never passes step {crash_point}"
            code = await _end_of(agent, DOOM_TIMEOUT_S, late)
        finally:
            await self._signal(place, signal.SIGKILL)
        if code != EXIT_CODE:
            raise PromiseBroken(f"agent {place} ended with {code}, not at step {crash_point}")
        await self.start(place)

    def _interrupted(self, place: int) -> None:
        """It begins a new life, and with what was under way in the last."""
        self._harm.interrupt(place, asyncio.get_running_loop().time())

    async def hang(self, place: int) -> None:
        """SIGSTOP."""
        if place not in self._dead:
            self._harm.note("freeze", place)
            self._hanging.add(place)
            await self._signal(place, signal.SIGSTOP)

    async def wake(self, place: int) -> None:
        """SIGCONT."""
        if place in self._hanging:
            self._harm.mended("thaw", place)
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
        """Let an agent come back with the state of its backup: what others still owe it, and what
        it has not yet captured, is not lost by that. But all may get again what nobody had
        acknowledged when it was backed up."""
        self._forget("rejoin-old", place)
        await self.kill(place)
        now = asyncio.get_running_loop().time()
        self._harm.remember(place, now)
        for each in range(len(self._federation.nodes)):
            self._harm.interrupt(each, now, qos=2)
        await self._begin_with(place, "backup")
        await self._renewed(place)

    async def _renewed(self, place: int) -> None:
        """Wait until a copy has begun its epoch. Until then all that is published there waits at
        its broker, and would go with the agent if that came back as another node."""
        try:
            async with asyncio.timeout(RENEWAL_TIMEOUT_S):
                while not await asyncio.to_thread(self._has_renewed, place):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise PromiseBroken(f"agent {place} does not tell that it was put back") from None

    def _has_renewed(self, place: int) -> bool:
        """Whether it says so; one that is torn begins with a new epoch at once."""
        try:
            status = self._federation.nodes[place].status()
        except (OSError, http.client.HTTPException):  # it may be busy
            return False
        counters, alarms = status["counters"], status["alarms"]
        assert isinstance(counters, dict)
        assert isinstance(alarms, dict)
        return bool(counters.get("epochs renewed")) or "journal damaged" in alarms

    async def come_back_empty(self, place: int) -> None:
        """Let an agent come back without any state: as a new node."""
        await self._come_back_new("rejoin-empty", place)

    async def come_back_lowest(self, place: int) -> None:
        """Let an agent come back as a new node whose id is the lowest of all."""
        nodes = self._federation.nodes
        ids = [str((await asyncio.to_thread(node.status))["node"]) for node in nodes]
        await asyncio.to_thread(_make_key, nodes[place], min(ids))
        await self._come_back_new("rejoin-lowest", place, LOWEST)

    async def _come_back_new(self, what: str, place: int, state: str = "") -> None:
        """If this is cancelled, it is not back before all is healed."""
        self._forget(what, place)
        await self.kill(place)
        await self._begin_with(place, state)
        self._harm.remember(place, asyncio.get_running_loop().time())

    def _forget(self, what: str, place: int) -> None:
        self._harm.note(what, place)
        self._harm.forget(place, Memory.STATE, asyncio.get_running_loop().time())

    async def _begin_with(self, place: int, state: str) -> None:
        """Start an agent that was killed, with another state directory or none."""
        node = self._federation.nodes[place]
        shutil.rmtree(node.directory / "agent")
        if state:
            (node.directory / state).rename(node.directory / "agent")
        await self.start(place)
        await self._federation.wait_until_converged()

    async def clone(self, place: int) -> None:
        """Start a second agent with a copy of an agent's state. The first must raise an alarm, and
        neither may end: an agent cannot tell its copy from somebody who pretends to be it. Then
        stop the copy, as an operator would."""
        self._harm.note("clone", place)
        node = self._federation.nodes[place]
        before = await asyncio.to_thread(_contested, node)
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
            await self._wait_until_contested(node, before)
            if twin.returncode is not None:
                raise PromiseBroken(f"a copy of agent {node.name} ended with {twin.returncode}")
        finally:
            await to_the_end(end(twin))
        await self._federation.wait_until_converged()

    async def _wait_until_contested(self, node: LocalNode, before: int) -> None:
        try:
            async with asyncio.timeout(TWIN_TIMEOUT_S):
                while await asyncio.to_thread(_contested, node) <= before:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise PromiseBroken(f"agent {node.name} does not notice its copy") from None

    # ------------------------------------------------------------ all of them

    def ended(self) -> list[str]:
        """Return which agents have ended though nobody ended them, with their last words."""
        return [text for place in range(len(self._federation.nodes)) for text in self._ended(place)]

    def _ended(self, place: int) -> list[str]:
        agent = self._federation.nodes[place].agent
        if place in self._dead or agent is None or agent.returncode is None:
            return []
        return [f"agent {place} ended with {agent.returncode}: {self._last_words(place)}"]

    def _last_words(self, place: int) -> str:
        return self._federation.nodes[place].last_words()

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
        raise PromiseBroken(late) from None


def _contested(node: LocalNode) -> int:
    """Return how often an agent has met its own id, and raised an alarm for it."""
    status: Any = node.status()
    return int(status["counters"].get(CONTESTED, 0)) if "identity" in status["alarms"] else 0


def _make_key(node: LocalNode, lowest: str) -> None:
    """Make a state directory for a node whose id is below another."""
    path = node.directory / LOWEST
    shutil.rmtree(path, ignore_errors=True)
    state = StateDirectory(path)
    while f"{state.identity('', (), 1.0).node:016x}" >= lowest:
        (path / KEY).unlink()
    state.close()


def _copy(node: LocalNode, name: str) -> None:
    """Copy the state as it is at the moment; files come and go meanwhile."""
    with suppress(shutil.Error):
        shutil.copytree(node.directory / "agent", node.directory / name)
