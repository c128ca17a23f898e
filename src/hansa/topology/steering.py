"""Decides whom a node is linked to beyond its configuration: told by a manager, or by itself.

What the manager wants is kept; what it does not want any more is closed once nobody is reached by
that link alone. When neighbours are lost, or the federation is in parts, the node heals: with the
planner while the manager is away, and always if it is alone or somebody is out of reach. Whatever
the manager says, nobody in reach gets many more neighbours than allowed. The live agent and the
simulator run this very class.

An address belongs to the node in reach that announces it. A node out of reach that was known at the
same address before (an agent that was installed again has a new id) is not dialled there: the dial
would only replace a link to the present owner, or lead to this node itself.
"""

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from hansa.errors import UsageError
from hansa.protocol.model import NodeId
from hansa.protocol.status_snapshot import Chart
from hansa.topology.graph import Name
from hansa.topology.healing import SLACK, Healer, Surroundings, name_of, surroundings
from hansa.topology.planner import Limits

PATIENT_LOOKS = 3
"""Looks until a link that is not wanted any more is closed by the end that did not dial it: the
other one must have heard of it too, or it would only dial again."""

FORMER_S = 86_400.0
"""Seconds that an address is tried whose node neither the map nor the manager has named since."""

FORMER_MAX = 4_096
"""Such addresses at most; the oldest go first."""


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
        self._kept: set[str] = set()
        """The addresses among them that are being dialled."""
        self._unwanted: dict[Name, int] = {}
        """Neighbours that it does not want any more, and how many looks have passed since."""
        self._own: set[Name] = set()
        self._known: dict[Name, str] = {}
        """Addresses of a former life, for those whose record is not here yet."""
        self._ages: dict[Name, float] = {}
        """Seconds for which they have been looked for, in this life and former ones."""
        self._looked_at: float | None = None
        self._seen: tuple[object, Surroundings] | None = None
        self._owned: tuple[object, dict[str, NodeId]] | None = None
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
                self._forget(address)
        for name in (self._assigned.keys() | self._own) - wanted.keys():
            self._unwanted.setdefault(name, 0)
        for name in wanted:
            self._unwanted.pop(name, None)
        self._own -= wanted.keys()
        self._assigned = dict(wanted)
        self._known = dict([*(self._known | dict(known)).items()][-FORMER_MAX:])
        self._ages = {name: age for name, age in self._ages.items() if name not in known}
        self._dial_assigned()
        if degree_max != self._healer.limits.degree_max:
            self._healer.limits = Limits(degree_max=max(3, degree_max))

    def _dial_assigned(self) -> None:
        """Dial whom the manager wants us to dial, unless there is a link or no room for one. Two
        nodes may be assigned with one address: it is kept if either of them is to be dialled."""
        owners = self._owners()
        dialled = {
            address: None
            for name, address in self._assigned.items()
            if address and self._should_dial(_node_of(name), owners.get(address))
        }
        for address in self._assigned.values():
            if address and address not in dialled:
                self._forget(address)
        for address in dialled:
            self._keep(address)

    def _should_dial(self, node: NodeId, owner: NodeId | None) -> bool:
        """Whether to keep dialling: the link that is there is ours, or there is none, and it would
        lead to somebody out of reach or neither end has more neighbours than allowed. `owner` is
        the node in reach that has the address, if there is one."""
        if owner is not None and owner != node:
            return False
        chart = self._chart
        link = chart.neighbours.get(node)
        if link is not None:
            return link.dialled  # of two, one would be refused again and again
        if node not in chart.reachable:
            return True
        record = chart.known.get(node)
        most = max(len(chart.neighbours), len(record.links) if record else 0)
        return most <= self._healer.limits.degree_max

    # ------------------------------------------------------------ looking

    def look(self, now: float, planning: bool) -> None:
        """Do what should be done now; `planning` says that nobody else plans."""
        self._forget_former(now)
        if not planning and self._is_content():
            return
        near = self._chart.neighbours
        crowded = len(near) > self._healer.limits.degree_max + SLACK
        known = self.surroundings(whole=planning or crowded or bool(self._unwanted))
        self._own &= set(map(name_of, near))
        self._release(known)
        self._dial_assigned()
        wishes = self._healer.look(known, frozenset(self._own), now, planning)
        for name in wishes.dial:
            address = self._address_of(name)
            if address and self._attempt(address):
                self._own.add(name)
                self._unwanted.pop(name, None)
                self.healed += 1
        for name in wishes.drop:
            self._own.discard(name)
            self._links.close(_node_of(name), "more neighbours than it should have")

    def _forget_former(self, now: float) -> None:
        """Who has been looked for in vain for so long will not come back."""
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if self._known:
            self._ages = {name: self._ages.get(name, 0.0) + passed for name in self._known}
            self._known = {n: a for n, a in self._known.items() if self._ages[n] < FORMER_S}

    def _is_content(self) -> bool:
        """Whether everybody who is known is in reach and no link has to come or go: most of the
        time, and seen without a look at the whole map."""
        chart = self._chart
        near = chart.neighbours
        self._known = {n: a for n, a in self._known.items() if _node_of(n) not in chart.known}
        return (
            0 < len(near) <= self._healer.limits.degree_max + SLACK
            and not (self._known or self._unwanted)
            and len(chart.known) == len(chart.reachable)
            and all(_node_of(name) in near for name, to in self._assigned.items() if to)
        )

    def surroundings(self, whole: bool) -> Surroundings:
        """Return what this node knows, the `whole` with all links; the same object while that is
        the same."""
        chart = self._chart
        seen = (tuple(chart.neighbours), len(chart.reachable), len(self._known))
        mark = (whole, chart.digest, *seen)
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, self._look_around(whole))
        return self._seen[1]

    def _look_around(self, whole: bool) -> Surroundings:
        known = self._chart.known
        links: dict[int, Sequence[tuple[int, int]]] = {}
        if whole:
            links = {node: record.links for node, record in known.items()}
        return surroundings(self._me, links, self._chart.reachable, self._absent())

    def _owners(self) -> dict[str, NodeId]:
        """Return the node in reach that has each address, this node included."""
        chart = self._chart
        mark = (chart.digest, len(chart.reachable))
        if self._owned is None or self._owned[0] != mark:
            known = chart.known
            owners = {
                address: node
                for node in sorted(chart.reachable)
                if node in known
                for address in known[node].addresses
            }
            self._owned = (mark, owners)
        return self._owned[1]

    def _absent(self) -> list[NodeId]:
        """Return the nodes out of reach that can be dialled: one per address, the one that started
        last, and none at an address that a node in reach has."""
        chart = self._chart
        owners = self._owners()
        names = {_node_of(name) for name in self._known} | chart.known.keys()
        found: dict[str, tuple[int, NodeId]] = {}
        for node in sorted(names.difference(chart.reachable)):
            address = self._address_of(name_of(node))
            if address and address not in owners:
                record = chart.known.get(node)
                started = (record.incarnation if record else 0, node)
                found[address] = max(started, found.get(address, started))
        return [node for _, node in found.values()]

    def _release(self, known: Surroundings) -> None:
        """Close a link that the manager does not want, unless somebody is reached by it alone: the
        manager may be wrong. One at a time: the next may be needed then."""
        closed = False
        for name, looks in sorted(self._unwanted.items()):
            self._unwanted[name] = looks + 1
            link = self._chart.neighbours.get(_node_of(name))
            is_ours = link is not None and link.dialled
            if looks < PATIENT_LOOKS and not is_ours:
                continue
            if link is None:
                del self._unwanted[name]
            elif not closed and not known.needs(name):
                closed = True
                del self._unwanted[name]
                self._own.discard(name)
                self._links.close(_node_of(name), "the manager does not want this link any more")

    def _address_of(self, name: Name) -> str:
        record = self._chart.known.get(_node_of(name))
        addresses = record.addresses if record else ()
        return addresses[0] if addresses else self._known.get(name, "")

    def _keep(self, address: str) -> None:
        if address not in self._kept:
            with suppress(UsageError):  # the manager was told nonsense: we do what we can without
                self._links.keep(address)
                self._kept.add(address)

    def _forget(self, address: str) -> None:
        if address in self._kept:
            self._kept.discard(address)
            self._links.forget(address)

    def _attempt(self, address: str) -> bool:
        if address in self._kept:  # dialled already: a second link would replace the first
            return False
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
        minutes = {name: int(self._ages.get(name, 0) // 60) for name in self._known}
        kept = {"neighbours": wanted, "known": addresses, "minutes": minutes}
        return json.dumps(kept, sort_keys=True).encode()

    def restore(self, data: bytes) -> bool:
        """Start from what a former life knew, until the manager says otherwise; whether it could
        be read."""
        try:
            kept: Any = json.loads(data) if data else {}
            wanted = {_checked(n): str(a) for n, a in kept.get("neighbours", {}).items()}
            known = {_checked(n): str(a) for n, a in kept.get("known", {}).items()}
            ages = {_checked(n): 60.0 * int(m) for n, m in kept.get("minutes", {}).items()}
        except (ValueError, TypeError, AttributeError):
            return False
        self._assigned, self._ages = wanted, ages
        self._known = dict([*known.items()][:FORMER_MAX])
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
