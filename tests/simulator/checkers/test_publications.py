"""Publications that break a promise, made by hand: each class must notice."""

import pytest
from tests.simulator.checkers.stubs import end, idle_world, publication, published
from tests.simulator.worlds import Played

from hansa.protocol.model import HOPS_MAX
from hansa.simulator.actions import ClientPublish, ClientSubscribe, CrashAgent
from hansa.simulator.checkers import AtMostOnce, Completeness, NoLoop, NoPhantom


@pytest.fixture
def world():
    return idle_world()


@pytest.fixture
def violations():
    return []


def test_a_delivery_of_what_was_published_is_no_phantom(world, violations):
    NoPhantom(world, violations).on_delivered(world.sites[1], publication(), published())
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
        (1, publication(topic="$SYS/up"), published(topic="$SYS/up")),
    ],
    ids=["never published", "payload", "topic", "retain", "qos", "at its origin", "of one broker"],
)
def test_phantoms_are_seen(world, violations, place, got, entry):
    NoPhantom(world, violations).on_delivered(world.sites[place], got, entry)
    assert len(violations) == 1
    assert "seed 42" in violations[0]


def test_a_second_delivery_to_one_broker_is_seen(world, violations):
    checker = AtMostOnce(world, violations)
    checker.on_delivered(world.sites[1], publication(), published())
    checker.on_delivered(world.sites[2], publication(), published())
    assert violations == []
    checker.on_delivered(world.sites[1], publication(), published())
    assert "n1 delivers publication 0 again" in violations[0]


def test_an_agent_that_started_again_cannot_remember(world, violations):
    checker = AtMostOnce(world, violations)
    checker.on_delivered(world.sites[1], publication(), published())
    world.sites[1].process_run += 1
    checker.on_delivered(world.sites[1], publication(), published())
    assert violations == []


def test_a_copy_may_cross_once_to_spread_and_once_per_group_it_names(world, violations):
    checker = NoLoop(world, violations)
    way = end(world)
    checker.on_copy_sent(way, publication())
    checker.on_copy_sent(way, publication(target_groups=(7,)))
    checker.on_copy_sent(way, publication(target_groups=(8,)))
    checker.on_copy_sent(end(world, 1, 0), publication())
    assert violations == []
    checker.on_copy_sent(way, publication(target_groups=(8,)))
    assert "crosses n0>n1 4 times for 2 target groups" in violations[0]


def test_the_two_families_of_numbers_are_apart(world, violations):
    checker = NoLoop(world, violations)
    checker.on_copy_sent(end(world), publication(qos=0))
    checker.on_copy_sent(end(world), publication(qos=1))
    assert violations == []


def test_a_copy_that_travels_too_far_is_seen(world, violations):
    NoLoop(world, violations).on_copy_sent(end(world), publication(hops=HOPS_MAX + 1))
    assert "hops" in violations[0]


def test_a_publication_that_does_not_arrive_is_seen(violations):
    played = Played("line:2", [(0.0, ClientSubscribe(1, "a")), (2.0, ClientPublish(0, "a"))])
    played.run(1.9)
    played.world.sites[0].broker.withdraw(["a"])  # the agent will not see it
    tracker = played.simulation.tracker
    checker = Completeness(played.world, violations, tracker)
    played.world.hooks.on_published.append(checker.on_published)
    played.run(3.0)
    assert "publication 0 on a from n0 did not reach n1" in violations[0]
    assert checker.checked_count == 1


def test_what_is_disturbed_on_its_way_is_not_missed(violations):
    played = Played(
        "line:2",
        [(0.0, ClientSubscribe(1, "a")), (2.0, ClientPublish(0, "a")), (2.0, CrashAgent(1))],
    )
    tracker = played.simulation.tracker
    checker = Completeness(played.world, violations, tracker)
    played.world.hooks.on_published.append(checker.on_published)
    played.run(3.0)
    assert violations == []
    assert checker.checked_count == 0
