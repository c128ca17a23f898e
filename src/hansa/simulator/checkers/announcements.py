"""Invariants of core announcements: no loops of parents, and bounded cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hansa.protocol.effects import Effect, Ignored, NeighbourDown, NeighbourUp, ParentsChanged
from hansa.protocol.events import Event, FrameReceived
from hansa.protocol.model import NodeId
from hansa.protocol.routing.base import TOO_SHORT
from hansa.protocol.settings import Metric
from hansa.protocol.wire.frames import UNREACHABLE, CoreAnnouncement
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.network import LinkEnd
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World


@dataclass(frozen=True, slots=True)
class _ReportedRoute:
    """A node's route to a core, as it last announced it."""

    stamp: tuple[int, int]
    distance: int
    parents: tuple[NodeId, ...]

    def is_lost(self) -> bool:
        return self.distance == UNREACHABLE

    def is_newer_or_nearer(self, other: "_ReportedRoute") -> bool:
        """Whether this one is newer, or equally new and nearer to the core."""
        if self.stamp != other.stamp:
            return self.stamp > other.stamp
        return self.distance < other.distance


class ParentsNearer(Checker):
    """A parent is nearer to the core, by a newer announcement or by the same one; or it has lost
    its route and will announce that. Hence there is never a loop of parents.

    With round-trip times as metric a parent's distance may grow after it was chosen; then only the
    loop itself is forbidden.
    """

    name = "parents nearer"

    def __init__(self, world: World, violations: list[str]) -> None:
        super().__init__(world, violations)
        self._routes: dict[int, dict[NodeId, _ReportedRoute]] = {}
        # (place, neighbour id): place and process run of that neighbour, because ids and places
        # move
        self._neighbour_processes: dict[tuple[int, NodeId], tuple[int, int]] = {}
        self._uses_hops = world.options.protocol.metric is Metric.HOPS

    def on_agent_started(self, site: Site) -> None:
        """A new process has no routes."""
        self._routes[site.place] = {}

    def on_agent_stopped(self, site: Site) -> None:
        self._routes.pop(site.place, None)

    def on_notification(self, site: Site, notification: Effect) -> None:
        """Follow the new parents: returning to the start is a loop."""
        if isinstance(notification, NeighbourUp):
            self._record_neighbour(site, notification)
        elif isinstance(notification, ParentsChanged):
            stamp = (notification.incarnation, notification.sequence)
            self._record_route(
                site,
                notification.core,
                _ReportedRoute(stamp, notification.distance, notification.parents),
            )
            self._check_for_loop(site, notification.core)

    def _record_neighbour(self, site: Site, notification: NeighbourUp) -> None:
        end = site.link_ends.get(notification.link)
        # It may have ended while the node was suspended, or lead to a process that has ended.
        if end is None or not end.peer.is_open:
            self._neighbour_processes.pop((site.place, notification.node), None)
        else:
            behind = self.world.sites[end.peer.host.place]
            self._neighbour_processes[site.place, notification.node] = (
                behind.place,
                behind.process_run,
            )

    def on_announcement_sent(self, end: LinkEnd, frame: CoreAnnouncement) -> None:
        route = _ReportedRoute((frame.incarnation, frame.sequence), frame.distance, frame.parents)
        self._record_route(self.world.sites[end.host.place], frame.core, route)

    def _record_route(self, site: Site, core: NodeId, route: _ReportedRoute) -> None:
        """Compare a node with its parents, and its children with it."""
        if self._routes[site.place].get(core) == route:
            return
        self._routes[site.place][core] = route
        if self._uses_hops:
            for other in self._neighbouring_sites(site):
                self._check_parent(site, other, core)
                self._check_parent(other, site, core)

    def _neighbouring_sites(self, site: Site) -> list[Site]:
        return [self.world.sites[end.peer.host.place] for end in site.link_ends.values()]

    def _is_parent(self, parent: Site, child: Site, core: NodeId) -> bool:
        route = self._routes.get(child.place, {}).get(core)
        if route is None or parent.state.id not in route.parents:
            return False
        known = self._neighbour_processes.get((child.place, parent.state.id))
        return known == (parent.place, parent.process_run)

    def _check_parent(self, child: Site, parent: Site, core: NodeId) -> None:
        if not self._is_parent(parent, child, core):
            return
        mine = self._routes[child.place][core]
        theirs = self._routes.get(parent.place, {}).get(core)
        if theirs is None or mine.is_lost() or theirs.is_lost() or theirs.is_newer_or_nearer(mine):
            return
        self.report_violation(
            f"n{child.place} {mine} has parent n{parent.place} {theirs} to core {core}"
        )

    def _check_for_loop(self, start: Site, core: NodeId) -> None:
        queue = [start]
        seen = {start.place}
        for site in queue:  # grows while it is read
            above = [
                other
                for other in self._neighbouring_sites(site)
                if self._is_parent(other, site, core)
            ]
            if start in above:
                self.report_violation(f"n{start.place} is its own ancestor towards core {core}")
            fresh = [other for other in above if other.place not in seen]
            seen.update(other.place for other in fresh)
            queue += fresh


