"""Actions of random clients."""

from collections import Counter

from hansa.simulator.actions import ClientPublish, ClientSubscribe, ClientUnsubscribe
from hansa.simulator.options import Phases, SimulationOptions, Workload
from hansa.simulator.topologies import parse_topology
from hansa.simulator.workload import random_client_actions

PHASES = Phases(warm_up_s=2.0, traffic_s=10.0, settle_s=3.0, final_s=4.0)


def steps(kind, seed=0, **workload):
    workload = {"publish_finally": False, **workload}
    options = SimulationOptions(
        parse_topology("ring:6", 0), seed=seed, phases=PHASES, workload=Workload(**workload)
    )
    return [step for step in random_client_actions(options) if isinstance(step.action, kind)]


def test_first_subscriptions_are_at_the_start():
    made = steps(ClientSubscribe, subscribers=9, filters=("a", "b/#"))
    assert [step.at_s for step in made] == [0.0] * 9
    assert {step.action.filter for step in made} == {"a", "b/#"}


def test_publishers_have_a_constant_rate():
    made = steps(ClientPublish, publishers=3, rate=5.0, topics=("a", "b"), payload_bytes=99)
    assert len(made) == 3 * 5 * 10
    assert all(2.0 <= step.at_s < 12.0 for step in made)
    assert {step.action.topic for step in made} == {"a", "b"}
    assert {step.action.payload_bytes for step in made} == {99}


def test_qos_levels_have_the_requested_weights():
    made = steps(ClientPublish, publishers=5, rate=100.0, qos=(2.0, 1.0, 1.0))
    counts = Counter(step.action.qos for step in made)
    assert 0.45 < counts[0] / len(made) < 0.55
    assert 0.2 < counts[2] / len(made) < 0.3


def test_churn_subscribes_and_unsubscribes():
    made = steps(
        (ClientSubscribe, ClientUnsubscribe), subscribers=10, filters=("a", "b"), churn=20.0
    )[10:]
    assert len(made) == 200
    assert 60 < sum(isinstance(step.action, ClientUnsubscribe) for step in made) < 140
    assert [step.at_s for step in made] == sorted(step.at_s for step in made)


def test_only_existing_subscriptions_are_removed():
    present: Counter[tuple[int, str]] = Counter()
    for step in steps((ClientSubscribe, ClientUnsubscribe), filters=("a", "b"), churn=20.0):
        place = (step.action.node, step.action.filter)
        present[place] += 1 if isinstance(step.action, ClientSubscribe) else -1
        assert present[place] >= 0


def test_final_publications_of_every_place_to_every_topic():
    made = steps(ClientPublish, topics=("a", "b"), publish_finally=True)
    assert len({(step.action.node, step.action.topic) for step in made}) == len(made) == 12
    assert all(15.0 <= step.at_s < 17.0 for step in made)


def test_publishers_do_not_affect_subscribers():
    few = steps(ClientSubscribe, subscribers=9, publishers=1)
    assert few == steps(ClientSubscribe, subscribers=9, publishers=5)
    assert few != steps(ClientSubscribe, subscribers=9, publishers=1, seed=1)
