"""Decides whom an agent is linked to beyond its file: told by the manager, or by itself.

What the manager wants is kept; what it does not want any more is closed once nobody is reached by
that link alone. When neighbours are lost, or the federation is in parts, the agent heals: with the
planner while the manager is away, and always if it is alone or somebody is out of reach.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hansa.agent.links.dialling import Failed
from hansa.agent.links.link import Address
from hansa.agent.topology.client import Told
from hansa.errors import UsageError
from hansa.protocol.viewing import Chart
from hansa.protocol.vocabulary import NodeId
from hansa.topology.graph import Name
from hansa.topology.healing import Healer, Surroundings, name_of, surroundings
from hansa.topology.planner import Limits

log = logging.getLogger("hansa.agent")

LOOK_S = 1.0
LOOK_ALONE_S = 0.25
"""Seconds between two looks, and while there is no neighbour at all."""


class Links(Protocol):
    """What is asked of the agent's links."""

    def keep(self, text: str, failed: Failed) -> None:
        """Keep a link to an address."""

    def forget(self, text: str) -> None:
        """Keep it no more."""

    def attempt(self, text: str, failed: Failed) -> None:
        """Dial once."""


class Steering:
    """Whom one agent is linked to."""

    def __init__(
        self,
        chart: Chart,
        me: NodeId,
        links: Links,
        close: Callable[[NodeId, str], None],
        limits: Limits,
        chance: random.Random,
    ) -> None:
        """`close` ends the link to a neighbour, with the reason for the log."""
        self._chart = chart
        self._me = me
        self._links = links
        self._close = close
        self._healer = Healer(limits, chance)
        self._chance = chance
        self._assigned: dict[Name, str] = {}
        """Neighbours that the manager wants, and the address to dial, if it is we who dial."""
        self._unwanted: set[Name] = set()
        self._own: set[Name] = set()
        self._known: dict[Name, str] = {}
        """Addresses of a former life, for those whose record is not here yet."""
        self.healed = 0
        """Links dialled by this agent's own decision."""

    # ------------------------------------------------------------ what the manager says

    def assign(self, told: Told) -> None:
        """Keep what the manager wants, and let go of what it does not want any more."""
        wanted = {each.node: each.link if each.dial else "" for each in told.neighbors if each.node}
        for name, address in self._assigned.items():
            if address and wanted.get(name) != address:
                self._links.forget(address)
        self._unwanted |= (self._assigned.keys() | self._own) - wanted.keys()
        self._unwanted -= wanted.keys()
        self._own -= wanted.keys()
        self._assigned = wanted
        self._known |= {each.node: each.link for each in told.neighbors if each.node and each.link}
        for address in wanted.values():
            if address:
                self._try(self._links.keep, address)
        limits = self._healer.limits
        if told.settings.degree_max != limits.degree_max:
            self._healer.limits = Limits(degree_max=max(3, told.settings.degree_max))

    # ------------------------------------------------------------ looking

    async def run(self, planning: Callable[[], bool]) -> None:
        """Look again and again; `planning` says whether it is this agent that plans."""
        while True:
            alone = not self._chart.neighbours
            pause = LOOK_ALONE_S if alone else LOOK_S
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.0))
            self.look(asyncio.get_running_loop().time(), planning())

    def look(self, now: float, planning: bool) -> None:
        """Do what should be done now."""
        known = self.surroundings()
        self._own &= set(known.neighbours)
        self._release(known)
        wishes = self._healer.look(known, frozenset(self._own), now, planning)
        for name in wishes.dial:
            address = self._address_of(name)
            if address and self._try(self._links.attempt, address):
                self._own.add(name)
                self.healed += 1
                log.info("links to %s by its own decision", name)
        for name in wishes.drop:
            self._own.discard(name)
            self._close(_node_of(name), "more neighbours than it should have")

    def surroundings(self) -> Surroundings:
        """Return what this node knows."""
        known = self._chart.known
        links: dict[int, Sequence[tuple[int, int]]] = {n: r.links for n, r in known.items()}
        addressed = {node for node, record in known.items() if record.addresses}
        addressed |= {_node_of(name) for name in self._known}
        return surroundings(self._me, links, self._chart.reachable, addressed - {self._me})

    def _release(self, known: Surroundings) -> None:
        """Close links that the manager does not want, unless somebody is reached by them alone:
        the manager may be wrong."""
        for name in sorted(self._unwanted & set(known.neighbours)):
            if not known.needs(name):
                self._unwanted.discard(name)
                self._own.discard(name)
                self._close(_node_of(name), "the manager does not want this link any more")
                return  # one at a time: the next may be needed now
        self._unwanted &= set(known.neighbours)

    def _address_of(self, name: Name) -> str:
        record = self._chart.known.get(_node_of(name))
        addresses = record.addresses if record else ()
        return addresses[0] if addresses else self._known.get(name, "")

    def _try(self, act: Callable[[str, Failed], None], address: str) -> bool:
        try:
            act(address, _note_failure)
        except UsageError as error:  # it came from elsewhere: it may be anything
            log.warning("cannot dial %r reason=%r", address, str(error))
            return False
        return True

    # ------------------------------------------------------------ what a restart should know

    def remembered(self) -> bytes:
        """Return whom this agent knows, and whom the manager wanted it to be linked to."""
        addresses = dict(self._known)
        for node, record in self._chart.known.items():
            if record.addresses and node != self._me:
                addresses[name_of(node)] = record.addresses[0]
        wanted = {name: address for name, address in self._assigned.items() if address}
        return json.dumps({"neighbours": wanted, "known": addresses}, sort_keys=True).encode()

    def restore(self, data: bytes) -> None:
        """Start from what a former life knew, until the manager says otherwise."""
        try:
            kept: Any = json.loads(data) if data else {}
            wanted = {_checked(n): str(a) for n, a in kept.get("neighbours", {}).items()}
            known = {_checked(n): str(a) for n, a in kept.get("known", {}).items()}
        except (ValueError, AttributeError):
            log.warning("what was known of the topology cannot be read")
            return
        self._assigned, self._known = wanted, known
        for address in wanted.values():
            self._try(self._links.keep, address)

    def status(self) -> dict[str, object]:
        """Return what an operator may want to see."""
        return {
            "assigned": sorted(self._assigned),
            "healed": sorted(self._own),
            "unwanted": sorted(self._unwanted),
            "healed_count": self.healed,
        }


def _note_failure(address: Address, reason: str) -> None:
    log.debug("not reached address=%s reason=%r", address, reason)


def _node_of(name: Name) -> NodeId:
    return NodeId(int(name, 16))


def _checked(name: str) -> Name:
    return name_of(int(name, 16))
