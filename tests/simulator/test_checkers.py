"""Every promise that is checked at every step, broken by hand: each class must notice."""

from types import SimpleNamespace

import pytest

from hansa.protocol.effects import NeighbourDown, NeighbourUp, ParentsChanged
from hansa.protocol.frames import UNREACHABLE, Announce
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.vocabulary import HOPS_MAX, Publication
from hansa.simulator.actions import Crash, Publish, Subscribe
from hansa.simulator.checkers import (
    VIOLATIONS_MAX,
    AtMostOnce,
    AtRest,
    Bounded,
    Completeness,
    Cost,
    NoLoop,
    NoPhantom,
    ParentsNearer,
)
from hansa.simulator.ledger import Entry
from hansa.simulator.options import LinkOptions, Options
from hansa.simulator.structure import Structure
from hansa.simulator.topologies import parse
from hansa.simulator.truth import Truth
from hansa.simulator.world import World
from tests.simulator.worlds import Played


@pytest.fixture
def world():
    """Three places, nothing runs."""
    return World(Options(parse("ring:3", 0), seed=42))


@pytest.fixture
def violations():
    return []


def published(place=0, payload=b"12345678"):
    return Entry(0, place, "a", payload, 0, False, 0.0, ())


def publication(**changes):
    fields = {"origin": 0, "life": 1, "number": 1, "qos": 0, "topic": "a", "payload": b"12345678"}
    return Publication(**{**fields, **changes})


def end(world, sender=0, receiver=1):
    """Return the sending end of a session."""
    other = SimpleNamespace(machine=world.sites[receiver])
    return SimpleNamespace(machine=world.sites[sender], other=other, id=receiver)


# ---------------------------------------------------------------- publications


def test_a_delivery_of_what_was_published_is_no_phantom(world, violations):
    NoPhantom(world, violations).delivered(world.sites[1], publication(), published())
    assert violations == []


@pytest.mark.parametrize(
    ("place", "got", "entry"),
    [
        (1, publication(), None),
        (1, publication(payload=b"12345679"), published()),
        (1, publication(topic="b"), published()),
        (1, publication(retain=True), published()),
        (1, publication(qos=1), published()),
        (0, publication(), published()),
    ],
    ids=["never published", "payload", "topic", "retain", "qos", "at its origin"],
)
def test_phantoms_are_seen(world, violations, place, got, entry):
    NoPhantom(world, violations).delivered(world.sites[place], got, entry)
    assert len(violations) == 1
    assert "seed 42" in violations[0]


def test_a_second_delivery_to_one_broker_is_seen(world, violations):
    checker = AtMostOnce(world, violations)
    checker.delivered(world.sites[1], publication(), published())
    checker.delivered(world.sites[2], publication(), published())
    assert violations == []
    checker.delivered(world.sites[1], publication(), published())
    assert "n1 delivers publication 0 again" in violations[0]


def test_an_agent_that_started_again_cannot_remember(world, violations):
    checker = AtMostOnce(world, violations)
    checker.delivered(world.sites[1], publication(), published())
    world.sites[1].life += 1
    checker.delivered(world.sites[1], publication(), published())
    assert violations == []


def test_a_copy_may_cross_once_to_spread_and_once_per_group_it_names(world, violations):
    checker = NoLoop(world, violations)
    way = end(world)
    checker.forwarded(way, publication())
    checker.forwarded(way, publication(named=(7,)))
    checker.forwarded(way, publication(named=(8,)))
    checker.forwarded(end(world, 1, 0), publication())
    assert violations == []
    checker.forwarded(way, publication(named=(8,)))
    assert "crosses n0>n1 4 times, named 2" in violations[0]


def test_the_two_families_of_numbers_are_apart(world, violations):
    checker = NoLoop(world, violations)
    checker.forwarded(end(world), publication(qos=0))
    checker.forwarded(end(world), publication(qos=1))
    assert violations == []


def test_a_copy_that_travels_too_far_is_seen(world, violations):
    NoLoop(world, violations).forwarded(end(world), publication(hops=HOPS_MAX + 1))
    assert "hops" in violations[0]


# ---------------------------------------------------------------- announcements


