"""Promises about announcements: they lead to the core without loops, and cost what they may."""

from dataclasses import dataclass

from hansa.protocol.effects import NeighbourDown, NeighbourUp, News, ParentsChanged
from hansa.protocol.model import NodeId
from hansa.protocol.settings import Metric
from hansa.protocol.wire.frames import UNREACHABLE, Announce
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.network import End
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World


@dataclass(frozen=True, slots=True)
class _Way:
    """A node's way to a core, as it last said."""

    stamp: tuple[int, int]
    distance: int
    parents: tuple[NodeId, ...]

    def is_lost(self) -> bool:
        return self.distance == UNREACHABLE

    def is_nearer_than(self, other: "_Way") -> bool:
        """Whether this one is newer, or as new and nearer to the core."""
        if self.stamp != other.stamp:
            return self.stamp > other.stamp
        return self.distance < other.distance


class ParentsNearer(Checker):
    """A parent is nearer to the core, by a newer announcement or by the same one; or it has lost
    its way and will say so. Hence no loop of parents, not even for a moment.

    With round-trip times as metric a parent's distance may grow after it was chosen; then only
    the loop itself is forbidden.
    """

    name = "parents nearer"

    def __init__(self, world: World, violations: list[str]) -> None:
        """Start with no ways known."""
        super().__init__(world, violations)
        self._ways: dict[int, dict[NodeId, _Way]] = {}
        # (place, id of a neighbour): the place and life behind it, for ids and places change hands
        self._behind: dict[tuple[int, NodeId], tuple[int, int]] = {}
        self._by_hops = world.options.protocol.metric is Metric.HOPS

    def started(self, site: Site) -> None:
        """A new life knows no ways."""
        self._ways[site.place] = {}

    def stopped(self, site: Site) -> None:
        """A dead node is nobody's way."""
        self._ways.pop(site.place, None)

    def told(self, site: Site, news: News) -> None:
        """A node has other parents: follow them all, coming back to the start is a loop."""
        if isinstance(news, NeighbourUp):
            self._note_neighbour(site, news)
        elif isinstance(news, ParentsChanged):
            stamp = (news.incarnation, news.seq)
            self._note(site, news.core, _Way(stamp, news.distance, news.parents))
            self._walk(site, news.core)

    def _note_neighbour(self, site: Site, news: NeighbourUp) -> None:
        end = site.ends.get(news.link)
        if end is None:  # it ended while the node was suspended
            self._behind.pop((site.place, news.node), None)
        else:
            behind = self.world.sites[end.other.machine.place]
            self._behind[site.place, news.node] = (behind.place, behind.life)

    def announced(self, end: End, frame: Announce) -> None:
        """A node says how far it is."""
        way = _Way((frame.incarnation, frame.seq), frame.distance, frame.parents)
        self._note(self.world.sites[end.machine.place], frame.core, way)

    def _note(self, site: Site, core: NodeId, way: _Way) -> None:
        """Compare a node with its parents, and its children with it."""
        if self._ways[site.place].get(core) == way:
            return
        self._ways[site.place][core] = way
        if self._by_hops:
            for other in self._around(site):
                self._compare(site, other, core)
                self._compare(other, site, core)

    def _around(self, site: Site) -> list[Site]:
        return [self.world.sites[end.other.machine.place] for end in site.ends.values()]

    def _is_parent(self, parent: Site, child: Site, core: NodeId) -> bool:
        way = self._ways.get(child.place, {}).get(core)
        if way is None or parent.memory.id not in way.parents:
            return False
        known = self._behind.get((child.place, parent.memory.id))
        return known == (parent.place, parent.life)

    def _compare(self, child: Site, parent: Site, core: NodeId) -> None:
        if not self._is_parent(parent, child, core):
            return
        mine = self._ways[child.place][core]
        theirs = self._ways.get(parent.place, {}).get(core)
        if theirs is None or mine.is_lost() or theirs.is_lost() or theirs.is_nearer_than(mine):
            return
        self.fail(f"n{child.place} {mine} has parent n{parent.place} {theirs} to core {core}")

    def _walk(self, start: Site, core: NodeId) -> None:
        queue = [start]
        seen = {start.place}
        for site in queue:  # grows as it is read
            above = [other for other in self._around(site) if self._is_parent(other, site, core)]
            if start in above:
                self.fail(f"n{start.place} is above itself on the way to core {core}")
            fresh = [other for other in above if other.place not in seen]
            seen.update(other.place for other in fresh)
            queue += fresh


@dataclass(slots=True)
class _Flood:
    """One announcement on its way."""

    born: int
    """How many neighbours had come and gone when it was made."""
    links: float
    """How many links were up then."""
    frames: int = 0


class Cost(Checker):
    """One announcement takes at most two frames per link (Spohn 2020, theorem 1).

    Promised for hops, when all links are equally fast and none comes or goes meanwhile; the most
    frames are reported always. Links that came up later are not counted: what they carry is theirs.
    """

    name = "cost"

    def __init__(self, world: World, violations: list[str]) -> None:
        """Start with nothing announced."""
        super().__init__(world, violations)
        links = world.options.links
        equal = links.ordered and not links.delays_ms and not links.jitter_ms
        self._promised = equal and world.options.protocol.metric is Metric.HOPS
        self._floods: dict[tuple[NodeId, int, int], _Flood] = {}
        self._changes = 0
        self._up: dict[tuple[int, NodeId], int] = {}  # (place, neighbour): the change that made it
        self.frames_max = 0

    def stopped(self, site: Site) -> None:
        """A dead node has no neighbours."""
        self._changes += 1
        for key in [key for key in self._up if key[0] == site.place]:
            del self._up[key]

    def told(self, site: Site, news: News) -> None:
        """Follow who is whose neighbour."""
        if isinstance(news, NeighbourUp):
            self._changes += 1
            self._up[site.place, news.node] = self._changes
        elif isinstance(news, NeighbourDown):
            self._changes += 1
            self._up.pop((site.place, news.node), None)

    def announced(self, end: End, frame: Announce) -> None:
        """Count a frame, unless it takes an announcement back."""
        if frame.distance == UNREACHABLE:
            return
        key = (frame.core, frame.incarnation, frame.seq)
        flood = self._floods.get(key)
        if flood is None:
            flood = self._floods[key] = _Flood(self._changes, len(self._up) / 2)
        peer = self.world.sites[end.other.machine.place].memory.id
        if self._up.get((end.machine.place, peer), self._changes) > flood.born:
            return
        flood.frames += 1
        self.frames_max = max(self.frames_max, flood.frames)
        undisturbed = flood.born == self._changes
        if self._promised and undisturbed and flood.frames > 2 * flood.links:
            self.fail(f"announcement {key} takes {flood.frames} frames on {flood.links} links")
