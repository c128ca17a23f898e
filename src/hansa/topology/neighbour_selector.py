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
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import NodeId
from hansa.topology.graph import NodeName
from hansa.topology.healing import (
    DEGREE_SLACK,
    LocalTopology,
    TopologyHealer,
    make_local_topology,
    node_name,
)
from hansa.topology.planner import PlannerLimits

RELEASE_AFTER_ROUNDS = 3
"""Looks until a link that is not wanted any more is closed by the end that did not dial it: the
other one must have heard of it too, or it would only dial again."""

FORMER_ADDRESS_LIFETIME_S = 86_400.0
"""Seconds that an address is tried whose node neither the map nor the manager has named since."""

FORMER_ADDRESSES_MAX = 4_096
"""Such addresses at most; the oldest go first."""


class LinkControlPort(Protocol):
    """What is asked of a node's links. Addresses come from elsewhere: one that is none raises
    UsageError."""

    def keep_dialling(self, address: str) -> None:
        """Keep a link to an address."""

    def stop_dialling(self, address: str) -> None:
        """Keep it no more."""

    def dial_once(self, address: str) -> None:
        """Dial once."""

    def close(self, node: NodeId, reason: str) -> None:
        """End the link to a neighbour."""


class NeighbourSelector:
    """Whom one node is linked to."""

    def __init__(
        self,
        membership: MembershipView,
        own_node: NodeId,
        links: LinkControlPort,
        limits: PlannerLimits,
        rng: random.Random,
    ) -> None:
        """Start with nothing wanted and nobody known but who is in the chart."""
        self._membership = membership
        self._own_node = own_node
        self._links = links
        self._healer = TopologyHealer(limits, rng)
        self._assigned: dict[NodeName, str] = {}
        """Neighbours that the manager wants, and the address to dial, if it is we who dial."""
        self._dialled_addresses: set[str] = set()
        """The addresses among them that are being dialled."""
        self._released_rounds: dict[NodeName, int] = {}
        """Neighbours that it does not want any more, and how many looks have passed since."""
        self._self_dialled: set[NodeName] = set()
        self._former_addresses: dict[NodeName, str] = {}
        """Addresses of a former life, for those whose record is not here yet."""
        self._former_ages_s: dict[NodeName, float] = {}
        """Seconds for which they have been looked for, in this life and former ones."""
        self._updated_at: float | None = None
        self._cached_topology: tuple[object, LocalTopology] | None = None
        self._cached_owners: tuple[object, dict[str, NodeId]] | None = None
        self.healed_count = 0
        """Links dialled by this node's own decision."""

    # ------------------------------------------------------------ what the manager says

    def apply_assignment(
        self, assigned: Mapping[NodeName, str], addresses: Mapping[NodeName, str], degree_max: int
    ) -> None:
        """Keep what the manager wants, and let go of what it does not want any more. `wanted` has
        the address of those to dial, nothing for the others; `known` has all addresses."""
        for name, address in self._assigned.items():
            if address and assigned.get(name) != address:
                self._stop_dialling(address)
        for name in (self._assigned.keys() | self._self_dialled) - assigned.keys():
            self._released_rounds.setdefault(name, 0)
        for name in assigned:
            self._released_rounds.pop(name, None)
        self._self_dialled -= assigned.keys()
        self._assigned = dict(assigned)
        self._former_addresses = dict(
            [*(self._former_addresses | dict(addresses)).items()][-FORMER_ADDRESSES_MAX:]
        )
        self._former_ages_s = {
            name: age for name, age in self._former_ages_s.items() if name not in addresses
        }
        self._dial_assigned()
        if degree_max != self._healer.limits.degree_max:
            self._healer.limits = PlannerLimits(degree_max=max(3, degree_max))

    def _dial_assigned(self) -> None:
        """Dial whom the manager wants us to dial, unless there is a link or no room for one. Two
        nodes may be assigned with one address: it is kept if either of them is to be dialled."""
        owners = self._address_owners()
        dialled = {
            address: None
            for name, address in self._assigned.items()
            if address and self._should_dial(_node_of(name), owners.get(address))
        }
        for address in self._assigned.values():
            if address and address not in dialled:
                self._stop_dialling(address)
        for address in dialled:
            self._keep_dialling(address)

    def _should_dial(self, node: NodeId, owner: NodeId | None) -> bool:
        """Whether to keep dialling: the link that is there is ours, or there is none, and it would
        lead to somebody out of reach or neither end has more neighbours than allowed. `owner` is
        the node in reach that has the address, if there is one."""
        if owner is not None and owner != node:
            return False
        chart = self._membership
        link = chart.neighbours.get(node)
        if link is not None:
            return link.dialled  # of two, one would be refused again and again
        if node not in chart.reachable:
            return True
        record = chart.known.get(node)
        most = max(len(chart.neighbours), len(record.links) if record else 0)
        return most <= self._healer.limits.degree_max

    # ------------------------------------------------------------ looking

    def update_links(self, now: float, is_planning: bool) -> None:
        """Do what should be done now; `planning` says that nobody else plans."""
        self._expire_former_addresses(now)
        if not is_planning and self._is_stable():
            return
        neighbours = self._membership.neighbours
        has_too_many = len(neighbours) > self._healer.limits.degree_max + DEGREE_SLACK
        local_topology = self.local_topology(
            with_links=is_planning or has_too_many or bool(self._released_rounds)
        )
        self._self_dialled &= set(map(node_name, neighbours))
        self._close_released_links(local_topology)
        self._dial_assigned()
        actions = self._healer.next_actions(
            local_topology, frozenset(self._self_dialled), now, is_planning
        )
        for name in actions.dial:
            address = self._address_of(name)
            if address and self._dial_once(address):
                self._self_dialled.add(name)
                self._released_rounds.pop(name, None)
                self.healed_count += 1
        for name in actions.drop:
            self._self_dialled.discard(name)
            self._links.close(_node_of(name), "more neighbours than it should have")

    def _expire_former_addresses(self, now: float) -> None:
        """Who has been looked for in vain for so long will not come back."""
        passed = 0.0 if self._updated_at is None else now - self._updated_at
        self._updated_at = now
        if self._former_addresses:
            self._former_ages_s = {
                name: self._former_ages_s.get(name, 0.0) + passed for name in self._former_addresses
            }
            self._former_addresses = {
                n: a
                for n, a in self._former_addresses.items()
                if self._former_ages_s[n] < FORMER_ADDRESS_LIFETIME_S
            }

    def _is_stable(self) -> bool:
        """Whether everybody who is known is in reach and no link has to come or go: most of the
        time, and seen without a look at the whole map."""
        chart = self._membership
        near = chart.neighbours
        self._former_addresses = {
            n: a for n, a in self._former_addresses.items() if _node_of(n) not in chart.known
        }
        return (
            0 < len(near) <= self._healer.limits.degree_max + DEGREE_SLACK
            and not (self._former_addresses or self._released_rounds)
            and len(chart.known) == len(chart.reachable)
            and all(_node_of(name) in near for name, to in self._assigned.items() if to)
        )

    def local_topology(self, with_links: bool) -> LocalTopology:
        """Return what this node knows, the `whole` with all links; the same object while that is
        the same."""
        chart = self._membership
        seen = (tuple(chart.neighbours), len(chart.reachable), len(self._former_addresses))
        cache_key = (with_links, chart.digest, *seen)
        if self._cached_topology is None or self._cached_topology[0] != cache_key:
            self._cached_topology = (cache_key, self._make_local_topology(with_links))
        return self._cached_topology[1]

    def _make_local_topology(self, with_links: bool) -> LocalTopology:
        known = self._membership.known
        links: dict[int, Sequence[tuple[int, int]]] = {}
        if with_links:
            links = {node: record.links for node, record in known.items()}
        return make_local_topology(
            self._own_node, links, self._membership.reachable, self._absent_nodes()
        )

    def _address_owners(self) -> dict[str, NodeId]:
        """Return the node in reach that has each address, this node included."""
        chart = self._membership
        cache_key = (chart.digest, len(chart.reachable))
        if self._cached_owners is None or self._cached_owners[0] != cache_key:
            known = chart.known
            owners = {
                address: node
                for node in sorted(chart.reachable)
                if node in known
                for address in known[node].addresses
            }
            self._cached_owners = (cache_key, owners)
        return self._cached_owners[1]

    def _absent_nodes(self) -> list[NodeId]:
        """Return the nodes out of reach that can be dialled: one per address, the one that started
        last, and none at an address that a node in reach has."""
        chart = self._membership
        owners = self._address_owners()
        names = {_node_of(name) for name in self._former_addresses} | chart.known.keys()
        found: dict[str, tuple[int, NodeId]] = {}
        for node in sorted(names.difference(chart.reachable)):
            address = self._address_of(node_name(node))
            if address and address not in owners:
                record = chart.known.get(node)
                started = (record.incarnation if record else 0, node)
                found[address] = max(started, found.get(address, started))
        return [node for _, node in found.values()]

    def _close_released_links(self, local_topology: LocalTopology) -> None:
        """Close a link that the manager does not want, unless somebody is reached by it alone: the
        manager may be wrong. One at a time: the next may be needed then."""
        closed = False
        for name, rounds in sorted(self._released_rounds.items()):
            self._released_rounds[name] = rounds + 1
            link = self._membership.neighbours.get(_node_of(name))
            is_ours = link is not None and link.dialled
            if rounds < RELEASE_AFTER_ROUNDS and not is_ours:
                continue
            if link is None:
                del self._released_rounds[name]
            elif not closed and not local_topology.is_bridge_to(name):
                closed = True
                del self._released_rounds[name]
                self._self_dialled.discard(name)
                self._links.close(_node_of(name), "the manager does not want this link any more")

    def _address_of(self, name: NodeName) -> str:
        record = self._membership.known.get(_node_of(name))
        addresses = record.addresses if record else ()
        return addresses[0] if addresses else self._former_addresses.get(name, "")

    def _keep_dialling(self, address: str) -> None:
        if address not in self._dialled_addresses:
            with suppress(UsageError):  # the manager was told nonsense: we do what we can without
                self._links.keep_dialling(address)
                self._dialled_addresses.add(address)

    def _stop_dialling(self, address: str) -> None:
        if address in self._dialled_addresses:
            self._dialled_addresses.discard(address)
            self._links.stop_dialling(address)

    def _dial_once(self, address: str) -> bool:
        if (
            address in self._dialled_addresses
        ):  # dialled already: a second link would replace the first
            return False
        try:
            self._links.dial_once(address)
        except UsageError:
            return False
        return True

    # ------------------------------------------------------------ what a restart should know

    def encode_state(self) -> bytes:
        """Return whom this node knows, and whom the manager wanted it to be linked to."""
        addresses = dict(self._former_addresses)
        for node, record in self._membership.known.items():
            if record.addresses and node != self._own_node:
                addresses[node_name(node)] = record.addresses[0]
        assigned = {name: address for name, address in self._assigned.items() if address}
        minutes = {
            name: int(self._former_ages_s.get(name, 0) // 60) for name in self._former_addresses
        }
        state = {"neighbours": assigned, "known": addresses, "minutes": minutes}
        return json.dumps(state, sort_keys=True).encode()

    def restore_state(self, data: bytes) -> bool:
        """Start from what a former life knew, until the manager says otherwise; whether it could
        be read."""
        try:
            state: Any = json.loads(data) if data else {}
            assigned = {_normalize_name(n): str(a) for n, a in state.get("neighbours", {}).items()}
            known = {_normalize_name(n): str(a) for n, a in state.get("known", {}).items()}
            ages = {_normalize_name(n): 60.0 * int(m) for n, m in state.get("minutes", {}).items()}
        except (ValueError, TypeError, AttributeError):
            return False
        self._assigned, self._former_ages_s = assigned, ages
        self._former_addresses = dict([*known.items()][:FORMER_ADDRESSES_MAX])
        for address in assigned.values():
            self._keep_dialling(address)
        return True

    def status(self) -> dict[str, object]:
        """Return what an operator may want to see."""
        return {
            "assigned": sorted(self._assigned),
            "healed": sorted(self._self_dialled),
            "unwanted": sorted(self._released_rounds),
            "healed_count": self.healed_count,
        }


def _node_of(name: NodeName) -> NodeId:
    return NodeId(int(name, 16))


def _normalize_name(name: str) -> NodeName:
    return node_name(int(name, 16))
