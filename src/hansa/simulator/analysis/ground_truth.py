"""The true state of the federation: reachability, interest and distances.

Compromised nodes are no part of it: a component has honest nodes only, and paths between them that
pass no other.

Nodes gather this from each other; here it is read from the world. This module also maps places to
NodeIds: statuses contain NodeIds, the world places.
"""

from dataclasses import dataclass
from functools import cached_property

from hansa.protocol.model import NodeId
from hansa.protocol.status import NodeStatus
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World


@dataclass
class Component:
    """A connected component of running nodes."""

    sites: list[Site]
    neighbours: dict[NodeId, tuple[NodeId, ...]]
    """Per node, the neighbours with a usable link, ordered by id."""

    @cached_property
    def ids(self) -> tuple[NodeId, ...]:
        """The ids of all nodes, ordered."""
        return tuple(sorted(site.state.id for site in self.sites))

    @cached_property
    def by_id(self) -> dict[NodeId, Site]:
        return {site.state.id: site for site in self.sites}

    @cached_property
    def has_distinct_ids(self) -> bool:
        return len(self.by_id) == len(self.sites)

    def distances(self, start: NodeId) -> dict[NodeId, int]:
        """Return the distance of each node from `start` in links."""
        found = {start: 0}
        queue = [start]
        for node in queue:  # grows while it is read: breadth first
            for other in self.neighbours[node]:
                if other not in found:
                    found[other] = found[node] + 1
                    queue.append(other)
        return found


class GroundTruth:
    """The state of a world, recomputed only when it may have changed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._topology_version = -1
        self._components: list[Component] = []
        self._statuses: dict[int, tuple[int, int, NodeStatus]] = {}

    def components(self) -> list[Component]:
        """Return the current components of the federation."""
        if self._topology_version != self._world.topology_version:
            self._topology_version = self._world.topology_version
            self._components = self._find_components()
        return self._components

    @property
    def now(self) -> float:
        return self._world.scheduler.now

    @property
    def has_attackers(self) -> bool:
        return bool(self._world.compromised)

    def component_of(self, site: Site) -> Component | None:
        return next((part for part in self.components() if site in part.sites), None)

    def status(self, site: Site) -> NodeStatus:
        """Return a running node's status, cached until it may have changed."""
        known = self._statuses.get(site.place)
        if known is None or known[:2] != (site.process_run, site.change_count):
            assert site.node is not None
            known = (site.process_run, site.change_count, site.node.status())
            self._statuses[site.place] = known
        return known[2]

    def clear_statuses(self) -> None:
        """Drop all cached statuses: a timer may have changed a node without an event."""
        self._statuses.clear()

    def _find_components(self) -> list[Component]:
        honest = self._world.honest_sites()
        near: dict[int, list[Site]] = {s.place: [] for s in honest if s.is_active}
        for (a, b), link in self._world.network.links.items():
            if link.is_usable and a in near and b in near:
                near[a].append(self._world.sites[b])
                near[b].append(self._world.sites[a])
        seen: set[int] = set()
        parts: list[Component] = []
        for place in near:
            if place not in seen:
                sites = _reachable_sites(self._world.sites[place], near)
                seen.update(site.place for site in sites)
                parts.append(_make_component(sites, near))
        return parts


def _reachable_sites(start: Site, near: dict[int, list[Site]]) -> list[Site]:
    sites = [start]
    seen = {start.place}
    for site in sites:  # grows while it is read: breadth first
        for other in near[site.place]:
            if other.place not in seen:
                seen.add(other.place)
                sites.append(other)
    return sorted(sites, key=lambda site: site.place)


def _make_component(sites: list[Site], near: dict[int, list[Site]]) -> Component:
    neighbours = {
        site.state.id: tuple(sorted(other.state.id for other in near[site.place])) for site in sites
    }
    return Component(sites, neighbours)
