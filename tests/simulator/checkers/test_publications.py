"""Publications that violate an invariant, made by hand."""

import pytest
from tests.simulator.checkers.stubs import end, idle_world, publication, published
from tests.simulator.worlds import SimulatedRun

from hansa.mqtt.packets import UnsubscribePacket
from hansa.protocol.model import HOPS_MAX
from hansa.simulator.actions import ClientPublish, ClientSubscribe, CrashAgent
from hansa.simulator.byzantine.attacks import CompromisedMember
from hansa.simulator.checkers import AtMostOnce, Completeness, NoLoop, NoPhantom


@pytest.fixture
def world():
    return idle_world()


@pytest.fixture
def violations():
    return []


def test_published_delivery_is_no_phantom(world, violations):
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
def test_phantoms_are_violations(world, violations, place, got, entry):
    NoPhantom(world, violations).on_delivered(world.sites[place], got, entry)
    assert len(violations) == 1
    assert "seed 42" in violations[0]


def test_second_delivery_to_a_broker_is_a_violation(world, violations):
    checker = AtMostOnce(world, violations)
    checker.on_delivered(world.sites[1], publication(), published())
    checker.on_delivered(world.sites[2], publication(), published())
    assert violations == []
    checker.on_delivered(world.sites[1], publication(), published())
    assert "n1 delivers publication 0 again" in violations[0]


def test_restarted_agent_may_deliver_again(world, violations):
    checker = AtMostOnce(world, violations)
    checker.on_delivered(world.sites[1], publication(), published())
    world.sites[1].process_run += 1
    checker.on_delivered(world.sites[1], publication(), published())
    assert violations == []


def test_copy_crosses_a_link_once_plus_once_per_target_group(world, violations):
    checker = NoLoop(world, violations)
    link_end = end(world)
    checker.on_copy_sent(link_end, publication())
    checker.on_copy_sent(link_end, publication(target_groups=(7,)))
    checker.on_copy_sent(link_end, publication(target_groups=(8,)))
    checker.on_copy_sent(end(world, 1, 0), publication())
    assert violations == []
    checker.on_copy_sent(link_end, publication(target_groups=(8,)))
    assert "crosses n0>n1 4 times for 2 target groups" in violations[0]


def test_sequences_of_qos_0_and_guaranteed_are_separate(world, violations):
    checker = NoLoop(world, violations)
    checker.on_copy_sent(end(world), publication(qos=0))
    checker.on_copy_sent(end(world), publication(qos=1))
    assert violations == []


def test_compromised_origin_may_repeat_a_number_but_not_exceed_the_hop_limit(world, violations):
    attacker = world.compromised[2] = CompromisedMember(world, world.sites[2])
    checker = NoLoop(world, violations)
    for _ in range(2):
        checker.on_copy_sent(end(world), publication(origin=attacker.id))
    assert violations == []
    checker.on_copy_sent(end(world), publication(origin=attacker.id, hops=HOPS_MAX + 1))
    assert "hops" in violations[0]
    for _ in range(2):
        checker.on_copy_sent(end(world), publication(origin=world.sites[1].state.id))
    assert "crosses n0>n1 2 times" in violations[1]


def test_compromised_site_with_another_id_is_not_honest(world):
    world.compromised[2] = CompromisedMember(world, world.sites[2])
    world.sites[2].state.id += 1
    assert [site.place for site in world.honest_sites()] == [0, 1]


def test_exceeded_hop_limit_is_a_violation(world, violations):
    NoLoop(world, violations).on_copy_sent(end(world), publication(hops=HOPS_MAX + 1))
    assert "hops" in violations[0]


def test_missing_publication_is_a_violation(violations):
    played = SimulatedRun("line:2", [(0.0, ClientSubscribe(1, "a")), (2.0, ClientPublish(0, "a"))])
    played.run(1.9)
    broker = played.world.sites[0].broker
    unsubscribe = UnsubscribePacket(999, ("a",))  # so that the agent does not see it
    assert broker.agent_connection is not None
    broker.receive_from_agent(broker.agent_connection, unsubscribe, 1.9)
    tracker = played.simulation.tracker
    checker = Completeness(played.world, violations, tracker)
    played.world.hooks.on_published.append(checker.on_published)
    played.run(3.0)
    assert "publication 0 on a from n0 did not reach n1" in violations[0]
    assert checker.checked_count == 1


def test_disturbed_publication_may_be_lost(violations):
    played = SimulatedRun(
        "line:2",
        [(0.0, ClientSubscribe(1, "a")), (2.0, ClientPublish(0, "a")), (2.0, CrashAgent(1))],
    )
    tracker = played.simulation.tracker
    checker = Completeness(played.world, violations, tracker)
    played.world.hooks.on_published.append(checker.on_published)
    played.run(3.0)
    assert violations == []
    assert checker.checked_count == 0
