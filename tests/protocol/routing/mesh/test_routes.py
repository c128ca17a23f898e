"""Routes by example, and in a model of many nodes: links come and go, announcements are reordered,
and parents never form a loop.
"""

from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hansa.protocol.model import NodeId
from hansa.protocol.routing.mesh.routes import CoreRoute, CoreRoutes
from hansa.protocol.wire.frames import UNREACHABLE, CoreAnnouncement

CORE = NodeId(0)
A, B, C = NodeId(1), NodeId(2), NodeId(3)


def announce(distance: int, sequence: int = 1, incarnation: int = 1) -> CoreAnnouncement:
    return CoreAnnouncement(CORE, incarnation, sequence, distance)


def routes(*heard: tuple[NodeId, CoreAnnouncement], redundancy: int = 2) -> CoreRoutes:
    made = CoreRoutes(redundancy, cost=lambda _: 1)
    for neighbour, frame in heard:
        made.receive_announcement(neighbour, frame)
    return made


def summary(made: CoreRoutes) -> tuple[int, int, tuple[NodeId, ...]]:
    route = made.routes[CORE]
    return route.distance, route.feasible_distance, route.parents


# ---------------------------------------------------------------- hearing


def test_announcement_of_a_neighbour_that_may_not_relay_voids_no_route():
    made = CoreRoutes(2, cost=lambda node: None if node == B else 1)
    assert made.receive_announcement(A, announce(1))
    assert not made.receive_announcement(B, announce(0, sequence=2))
    assert summary(made) == (2, 2, (A,))


def test_first_announcement_makes_a_parent_and_is_forwarded():
    made = routes()
    assert made.receive_announcement(A, announce(3))
    assert made.routes == {CORE: CoreRoute((1, 1), 4, 4, (A,), {A: ((1, 1), 3)})}


def test_equally_near_announcement_adds_a_parent_and_is_not_forwarded():
    made = routes((A, announce(3)))
    assert not made.receive_announcement(B, announce(3))
    assert summary(made) == (4, 4, (A, B))


def test_there_are_no_more_parents_than_the_redundancy():
    assert summary(routes((C, announce(3)), (B, announce(3)), (A, announce(3)))) == (4, 4, (C, B))


def test_nearer_announcement_replaces_the_parents_and_is_forwarded():
    made = routes((A, announce(3)))
    assert made.receive_announcement(B, announce(1))
    assert summary(made) == (2, 2, (B,))


def test_farther_announcement_changes_nothing():
    made = routes((A, announce(3)))
    assert not made.receive_announcement(B, announce(4))
    assert summary(made) == (4, 4, (A,))


def test_newer_announcement_counts_even_if_it_is_farther():
    made = routes((A, announce(3)))
    assert made.receive_announcement(B, announce(7, sequence=2))
    assert summary(made) == (8, 8, (B,))


def test_restarted_core_counts_from_its_first_announcement():
    made = routes((A, announce(3, sequence=99)))
    assert made.receive_announcement(B, announce(7, sequence=1, incarnation=2))
    assert made.routes[CORE].stamp == (2, 1)


def test_older_announcement_changes_nothing():
    made = routes((A, announce(3, sequence=2)))
    assert not made.receive_announcement(B, announce(0, sequence=1))
    assert summary(made) == (4, 4, (A,))


def test_lost_route_to_an_unknown_core_is_no_change():
    made = routes()
    assert not made.receive_announcement(A, announce(UNREACHABLE))
    assert made.routes == {}


def test_unreachable_distance_is_not_a_route():
    made = routes((A, announce(UNREACHABLE - 1)))
    assert summary(made) == (UNREACHABLE, UNREACHABLE, ())


# ---------------------------------------------------------------- losing


def test_parent_that_lost_its_route_is_removed():
    made = routes((A, announce(3)), (B, announce(3)))
    assert not made.receive_announcement(A, announce(UNREACHABLE))
    assert summary(made) == (4, 4, (B,))


def test_remaining_parent_continues_without_an_announcement():
    made = routes((A, announce(3)), (B, announce(3)))
    assert made.remove_neighbour(A) == []
    assert summary(made) == (4, 4, (B,))