class Neighbours:
    """Announcements among three places that all are neighbours, core 0."""

    def __init__(self, violations, metric=Metric.HOPS):
        settings = ProtocolSettings(metric=metric)
        self.world = World(Options(parse("ring:3", 0), protocol=settings))
        for site in self.world.sites:
            site.ends = {
                other.place: end(self.world, site.place, other.place)
                for other in self.world.sites
                if other is not site
            }
        self.checker = ParentsNearer(self.world, violations)
        for site in self.world.sites:
            self.checker.started(site)
            for other in site.ends:
                self.checker.told(site, NeighbourUp(other, other))

    def says(self, place, seq, distance, *parents):
        frame = Announce(0, 1, seq, distance, parents)
        self.checker.announced(end(self.world, place, 0), frame)

    def chooses(self, place, *parents):
        self.checker.told(self.world.sites[place], ParentsChanged(0, 1, 1, 2, parents))


def test_a_parent_that_is_nearer_newer_or_lost_is_fine(violations):
    nodes = Neighbours(violations)
    nodes.says(0, 1, 0)
    nodes.says(1, 1, 1, 0)
    nodes.says(2, 1, 2, 1)
    nodes.says(0, 2, 0)
    nodes.says(1, 1, UNREACHABLE)
    assert violations == []


@pytest.mark.parametrize(("seq", "distance"), [(1, 2), (1, 3), (0, 1)])
def test_a_parent_that_is_not_nearer_is_seen(violations, seq, distance):
    nodes = Neighbours(violations)
    nodes.says(1, seq, distance, 0)
    nodes.says(2, 1, 2, 1)
    assert "n2" in violations[0]
    assert "has parent n1" in violations[0]


def test_a_parent_that_moves_away_is_seen(violations):
    nodes = Neighbours(violations)
    nodes.says(1, 1, 1, 0)
    nodes.says(2, 1, 2, 1)
    assert violations == []
    nodes.says(1, 1, 2, 0)
    assert "has parent n1" in violations[0]


def test_with_round_trips_a_distance_may_grow_but_a_loop_is_seen(violations):
    nodes = Neighbours(violations, Metric.RTT)
    nodes.says(1, 1, 100, 0)
    nodes.says(2, 1, 90, 1)
    assert violations == []
    nodes.chooses(2, 1)
    nodes.chooses(1, 2)
    assert "n1 is above itself" in violations[0]


def test_a_parent_that_started_again_is_not_the_one_that_was_chosen(violations):
    nodes = Neighbours(violations)
    nodes.says(1, 1, 1, 0)
    nodes.says(2, 1, 2, 1)
    nodes.world.sites[1].life += 1
    nodes.says(1, 1, 3, 2)
    assert violations == []


def test_a_dead_node_is_nobodys_way(violations):
    nodes = Neighbours(violations)
    nodes.chooses(2, 1)
    nodes.checker.stopped(nodes.world.sites[2])
    nodes.chooses(1, 2)
    assert violations == []


def announce(checker, world, times, distance=0):
    for _ in range(times):
        checker.announced(end(world), Announce(0, 1, 1, distance))


def all_up(checker, world):
    for site in world.sites:
        for other in world.sites:
            if other is not site:
                checker.told(site, NeighbourUp(other.memory.id, 1))


def test_more_than_two_frames_per_link_are_seen(world, violations):
    checker = Cost(world, violations)
    all_up(checker, world)
    announce(checker, world, 6)
    announce(checker, world, 3, distance=UNREACHABLE)
    assert violations == []
    announce(checker, world, 1)
    assert "takes 7 frames on 3.0 links" in violations[0]
    assert checker.frames_max == 7


def test_the_cost_is_not_promised_while_neighbours_come_and_go(world, violations):
    checker = Cost(world, violations)
    all_up(checker, world)
    announce(checker, world, 6)
    checker.told(world.sites[1], NeighbourDown(2, "gone"))
    announce(checker, world, 6)
    assert violations == []
    assert checker.frames_max == 12


def test_what_a_new_link_carries_does_not_count(world, violations):
    checker = Cost(world, violations)
    announce(checker, world, 1)
    all_up(checker, world)
    announce(checker, world, 9)
    assert checker.frames_max == 1


