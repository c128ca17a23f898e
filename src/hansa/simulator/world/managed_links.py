"""Links made at run time: the neighbour selector of the live agent, and a manager that is up,
absent or wrong.

The manager is an actor beside the network: it receives reports and assigns neighbours after a
while, using the real planner. A wrong manager draws from the seed what it does: old assignments, no
neighbours at all, dead neighbours, or an assignment that only one end gets.
"""

import random
from collections import Counter
from enum import StrEnum

from hansa.protocol.model import NodeId
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World
from hansa.topology.graph import LinkPair, NodeName, make_link_pair
from hansa.topology.healing import node_name
from hansa.topology.neighbour_selector import NeighbourSelector
from hansa.topology.planner import PlannerInput, PlannerLimits, PlannerNode, plan_changes

STEERING_INTERVAL_S = 1.0
STEERING_ALONE_INTERVAL_S = 0.25
SAVE_INTERVAL_S = 10.0
REPORT_INTERVAL_S = 5.0
"""Seconds between two reports of a node, and between two rounds of the manager."""

DOWN_LINK_LIMIT_S = 3.0
"""Seconds until a down link that no node keeps is removed."""

WRONG_ASSIGNMENTS_MEAN = 1.0
"""Nodes per round that get a wrong assignment, on average; each changes about eight links."""


class ManagerMode(StrEnum):
    """The condition of the manager."""

    UP = "up"
    ABSENT = "absent"
    WRONG = "wrong"


class ManagedLinks(Hooks):
    """The managed links of all nodes of a world."""

    def __init__(self, world: World, limits: PlannerLimits, seed: int) -> None:
        """Give every place an address; nothing is linked yet."""
        self.world = world
        self.manager_mode = ManagerMode.UP
        self.change_counts: Counter[str] = Counter()
        """Links added and removed, by cause."""
        self.limits = limits
        self._rng = random.Random(f"{seed} steering")
        self._steering: dict[int, NeighbourSelector] = {}
        self._keepers: dict[tuple[int, int], set[int]] = {}
        self._down_since: dict[tuple[int, int], float] = {}
        self._saved: dict[int, bytes] = {}
        self._manager = _SimulatedManager(self, random.Random(f"{seed} manager"))
        for site in world.sites:
            site.address = f"n{site.place}"
        world.scheduler.after(REPORT_INTERVAL_S, self._manager.run_round)
        world.scheduler.after(1.0, self._remove_down_links)

    # ------------------------------------------------------------ start and stop of agents

    def on_agent_started(self, site: Site) -> None:
        """Start with the saved state of the previous process, and report to the manager."""
        assert site.node is not None
        rng = random.Random(f"{site.place} {site.process_run} {self._rng.random()}")
        links = _SiteLinks(self, site)
        made = NeighbourSelector(site.node.membership, site.state.id, links, self.limits, rng)
        self._steering[site.place] = made
        made.restore_state(self._saved.get(site.place, b""))
        self.world.scheduler.after(
            rng.uniform(0, STEERING_INTERVAL_S), self._run_steering, site, site.process_run, rng
        )
        self.world.scheduler.after(SAVE_INTERVAL_S, self._save_steering, site, site.process_run)
        if self.manager_mode is ManagerMode.UP:
            self.world.scheduler.after(0.01, self._manager.on_join, site.place)

    def on_agent_stopped(self, site: Site) -> None:
        self._steering.pop(site.place, None)
        for keepers in self._keepers.values():
            keepers.discard(site.place)

    def _run_steering(self, site: Site, process_run: int, rng: random.Random) -> None:
        if site.process_run != process_run or site.node is None:
            return
        if not site.is_frozen:
            self._steering[site.place].update_links(
                self.world.now, is_planning=self.manager_mode is ManagerMode.ABSENT
            )
        pause = (
            STEERING_INTERVAL_S if site.node.membership.neighbours else STEERING_ALONE_INTERVAL_S
        )
        pause *= rng.uniform(0.5, 1.0)
        self.world.scheduler.after(pause, self._run_steering, site, process_run, rng)

    def _save_steering(self, site: Site, process_run: int) -> None:
        if site.process_run == process_run and site.node is not None:
            self._saved[site.place] = self._steering[site.place].encode_state()
            self.world.scheduler.after(SAVE_INTERVAL_S, self._save_steering, site, process_run)

    # ------------------------------------------------------------ links

    def add_link(self, a: int, b: int, reason: str) -> None:
        """Add a link unless it exists."""
        if a != b and self.world.network.find_link(a, b) is None:
            self.world.network.add_link(self.world.sites[a], self.world.sites[b])
            self.change_counts[f"added: {reason}"] += 1
            self.world.report_disturbance(f"link {a}-{b}")

    def remove_link(self, a: int, b: int, reason: str) -> None:
        """Remove a link if it exists."""
        link = self.world.network.find_link(a, b)
        if link is not None:
            self.world.network.remove_link(link)
            self.change_counts[f"removed: {reason}"] += 1
            self.world.report_disturbance(f"unlink {a}-{b}")

    def keep_link(self, me: int, other: int) -> None:
        """Keep dialling another node until `forget_link`."""
        self._keepers.setdefault(_ordered_places(me, other), set()).add(me)
        self.add_link(me, other, "manager")

    def forget_link(self, me: int, other: int) -> None:
        """Stop dialling another node."""
        self._keepers.get(_ordered_places(me, other), set()).discard(me)

    def attempt_link(self, me: int, other: int) -> None:
        """Dial another node once."""
        if self.world.sites[other].is_listening:
            self.add_link(me, other, "own decision")

    def close_link(self, me: int, other: int, reason: str) -> None:
        """Close a link; a node that keeps it dials again."""
        key = _ordered_places(me, other)
        link = self.world.network.find_link(*key)
        if link is not None and self._keepers.get(key):
            self.world.network.abort_sessions(link, reason)
        else:
            self.remove_link(*key, "closed")

    def _remove_down_links(self) -> None:
        """Remove links that no node keeps and that were down for a while."""
        now, seen = self.world.now, {}
        for key, link in list(self.world.network.links.items()):
            if self._keepers.get(key) or any(e.is_open for ends in link.sessions for e in ends):
                continue
            seen[key] = self._down_since.get(key, now)
            if now - seen[key] >= DOWN_LINK_LIMIT_S:
                self.remove_link(*key, "down")
        self._down_since = seen
        self.world.scheduler.after(1.0, self._remove_down_links)

    # ------------------------------------------------------------ assignments

    def assign(self, place: int, others: list[int]) -> None:
        """Assign neighbours to a node; the larger place dials."""
        steering = self._steering.get(place)
        if steering is None:
            return
        known = {self.planner_name(other): f"n{other}" for other in others}
        dialled = {
            self.planner_name(other): f"n{other}" if place > other else "" for other in others
        }
        steering.apply_assignment(dialled, known, self.limits.degree_max)

    def planner_name(self, place: int) -> NodeName:
        """Return the planner's name for the node of a place."""
        return node_name(self.world.sites[place].state.id)


