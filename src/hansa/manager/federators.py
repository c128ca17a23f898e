"""Brokers that the manager itself is a client of, as in Bevilaqua 2023.

Federators of the paper's kind say nothing of themselves: how long a publication takes to their
broker and back is measured from here, and what changes is announced there. Agents may ask for
announcements too.
"""

import asyncio
import itertools
import json
import logging
import random
import ssl
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.topology.broker_probe import BrokerProbe
from hansa.manager.exchange import Assignment, NodeReport, RequestRefused
from hansa.manager.federation import FederationRegistry
from hansa.manager.rows import NodeState
from hansa.manager.store import StoreUnavailable
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.options import ConnectOptions

log = logging.getLogger("hansa.manager")

TOPICS = ("federated_topology_ann", "federator/topology_ann")
"""Where changes are announced: as the thesis names it, and as its published federator reads it."""

TLS_SCHEMES = ("ssl", "tls", "mqtts")

PACKET_ID_MAX = 65_535

Neighbours = Mapping[int, str]
"""The neighbours of a node: their ids, and where their brokers are."""


class FederatorClient(BrokerProbe):
    """One broker: measured, and told what changes."""

    def __init__(self, number: int, address: BrokerAddress, rng: random.Random) -> None:
        """Prepare; a client with this id is nobody else's."""
        options = ConnectOptions(client_id=f"hansa-manager-{number}", clean_start=True)
        super().__init__(
            lambda told: Connection(address, options, told, rng, is_low_latency=True),
            f"$hansa/probe/manager/{number}",
        )
        self.address = address
        self.check_due = 0.0
        self.announced: Neighbours = {}
        """What its federator has been told."""
        self._packet_ids = itertools.cycle(range(1, PACKET_ID_MAX + 1))
        self._unconfirmed: tuple[int, Neighbours] | None = None

    def announce(self, neighbours: Neighbours) -> None:
        """Publish what is different by now; it counts once the broker has confirmed the last."""
        if self.connection.problem or self._unconfirmed or neighbours == self.announced:
            return
        before = self.announced
        changes = [("REMOVE", each, before[each]) for each in before if each not in neighbours]
        changes += [("NEW", each, ip) for each, ip in neighbours.items() if before.get(each) != ip]
        batch = [
            packets.PublishPacket(
                topic, _announcement(*change), 1, packet_id=next(self._packet_ids)
            )
            for change in changes
            for topic in TOPICS
        ]
        self._unconfirmed = (batch[-1].packet_id, dict(neighbours))
        self.connection.submit(inputs.Publish(batch))

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect, self._unconfirmed:
            case effects.HandshakePacketsReceived(batch), (last, told) if any(
                a.packet_id == last for a in batch
            ):
                self.announced, self._unconfirmed = told, None
            case (effects.Disconnected() | effects.PublishNotSent(), _):
                self._unconfirmed = None
            case _:
                pass
        super()._on_effect(effect)


def _announcement(action: str, number: int, ip: str) -> bytes:
    return json.dumps({"action": action, "neighbor": {"id": number, "ip": ip}}).encode()


class FederatorClients:
    """All these brokers."""

    def __init__(
        self,
        federation: FederationRegistry,
        clock: Callable[[], float],
        username: str | None = None,
        password: str | None = None,
        trusted: Collection[str] = (),
    ) -> None:
        """Start with no connection. The name and the password are for the brokers in `trusted`, as
        host:port, only: a node that joins chooses the address of its broker."""
        self._federation = federation
        self._clock = clock
        self._username = username
        self._password = password
        self._trusted = frozenset(trusted)
        self._rng = random.Random()  # for back-off, not for secrets
        self._clients: dict[int, FederatorClient] = {}
        self._told_on_join: dict[int, Neighbours] = {}
        self._wakeup = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def on_node_joined(self, given: Assignment) -> None:
        """A node has just been told all; any thread may say so."""
        self._told_on_join[given.node.id] = _neighbour_addresses(given)
        self.on_links_changed()

    def on_links_changed(self) -> None:
        """Something may have to be announced; any thread may say so."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wakeup.set)

    async def run(self) -> None:
        """Measure and announce for ever."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._wakeup.clear()
                try:
                    await self._update_clients(await asyncio.to_thread(self._announced_assignments))
                except StoreUnavailable as error:
                    log.error("the database does not answer reason=%r", str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._federation.settings.health_interval / 2):
                        await self._wakeup.wait()
        finally:
            await asyncio.gather(*(each.connection.stop() for each in self._clients.values()))

    def _announced_assignments(self) -> list[Assignment]:
        return [
            self._federation.topology(node.id)
            for node in self._federation.nodes()
            if node.announced and node.ip and node.state is not NodeState.LEFT
        ]

    async def _update_clients(self, assignments: list[Assignment]) -> None:
        numbers = {given.node.id for given in assignments}
        for number in [each for each in self._clients if each not in numbers]:
            await self._clients.pop(number).connection.stop()
        checks = []
        for given in assignments:
            federator = await self._client_for(given)
            federator.announce(_neighbour_addresses(given))
            if (
                given.node.is_paper_federator
                and federator.check_due <= asyncio.get_running_loop().time()
            ):
                checks.append(self._measure_latency(given.node.id, federator))
        await asyncio.gather(*checks)

    async def _client_for(self, assignment: Assignment) -> FederatorClient:
        """Return who speaks to a node's broker; a node that has joined again may have another."""
        number, address = assignment.node.id, self._address(assignment.node.ip)
        federator = self._clients.get(number)
        if federator is None or str(federator.address) != str(address):
            if federator is not None:
                await federator.connection.stop()
            federator = self._clients[number] = FederatorClient(number, address, self._rng)
            federator.announced = _neighbour_addresses(assignment)
            federator.connection.start()
        if (answered := self._told_on_join.pop(number, None)) is not None:
            federator.announced = answered
        return federator

    async def _measure_latency(self, number: int, federator: FederatorClient) -> None:
        loop = asyncio.get_running_loop()
        federator.check_due = loop.time() + self._federation.settings.health_interval
        latency = await federator.measure()
        if latency is not None:
            with suppress(RequestRefused):  # it has left meanwhile
                await asyncio.to_thread(
                    self._federation.report, number, NodeReport(latency), self._clock()
                )

    def _address(self, ip: str) -> BrokerAddress:
        """Read what `bodies.BrokerUrl` lets through; whether there is such a host, others find."""
        scheme, _, place = ip.rpartition("://")
        host, _, port = place.rpartition(":")
        tls = ssl.create_default_context() if scheme in TLS_SCHEMES else None
        known = place in self._trusted
        username, password = (self._username, self._password) if known else (None, None)
        return BrokerAddress(host.strip("[]"), int(port), username, password, tls)


def _neighbour_addresses(given: Assignment) -> Neighbours:
    return {each.node.id: each.node.ip for each in given.neighbours}
