"""Decides whom a node is linked to beyond its configuration: told by a manager, or by itself.

What the manager wants is kept; what it does not want any more is closed once nobody is reached by
that link alone. When neighbours are lost, or the federation is in parts, the node heals: with the
planner while the manager is away, and always if it is alone or somebody is out of reach. The live
agent and the simulator run this very class.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hansa.errors import UsageError
from hansa.protocol.viewing import Chart
from hansa.protocol.vocabulary import NodeId
from hansa.topology.graph import Name
from hansa.topology.healing import Healer, Surroundings, name_of, surroundings
from hansa.topology.planner import Limits


class Links(Protocol):
    """What is asked of a node's links. Addresses come from elsewhere: one that is none raises
    UsageError."""

    def keep(self, address: str) -> None:
        """Keep a link to an address."""

    def forget(self, address: str) -> None:
        """Keep it no more."""

    def attempt(self, address: str) -> None:
        """Dial once."""

    def close(self, node: NodeId, reason: str) -> None:
        """End the link to a neighbour."""


class Steering:
    """Whom one node is linked to."""

    def __init__(
        self, chart: Chart, me: NodeId, links: Links, limits: Limits, chance: random.Random
    ) -> None:
        """Start with nothing wanted and nobody known but who is in the chart."""
        self._chart = chart
        self._me = me
        self._links = links
        self._healer = Healer(limits, chance)
        self._assigned: dict[Name, str] = {}
        """Neighbours that the manager wants, and the address to dial, if it is we who dial."""
        self._unwanted: set[Name] = set()
        self._own: set[Name] = set()
        self._known: dict[Name, str] = {}
        """Addresses of a former life, for those whose record is not here yet."""
        self._seen: tuple[object, Surroundings] | None = None
        self.healed = 0
        """Links dialled by this node's own decision."""

    # ------------------------------------------------------------ what the manager says

    def assign(
        self, wanted: Mapping[Name, str], known: Mapping[Name, str], degree_max: int
    ) -> None:
        """Keep what the manager wants, and let go of what it does not want any more. `wanted` has
        the address of those to dial, nothing for the others; `known` has all addresses."""
        for name, address in self._assigned.items():
            if address and wanted.get(name) != address:
                self._links.forget(address)
        self._unwanted |= (self._assigned.keys() | self._own) - wanted.keys()
        self._unwanted -= wanted.keys()
        self._own -= wanted.keys()
        self._assigned = dict(wanted)
        self._known |= known
        for address in wanted.values():
            if address:
                self._keep(address)
        if degree_max != self._healer.limits.degree_max:
            self._healer.limits = Limits(degree_max=max(3, degree_max))

    # ------------------------------------------------------------ looking

    def look(self, now: float, planning: bool) -> None:
        """Do what should be done now; `planning` says that nobody else plans."""
        if not planning and self._is_content():
            return
        known = self.surroundings()
        self._own &= set(known.neighbours)
        self._release(known)
        wishes = self._healer.look(known, frozenset(self._own), now, planning)
        for name in wishes.dial:
            address = self._address_of(name)
            if address and self._attempt(address):
                self._own.add(name)
                self.healed += 1
        for name in wishes.drop:
            self._own.discard(name)
            self._links.close(_node_of(name), "more neighbours than it should have")

    def _is_content(self) -> bool:
        """Whether everybody who is known is in reach and no link has to go: most of the time, and
        seen without a look at the whole map."""
        chart = self._chart
        self._known = {n: a for n, a in self._known.items() if _node_of(n) not in chart.known}
        return (
            bool(chart.neighbours)
            and not (self._known or self._unwanted)
            and len(chart.known) == len(chart.reachable)
        )

    def surroundings(self) -> Surroundings:
        """Return what this node knows; the same object while that is the same."""
        chart = self._chart
        mark = (chart.digest, tuple(chart.neighbours), len(chart.reachable), len(self._known))
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, self._look_around())
        return self._seen[1]

    def _look_around(self) -> Surroundings:
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
                self._links.close(_node_of(name), "the manager does not want this link any more")
                return  # one at a time: the next may be needed now
        self._unwanted &= set(known.neighbours)

    def _address_of(self, name: Name) -> str:
        record = self._chart.known.get(_node_of(name))
        addresses = record.addresses if record else ()
        return addresses[0] if addresses else self._known.get(name, "")

    def _keep(self, address: str) -> None:
        try:
            self._links.keep(address)
        except UsageError:
            return  # the manager was told nonsense; this node does what it can by itself

    def _attempt(self, address: str) -> bool:
        try:
            self._links.attempt(address)
        except UsageError:
            return False
        return True

    # ------------------------------------------------------------ what a restart should know

    def remembered(self) -> bytes:
        """Return whom this node knows, and whom the manager wanted it to be linked to."""
        addresses = dict(self._known)
        for node, record in self._chart.known.items():
            if record.addresses and node != self._me:
                addresses[name_of(node)] = record.addresses[0]
        wanted = {name: address for name, address in self._assigned.items() if address}
        return json.dumps({"neighbours": wanted, "known": addresses}, sort_keys=True).encode()

    def restore(self, data: bytes) -> bool:
        """Start from what a former life knew, until the manager says otherwise; whether it could
        be read."""
        try:
            kept: Any = json.loads(data) if data else {}
            wanted = {_checked(n): str(a) for n, a in kept.get("neighbours", {}).items()}
            known = {_checked(n): str(a) for n, a in kept.get("known", {}).items()}
        except (ValueError, AttributeError):
            return False
        self._assigned, self._known = wanted, known
        for address in wanted.values():
            self._keep(address)
        return True

    def status(self) -> dict[str, object]:
        """Return what an operator may want to see."""
        return {
            "assigned": sorted(self._assigned),
            "healed": sorted(self._own),
            "unwanted": sorted(self._unwanted),
            "healed_count": self.healed,
        }


def _node_of(name: Name) -> NodeId:
    return NodeId(int(name, 16))


def _checked(name: str) -> Name:
    return name_of(int(name, 16))
