"""Selects the neighbours of a node beyond its configuration, with or without a manager.

The node keeps the links that the manager assigns. It closes links that the manager releases, unless
a link is the only path to some node. If neighbours are lost or the federation is partitioned, the
node repairs the topology itself: with the planner while the manager is unavailable, and in any case
if the node is isolated or a known node is unreachable. Whatever the manager assigns, the number of
neighbours stays within `degree_max` plus a small slack. Agent and simulator share this class.

An address belongs to the reachable node that announces it. An unreachable node that used the same
address before (a reinstalled agent has a new id) is not dialled there: the dial would only replace
a link to the present owner, or lead to this node itself.
"""

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from hansa.errors import UsageError
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import NodeId
from hansa.topology.former_addresses import FormerAddresses
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
"""Rounds until the accepting end closes a released link: the dialling end must know that the link
was released, or it would dial again."""


class LinkControlPort(Protocol):
    """Controls the links of a node; an invalid address raises UsageError."""

    def keep_dialling(self, address: str) -> None:
        """Maintain a link to an address."""

    def stop_dialling(self, address: str) -> None:
        """Stop maintaining a link to an address."""

    def dial_once(self, address: str) -> None:
        """Dial once."""

    def close(self, node: NodeId, reason: str) -> None:
        """Close the link to a neighbour."""


