"""The promises, one small class each. A broken one becomes a text with time, nodes and seed.

Some are checked at every step, because a moment's breach is a breach: no phantom, at most once, no
loop, parents nearer, cost. The others hold when the federation has had time to come to rest.
"""

from dataclasses import dataclass

from hansa.protocol.effects import NeighbourDown, NeighbourUp, News, ParentsChanged
from hansa.protocol.frames import UNREACHABLE, Announce
from hansa.protocol.settings import Metric
from hansa.protocol.vocabulary import HOPS_MAX, GroupId, NodeId, Publication
from hansa.simulator.convergence import Tracker, allowance
from hansa.simulator.ledger import Entry
from hansa.simulator.network import REORDER_FACTOR, End
from hansa.simulator.site import Site
from hansa.simulator.structure import Structure
from hansa.simulator.watcher import Watcher
from hansa.simulator.world import World

RECHECK_S = 0.1
RECHECK_COUNT = 8
"What is wrong at rest is looked at so often again, so many seconds apart."

VIOLATIONS_MAX = 50
"What is broken is often broken many times; so many are written down."


class Checker(Watcher):
    """What all promises share: a name, and a place to complain."""

    name = ""

    def __init__(self, world: World, violations: list[str]) -> None:
        """Watch a world; complaints are added to `violations`."""
        self.world = world
        self._violations = violations

    def fail(self, text: str, name: str = "") -> None:
        """The promise is broken."""
        if len(self._violations) < VIOLATIONS_MAX:
            seed = self.world.options.seed
            at = f"{self.world.now:.4f} s, seed {seed}"
            self._violations.append(f"{name or self.name}: {text} ({at})")


# ---------------------------------------------------------------- publications


class NoPhantom(Checker):
    """What is delivered was published, byte for byte, and elsewhere."""

    name = "no phantom"

    def delivered(self, site: Site, publication: Publication, entry: Entry | None) -> None:
        """Compare with what was published."""
        if entry is None:
            self.fail(f"n{site.place} delivers {publication}, which nobody published")
            return
        got = (publication.topic, publication.payload, publication.qos, publication.retain)
        if got != (entry.topic, entry.payload, entry.qos, entry.retain):
            self.fail(f"n{site.place} delivers {publication}, published was {entry}")
        if site.place == entry.place:
            self.fail(f"n{site.place} delivers its own publication {entry.number}")


class AtMostOnce(Checker):
    """A broker gets a publication at most once. An agent's crash ends what it can remember."""

    name = "at most once"

    def __init__(self, world: World, violations: list[str]) -> None:
        """Start with nothing delivered."""
        super().__init__(world, violations)
        self._seen: dict[tuple[int, int], set[int]] = {}

    def delivered(self, site: Site, publication: Publication, entry: Entry | None) -> None:
        """Look whether this life of the agent has delivered it before."""
        seen = self._seen.setdefault((site.place, site.life), set())
        if entry is not None and entry.number in seen:
            self.fail(f"n{site.place} delivers publication {entry.number} again")
        elif entry is not None:
            seen.add(entry.number)


class NoLoop(Checker):
    """A publication crosses each direction of a link once to spread, and once per group that it
    names there; and it travels no farther than the limit."""

    name = "no loop"

    def __init__(self, world: World, violations: list[str]) -> None:
        """Start with nothing sent."""
        super().__init__(world, violations)
        self._crossings: dict[tuple[object, ...], tuple[int, frozenset[GroupId]]] = {}

    def forwarded(self, end: End, publication: Publication) -> None:
        """Count a copy, per session: behind an old one there may have been another node."""
        name = (publication.origin, publication.life, publication.number, publication.qos > 0)
        way = (end.machine.place, end.id, *name)
        count, named = self._crossings.get(way, (0, frozenset()))
        count, named = count + 1, named.union(publication.named)
        self._crossings[way] = (count, named)
        link = f"n{end.machine.place}>n{end.other.machine.place}"
        if count > 1 + len(named):
            self.fail(f"publication {name} crosses {link} {count} times, named {len(named)}")
        if publication.hops > HOPS_MAX:
            self.fail(f"publication {name} travels {publication.hops} hops at {link}")


