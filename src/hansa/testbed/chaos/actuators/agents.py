"""Faults of agents: kill, suspend, stop, crash at a point, lose or restore state, clone.

An agent that is stopped or suspended is remembered, so `heal` restarts it even if a fault was
cancelled. Raises PromiseBroken if an agent does not react as it must.
"""

import asyncio
import http.client
import os
import shutil
import signal
from collections import defaultdict
from contextlib import suppress
from typing import Any

from hansa.agent.storage.state_directory import StateDirectory
from hansa.errors import PromiseBroken
from hansa.identity.keys import KEY_FILE
from hansa.journal.crash import EXIT_CODE
from hansa.protocol.membership.overlay import CONTESTED
from hansa.testbed.cancellation import run_to_completion
from hansa.testbed.chaos.fault_effects import FaultEffects, LostState
from hansa.testbed.federation import LocalFederation, LocalNode
from hansa.testbed.mosquitto import free_port, terminate_process

CLONE_TIMEOUT_S = 30.0
CRASH_POINT_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
"""Seconds until an agent must have stopped: its own limit is 8 s, and the machine may be busy."""
ROLLOVER_TIMEOUT_S = 60.0
"""Seconds until an agent with an old state must have begun a new epoch."""
POLL_S = 0.25
LOWEST_ID_DIRECTORY = "lowest"
"""State directory with the lowest id."""