class _SiteLinks:
    """The links of one node, for its neighbour selector."""

    def __init__(self, managed_links: ManagedLinks, site: Site) -> None:
        self._managed_links = managed_links
        self._place = site.place

    def keep_dialling(self, address: str) -> None:
        self._managed_links.keep_link(self._place, int(address[1:]))

    def stop_dialling(self, address: str) -> None:
        self._managed_links.forget_link(self._place, int(address[1:]))

    def dial_once(self, address: str) -> None:
        self._managed_links.attempt_link(self._place, int(address[1:]))

    def close(self, node: NodeId, reason: str) -> None:
        for site in self._managed_links.world.sites:
            if site.state.id == node:
                self._managed_links.close_link(self._place, site.place, reason)


class _SimulatedManager:
    """Collects reports and plans."""

    def __init__(self, managed_links: ManagedLinks, rng: random.Random) -> None:
        self._managed_links = managed_links
        self._rng = rng
        self._members: dict[int, float] = {}
        self._links: set[LinkPair] = set()
        self._former_links: list[set[LinkPair]] = []

    def on_join(self, place: int) -> None:
        """Add a node and assign its neighbours at once."""
        self._members[place] = self._managed_links.world.now
        self._plan()

    def run_round(self) -> None:
        """Read reports, plan and assign; or do nothing, or assign wrongly."""
        scheduler = self._managed_links.world.scheduler
        scheduler.after(REPORT_INTERVAL_S, self.run_round)
        if self._managed_links.manager_mode is not ManagerMode.ABSENT:
            self._collect_reports()
        if self._managed_links.manager_mode is ManagerMode.UP:
            self._plan()
        elif self._managed_links.manager_mode is ManagerMode.WRONG:
            self._send_wrong_assignments()

    def _collect_reports(self) -> None:
        now, world = self._managed_links.world.now, self._managed_links.world
        places = {site.state.id: site.place for site in world.sites}
        for site in world.sites:
            if site.is_active and site.node is not None:
                self._members[site.place] = now
                for node in site.node.membership.neighbours:  # links that nodes made themselves
                    if places[node] in self._members:
                        self._links.add(_planner_pair(site.place, places[node]))
        late = now - 2 * REPORT_INTERVAL_S
        self._members = {place: at for place, at in self._members.items() if at > late}

    def _plan(self) -> None:
        situation = PlannerInput(
            tuple(PlannerNode(str(place)) for place in sorted(self._members)),
            frozenset(self._links),
        )
        for change in plan_changes(situation, self._managed_links.limits):
            (self._links.add if change.kind == "add" else self._links.discard)(change.link)
        self._former_links = [*self._former_links[-60:], set(self._links)]
        for place in sorted(self._members):
            self._send_assignment(place, self._links)

    def _send_wrong_assignments(self) -> None:
        places = sorted(self._members)
        for place in places:
            if self._rng.random() >= WRONG_ASSIGNMENTS_MEAN / len(places):
                continue
            match self._rng.randrange(3):
                case 0 if self._former_links:
                    self._send_assignment(place, self._rng.choice(self._former_links))
                case 1:
                    self._managed_links.assign(place, [])
                case _:
                    anybody = range(len(self._managed_links.world.sites))
                    some = self._rng.sample(anybody, min(3, len(anybody)))
                    self._managed_links.assign(place, [other for other in some if other != place])

    def _send_assignment(self, place: int, links: set[LinkPair]) -> None:
        me = str(place)
        near = sorted(int(a if b == me else b) for a, b in links if me in (a, b))
        self._managed_links.assign(place, near)


def _planner_pair(a: int, b: int) -> LinkPair:
    return make_link_pair(str(a), str(b))


def _ordered_places(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