def test_the_cost_is_not_promised_on_links_that_differ(violations):
    world = World(Options(parse("ring:3", 0), links=LinkOptions(jitter_ms=1.0)))
    checker = Cost(world, violations)
    all_up(checker, world)
    announce(checker, world, 7)
    assert violations == []
    assert checker.frames_max == 7


# ---------------------------------------------------------------- at rest


def test_a_publication_that_does_not_arrive_is_seen(violations):
    played = Played("line:2", [(0.0, Subscribe(1, "a")), (2.0, Publish(0, "a"))])
    played.run(1.9)
    played.world.sites[0].broker.withdraw(["a"])  # the agent will not see it
    tracker = played.simulation.tracker
    checker = Completeness(played.world, violations, tracker)
    played.world.watchers.published.append(checker.published)
    played.run(3.0)
    assert "publication 0 on a from n0 did not reach n1" in violations[0]
    assert checker.checked == 1


def test_what_is_disturbed_on_its_way_is_not_missed(violations):
    played = Played("line:2", [(0.0, Subscribe(1, "a")), (2.0, Publish(0, "a")), (2.0, Crash(1))])
    tracker = played.simulation.tracker
    checker = Completeness(played.world, violations, tracker)
    played.world.watchers.published.append(checker.published)
    played.run(3.0)
    assert violations == []
    assert checker.checked == 0


class Resting:
    """Two nodes, of which the checks believe what they are told."""

    def __init__(self, violations):
        self.played = Played("line:2").run(1.0)
        self.tracker = self.played.simulation.tracker
        self.structure = Structure(
            Truth(self.played.world), self.played.simulation.options.protocol
        )
        self.checker = AtRest(self.played.world, violations, self.tracker, self.structure)

    def disturb(self, what, rest_s=20.0):
        self.played.world.disturb(what)
        self.checker.disturbed(what, True)
        self.played.run(self.played.world.now + rest_s)


def test_a_federation_that_is_not_right_in_time_is_seen(violations):
    resting = Resting(violations)
    resting.tracker.compare = lambda: "all is wrong"
    resting.disturb("crash 3")
    resting.checker.finished()
    (violation,) = violations
    assert "s after crash 3: all is wrong" in violation
    assert resting.checker.checked == 9


def test_a_table_that_is_not_exact_is_seen_before_the_next_fault(violations):
    resting = Resting(violations)
    resting.structure.exact = lambda: [("true distances", "n1 is lost")]
    resting.disturb("crash 3")
    assert violations == []
    resting.disturb("crash 2", rest_s=0.0)
    assert violations[0].startswith("true distances: n1 is lost")


def test_what_is_wrong_for_a_moment_only_is_forgiven(violations):
    resting = Resting(violations)
    problems = [[("databases equal", "n1 is late")], []]
    resting.structure.exact = lambda: problems.pop(0)
    resting.disturb("crash 3")
    resting.checker.finished()
    assert (violations, problems) == ([], [])


def test_who_is_disturbed_again_gets_more_time(violations):
    resting = Resting(violations)
    resting.tracker.compare = lambda: "all is wrong"
    resting.disturb("crash 3", rest_s=1.0)
    resting.disturb("crash 2", rest_s=1.0)
    resting.checker.finished()
    assert violations == []


def test_a_node_that_keeps_too_much_is_seen(violations):
    played = Played("line:3", protocol=ProtocolSettings(nodes_max=3)).run(2.0)
    structure = Structure(Truth(played.world), ProtocolSettings(nodes_max=2))
    Bounded(played.world, violations, structure).finished()
    assert violations == []
    played.world.options = Options(parse("line:3", 0), protocol=ProtocolSettings(nodes_max=2))
    Bounded(played.world, violations, structure).finished()
    assert "n0 has 3 nodes, the limit is 2" in violations[0]


def test_not_every_complaint_is_written_down(world, violations):
    checker = NoPhantom(world, violations)
    for _ in range(2 * VIOLATIONS_MAX):
        checker.delivered(world.sites[1], publication(), None)
    assert len(violations) == VIOLATIONS_MAX
