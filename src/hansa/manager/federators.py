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
from hansa.manager.exchange import Assignment, Refused, Report
from hansa.manager.federation import Federation
from hansa.manager.rows import State
from hansa.manager.store import StoreFailed
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.options import Options

log = logging.getLogger("hansa.manager")

TOPICS = ("federated_topology_ann", "federator/topology_ann")
"""Where changes are announced: as the thesis names it, and as its published federator reads it."""

TLS_SCHEMES = ("ssl", "tls", "mqtts")

PACKET_ID_MAX = 65_535

Neighbours = Mapping[int, str]
"""The neighbours of a node: their ids, and where their brokers are."""


class Federator(BrokerProbe):
    """One broker: measured, and told what changes."""

    def __init__(self, number: int, address: BrokerAddress, chance: random.Random) -> None:
        """Prepare; a client with this id is nobody else's."""
        options = Options(client_id=f"hansa-manager-{number}", clean_start=True)
        super().__init__(
            lambda told: Connection(address, options, told, chance, prompt=True),
            f"$hansa/probe/manager/{number}",
        )
        self.address = address
        self.due = 0.0
        self.announced: Neighbours = {}
        """What its federator has been told."""
        self._packet_ids = itertools.cycle(range(1, PACKET_ID_MAX + 1))
        self._unconfirmed: tuple[int, Neighbours] | None = None

    def announce(self, wanted: Neighbours) -> None:
        """Publish what is different by now; it counts once the broker has confirmed the last."""
        if self.connection.problem or self._unconfirmed or wanted == self.announced:
            return
        before = self.announced
        changes = [("REMOVE", each, before[each]) for each in before if each not in wanted]
        changes += [("NEW", each, ip) for each, ip in wanted.items() if before.get(each) != ip]
        batch = [
            packets.Publish(topic, _announcement(*change), 1, packet_id=next(self._packet_ids))
            for change in changes
            for topic in TOPICS
        ]
        self._unconfirmed = (batch[-1].packet_id, dict(wanted))
        self.connection.order(inputs.Publish(batch))

    def _told(self, effect: effects.Effect) -> None:
        match effect, self._unconfirmed:
            case effects.Answered(batch), (last, told) if any(a.packet_id == last for a in batch):
                self.announced, self._unconfirmed = told, None
            case (effects.Disconnected() | effects.NotSent(), _):
                self._unconfirmed = None
            case _:
                pass
        super()._told(effect)


def _announcement(action: str, number: int, ip: str) -> bytes:
    return json.dumps({"action": action, "neighbor": {"id": number, "ip": ip}}).encode()


class Federators:
    """All these brokers."""

    def __init__(
        self,
        federation: Federation,
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
        self._chance = random.Random()  # for back-off, not for secrets
        self._known: dict[int, Federator] = {}
        self._answered: dict[int, Neighbours] = {}
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def joined(self, given: Assignment) -> None:
        """A node has just been told all; any thread may say so."""
        self._answered[given.node.id] = _neighbours(given)
        self.changed()

    def changed(self) -> None:
        """Something may have to be announced; any thread may say so."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def run(self) -> None:
        """Measure and announce for ever."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._news.clear()
                try:
                    await self._look(await asyncio.to_thread(self._wanted))
                except StoreFailed as error:
                    log.error("the database does not answer reason=%r", str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._federation.settings.health_interval / 2):
                        await self._news.wait()
        finally:
            await asyncio.gather(*(each.connection.stop() for each in self._known.values()))

    def _wanted(self) -> list[Assignment]:
        return [
            self._federation.topology(node.id)
            for node in self._federation.nodes()
            if node.announced and node.ip and node.state is not State.LEFT
        ]

    async def _look(self, wanted: list[Assignment]) -> None:
        numbers = {given.node.id for given in wanted}
        for number in [each for each in self._known if each not in numbers]:
            await self._known.pop(number).connection.stop()
        checks = []
        for given in wanted:
            federator = await self._meet(given)
            federator.announce(_neighbours(given))
            if given.node.is_silent and federator.due <= asyncio.get_running_loop().time():
                checks.append(self._check(given.node.id, federator))
        await asyncio.gather(*checks)

    async def _meet(self, given: Assignment) -> Federator:
        """Return who speaks to a node's broker; a node that has joined again may have another."""
        number, address = given.node.id, self._address(given.node.ip)
        federator = self._known.get(number)
        if federator is None or str(federator.address) != str(address):
            if federator is not None:
                await federator.connection.stop()
            federator = self._known[number] = Federator(number, address, self._chance)
            federator.announced = _neighbours(given)
            federator.connection.keep()
        if (answered := self._answered.pop(number, None)) is not None:
            federator.announced = answered
        return federator

    async def _check(self, number: int, federator: Federator) -> None:
        loop = asyncio.get_running_loop()
        federator.due = loop.time() + self._federation.settings.health_interval
        latency = await federator.measure()
        if latency is not None:
            with suppress(Refused):  # it has left meanwhile
                await asyncio.to_thread(
                    self._federation.report, number, Report(latency), self._clock()
                )

    def _address(self, ip: str) -> BrokerAddress:
        """Read what `bodies.BrokerUrl` lets through; whether there is such a host, others find."""
        scheme, _, place = ip.rpartition("://")
        host, _, port = place.rpartition(":")
        tls = ssl.create_default_context() if scheme in TLS_SCHEMES else None
        known = place in self._trusted
        username, password = (self._username, self._password) if known else (None, None)
        return BrokerAddress(host.strip("[]"), int(port), username, password, tls)


def _neighbours(given: Assignment) -> Neighbours:
    return {each.node.id: each.node.ip for each in given.neighbours}