class Completeness(Checker):
    """What is published while all is right, and nothing happens until it could have arrived,
    reaches every broker that wants it."""

    name = "completeness"

    def __init__(self, world: World, violations: list[str], tracker: Tracker) -> None:
        """Ask the tracker whether all is right."""
        super().__init__(world, violations)
        self._tracker = tracker
        links = world.options.links
        slowest = max([links.delay_ms, *(delay for _, _, delay in links.delays_ms)])
        hop = (slowest + links.jitter_ms) / 1000 * (REORDER_FACTOR if links.reorder else 1)
        self._transit = (len(world.sites) + 2) * hop + 4 * links.broker_ms / 1000
        self._lossless = links.loss == 0
        self.checked = 0

    def published(self, entry: Entry) -> None:
        """Look again when it must have arrived."""
        if self._lossless and self._tracker.holds and self.world.sites[entry.place].active:
            count = self._tracker.disturbances
            self.world.scheduler.after(self._transit, self._verify, entry, count)

    def _verify(self, entry: Entry, disturbances: int) -> None:
        if self._tracker.disturbances != disturbances:
            return
        self.checked += 1
        part = self._tracker.truth.component_of(self.world.sites[entry.place])
        within = {site.place for site in part.sites} if part else set()
        missing = [p for p in entry.wanted if p in within and p not in entry.arrivals]
        if missing:
            places = ", ".join(f"n{place}" for place in missing)
            what = f"publication {entry.number} on {entry.topic} from n{entry.place}"
            self.fail(f"{what} did not reach {places}")


# ---------------------------------------------------------------- announcements


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
            other = site.ends[news.link].other
            behind = self.world.sites[other.machine.place]
            self._behind[site.place, news.node] = (behind.place, behind.life)
        elif isinstance(news, ParentsChanged):
            stamp = (news.incarnation, news.seq)
            self._note(site, news.core, _Way(stamp, news.distance, news.parents))
            self._walk(site, news.core)

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


# ---------------------------------------------------------------- at rest


class AtRest(Checker):
    """When nothing has happened for the time that the protocol may take, all is right: one core
    per group and component, everybody agrees, and every table is exact.

    Even then round-trip times are measured and reported anew, so what is wrong is looked at again
    for a moment: only what stays wrong is broken.
    """

    name = "convergence"

    def __init__(
        self, world: World, violations: list[str], tracker: Tracker, structure: Structure
    ) -> None:
        """Ask the tracker and the structure."""
        super().__init__(world, violations)
        self._tracker = tracker
        self._structure = structure
        self._allowance = allowance(world.options)
        self._problems: list[tuple[str, str]] = []
        self.checked = 0

    def disturbed(self, what: str, fault: bool) -> None:
        """Look again when all must be right."""
        self.finished()
        count = self._tracker.disturbances
        self.world.scheduler.after(self._allowance, self._verify, what, count, RECHECK_COUNT)

    def finished(self) -> None:
        """Complain about what is still wrong."""
        for name, text in self._problems:
            self.fail(text, name)
        self._problems = []

    def _verify(self, what: str, disturbances: int, again: int) -> None:
        if self._tracker.disturbances != disturbances:
            return
        self.checked += 1
        self._structure.truth.forget_views()
        problem = self._tracker.compare()
        if problem:
            text = f"{self._allowance:.2f} s after {what}: {problem}"
            self._problems = [(self.name, text)]
        else:
            self._problems = list(self._structure.exact())
        if self._problems and again:
            self.world.scheduler.after(RECHECK_S, self._verify, what, disturbances, again - 1)


class Bounded(Checker):
    """Nothing that a node keeps grows beyond its setting."""

    name = "bounded"

    def __init__(self, world: World, violations: list[str], structure: Structure) -> None:
        """Look through the structure's eyes."""
        super().__init__(world, violations)
        self._truth = structure.truth
        settings = world.options.protocol
        self._limits = {
            "filters": settings.filters_per_node_max,
            "nodes": settings.nodes_max,
            "plans": settings.plans_max,
            "unacknowledged": 2 * settings.unacknowledged_max,
            "windows": 4 * settings.nodes_max,
        }

    def finished(self) -> None:
        """Look at every node that runs."""
        for site in self.world.sites:
            if site.node is not None:
                self._verify(site)

    def _verify(self, site: Site) -> None:
        sizes = self._truth.view(site).sizes
        for name, limit in self._limits.items():
            if sizes[name] > limit:
                self.fail(f"n{site.place} has {sizes[name]} {name}, the limit is {limit}")