class AgentActuator:
    def __init__(self, federation: LocalFederation, fault_effects: FaultEffects) -> None:
        self._federation = federation
        self._fault_effects = fault_effects
        self._stopped: set[int] = set()
        self._suspended: set[int] = set()
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Serialises start and kill of each agent, for faults that run together."""

    async def kill(self, place: int) -> None:
        """Send SIGKILL; an earlier unexpected exit is recorded as a problem."""
        async with self._locks[place]:
            self._fault_effects.problems += self._unexpected_exit(place)
            self._fault_effects.record_fault("crash", place)
            self._suspended.discard(place)
            self._stopped.add(place)
            await self._send_signal(place, signal.SIGKILL)

    async def stop_gracefully(self, place: int) -> None:
        """Send SIGTERM; raise PromiseBroken unless the agent ends in time with exit code 0."""
        self._fault_effects.problems += self._unexpected_exit(place)
        self._fault_effects.record_fault("stop", place)
        self._stopped.add(place)
        await self._send_signal(place, signal.SIGTERM)
        agent = self._federation.nodes[place].agent
        assert agent is not None
        code = await _wait_for_exit(agent, STOP_TIMEOUT_S, f"agent {place} does not stop")
        if code:
            raise PromiseBroken(f"agent {place} stopped with {code}: {self._last_log_line(place)}")

    async def start(self, place: int) -> None:
        """Start a stopped agent; it counts as stopped until this has returned."""
        async with self._locks[place]:
            if place not in self._stopped:
                return
            await self._send_signal(place, signal.SIGKILL)  # a graceful stop may still be running
            self._fault_effects.record_repair("restart", place)
            self._record_interruption(place)
            await self._federation.start_agent(place)
            self._stopped.discard(place)

    async def crash_at_point(self, place: int, crash_point: str) -> None:
        """Restart an agent that crashes at a point, as `POINT:COUNT`; then start it again."""
        await self.kill(place)
        self._fault_effects.record_fault("crash-point", place)
        self._record_interruption(place)
        await self._federation.start_agent(place, HANSA_CRASH_POINT=crash_point)
        agent = self._federation.nodes[place].agent
        assert agent is not None
        try:
            text = f"agent {place} does not reach crash point {crash_point}"
            code = await _wait_for_exit(agent, CRASH_POINT_TIMEOUT_S, text)
        finally:
            await self._send_signal(place, signal.SIGKILL)
        if code != EXIT_CODE:
            raise PromiseBroken(f"agent {place} ended with {code}, not at {crash_point}")
        await self.start(place)

    def _record_interruption(self, place: int) -> None:
        """After a restart, publications that were in flight may be delivered again."""
        self._fault_effects.record_interruption(place, asyncio.get_running_loop().time())

    async def suspend(self, place: int) -> None:
        if place not in self._stopped:
            self._fault_effects.record_fault("suspend", place)
            self._suspended.add(place)
            await self._send_signal(place, signal.SIGSTOP)

    async def resume(self, place: int) -> None:
        if place in self._suspended:
            self._fault_effects.record_repair("resume", place)
            self._suspended.discard(place)
            await self._send_signal(place, signal.SIGCONT)

    async def _send_signal(self, place: int, number: signal.Signals) -> None:
        agent = self._federation.nodes[place].agent
        if agent is None or agent.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.kill(agent.pid, number)
        if number is signal.SIGKILL:
            await agent.wait()

    # ------------------------------------------------------------ state directories

    async def back_up(self, place: int) -> None:
        """Copy the state directory of an agent while it runs."""
        node = self._federation.nodes[place]
        copy = node.directory / "backup"
        shutil.rmtree(copy, ignore_errors=True)
        await asyncio.to_thread(_copy_state, node, "backup")

    async def restore_backup(self, place: int) -> None:
        """Restart an agent with its backup. Publications that are pending for it, or not captured
        yet, must not be lost. Publications that were unacknowledged at the time of the backup may
        be delivered again, everywhere."""
        self._begin_state_loss("rejoin-old", place)
        await self.kill(place)
        now = asyncio.get_running_loop().time()
        self._fault_effects.end_loss(place, now)
        for each in range(len(self._federation.nodes)):
            self._fault_effects.record_interruption(each, now, qos=2)
        await self._start_with_state(place, "backup")
        await self._wait_for_rollover(place)

    async def _wait_for_rollover(self, place: int) -> None:
        """Wait until the restored agent has begun a new epoch. Until then publications wait at its
        broker, and would be lost if the agent were replaced by a new node."""
        try:
            async with asyncio.timeout(ROLLOVER_TIMEOUT_S):
                while not await asyncio.to_thread(self._has_rolled_over, place):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise PromiseBroken(f"agent {place} does not report the restored state") from None

    def _has_rolled_over(self, place: int) -> bool:
        """Whether the agent reports a new epoch; with a damaged journal it starts with one."""
        try:
            status = self._federation.nodes[place].status()
        except (OSError, http.client.HTTPException):  # it may be busy
            return False
        counters, alarms = status["counters"], status["alarms"]
        assert isinstance(counters, dict)
        assert isinstance(alarms, dict)
        return bool(counters.get("epoch rollovers")) or "journal damaged" in alarms

    async def rejoin_empty(self, place: int) -> None:
        """Restart an agent without state: as a new node."""
        await self._rejoin_as_new("rejoin-empty", place)

    async def rejoin_with_lowest_id(self, place: int) -> None:
        """Restart an agent as a new node with the lowest id of all."""
        nodes = self._federation.nodes
        ids = [str((await asyncio.to_thread(node.status))["node"]) for node in nodes]
        await asyncio.to_thread(_make_lower_id_state, nodes[place], min(ids))
        await self._rejoin_as_new("rejoin-lowest", place, LOWEST_ID_DIRECTORY)

    async def _rejoin_as_new(self, what: str, place: int, state: str = "") -> None:
        # If this is cancelled, the loss lasts until `heal`.
        self._begin_state_loss(what, place)
        await self.kill(place)
        await self._start_with_state(place, state)
        self._fault_effects.end_loss(place, asyncio.get_running_loop().time())

    def _begin_state_loss(self, what: str, place: int) -> None:
        self._fault_effects.record_fault(what, place)
        self._fault_effects.begin_loss(
            place, LostState.STATE_DIRECTORY, asyncio.get_running_loop().time()
        )

    async def _start_with_state(self, place: int, state: str) -> None:
        """Start a killed agent with another state directory, or an empty one."""
        node = self._federation.nodes[place]
        shutil.rmtree(node.directory / "agent")
        if state:
            (node.directory / state).rename(node.directory / "agent")
        await self.start(place)
        await self._federation.wait_until_converged()

    async def clone(self, place: int) -> None:
        """Start a second agent with a copy of the state. The first must raise an alarm, and neither
        may end, because an agent cannot distinguish a clone from an impostor. Then stop the clone,
        as an operator would."""
        self._fault_effects.record_fault("clone", place)
        node = self._federation.nodes[place]
        before = await asyncio.to_thread(_contested, node)
        shutil.rmtree(node.directory / "clone", ignore_errors=True)
        await asyncio.to_thread(_copy_state, node, "clone")
        clone_process = await self._federation.spawn_agent(
            place,
            HANSA_STATE=str(node.directory / "clone"),
            HANSA_BROKER_PORT=str(free_port()),  # without a broker: the clone has no clients
            HANSA_LINK_PORT="0",
            HANSA_ADMIN_PORT="0",
        )
        try:
            await self._wait_until_contested(node, before)
            if clone_process.returncode is not None:
                raise PromiseBroken(
                    f"the clone of agent {node.name} ended with {clone_process.returncode}"
                )
        finally:
            await run_to_completion(terminate_process(clone_process))
        await self._federation.wait_until_converged()

    async def _wait_until_contested(self, node: LocalNode, before: int) -> None:
        try:
            async with asyncio.timeout(CLONE_TIMEOUT_S):
                while await asyncio.to_thread(_contested, node) <= before:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise PromiseBroken(f"agent {node.name} does not notice its clone") from None

    # ------------------------------------------------------------ all agents

    def unexpected_exits(self) -> list[str]:
        """Return the agents that ended without being stopped, with their last log lines."""
        return [
            text
            for place in range(len(self._federation.nodes))
            for text in self._unexpected_exit(place)
        ]

    def _unexpected_exit(self, place: int) -> list[str]:
        agent = self._federation.nodes[place].agent
        if place in self._stopped or agent is None or agent.returncode is None:
            return []
        return [f"agent {place} ended with {agent.returncode}: {self._last_log_line(place)}"]

    def _last_log_line(self, place: int) -> str:
        return self._federation.nodes[place].last_log_line()

    async def heal(self) -> None:
        """Resume and restart all agents."""
        for place in list(self._suspended):
            await self.resume(place)
        for place in list(self._stopped):
            await self.start(place)


async def _wait_for_exit(
    agent: asyncio.subprocess.Process, seconds: float, timeout_text: str
) -> int:
    """Wait for the exit code of an agent; raise PromiseBroken with `timeout_text` at a timeout."""
    try:
        async with asyncio.timeout(seconds):
            return await agent.wait()
    except TimeoutError:
        raise PromiseBroken(timeout_text) from None


def _contested(node: LocalNode) -> int:
    """Return how often an agent met its own id, 0 unless it raises the alarm."""
    status: Any = node.status()
    return (
        int(status["counters"].get(CONTESTED, 0)) if "incarnation raised" in status["alarms"] else 0
    )


def _make_lower_id_state(node: LocalNode, lowest: str) -> None:
    """Make a state directory whose node id is below `lowest`."""
    path = node.directory / LOWEST_ID_DIRECTORY
    shutil.rmtree(path, ignore_errors=True)
    state = StateDirectory(path)
    while f"{state.start_incarnation('', (), 1.0).node:016x}" >= lowest:
        (path / KEY_FILE).unlink()
    state.close()


def _copy_state(node: LocalNode, name: str) -> None:
    with suppress(shutil.Error):  # the agent creates and deletes files meanwhile
        shutil.copytree(node.directory / "agent", node.directory / name)