def test_loss_of_the_last_parent_is_announced():
    made = routes((A, announce(3)))
    assert made.remove_neighbour(A) == [CORE]
    assert summary(made) == (UNREACHABLE, 4, ())


def test_infeasible_neighbour_is_not_a_parent():
    made = routes((A, announce(3)), (B, announce(4)))
    made.remove_neighbour(A)
    assert summary(made) == (UNREACHABLE, 4, ())


def test_farther_feasible_neighbour_takes_over_at_once():
    costs = {A: 1, B: 10}
    made = CoreRoutes(1, costs.__getitem__)
    made.receive_announcement(A, announce(5))
    made.receive_announcement(B, announce(2))
    assert made.remove_neighbour(A) == [CORE]
    assert summary(made) == (12, 6, (B,))


def test_neighbour_lost_at_the_same_time_is_not_a_parent():
    costs: dict[NodeId, int] = {A: 1, B: 1}
    made = CoreRoutes(2, costs.get)
    made.receive_announcement(A, announce(3))
    made.receive_announcement(B, announce(3))
    costs.clear()
    assert made.remove_neighbour(A) == [CORE]
    assert summary(made) == (UNREACHABLE, 4, ())


def test_loss_of_a_neighbour_without_announcement_is_no_change():
    assert routes((A, announce(3))).remove_neighbour(B) == []


def test_lost_route_returns_with_a_newer_announcement():
    made = routes((A, announce(3)))
    made.remove_neighbour(A)
    assert made.receive_announcement(B, announce(9, sequence=2))
    assert summary(made) == (10, 10, (B,))


# ---------------------------------------------------------------- lengths


def test_shorter_link_makes_a_better_parent():
    costs = {A: 10, B: 10}
    made = CoreRoutes(1, costs.__getitem__)
    made.receive_announcement(A, announce(5))
    made.receive_announcement(B, announce(5))
    costs[B] = 1
    assert made.update_link_costs() == [CORE]
    assert summary(made) == (6, 6, (B,))


def test_nearest_parent_comes_first():
    costs = {A: 10, B: 3, C: 5}
    made = CoreRoutes(2, costs.__getitem__)
    for neighbour in (A, B, C):
        made.receive_announcement(neighbour, announce(5))
    assert summary(made) == (8, 8, (B, C))


def test_longer_link_is_announced_and_keeps_the_feasible_distance():
    costs = {A: 1}
    made = CoreRoutes(1, costs.__getitem__)
    made.receive_announcement(A, announce(5))
    costs[A] = 4
    assert made.update_link_costs() == [CORE]
    assert summary(made) == (9, 6, (A,))


def test_unchanged_link_costs_are_no_change():
    made = routes((A, announce(3)))
    made.set_own_route(B, (1, 1))
    assert made.update_link_costs() == []


# ---------------------------------------------------------------- being core, asking, forgetting


def test_core_is_at_distance_zero_and_has_no_parents():
    made = routes()
    made.set_own_route(CORE, (1, 7))
    assert made.routes == {CORE: CoreRoute((1, 7), distance=0, feasible_distance=0)}
    assert made.has_route(CORE)
    assert made.parents(CORE) == ()


def test_core_keeps_its_distance_when_a_neighbour_is_lost():
    made = routes()
    made.set_own_route(CORE, (1, 7))
    assert made.remove_neighbour(A) == []
    assert made.has_route(CORE)


def test_route_exists_while_there_is_a_parent():
    made = routes((A, announce(3)))
    assert (made.has_route(CORE), made.parents(CORE)) == (True, (A,))
    made.remove_neighbour(A)
    assert (made.has_route(CORE), made.parents(CORE)) == (False, ())


def test_unknown_core_has_no_route():
    assert (routes().has_route(CORE), routes().parents(CORE)) == (False, ())


def test_expired_route_can_be_learned_again():
    made = routes((A, announce(3)))
    made.expire_node(CORE)
    made.expire_node(CORE)
    assert made.routes == {}
    assert made.receive_announcement(A, announce(3))


# ---------------------------------------------------------------- a world of routes

Pair = tuple[int, int]