@dataclass(slots=True)
class _AnnouncementFlood:
    started_at_change: int
    """The number of neighbour changes when it was made."""
    link_count: float
    """The number of links that were up then."""
    frame_count: int = 0
    last_frames: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Per place, the distance that it announced last, and the number of frames with it."""

    def count_frame(self, place: int, distance: int) -> None:
        self.frame_count += 1
        last, count = self.last_frames.get(place, (distance, 0))
        self.last_frames[place] = (distance, count + 1 if distance == last else 1)

    def last_frame_count(self) -> int:
        return sum(count for _, count in self.last_frames.values())


class AnnouncementCost(Checker):
    """One announcement takes at most two frames per link (Spohn 2020, theorem 1).

    Guaranteed for the metric hops, if all links are equally fast and none changes meanwhile, and if
    no copy of the core runs, which makes announcements with the same numbers; the maximum is always
    reported. Links that came up later are not counted.

    If the announcement overtakes the record of a new link, a node first announces the distance that
    its map allows, and the right one when the record arrives (rule 4.12). Then only the frames with
    the last distance of each node are limited.
    """

    name = "announcement cost"

    def __init__(self, world: World, violations: list[str]) -> None:
        super().__init__(world, violations)
        links = world.options.links
        equal = links.is_ordered and not links.delays_ms and not links.jitter_ms
        self._is_bounded = (
            equal and world.options.protocol.metric is Metric.HOPS and not world.compromised
        )
        self._floods: dict[tuple[NodeId, int, int], _AnnouncementFlood] = {}
        self._overtook_map: set[tuple[NodeId, int, int]] = set()
        self._change_count = 0
        self._up_since_change: dict[
            tuple[int, NodeId], int
        ] = {}  # (place, neighbour): the change that made it
        self.frames_per_announcement_max = 0

    def on_agent_stopped(self, site: Site) -> None:
        self._change_count += 1
        for key in [key for key in self._up_since_change if key[0] == site.place]:
            del self._up_since_change[key]

    def on_disturbance(self, description: str, is_fault: bool, places: tuple[int, ...]) -> None:
        """A link that was silent may pass on what it held back, so it was not equally fast."""
        self._change_count += 1

    def on_notification(self, site: Site, notification: Effect) -> None:
        """Track neighbours."""
        if isinstance(notification, NeighbourUp):
            self._change_count += 1
            self._up_since_change[site.place, notification.node] = self._change_count
        elif isinstance(notification, NeighbourDown):
            self._change_count += 1
            self._up_since_change.pop((site.place, notification.node), None)

    def on_event_handled(self, site: Site, event: Event, effects: Sequence[Effect]) -> None:
        """Record an announcement that arrived before the map that it needs."""
        if not isinstance(event, FrameReceived) or not isinstance(event.frame, CoreAnnouncement):
            return
        if Ignored(TOO_SHORT) in effects:
            self._overtook_map.add(_key(event.frame))

    def on_announcement_sent(self, end: LinkEnd, frame: CoreAnnouncement) -> None:
        """Count a frame, unless it withdraws an announcement."""
        if frame.distance == UNREACHABLE:
            return
        key = _key(frame)
        flood = self._floods.get(key)
        if flood is None:
            flood = self._floods[key] = _AnnouncementFlood(
                self._change_count, len(self._up_since_change) / 2
            )
        peer = self.world.sites[end.peer.host.place].state.id
        if (
            self._up_since_change.get((end.host.place, peer), self._change_count)
            > flood.started_at_change
        ):
            return
        flood.count_frame(end.host.place, frame.distance)
        self.frames_per_announcement_max = max(self.frames_per_announcement_max, flood.frame_count)
        if not self._is_bounded or flood.frame_count <= 2 * flood.link_count:
            return
        if key in self._overtook_map and flood.last_frame_count() <= 2 * flood.link_count:
            return
        cores = [site for site in self.world.sites if site.state.id == frame.core]
        if flood.started_at_change == self._change_count and len(cores) == 1:
            self.report_violation(
                f"announcement {key} takes {flood.frame_count} frames on {flood.link_count} links"
            )


def _key(frame: CoreAnnouncement) -> tuple[NodeId, int, int]:
    return frame.core, frame.incarnation, frame.sequence
