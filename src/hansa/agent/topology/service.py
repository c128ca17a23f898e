"""Manager client, healing and neighbour selection, assembled and run beside the agent."""

import asyncio
import logging
import random
from dataclasses import replace
from typing import Any

from hansa.agent.broker.connection import ConnectionFactory
from hansa.agent.driver import Driver
from hansa.agent.links.link import Address
from hansa.agent.links.link_manager import LinkManager
from hansa.agent.settings import AgentSettings
from hansa.agent.storage.state_directory import StateDirectory
from hansa.agent.topology.broker_probe import BrokerProbe
from hansa.agent.topology.http import ManagerRefused, ManagerUnavailable
from hansa.agent.topology.manager_client import (
    ManagerAddress,
    ManagerCallbacks,
    ManagerClient,
    TopologyAssignment,
    contexts_of,
    stored_contexts,
)
from hansa.errors import UsageError
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import Identity, NodeId
from hansa.topology.healing import node_name
from hansa.topology.neighbour_selector import NeighbourSelector
from hansa.topology.planner import PlannerLimits

log = logging.getLogger("hansa.agent")

HEAL_INTERVAL_S = 1.0
HEAL_INTERVAL_ALONE_S = 0.25
"""Seconds between two checks while there is no neighbour."""

NEIGHBOUR_POLL_S = 0.25
"""Seconds between two checks whether neighbours have changed; changes are reported at once."""

SAVE_INTERVAL_S = 5.0

PROBE_TOPIC = "$hansa/probe"

ANNOUNCEMENT_TOPIC = "federated_topology_ann"
"""Topic on which the manager announces changes, as in Bevilaqua 2023. Every client may publish
there, so an announcement only triggers a request to the manager."""


async def apply_manager_settings(settings: AgentSettings, state: StateDirectory) -> AgentSettings:
    """Return the settings with those of the manager, or the last known ones."""
    topology = settings.topology
    if not topology.manager:
        return settings
    callbacks = ManagerCallbacks(dict, _empty_report, lambda _: None)
    contexts = stored_contexts(settings.certificate_directory, state.path)
    try:
        manager = ManagerAddress(topology.manager, topology.token, contexts=contexts)
        shared = await ManagerClient(manager, callbacks).fetch_settings()
        redundancy = shared.redundancy
        state.save_redundancy(redundancy)
    except (ManagerUnavailable, ManagerRefused, UsageError):
        redundancy = state.load_redundancy() or settings.protocol.redundancy
    return replace(settings, protocol=replace(settings.protocol, redundancy=redundancy))


async def _empty_report() -> dict[str, Any]:
    return {}


class _AgentLinks:
    """The agent's links, as the neighbour selector sees them."""

    def __init__(
        self, membership: MembershipView, driver: Driver, link_manager: LinkManager
    ) -> None:
        self._membership = membership
        self._driver = driver
        self._link_manager = link_manager

    def keep_dialling(self, address: str) -> None:
        self._link_manager.keep_dialling(address, _log_dial_failed)

    def stop_dialling(self, address: str) -> None:
        self._link_manager.stop_dialling(address)

    def dial_once(self, address: str) -> None:
        self._link_manager.dial_once(address, _log_dial_failed)

    def close(self, node: NodeId, reason: str) -> None:
        link = self._membership.neighbours.get(node)
        if link is not None and (connection := self._driver.links.get(link.id)) is not None:
            connection.close(reason)


def _log_dial_failed(address: Address, reason: str) -> None:
    log.debug("not reached address=%s reason=%r", address, reason)


