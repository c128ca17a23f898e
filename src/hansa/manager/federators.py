"""The manager as a client of brokers, as in Bevilaqua 2023.

Federators of the paper do not report: the manager measures the latency of their brokers, and
publishes changes of their neighbours there. Agents may request such announcements too.
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
from hansa.manager.registry import FederationRegistry
from hansa.manager.rows import NodeState
from hansa.manager.store import StoreUnavailable
from hansa.manager.types import Assignment, NodeReport, RequestRefused
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.options import ConnectOptions

log = logging.getLogger("hansa.manager")

TOPICS = ("federated_topology_ann", "federator/topology_ann")
"""Topics of announcements: that of the thesis, and that of its published federator."""

TLS_SCHEMES = ("ssl", "tls", "mqtts")

PACKET_ID_MAX = 65_535

Neighbours = Mapping[int, str]
"""URLs of the brokers of a node's neighbours, by their ids."""


class FederatorClient(BrokerProbe):
    """A client of one broker, which measures its latency and publishes announcements."""

    def __init__(self, number: int, address: BrokerAddress, rng: random.Random) -> None:
        options = ConnectOptions(client_id=f"hansa-manager-{number}", clean_start=True)
        super().__init__(
            lambda on_effect: Connection(address, options, on_effect, rng, is_low_latency=True),
            f"$hansa/probe/manager/{number}",
        )
        self.address = address
        self.check_due = 0.0
        self.announced: Neighbours = {}
        """Neighbours that the federator knows."""
        self._packet_ids = itertools.cycle(range(1, PACKET_ID_MAX + 1))
        self._unconfirmed: tuple[int, Neighbours] | None = None

    def announce(self, neighbours: Neighbours) -> None:
        """Publish the difference to `announced`, which is updated when the broker has acknowledged
        the last message."""
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
            case effects.HandshakePacketsReceived(batch), (last, neighbours) if any(
                a.packet_id == last for a in batch
            ):
                self.announced, self._unconfirmed = neighbours, None
            case (effects.Disconnected() | effects.PublishNotSent(), _):
                self._unconfirmed = None
            case _:
                pass
        super()._on_effect(effect)


def _announcement(action: str, number: int, ip: str) -> bytes:
    return json.dumps({"action": action, "neighbor": {"id": number, "ip": ip}}).encode()


class FederatorClients:
    """The clients of all brokers that get announcements."""

    def __init__(
        self,
        federation: FederationRegistry,
        clock: Callable[[], float],
        username: str | None = None,
        password: str | None = None,
        trusted: Collection[str] = (),
    ) -> None:
        """Name and password are sent only to the brokers in `trusted`, as host:port: the address of
        a node that joins is not trusted."""
        self._federation = federation
        self._clock = clock
        self._username = username
        self._password = password
        self._trusted = frozenset(trusted)
        self._rng = random.Random()  # for back-off, not for secrets
        self._clients: dict[int, FederatorClient] = {}
        self._neighbours_at_join: dict[int, Neighbours] = {}
        self._wakeup = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def on_node_joined(self, assignment: Assignment) -> None:
        """Note the neighbours in a join response; may be called from any thread."""
        self._neighbours_at_join[assignment.node.id] = _neighbour_addresses(assignment)
        self.on_links_changed()

    def on_links_changed(self) -> None:
        """Check for announcements; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wakeup.set)

    async def run(self) -> None:
        """Measure and announce until cancelled."""
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
        numbers = {each.node.id for each in assignments}
        for number in [each for each in self._clients if each not in numbers]:
            await self._clients.pop(number).connection.stop()
        checks = []
        for assignment in assignments:
            federator = await self._client_for(assignment)
            federator.announce(_neighbour_addresses(assignment))
            if (
                assignment.node.is_paper_federator
                and federator.check_due <= asyncio.get_running_loop().time()
            ):
                checks.append(self._measure_latency(assignment.node.id, federator))
        await asyncio.gather(*checks)

    async def _client_for(self, assignment: Assignment) -> FederatorClient:
        """Return the client of a node's broker; the broker may change when the node joins again."""
        number, address = assignment.node.id, self._address(assignment.node.ip)
        federator = self._clients.get(number)
        if federator is None or str(federator.address) != str(address):
            if federator is not None:
                await federator.connection.stop()
            federator = self._clients[number] = FederatorClient(number, address, self._rng)
            federator.announced = _neighbour_addresses(assignment)
            federator.connection.start()
        if (answered := self._neighbours_at_join.pop(number, None)) is not None:
            federator.announced = answered
        return federator

    async def _measure_latency(self, number: int, federator: FederatorClient) -> None:
        loop = asyncio.get_running_loop()
        federator.check_due = loop.time() + self._federation.settings.health_interval
        latency = await federator.measure()
        if latency is not None:
            with suppress(RequestRefused):  # the node left meanwhile
                await asyncio.to_thread(
                    self._federation.report, number, NodeReport(latency), self._clock()
                )

    def _address(self, ip: str) -> BrokerAddress:
        """Parse a URL that `schemas.BrokerUrl` accepted."""
        scheme, _, place = ip.rpartition("://")
        host, _, port = place.rpartition(":")
        tls = ssl.create_default_context() if scheme in TLS_SCHEMES else None
        known = place in self._trusted
        username, password = (self._username, self._password) if known else (None, None)
        return BrokerAddress(host.strip("[]"), int(port), username, password, tls)


def _neighbour_addresses(assignment: Assignment) -> Neighbours:
    return {each.node.id: each.node.ip for each in assignment.neighbours}
