"""The hands that break brokers, their memory, and the way from an agent to its broker."""

import asyncio
import http.client
import random
from collections.abc import Awaitable, Callable

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.errors import PromiseBroken
from hansa.mqtt import effects
from hansa.mqtt.options import ConnectOptions
from hansa.testbed.chaos.fault_effects import FaultEffects, LostState
from hansa.testbed.federation import LocalFederation
from hansa.testbed.link_conditions import LinkConditions
from hansa.testbed.mosquitto import Mosquitto
from hansa.testbed.relay import Relay
from hansa.testbed.shutdown import run_to_completion

POLL_S = 0.05
REPORT_TIMEOUT_S = 60.0
"""Seconds until an agent must have told that its broker has forgotten it."""

RESTRICTIVE_LINES = ("max_inflight_messages 1", "max_keepalive 10", "max_packet_size 2000")
"""A broker that takes one publication at a time, and wants to hear from its clients often."""

DATABASE_FILE = "mosquitto.db"
SESSION_S = 86_400


class BrokerFaults:
    """All brokers of a federation."""

    def __init__(
        self,
        federation: LocalFederation,
        fault_effects: FaultEffects,
        wait_for_clients: Callable[[int], Awaitable[None]],
    ) -> None:
        """Break nothing yet; `clients_back` waits until the clients of a broker are there again."""
        self._federation = federation
        self._fault_effects = fault_effects
        self._wait_for_clients = wait_for_clients
        self._stopped: set[int] = set()
        self._degraded: set[int] = set()

    def address(self, place: int) -> BrokerAddress:
        """Where a broker is."""
        return BrokerAddress("127.0.0.1", self._federation.nodes[place].broker.port)

    async def restart(self, place: int) -> None:
        """Stop a broker gently and start it again: it keeps its sessions."""
        self._fault_effects.record_fault("restart-broker", place)
        await self._stop(place)
        await self._start(place)

    async def _stop(self, place: int, kill: bool = False) -> None:
        """It is down until it runs again: this may be cancelled anywhere. Then its agent publishes
        again what was under way, and so does the broker to its own clients."""
        self._stopped.add(place)
        broker = self._mosquitto(place)
        await (broker.kill() if kill else broker.stop())

    async def _start(self, place: int) -> None:
        for _ in ("agent", "broker"):
            self._record_interruption(place)
        await self._mosquitto(place).start()
        self._stopped.discard(place)

    # ------------------------------------------------------------ memory

    async def kill(self, place: int) -> None:
        """Kill -9: what it had not saved, it forgets."""
        self._fault_effects.record_fault("kill-broker", place)

        async def kill() -> None:
            await self._stop(place, kill=True)
            await self._start(place)

        await self._lose_state(place, LostState.BROKER_SESSIONS, kill)

    async def clear_database(self, place: int) -> None:
        """Stop a broker, throw away what it saved, start it again."""
        self._fault_effects.record_fault("empty-broker", place)

        async def empty() -> None:
            await self._stop(place)
            (self._mosquitto(place).directory / DATABASE_FILE).unlink(missing_ok=True)
            await self._start(place)

        await self._lose_state(place, LostState.BROKER_SESSIONS, empty)

    async def end_agent_session(self, place: int) -> None:
        """End the agent's session: connect by its client id, and leave without one."""
        self._fault_effects.record_fault("expel", place)

        async def expel() -> None:
            arrived = asyncio.Event()

            def told(effect: effects.Effect) -> None:
                if isinstance(effect, effects.Connected):
                    arrived.set()

            intruder = await self._connect_intruder(place, told, keeps_session=False)
            try:
                await arrived.wait()
            finally:
                await run_to_completion(intruder.stop())

        await self._lose_state(place, LostState.AGENT_SESSION, expel)

    async def take_over_session(self, place: int, seconds: float) -> None:
        """Connect by the agent's client id, again and again: each time the broker ends the other
        connection. The session goes on."""
        self._fault_effects.record_fault("take-over", place)

        def told(effect: effects.Effect) -> None:
            if isinstance(effect, effects.Connected):
                self._record_interruption(place)

        intruder = await self._connect_intruder(place, told, keeps_session=True)
        try:
            await asyncio.sleep(seconds)
        finally:
            await run_to_completion(intruder.stop())

    async def _connect_intruder(
        self, place: int, on_effect: Callable[[effects.Effect], None], keeps_session: bool
    ) -> Connection:
        node = (await self._status(place))["node"]
        options = ConnectOptions(
            client_id=f"hansa-{node}-agent",
            clean_start=not keeps_session,
            session_expiry=SESSION_S if keeps_session else 0,
        )
        intruder = Connection(self.address(place), options, on_effect, random.Random(place))
        intruder.start()
        return intruder

    async def _lose_state(
        self, place: int, lost_state: LostState, lose: Callable[[], Awaitable[None]]
    ) -> None:
        """Let a broker lose sessions: its agent has to tell, and what was published then may go. If
        this is cancelled, that lasts until all is healed."""
        loop = asyncio.get_running_loop()
        before = await self._lost_sessions(place)
        self._fault_effects.begin_loss(place, lost_state, loop.time())
        await lose()
        await self._wait_for_report(place, before)
        await self._wait_for_clients(place)
        await self._federation.wait_until_converged()
        self._fault_effects.end_loss(place, loop.time())

    async def _wait_for_report(self, place: int, before: int) -> None:
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                while await self._lost_sessions(place) <= before:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise PromiseBroken(f"agent {place} does not tell that its session was lost") from None

    async def _lost_sessions(self, place: int) -> int:
        counters = (await self._status(place))["counters"]
        assert isinstance(counters, dict)
        return int(counters.get("broker sessions lost", 0))

    async def _status(self, place: int) -> dict[str, object]:
        """Ask an agent, which may just have been started."""
        deadline = asyncio.get_running_loop().time() + REPORT_TIMEOUT_S
        while True:
            try:
                return await asyncio.to_thread(self._federation.nodes[place].status)
            except (OSError, http.client.HTTPException) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise PromiseBroken(f"agent {place} does not answer: {error}") from error
                await asyncio.sleep(POLL_S)

    # ------------------------------------------------------------ manners

    async def reconfigure(self, place: int, *lines: str) -> None:
        """Start a broker again with other lines in its configuration."""
        self._fault_effects.record_fault("reconfigure", place)
        self._mosquitto(place).extra_lines = lines
        await self.restart(place)

    def slow_down(self, place: int, delay_s: float) -> None:
        """Let everything between an agent and its broker take its time, a new CONNACK first."""
        self._fault_effects.record_fault("slow-broker", place)
        self._broker_relay(place).conditions = LinkConditions(delay_s)
        self._reset_connection(place)

    def refuse(self, place: int) -> None:
        """Let the broker break off with its agent, and refuse it."""
        self._fault_effects.record_fault("refuse", place)
        self._broker_relay(place).cut()
        self._reset_connection(place)

    def _reset_connection(self, place: int) -> None:
        self._broker_relay(place).reset()
        self._record_interruption(place)

    def _record_interruption(self, place: int) -> None:
        self._fault_effects.record_interruption(place, asyncio.get_running_loop().time())

    def admit(self, place: int) -> None:
        """Undo `slow` and `refuse`."""
        self._fault_effects.record_repair("admit", place)
        gate = self._broker_relay(place)
        gate.conditions = LinkConditions()
        gate.restore()
        self._degraded.discard(place)

    def _broker_relay(self, place: int) -> Relay:
        self._degraded.add(place)
        return self._federation.broker_relays[place]

    def _mosquitto(self, place: int) -> Mosquitto:
        broker = self._federation.nodes[place].broker
        assert isinstance(broker, Mosquitto)
        return broker

    async def heal(self) -> None:
        """Let all of them run, as they were."""
        for place in list(self._degraded):
            self.admit(place)
        for place in list(self._stopped):
            await self._mosquitto(place).stop()
            await self._start(place)
        for place in range(len(self._federation.nodes)):
            if self._mosquitto(place).extra_lines:
                await self.reconfigure(place)
