"""Links made at run time: every node's own steering, the very class of the live agent, and a
manager that is there, away, or wrong.

The manager is an actor beside the network: it hears reports and says whom to be linked to, after a
while. What it plans comes from the same planner. How it lies is drawn from the seed: old answers,
no neighbours at all, neighbours that are dead, one end told and the other not.
"""

import random
from collections import Counter
from enum import StrEnum

from hansa.protocol.model import NodeId
from hansa.simulator.world.hooks import Watcher
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World
from hansa.topology.graph import Name, Pair, pair
from hansa.topology.healing import name_of
from hansa.topology.planner import Limits, Member, Situation, plan
from hansa.topology.steering import Steering

LOOK_S = 1.0
LOOK_ALONE_S = 0.25
SAVE_S = 10.0
REPORT_S = 5.0
"""Seconds between two reports of a node, and between two looks of the manager."""

DEAD_S = 3.0
"""Seconds that a link which nobody keeps may be down until it is forgotten."""

LIES = 1.0
"""Nodes that a lying manager tells nonsense each time, on average: every one of them changes some
eight links."""


class Mode(StrEnum):
    """What the manager is at the moment."""

    UP = "up"
    AWAY = "away"
    LYING = "lying"


class Steered(Watcher):
    """All nodes of a world, steered."""

    def __init__(self, world: World, limits: Limits, seed: int) -> None:
        """Give every place an address; nothing is linked yet."""
        self.world = world
        self.mode = Mode.UP
        self.changes: Counter[str] = Counter()
        """Links added and removed, by who wanted it."""
        self.limits = limits
        self._chance = random.Random(f"{seed} steering")
        self._steering: dict[int, Steering] = {}
        self._kept: dict[tuple[int, int], set[int]] = {}
        self._down: dict[tuple[int, int], float] = {}
        self._remembered: dict[int, bytes] = {}
        self._manager = _Manager(self, random.Random(f"{seed} manager"))
        for site in world.sites:
            site.address = f"n{site.place}"
        world.scheduler.after(REPORT_S, self._manager.look)
        world.scheduler.after(1.0, self._sweep)

    # ------------------------------------------------------------ lives of nodes

    def started(self, site: Site) -> None:
        """A life begins: with what the one before knew, and with a visit to the manager."""
        assert site.node is not None
        chance = random.Random(f"{site.place} {site.life} {self._chance.random()}")
        links = _Links(self, site)
        made = Steering(site.node.chart, site.memory.id, links, self.limits, chance)
        self._steering[site.place] = made
        made.restore(self._remembered.get(site.place, b""))
        self.world.scheduler.after(chance.uniform(0, LOOK_S), self._look, site, site.life, chance)
        self.world.scheduler.after(SAVE_S, self._save, site, site.life)
        if self.mode is Mode.UP:
            self.world.scheduler.after(0.01, self._manager.join, site.place)

    def stopped(self, site: Site) -> None:
        """A life ends: it dials nobody any more."""
        self._steering.pop(site.place, None)
        for keepers in self._kept.values():
            keepers.discard(site.place)

    def _look(self, site: Site, life: int, chance: random.Random) -> None:
        if site.life != life or site.node is None:
            return
        if not site.frozen:
            self._steering[site.place].look(self.world.now, planning=self.mode is Mode.AWAY)
        pause = LOOK_S if site.node.chart.neighbours else LOOK_ALONE_S
        pause *= chance.uniform(0.5, 1.0)
        self.world.scheduler.after(pause, self._look, site, life, chance)

    def _save(self, site: Site, life: int) -> None:
        if site.life == life and site.node is not None:
            self._remembered[site.place] = self._steering[site.place].remembered()
            self.world.scheduler.after(SAVE_S, self._save, site, life)

    # ------------------------------------------------------------ links

    def add(self, a: int, b: int, why: str) -> None:
        """Configure a link, if there is none."""
        if a != b and self.world.network.link(a, b) is None:
            self.world.network.add(self.world.sites[a], self.world.sites[b])
            self.changes[f"added: {why}"] += 1
            self.world.disturb(f"link {a}-{b}")

    def remove(self, a: int, b: int, why: str) -> None:
        """Remove a link, if there is one."""
        link = self.world.network.link(a, b)
        if link is not None:
            self.world.network.remove(link)
            self.changes[f"removed: {why}"] += 1
            self.world.disturb(f"unlink {a}-{b}")

    def keep(self, me: int, other: int) -> None:
        """A node dials another until it is told not to."""
        self._kept.setdefault(_places(me, other), set()).add(me)
        self.add(me, other, "manager")

    def forget(self, me: int, other: int) -> None:
        """A node dials another no more."""
        self._kept.get(_places(me, other), set()).discard(me)

    def attempt(self, me: int, other: int) -> None:
        """A node dials another once."""
        if self.world.sites[other].listening:
            self.add(me, other, "own decision")

    def close(self, me: int, other: int, reason: str) -> None:
        """A node closes a link; whoever keeps it dials again."""
        key = _places(me, other)
        link = self.world.network.link(*key)
        if link is not None and self._kept.get(key):
            self.world.network.tear(link, reason)
        else:
            self.remove(*key, "closed")

    def _sweep(self) -> None:
        """Forget links that nobody keeps and that have been down for a while."""
        now, seen = self.world.now, {}
        for key, link in list(self.world.network.links.items()):
            if self._kept.get(key) or any(e.open for ends in link.sessions for e in ends):
                continue
            seen[key] = self._down.get(key, now)
            if now - seen[key] >= DEAD_S:
                self.remove(*key, "down")
        self._down = seen
        self.world.scheduler.after(1.0, self._sweep)

    # ------------------------------------------------------------ what the manager says

    def assign(self, place: int, others: list[int]) -> None:
        """Tell a node whom to be linked to; the larger place dials."""
        steering = self._steering.get(place)
        if steering is None:
            return
        known = {self.name(other): f"n{other}" for other in others}
        dialled = {self.name(other): f"n{other}" if place > other else "" for other in others}
        steering.assign(dialled, known, self.limits.degree_max)

    def name(self, place: int) -> Name:
        """Return what the planner calls the node of a place."""
        return name_of(self.world.sites[place].memory.id)