@dataclass
class World:
    """Nodes that handle announcements as the strategy does. 0 is the core."""

    count: int
    cost: int = 1
    redundancy: int = 2
    sequence: int = 0
    links: set[frozenset[int]] = field(default_factory=set)
    flying: dict[Pair, list[CoreAnnouncement]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = [CoreRoutes(self.redundancy, lambda _: self.cost) for _ in range(self.count)]

    def lead(self) -> None:
        self.sequence += 1
        self.nodes[0].set_own_route(CORE, (1, self.sequence))
        self.announce(0)

    def announce(self, node: int, only: int | None = None) -> None:
        route = self.nodes[node].routes[CORE]
        for other in sorted(o for link in self.links if node in link for o in link - {node}):
            if only in (None, other):
                self.flying[node, other].append(
                    CoreAnnouncement(CORE, *route.stamp, route.distance)
                )

    def toggle(self, a: int, b: int) -> None:
        link = frozenset((a, b))
        if link in self.links:
            self.links.remove(link)
            for here, there in ((a, b), (b, a)):
                del self.flying[here, there]
            for here, there in ((a, b), (b, a)):
                if self.nodes[here].remove_neighbour(NodeId(there)):
                    self.announce(here)
        else:
            self.links.add(link)
            self.flying |= {(a, b): [], (b, a): []}
            for here, there in ((a, b), (b, a)):
                if self.nodes[here].has_route(CORE):
                    self.announce(here, only=there)

    def deliver(self, source: int, target: int, place: int = 0) -> None:
        queue = self.flying[source, target]
        frame = queue.pop(place % len(queue))
        if target != CORE and self.nodes[target].receive_announcement(NodeId(source), frame):
            self.announce(target)

    def step(self, choice: int, in_order: bool = False) -> None:
        """Perform one step chosen by a drawn number: mostly deliveries, in any order or in
        order."""
        kind, choice = choice % 8, choice // 8
        ready = sorted(pair for pair, queue in self.flying.items() if queue)
        if kind == 0:
            self.lead()
        elif kind <= 2 or not ready:
            every = list(combinations(range(self.count), 2))
            self.toggle(*every[choice % len(every)])
        else:
            self.deliver(*ready[choice % len(ready)], place=0 if in_order else choice)

    def settle(self) -> None:
        """Deliver everything, each link in order."""
        while ready := sorted(pair for pair, queue in self.flying.items() if queue):
            self.deliver(*ready[0])

    def rank(self, node: int) -> tuple[int, int, int]:
        """Must grow at every step towards the core: sequence number, then nearness."""
        route = self.nodes[node].routes[CORE]
        return *route.stamp, -route.feasible_distance

    def hops(self) -> dict[int, int]:
        """The true distances from the core."""
        found, front = {0: 0}, [0]
        while front:
            node = front.pop(0)
            for other in sorted(o for link in self.links if node in link for o in link - {node}):
                if other not in found:
                    found[other] = found[node] + 1
                    front.append(other)
        return found


choices = st.lists(st.integers(0, (1 << 16) - 1), max_size=80)


@given(st.integers(2, 6), choices)
@example(3, [8 * 0 + 1, 8 * 2 + 1, 0, 3, 3, 8 * 0 + 1, 3, 3, 3])
@settings(max_examples=300)
def test_following_parents_leads_nearer_to_the_core_at_every_step(count, steps):
    world = World(count)
    for choice in steps:
        world.step(choice)
        for node in range(1, count):
            for parent in world.nodes[node].parents(CORE):
                assert world.rank(parent) > world.rank(node)


@given(st.integers(2, 6), choices, st.integers(1, 3))
@settings(max_examples=200)
def test_new_announcement_gives_every_reachable_node_the_shortest_route(count, steps, redundancy):
    world = World(count, redundancy=redundancy)
    for choice in steps:
        world.step(choice, in_order=True)
    world.settle()
    world.lead()
    world.settle()
    hops = world.hops()
    for node in range(1, count):
        nearer = {n for n in hops if frozenset((n, node)) in world.links and hops[n] < hops[node]}
        parents = world.nodes[node].parents(CORE)
        assert set(parents) <= nearer
        assert len(parents) == min(redundancy, len(nearer))
        if node in hops:
            assert world.nodes[node].routes[CORE].distance == hops[node]