class TopologyService:
    """Runs beside an agent; does nothing unless the settings enable it."""

    def __init__(
        self,
        settings: AgentSettings,
        state: StateDirectory,
        identity: Identity,
        driver: Driver,
        link_manager: LinkManager,
        make_connection: ConnectionFactory,
    ) -> None:
        self._settings = settings
        self._state = state
        self._identity = identity
        self._membership = driver.node.membership
        self._rng = random.Random()  # for back-off, not for secrets
        self.settings = topology = settings.topology
        self._steering = NeighbourSelector(
            self._membership,
            identity.node,
            _AgentLinks(self._membership, driver, link_manager),
            PlannerLimits(degree_max=topology.degree_max),
            self._rng,
        )
        self._has_ended = False
        self.contexts = contexts_of(link_manager.security)
        self._client: ManagerClient | None = None
        self._probe: BrokerProbe | None = None
        if topology.manager:
            listens = not topology.announcements
            voice = ManagerCallbacks(
                self._make_join_request, self._make_health_report, self._on_assignment, listens
            )
            manager = ManagerAddress(
                topology.manager, topology.token, state.manager_secret(), self.contexts
            )
            self._client = ManagerClient(manager, voice)
            if settings.broker.observer != "embedded":
                topic = f"{PROBE_TOPIC}/{node_name(identity.node)}"
                self._probe = BrokerProbe(make_connection, topic)
                if topology.announcements:
                    self._probe.topic_callbacks[ANNOUNCEMENT_TOPIC] = self._client.request_report

    async def run(self) -> None:
        """Stay in contact with the manager, maintain links, save the state."""
        if not self._settings.topology.is_enabled:
            return
        if not self._steering.restore_state(self._state.load_topology()):
            log.warning("saved topology cannot be read, it is learned again")
        if self._probe:
            self._probe.connection.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._heal_periodically())
                group.create_task(self._save_periodically())
                if self._client:
                    group.create_task(self._client.run())
                    group.create_task(self._report_neighbour_changes(self._client))
        finally:
            self._has_ended = True
            if self._probe:
                await self._probe.connection.stop()

    async def _heal_periodically(self) -> None:
        while True:
            pause = HEAL_INTERVAL_S if self._membership.neighbours else HEAL_INTERVAL_ALONE_S
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            planning = self._client is None or not self._client.is_in_contact
            before = self._steering.healed_count
            self._steering.update_links(asyncio.get_running_loop().time(), planning)
            if self._steering.healed_count > before:
                log.info("links dialled to heal the topology count=%d", self._steering.healed_count)

    async def _report_neighbour_changes(self, client: ManagerClient) -> None:
        before: set[NodeId] = set()
        while True:
            now = set(self._membership.neighbours)
            if now != before:
                client.request_report()
            before = now
            await asyncio.sleep(NEIGHBOUR_POLL_S)

    async def _save_periodically(self) -> None:
        before = b""
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            data = self._steering.encode_state()
            if data != before:
                before = data
                await asyncio.to_thread(self._save_topology, data)

    def _save_topology(self, data: bytes) -> None:
        try:
            self._state.save_topology(data)
        except UsageError:
            return  # reported elsewhere; a restart loses recent state

    # ------------------------------------------------------------ reports to the manager

    def _make_join_request(self) -> dict[str, Any]:
        settings, topology = self._settings, self._settings.topology
        broker = f"tcp://{Address(settings.broker.host, settings.broker.port)}"
        return {
            "ip": topology.advertised_broker or broker,
            "link": self._identity.addresses[0],
            "node": node_name(self._identity.node),
            "name": settings.display_name,
            "capacity": self._identity.capacity,
            "tags": list(topology.tags),
            "announcements": topology.announcements,
        }

    async def _make_health_report(self) -> dict[str, Any]:
        latency = await self._probe.measure() if self._probe else None
        neighbours = [
            {"node": node_name(node), "rtt_ms": None if link.rtt is None else link.rtt * 1000}
            for node, link in self._membership.neighbours.items()
        ]
        reachable = [node_name(node) for node in self._membership.reachable]
        return {"latency_ms": latency, "neighbours": neighbours, "reachable_nodes": reachable}

    def _on_assignment(self, assignment: TopologyAssignment) -> None:
        hansa_neighbours = [
            each for each in assignment.neighbors if each.node
        ]  # others are not Hansa nodes
        self._steering.apply_assignment(
            {each.node: each.link if each.dial else "" for each in hansa_neighbours},
            {each.node: each.link for each in hansa_neighbours if each.link},
            assignment.settings.degree_max,
        )

    def status(self) -> dict[str, object]:
        problem = self._client.problem if self._client else ""
        return {
            "manager": self._settings.topology.manager,
            "problem": "ended by a fault, see the log" if self._has_ended else problem,
            **self._steering.status(),
        }
