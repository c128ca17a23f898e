"""Announcements that violate an invariant, made by hand."""

import pytest
from tests.simulator.checkers.stubs import end, idle_world

from hansa.protocol.effects import Ignored, NeighbourDown, NeighbourUp, ParentsChanged
from hansa.protocol.events import FrameReceived
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.routing.base import TOO_SHORT
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.wire.frames import UNREACHABLE, CoreAnnouncement
from hansa.simulator.checkers import AnnouncementCost, ParentsNearer
from hansa.simulator.options import LinkOptions

CORE = NodeId(0)


@pytest.fixture
def world():
    return idle_world()


@pytest.fixture
def violations():
    return []


class Neighbours:
    """Announcements among three places that are all neighbours, core 0."""

    def __init__(self, violations, metric=Metric.HOPS):
        self.world = idle_world(protocol=ProtocolSettings(metric=metric))
        for site in self.world.sites:
            site.link_ends = {
                other.place: end(self.world, site.place, other.place)
                for other in self.world.sites
                if other is not site
            }
        self.checker = ParentsNearer(self.world, violations)
        for site in self.world.sites:
            self.checker.on_agent_started(site)
            for other in site.link_ends:
                self.checker.on_notification(site, NeighbourUp(other, other))

    def says(self, place, sequence, distance, *parents):
        frame = CoreAnnouncement(CORE, 1, sequence, distance, parents)
        self.checker.on_announcement_sent(end(self.world, place, 0), frame)

    def chooses(self, place, *parents):
        self.checker.on_notification(
            self.world.sites[place], ParentsChanged(CORE, 1, 1, 2, parents)
        )


def test_nearer_newer_or_lost_parent_is_allowed(violations):
    nodes = Neighbours(violations)
    nodes.says(0, 1, 0)
    nodes.says(1, 1, 1, 0)
    nodes.says(2, 1, 2, 1)
    nodes.says(0, 2, 0)
    nodes.says(1, 1, UNREACHABLE)
    assert violations == []


@pytest.mark.parametrize(("sequence", "distance"), [(1, 2), (1, 3), (0, 1)])
def test_parent_that_is_not_nearer_is_a_violation(violations, sequence, distance):
    nodes = Neighbours(violations)
    nodes.says(1, sequence, distance, 0)
    nodes.says(2, 1, 2, 1)
    assert "n2" in violations[0]
    assert "has parent n1" in violations[0]


def test_parent_that_becomes_farther_is_a_violation(violations):
    nodes = Neighbours(violations)
    nodes.says(1, 1, 1, 0)
    nodes.says(2, 1, 2, 1)
    assert violations == []
    nodes.says(1, 1, 2, 0)
    assert "has parent n1" in violations[0]


def test_with_rtt_distance_may_grow_but_loop_is_a_violation(violations):
    nodes = Neighbours(violations, Metric.RTT)
    nodes.says(1, 1, 100, 0)
    nodes.says(2, 1, 90, 1)
    assert violations == []
    nodes.chooses(2, 1)
    nodes.chooses(1, 2)
    assert "n1 is its own ancestor" in violations[0]


def test_restarted_parent_is_not_the_chosen_one(violations):
    nodes = Neighbours(violations)
    nodes.says(1, 1, 1, 0)
    nodes.says(2, 1, 2, 1)
    nodes.world.sites[1].process_run += 1
    nodes.says(1, 1, 3, 2)
    assert violations == []


def test_stopped_node_is_not_a_parent(violations):
    nodes = Neighbours(violations)
    nodes.chooses(2, 1)
    nodes.checker.on_agent_stopped(nodes.world.sites[2])
    nodes.chooses(1, 2)
    assert violations == []


def announce(checker, world, times, distance=0):
    for _ in range(times):
        checker.on_announcement_sent(end(world), CoreAnnouncement(CORE, 1, 1, distance))


def all_up(checker, world):
    for site in world.sites:
        for other in world.sites:
            if other is not site:
                checker.on_notification(site, NeighbourUp(other.state.id, LinkId(1)))


def test_more_than_two_frames_per_link_are_a_violation(world, violations):
    checker = AnnouncementCost(world, violations)
    all_up(checker, world)
    announce(checker, world, 6)
    announce(checker, world, 3, distance=UNREACHABLE)
    assert violations == []
    announce(checker, world, 1)
    assert "takes 7 frames on 3.0 links" in violations[0]
    assert checker.frames_per_announcement_max == 7


def test_cost_is_not_limited_while_neighbours_change(world, violations):
    checker = AnnouncementCost(world, violations)
    all_up(checker, world)
    announce(checker, world, 6)
    checker.on_notification(world.sites[1], NeighbourDown(NodeId(2), "gone"))
    announce(checker, world, 6)
    assert violations == []
    assert checker.frames_per_announcement_max == 12


def test_cost_is_not_limited_if_a_silent_link_passes_on_what_it_held_back(world, violations):
    checker = AnnouncementCost(world, violations)
    all_up(checker, world)
    announce(checker, world, 6)
    checker.on_disturbance("restore 0-1", False, (0, 1))
    announce(checker, world, 6)
    assert violations == []


def test_cost_is_not_limited_while_a_copy_of_the_core_runs(world, violations):
    """Both make announcements with the same numbers."""
    checker = AnnouncementCost(world, violations)
    all_up(checker, world)
    (core,) = [site for site in world.sites if site.state.id == CORE]
    copy = next(site for site in world.sites if site is not core)
    before, copy.state.id = copy.state.id, CORE
    announce(checker, world, 9)
    assert violations == []
    copy.state.id = before
    announce(checker, world, 1)
    assert "takes 10 frames on 3.0 links" in violations[0]


@pytest.mark.parametrize(
    ("sequence", "reason", "is_bounded"),
    [(1, TOO_SHORT, False), (2, TOO_SHORT, True), (1, "filters_per_node_max", True)],
)
def test_only_an_announcement_that_overtook_the_map_may_be_corrected(
    world, violations, sequence, reason, is_bounded
):
    checker = AnnouncementCost(world, violations)
    all_up(checker, world)
    received = FrameReceived(LinkId(1), CoreAnnouncement(CORE, 1, sequence, 1))
    checker.on_event_handled(world.sites[1], received, [Ignored(reason)])
    announce(checker, world, 6, distance=4)
    announce(checker, world, 6, distance=2)
    assert bool(violations) == is_bounded
    assert checker.frames_per_announcement_max == 12


def test_corrected_announcement_takes_at_most_two_frames_per_link_again(world, violations):
    checker = AnnouncementCost(world, violations)
    all_up(checker, world)
    received = FrameReceived(LinkId(1), CoreAnnouncement(CORE, 1, 1, 1))
    checker.on_event_handled(world.sites[1], received, [Ignored(TOO_SHORT)])
    announce(checker, world, 6, distance=4)
    announce(checker, world, 7, distance=2)
    assert len(violations) == 1
    assert "takes 13 frames on 3.0 links" in violations[0]


def test_frames_on_new_links_are_not_counted(world, violations):
    checker = AnnouncementCost(world, violations)
    announce(checker, world, 1)
    all_up(checker, world)
    announce(checker, world, 9)
    assert checker.frames_per_announcement_max == 1


def test_cost_is_not_limited_on_unequal_links(violations):
    world = idle_world(links=LinkOptions(jitter_ms=1.0))
    checker = AnnouncementCost(world, violations)
    all_up(checker, world)
    announce(checker, world, 7)
    assert violations == []
    assert checker.frames_per_announcement_max == 7
