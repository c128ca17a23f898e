"""Faults of brokers: restart, lost sessions, take-overs, and a degraded connection to the agent.

A broker that is stopped or degraded is remembered, so `heal` restores it even if a fault was
cancelled. Raises PromiseBroken if an agent does not report a lost session.
"""

import asyncio
import http.client
import random
from collections.abc import Awaitable, Callable

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.errors import PromiseBroken
from hansa.mqtt import effects
from hansa.mqtt.options import ConnectOptions
from hansa.testbed.cancellation import run_to_completion
from hansa.testbed.chaos.fault_effects import FaultEffects, LostState
from hansa.testbed.federation import LocalFederation
from hansa.testbed.link_conditions import LinkConditions
from hansa.testbed.mosquitto import Mosquitto
from hansa.testbed.relay import Relay

POLL_S = 0.05
REPORT_TIMEOUT_S = 60.0
"""Seconds until an agent must have reported that its broker lost the session."""

RESTRICTIVE_LINES = ("max_inflight_messages 1", "max_keepalive 10", "max_packet_size 2000")
"""A configuration with one message in flight, short keep-alive and small packets."""

DATABASE_FILE = "mosquitto.db"
SESSION_S = 86_400


class BrokerActuator:
    def __init__(
        self,
        federation: LocalFederation,
        fault_effects: FaultEffects,
        wait_for_clients: Callable[[int], Awaitable[None]],
    ) -> None:
        """`wait_for_clients` waits until the clients of a broker have reconnected."""
        self._federation = federation
        self._fault_effects = fault_effects
        self._wait_for_clients = wait_for_clients
        self._stopped: set[int] = set()
        self._degraded: set[int] = set()

    def address(self, place: int) -> BrokerAddress:
        return BrokerAddress("127.0.0.1", self._federation.nodes[place].broker.port)

    async def restart(self, place: int) -> None:
        """Stop a broker gracefully and start it again: it keeps its sessions."""
        self._fault_effects.record_fault("restart-broker", place)
        await self._stop(place)
        await self._start(place)

    async def _stop(self, place: int, kill: bool = False) -> None:
        self._stopped.add(place)  # before the first await: this may be cancelled
        broker = self._mosquitto(place)
        await (broker.kill() if kill else broker.stop())

    async def _start(self, place: int) -> None:
        for _ in ("agent", "broker"):  # both resend what was in flight
            self._record_interruption(place)
        await self._mosquitto(place).start()
        self._stopped.discard(place)

    # ------------------------------------------------------------ lost sessions

    async def kill(self, place: int) -> None:
        """Send SIGKILL and restart: the broker loses what it had not saved."""
        self._fault_effects.record_fault("kill-broker", place)

        async def kill() -> None:
            await self._stop(place, kill=True)
            await self._start(place)

        await self._lose_state(place, LostState.BROKER_SESSIONS, kill)

    async def clear_database(self, place: int) -> None:
        """Stop a broker, delete its database, and start it again."""
        self._fault_effects.record_fault("empty-broker", place)

        async def empty() -> None:
            await self._stop(place)
            (self._mosquitto(place).directory / DATABASE_FILE).unlink(missing_ok=True)
            await self._start(place)

        await self._lose_state(place, LostState.BROKER_SESSIONS, empty)

    async def end_agent_session(self, place: int) -> None:
        """End the agent's session: connect with its client id and a clean start."""
        self._fault_effects.record_fault("end-session", place)

        async def end_session() -> None:
            connected = asyncio.Event()

            def on_effect(effect: effects.Effect) -> None:
                if isinstance(effect, effects.Connected):
                    connected.set()

            intruder = await self._connect_intruder(place, on_effect, keeps_session=False)
            try:
                await connected.wait()
            finally:
                await run_to_completion(intruder.stop())

        await self._lose_state(place, LostState.AGENT_SESSION, end_session)

    async def take_over_session(self, place: int, seconds: float) -> None:
        """Connect repeatedly with the agent's client id; each time the broker disconnects the other
        client. The session continues."""
        self._fault_effects.record_fault("take-over", place)

        def on_effect(effect: effects.Effect) -> None:
            if isinstance(effect, effects.Connected):
                self._record_interruption(place)

        intruder = await self._connect_intruder(place, on_effect, keeps_session=True)
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
        """Let a broker lose sessions, and wait until the agent has reported it and all clients are
        back. Publications of that time may be lost. If this is cancelled, the loss lasts until
        `heal`."""
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
            raise PromiseBroken(f"agent {place} does not report its lost session") from None

    async def _lost_sessions(self, place: int) -> int:
        counters = (await self._status(place))["counters"]
        assert isinstance(counters, dict)
        return int(counters.get("broker sessions lost", 0))

    async def _status(self, place: int) -> dict[str, object]:
        """Fetch the status of an agent; retry, because it may have just been started."""
        deadline = asyncio.get_running_loop().time() + REPORT_TIMEOUT_S
        while True:
            try:
                return await asyncio.to_thread(self._federation.nodes[place].status)
            except (OSError, http.client.HTTPException) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise PromiseBroken(f"agent {place} does not answer: {error}") from error
                await asyncio.sleep(POLL_S)

    # ------------------------------------------------------------ degraded brokers

    async def reconfigure(self, place: int, *lines: str) -> None:
        """Restart a broker with these extra lines in its configuration."""
        self._fault_effects.record_fault("reconfigure", place)
        self._mosquitto(place).extra_lines = lines
        await self.restart(place)

    def slow_down(self, place: int, delay_s: float) -> None:
        """Delay everything between an agent and its broker, from a new CONNECT on."""
        self._fault_effects.record_fault("slow-broker", place)
        self._broker_relay(place).conditions = LinkConditions(delay_s)
        self._reset_connection(place)

    def refuse(self, place: int) -> None:
        """Reset the connection of the agent, and refuse new ones."""
        self._fault_effects.record_fault("refuse", place)
        self._broker_relay(place).cut()
        self._reset_connection(place)

    def _reset_connection(self, place: int) -> None:
        self._broker_relay(place).reset()
        self._record_interruption(place)

    def _record_interruption(self, place: int) -> None:
        self._fault_effects.record_interruption(place, asyncio.get_running_loop().time())

    def admit(self, place: int) -> None:
        """Undo `slow_down` and `refuse`."""
        self._fault_effects.record_repair("admit", place)
        relay = self._broker_relay(place)
        relay.conditions = LinkConditions()
        relay.restore()
        self._degraded.discard(place)

    def _broker_relay(self, place: int) -> Relay:
        self._degraded.add(place)
        return self._federation.broker_relays[place]

    def _mosquitto(self, place: int) -> Mosquitto:
        broker = self._federation.nodes[place].broker
        assert isinstance(broker, Mosquitto)
        return broker

    async def heal(self) -> None:
        """Restart all brokers with their normal configuration and connection."""
        for place in list(self._degraded):
            self.admit(place)
        for place in list(self._stopped):
            await self._mosquitto(place).stop()
            await self._start(place)
        for place in range(len(self._federation.nodes)):
            if self._mosquitto(place).extra_lines:
                await self.reconfigure(place)