class _Links:
    """The links of one node, as its steering sees them."""

    def __init__(self, steered: Steered, site: Site) -> None:
        self._steered = steered
        self._place = site.place

    def keep(self, address: str) -> None:
        self._steered.keep(self._place, int(address[1:]))

    def forget(self, address: str) -> None:
        self._steered.forget(self._place, int(address[1:]))

    def attempt(self, address: str) -> None:
        self._steered.attempt(self._place, int(address[1:]))

    def close(self, node: NodeId, reason: str) -> None:
        for site in self._steered.world.sites:
            if site.memory.id == node:
                self._steered.close(self._place, site.place, reason)


class _Manager:
    """Knows who reported, and plans."""

    def __init__(self, steered: Steered, chance: random.Random) -> None:
        self._steered = steered
        self._chance = chance
        self._members: dict[int, float] = {}
        self._links: set[Pair] = set()
        self._old: list[set[Pair]] = []

    def join(self, place: int) -> None:
        """A node comes; it is told at once."""
        self._members[place] = self._steered.world.now
        self._plan()

    def look(self) -> None:
        """Hear reports, plan, say what follows; or do nothing, or lie."""
        scheduler = self._steered.world.scheduler
        scheduler.after(REPORT_S, self.look)
        if self._steered.mode is not Mode.AWAY:
            self._hear()
        if self._steered.mode is Mode.UP:
            self._plan()
        elif self._steered.mode is Mode.LYING:
            self._lie()

    def _hear(self) -> None:
        now, world = self._steered.world.now, self._steered.world
        places = {site.memory.id: site.place for site in world.sites}
        for site in world.sites:
            if site.active and site.node is not None:
                self._members[site.place] = now
                for node in site.node.chart.neighbours:  # links that nodes made by themselves
                    if places[node] in self._members:
                        self._links.add(_pair(site.place, places[node]))
        late = now - 2 * REPORT_S
        self._members = {place: at for place, at in self._members.items() if at > late}

    def _plan(self) -> None:
        situation = Situation(
            tuple(Member(str(place)) for place in sorted(self._members)), frozenset(self._links)
        )
        for change in plan(situation, self._steered.limits):
            (self._links.add if change.kind == "add" else self._links.discard)(change.link)
        self._old = [*self._old[-60:], set(self._links)]
        for place in sorted(self._members):
            self._tell(place, self._links)

    def _lie(self) -> None:
        places = sorted(self._members)
        for place in places:
            if self._chance.random() >= LIES / len(places):
                continue
            match self._chance.randrange(3):
                case 0 if self._old:
                    self._tell(place, self._chance.choice(self._old))
                case 1:
                    self._steered.assign(place, [])
                case _:
                    anybody = range(len(self._steered.world.sites))
                    some = self._chance.sample(anybody, min(3, len(anybody)))
                    self._steered.assign(place, [other for other in some if other != place])

    def _tell(self, place: int, links: set[Pair]) -> None:
        me = str(place)
        near = sorted(int(a if b == me else b) for a, b in links if me in (a, b))
        self._steered.assign(place, near)


def _pair(a: int, b: int) -> Pair:
    return pair(str(a), str(b))


def _places(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