class NeighbourSelector:
    def __init__(
        self,
        membership: MembershipView,
        own_node: NodeId,
        links: LinkControlPort,
        limits: PlannerLimits,
        rng: random.Random,
    ) -> None:
        self._membership = membership
        self._own_node = own_node
        self._links = links
        self._healer = TopologyHealer(limits, rng)
        self._assigned: dict[NodeName, str] = {}
        """Assigned neighbours, with the address to dial if this node dials."""
        self._dialled_addresses: set[str] = set()
        """Assigned addresses that are being dialled."""
        self._released_rounds: dict[NodeName, int] = {}
        """Neighbours that the manager released, and the number of rounds since."""
        self._self_dialled: set[NodeName] = set()
        self._former_addresses = FormerAddresses()
        self._cached_topology: tuple[object, LocalTopology] | None = None
        self._cached_owners: tuple[object, dict[str, NodeId]] | None = None
        self.healed_count = 0
        """Number of links that this node dialled by its own decision."""

    # ------------------------------------------------------------ assignments of the manager

    def apply_assignment(
        self, assigned: Mapping[NodeName, str], addresses: Mapping[NodeName, str], degree_max: int
    ) -> None:
        """Keep the assigned neighbours and release the others. `assigned` has an address for those
        that this node dials, else an empty text; `addresses` has all addresses."""
        for name, address in self._assigned.items():
            if address and assigned.get(name) != address:
                self._stop_dialling(address)
        for name in (self._assigned.keys() | self._self_dialled) - assigned.keys():
            self._released_rounds.setdefault(name, 0)
        for name in assigned:
            self._released_rounds.pop(name, None)
        self._self_dialled -= assigned.keys()
        self._assigned = dict(assigned)
        self._former_addresses.confirm(addresses)
        self._dial_assigned()
        if degree_max != self._healer.limits.degree_max:
            self._healer.limits = PlannerLimits(degree_max=max(3, degree_max))

    def _dial_assigned(self) -> None:
        """Dial the assigned addresses, as far as `_should_dial` allows. Two nodes may be assigned
        with one address: it is dialled if either of them should be."""
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
        """Return whether to dial a node: if the existing link was dialled by this node; or, without
        a link, if the node is unreachable or both ends have room. `owner` is the reachable node
        that has the address, if there is one."""
        if owner is not None and owner != node:
            return False
        membership = self._membership
        link = membership.neighbours.get(node)
        if link is not None:
            return link.dialled  # a second link would be refused repeatedly
        if node not in membership.reachable:
            return True
        record = membership.known.get(node)
        degree = max(len(membership.neighbours), len(record.links) if record else 0)
        return degree <= self._healer.limits.degree_max

    # ------------------------------------------------------------ periodic update

    def update_links(self, now: float, is_planning: bool) -> None:
        """Dial and close links as necessary; `is_planning`: no manager plans for this node."""
        self._former_addresses.expire(now)
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
            self._links.close(_node_of(name), "too many neighbours")

    def _is_stable(self) -> bool:
        """Return whether all known nodes are reachable and no link has to change. This is the
        common case, and checked without building the whole topology."""
        membership = self._membership
        neighbours = membership.neighbours
        self._former_addresses.remove(membership.known)
        return (
            0 < len(neighbours) <= self._healer.limits.degree_max + DEGREE_SLACK
            and not (self._former_addresses or self._released_rounds)
            and len(membership.known) == len(membership.reachable)
            and all(
                _node_of(name) in neighbours for name, address in self._assigned.items() if address
            )
        )

    def local_topology(self, with_links: bool) -> LocalTopology:
        """Return the topology as this node knows it; the same object while it is unchanged."""
        membership = self._membership
        cache_key = (
            with_links,
            membership.digest,
            tuple(membership.neighbours),
            len(membership.reachable),
            len(self._former_addresses),
        )
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
        """Return the reachable node that has each address, this node included."""
        membership = self._membership
        cache_key = (membership.digest, len(membership.reachable))
        if self._cached_owners is None or self._cached_owners[0] != cache_key:
            known = membership.known
            owners = {
                address: node
                for node in sorted(membership.reachable)
                if node in known
                for address in known[node].addresses
            }
            self._cached_owners = (cache_key, owners)
        return self._cached_owners[1]

    def _absent_nodes(self) -> list[NodeId]:
        """Return the unreachable nodes that can be dialled: per address the one that started last,
        and none at an address that a reachable node has."""
        membership = self._membership
        owners = self._address_owners()
        nodes = {_node_of(name) for name in self._former_addresses} | membership.known.keys()
        found: dict[str, tuple[int, NodeId]] = {}
        for node in sorted(nodes.difference(membership.reachable)):
            address = self._address_of(node_name(node))
            if address and address not in owners:
                record = membership.known.get(node)
                started = (record.incarnation if record else 0, node)
                found[address] = max(started, found.get(address, started))
        return [node for _, node in found.values()]

    def _close_released_links(self, local_topology: LocalTopology) -> None:
        """Close one released link, unless it is the only path to some node: the manager may have
        outdated information. Only one per round, because the next may be a bridge then."""
        is_one_closed = False
        for name, rounds in sorted(self._released_rounds.items()):
            self._released_rounds[name] = rounds + 1
            link = self._membership.neighbours.get(_node_of(name))
            is_dialled_here = link is not None and link.dialled
            if rounds < RELEASE_AFTER_ROUNDS and not is_dialled_here:
                continue
            if link is None:
                del self._released_rounds[name]
            elif not is_one_closed and not local_topology.is_bridge_to(name):
                is_one_closed = True
                del self._released_rounds[name]
                self._self_dialled.discard(name)
                self._links.close(_node_of(name), "released by the manager")

    def _address_of(self, name: NodeName) -> str:
        record = self._membership.known.get(_node_of(name))
        addresses = record.addresses if record else ()
        return addresses[0] if addresses else self._former_addresses.get(name)

    def _keep_dialling(self, address: str) -> None:
        if address not in self._dialled_addresses:
            with suppress(UsageError):  # the manager passed on an invalid address
                self._links.keep_dialling(address)
                self._dialled_addresses.add(address)

    def _stop_dialling(self, address: str) -> None:
        if address in self._dialled_addresses:
            self._dialled_addresses.discard(address)
            self._links.stop_dialling(address)

    def _dial_once(self, address: str) -> bool:
        if address in self._dialled_addresses:  # a second link would replace the first
            return False
        try:
            self._links.dial_once(address)
        except UsageError:
            return False
        return True

    # ------------------------------------------------------------ state across restarts

    def encode_state(self) -> bytes:
        """Return the known addresses and the assigned neighbours."""
        addresses = self._former_addresses.addresses()
        for node, record in self._membership.known.items():
            if record.addresses and node != self._own_node:
                addresses[node_name(node)] = record.addresses[0]
        assigned = {name: address for name, address in self._assigned.items() if address}
        minutes = self._former_addresses.ages_in_minutes()
        state = {"neighbours": assigned, "known": addresses, "minutes": minutes}
        return json.dumps(state, sort_keys=True).encode()

    def restore_state(self, data: bytes) -> bool:
        """Restore the state of an earlier incarnation; return False if it cannot be read."""
        try:
            state: Any = json.loads(data) if data else {}
            assigned = {_normalize_name(n): str(a) for n, a in state.get("neighbours", {}).items()}
            known = {_normalize_name(n): str(a) for n, a in state.get("known", {}).items()}
            ages = {_normalize_name(n): 60.0 * int(m) for n, m in state.get("minutes", {}).items()}
        except (ValueError, TypeError, AttributeError):
            return False
        self._assigned = assigned
        self._former_addresses.restore(known, ages)
        for address in assigned.values():
            self._keep_dialling(address)
        return True

    def status(self) -> dict[str, object]:
        """Return the part `topology` of `/status`."""
        return {
            "assigned": sorted(self._assigned),
            "self_dialled": sorted(self._self_dialled),
            "released": sorted(self._released_rounds),
            "healed_count": self.healed_count,
        }


def _node_of(name: NodeName) -> NodeId:
    return NodeId(int(name, 16))


def _normalize_name(name: str) -> NodeName:
    return node_name(int(name, 16))
