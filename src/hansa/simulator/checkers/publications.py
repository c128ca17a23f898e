"""Promises about publications: no phantom, no copy too many, no loop, and nobody is forgotten."""

from hansa.protocol.model import HOPS_MAX, GroupId, Publication
from hansa.protocol.topics import is_local_only
from hansa.simulator.analysis.convergence import Tracker
from hansa.simulator.analysis.ledger import Entry
from hansa.simulator.analysis.truth import Component
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.network import REORDER_FACTOR, End
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World


class NoPhantom(Checker):
    """What is delivered was published, byte for byte, elsewhere, and may cross brokers."""

    name = "no phantom"

    def delivered(self, site: Site, publication: Publication, entry: Entry | None) -> None:
        """Compare with what was published."""
        if entry is None:
            self.fail(f"n{site.place} delivers {publication}, which nobody published")
            return
        got = (publication.topic, publication.payload, publication.qos)
        is_flagged = publication.retain and not entry.retain  # a replaced value has no flag (9.2)
        if got != (entry.topic, entry.payload, entry.qos) or is_flagged:
            self.fail(f"n{site.place} delivers {publication}, published was {entry}")
        if is_local_only(publication.topic):
            self.fail(f"n{site.place} delivers {publication}, which no other broker may see")
        if site.place == entry.place:
            self.fail(f"n{site.place} delivers its own publication {entry.number}")


class AtMostOnce(Checker):
    """A broker gets a publication at most once. An agent's crash ends what it can remember, unless
    it has a disk: then QoS 1 and 2 have a promise of their own (see `guarantees`)."""

    name = "at most once"

    def __init__(self, world: World, violations: list[str]) -> None:
        """Start with nothing delivered."""
        super().__init__(world, violations)
        self._seen: dict[tuple[int, int], set[int]] = {}

    def delivered(self, site: Site, publication: Publication, entry: Entry | None) -> None:
        """Look whether this life of the agent has delivered it before."""
        if publication.qos and self.world.options.disk:
            return
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


class Undisturbed(Checker):
    """Looks at what is published at QoS 0 while all is right, if nothing happens until it could
    have arrived; but not at retained values, which may wait for earlier ones. Where ways follow
    from the database, a change of that (a round-trip time) is something, too."""

    def __init__(self, world: World, violations: list[str], tracker: Tracker) -> None:
        """Ask the tracker whether all is right."""
        super().__init__(world, violations)
        self._tracker = tracker
        links = world.options.links
        slowest = max([links.delay_ms, *(delay for _, _, delay in links.delays_ms)])
        hop = (slowest + links.jitter_ms) / 1000 * (REORDER_FACTOR if links.reorder else 1)
        self._transit = (len(world.sites) + 2) * hop + 4 * links.broker_ms / 1000
        self._lossless = not (links.loss or links.window)
        self.checked = 0

    def judge(self, entry: Entry, part: Component, wanted: tuple[int, ...]) -> None:
        """It must have arrived at these places."""

    def published(self, entry: Entry) -> None:
        """Look again when it must have arrived."""
        if (
            self._lossless
            and not entry.qos
            and not entry.retain
            and self._tracker.holds
            and self.world.sites[entry.place].served
        ):
            self.world.scheduler.after(self._transit, self._verify, entry, self._moment())

    def _moment(self) -> object:
        return self._tracker.disturbances, self._tracker.ways_mark()

    def _verify(self, entry: Entry, moment: object) -> None:
        part = self._tracker.truth.component_of(self.world.sites[entry.place])
        if self._moment() != moment or part is None:
            return
        self.checked += 1
        served = {site.place for site in part.sites if site.served}
        self.judge(entry, part, tuple(place for place in entry.wanted if place in served))


class Completeness(Undisturbed):
    """What is published undisturbed reaches every broker that wants it. (QoS 1 and 2: see
    `guarantees`.)"""

    name = "completeness"

    def judge(self, entry: Entry, part: Component, wanted: tuple[int, ...]) -> None:
        """Look who misses it."""
        missing = [place for place in wanted if place not in entry.arrivals]
        if missing:
            places = ", ".join(f"n{place}" for place in missing)
            what = f"publication {entry.number} on {entry.topic} from n{entry.place}"
            self.fail(f"{what} did not reach {places}")
