"""Routes to all cores: distances and parents that never form a loop.

A core announces itself with a growing sequence number. A node chooses as parents only *feasible*
neighbours: those closer to the core than any distance that this node has announced for the same
sequence number. Along parents the feasible distance decreases at every step, so no loop can form,
whatever is lost or late. A node without a feasible neighbour announces that and waits for a newer
announcement. This is the announcement of Spohn 2020 with the safety of distance-vector routing (RFC
8966).

Distances are not signed. One that is shorter than the map allows counts as the distance of the map,
so a dishonest neighbour attracts no more than its place in the map does (rule 4.12).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import UNREACHABLE, CoreAnnouncement


@dataclass(slots=True)
class CoreRoute:
    stamp: Stamp
    """(incarnation, sequence number) of the announcement that it is based on."""
    distance: int = UNREACHABLE
    feasible_distance: int = UNREACHABLE
    parents: tuple[NodeId, ...] = ()
    announcements: dict[NodeId, tuple[Stamp, int]] = field(default_factory=dict)
    """Per neighbour, its last announcement: stamp and its own distance."""
    signature: bytes = b""
    """Of the core, over `stamp`."""


class CoreRoutes:
    """One node's routes to all cores."""

    def __init__(
        self,
        redundancy: int,
        cost: Callable[[NodeId], int | None],
        map_distance: Callable[[NodeId, NodeId], int] = lambda neighbour, core: 0,
    ) -> None:
        """`cost` returns the cost of the link to a neighbour, None if it is not one;
        `map_distance` the shortest distance that a neighbour can have from a core."""
        self._redundancy = redundancy
        self._cost = cost
        self._map_distance = map_distance
        self.routes: dict[NodeId, CoreRoute] = {}
        self.corrected_cores: dict[NodeId, None] = {}
        """Cores of which a neighbour announces too short a distance."""

    def set_own_route(self, core: NodeId, stamp: Stamp, signature: bytes = b"") -> None:
        """This node is the core itself, at this sequence number."""
        self.routes[core] = CoreRoute(stamp, distance=0, feasible_distance=0, signature=signature)

    def receive_announcement(self, neighbour: NodeId, frame: CoreAnnouncement) -> bool:
        """Apply an announcement; return whether this node must forward the change (rule 4.4)."""
        if self._cost(neighbour) is None:
            return False  # it may not relay: its newer stamp must not void the routes of others
        stamp = (frame.incarnation, frame.sequence)
        route = self.routes.get(frame.core)
        if route is None:
            if frame.distance == UNREACHABLE:
                return False
            route = self.routes[frame.core] = CoreRoute((-1, 0))
        route.announcements[neighbour] = (stamp, frame.distance)
        is_changed = self._select_parents(frame.core, route)
        if route.stamp == stamp:
            route.signature = frame.signature
        return is_changed

    def is_too_short(self, neighbour: NodeId, core: NodeId, distance: int) -> bool:
        """Whether the map allows no neighbour to be that close to a core."""
        return distance < self._map_distance(neighbour, core)

    def remove_neighbour(self, neighbour: NodeId) -> list[NodeId]:
        """A neighbour was lost; return the cores whose routes must be announced again."""
        changed = []
        for core, route in self.routes.items():
            if route.announcements.pop(neighbour, None) is not None and self._select_parents(
                core, route
            ):
                changed.append(core)
        return changed

    def update_corrected(self) -> list[NodeId]:
        """The map changed, and may allow distances that were too short; return the cores whose
        routes must be announced again."""
        return [
            core
            for core in list(self.corrected_cores)
            if self._select_parents(core, self.routes[core])
        ]

    def update_link_costs(self) -> list[NodeId]:
        """Link costs changed; return the cores whose routes must be announced again."""
        return [
            core
            for core, route in self.routes.items()
            if route.distance != 0 and self._select_parents(core, route)
        ]

    def expire_node(self, node: NodeId) -> None:
        """Delete the route to a node, only after its lease has ended: the feasible distance must
        outlive the route, or the same announcement could return around a loop."""
        self.routes.pop(node, None)
        self.corrected_cores.pop(node, None)

    def parents(self, core: NodeId) -> tuple[NodeId, ...]:
        """Return the parents towards a core; none without a route, or if this node is the core."""
        route = self.routes.get(core)
        return route.parents if route else ()

    def has_route(self, core: NodeId) -> bool:
        """Whether there is a route to a core, or this node is it."""
        route = self.routes.get(core)
        return route is not None and route.distance != UNREACHABLE

    def _select_parents(self, core: NodeId, route: CoreRoute) -> bool:
        """Choose distance and parents again; return whether to announce that to neighbours."""
        before = (route.stamp, route.distance)
        newest = max(
            (s for s, d in route.announcements.values() if d != UNREACHABLE), default=(-1, 0)
        )
        if newest > route.stamp:
            route.stamp, route.feasible_distance = newest, UNREACHABLE
        distances = self._plausible_distances(core, route)
        reach = {
            node: length
            for node, distance in distances.items()
            if distance < route.feasible_distance
            and (cost := self._cost(node)) is not None  # several neighbours may be lost at once
            and (length := distance + cost) < UNREACHABLE
        }
        route.distance = min(reach.values(), default=UNREACHABLE)
        route.feasible_distance = min(route.feasible_distance, route.distance)
        nearer = [node for node in reach if distances[node] < route.feasible_distance]
        # The shortest route comes first; among equals, present parents.
        rank = {node: place for place, node in enumerate(route.parents)}
        nearer.sort(key=lambda node: (reach[node], rank.get(node, len(rank)), node))
        route.parents = tuple(nearer[: self._redundancy])
        return (route.stamp, route.distance) != before

    def _plausible_distances(self, core: NodeId, route: CoreRoute) -> dict[NodeId, int]:
        """Return the distances under the present stamp, none shorter than the map allows."""
        distances: dict[NodeId, int] = {}
        self.corrected_cores.pop(core, None)
        for node, (stamp, distance) in route.announcements.items():
            if stamp == route.stamp:
                least = self._map_distance(node, core)
                if distance < least:
                    self.corrected_cores[core] = None
                distances[node] = max(distance, least)
        return distances
