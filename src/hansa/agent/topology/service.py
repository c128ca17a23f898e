"""All that decides about an agent's links beyond its file, put together and run beside it."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hansa.agent.broker.connection import Connection
from hansa.agent.driver import Driver
from hansa.agent.links.link import Address
from hansa.agent.links.link_manager import Exchange
from hansa.agent.settings import AgentSettings
from hansa.agent.state import StateDirectory
from hansa.agent.topology.broker_probe import BrokerProbe
from hansa.agent.topology.http import ManagerRefused, ManagerSilent
from hansa.agent.topology.manager_client import ManagerAddress, ManagerClient, Told, Voice
from hansa.errors import UsageError
from hansa.mqtt import effects
from hansa.protocol.model import Identity, NodeId
from hansa.protocol.status_snapshot import Chart
from hansa.topology.healing import name_of
from hansa.topology.planner import Limits
from hansa.topology.steering import Steering

log = logging.getLogger("hansa.agent")

LOOK_S = 1.0
LOOK_ALONE_S = 0.25
"""Seconds between two looks, and while there is no neighbour at all."""

WATCH_S = 0.25
"""Seconds between two looks at whether neighbours have changed: the manager hears of it at once."""

SAVE_S = 5.0

PROBE_TOPIC = "$hansa/probe"

ANNOUNCEMENTS = "federated_topology_ann"
"""Where the manager says, as in the paper, that something has changed. Anybody may publish there:
so it is a reason to ask the manager, and no more."""

Connecting = Callable[[Callable[[effects.Effect], None]], Connection]


async def adopt(settings: AgentSettings, state: StateDirectory) -> AgentSettings:
    """Return the settings with what the manager says for all, or said last time."""
    topology = settings.topology
    if not topology.manager:
        return settings
    voice = Voice(dict, _nothing, lambda told: None)
    try:
        manager = ManagerAddress(topology.manager, topology.token)
        shared = await ManagerClient(manager, voice).settings()
        redundancy = shared.redundancy
        state.remember_redundancy(redundancy)
    except (ManagerSilent, ManagerRefused, UsageError):
        redundancy = state.redundancy() or settings.protocol.redundancy
    return replace(settings, protocol=replace(settings.protocol, redundancy=redundancy))


async def _nothing() -> dict[str, Any]:
    return {}


class _Links:
    """The agent's links, as its steering sees them."""

    def __init__(self, chart: Chart, driver: Driver, exchange: Exchange) -> None:
        self._chart = chart
        self._driver = driver
        self._exchange = exchange

    def keep(self, address: str) -> None:
        self._exchange.keep(address, _note_failure)

    def forget(self, address: str) -> None:
        self._exchange.forget(address)

    def attempt(self, address: str) -> None:
        self._exchange.attempt(address, _note_failure)

    def close(self, node: NodeId, reason: str) -> None:
        link = self._chart.neighbours.get(node)
        if link is not None and (connection := self._driver.links.get(link.id)) is not None:
            connection.close(reason)


def _note_failure(address: Address, reason: str) -> None:
    log.debug("not reached address=%s reason=%r", address, reason)


class Guidance:
    """Runs beside an agent for as long as that runs; does nothing unless the settings say so."""

    def __init__(
        self,
        settings: AgentSettings,
        state: StateDirectory,
        identity: Identity,
        driver: Driver,
        exchange: Exchange,
        connecting: Connecting,
    ) -> None:
        """Put the parts together."""
        self._settings = settings
        self._state = state
        self._identity = identity
        self._chart = driver.node.chart
        self._chance = random.Random()  # for back-off, not for secrets
        topology = settings.topology
        self._steering = Steering(
            self._chart,
            identity.node,
            _Links(self._chart, driver, exchange),
            Limits(degree_max=topology.degree_max),
            self._chance,
        )
        self._has_ended = False
        self._client: ManagerClient | None = None
        self._probe: BrokerProbe | None = None
        if topology.manager:
            listens = not topology.announcements
            voice = Voice(self._introduce, self._report, self._told, listens)
            manager = ManagerAddress(topology.manager, topology.token, state.manager_secret())
            self._client = ManagerClient(manager, voice)
            if settings.broker.observer != "embedded":
                topic = f"{PROBE_TOPIC}/{name_of(identity.node)}"
                self._probe = BrokerProbe(connecting, topic)
                if topology.announcements:
                    self._probe.heard[ANNOUNCEMENTS] = self._client.report_soon

    async def run(self) -> None:
        """Keep in touch with the manager, look after links, remember."""
        if not self._settings.topology.is_on:
            return
        if not self._steering.restore(self._state.topology()):
            log.warning("saved topology cannot be read, it is learned again")
        if self._probe:
            self._probe.connection.keep()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._look())
                group.create_task(self._save())
                if self._client:
                    group.create_task(self._client.run())
                    group.create_task(self._watch(self._client))
        finally:
            self._has_ended = True
            if self._probe:
                await self._probe.connection.stop()

    async def _look(self) -> None:
        while True:
            pause = LOOK_S if self._chart.neighbours else LOOK_ALONE_S
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.0))
            planning = self._client is None or not self._client.in_contact
            before = self._steering.healed
            self._steering.look(asyncio.get_running_loop().time(), planning)
            if self._steering.healed > before:
                log.info("links dialled to heal the topology count=%d", self._steering.healed)

    async def _watch(self, client: ManagerClient) -> None:
        before: set[NodeId] = set()
        while True:
            now = set(self._chart.neighbours)
            if now != before:
                client.report_soon()
            before = now
            await asyncio.sleep(WATCH_S)

    async def _save(self) -> None:
        before = b""
        while True:
            await asyncio.sleep(SAVE_S)
            data = self._steering.remembered()
            if data != before:
                before = data
                await asyncio.to_thread(self._remember, data)

    def _remember(self, data: bytes) -> None:
        try:
            self._state.remember_topology(data)
        except UsageError:
            return  # a full disk has its alarm elsewhere; a restart will know less

    # ------------------------------------------------------------ what the manager is told

    def _introduce(self) -> dict[str, Any]:
        settings, topology = self._settings, self._settings.topology
        broker = f"tcp://{Address(settings.broker.host, settings.broker.port)}"
        return {
            "ip": topology.advertised_broker or broker,
            "link": self._identity.addresses[0],
            "node": name_of(self._identity.node),
            "name": settings.title,
            "capacity": self._identity.capacity,
            "tags": list(topology.tags),
            "announcements": topology.announcements,
        }

    async def _report(self) -> dict[str, Any]:
        latency = await self._probe.measure() if self._probe else None
        near = [
            {"node": name_of(node), "rtt_ms": None if link.rtt is None else link.rtt * 1000}
            for node, link in self._chart.neighbours.items()
        ]
        members = [name_of(node) for node in self._chart.reachable]
        return {"latency_ms": latency, "neighbours": near, "members": members}

    def _told(self, told: Told) -> None:
        near = [each for each in told.neighbors if each.node]  # others are not of our kind
        self._steering.assign(
            {each.node: each.link if each.dial else "" for each in near},
            {each.node: each.link for each in near if each.link},
            told.settings.degree_max,
        )

    def status(self) -> dict[str, object]:
        """Return what an operator may want to see."""
        problem = self._client.problem if self._client else ""
        return {
            "manager": self._settings.topology.manager,
            "problem": "ended by a fault, see the log" if self._has_ended else problem,
            **self._steering.status(),
        }
