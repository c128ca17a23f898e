"""Effects of every action. Nodes have the default settings: silence is detected after 3 s."""

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.protocol.effects import IncarnationRaised, NeighbourDown
from hansa.simulator.actions import (
    AddLink,
    BackUpState,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    CloneNode,
    CrashAgent,
    CutLink,
    CutOneWay,
    CutSilently,
    FlapLink,
    FreezeAgent,
    HealAll,
    Partition,
    PowerOff,
    RemoveLink,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
)
from hansa.simulator.options import DiskOptions
from hansa.simulator.world.action_executor import COPY_S


def downs(played, place):
    return [(event.node, event.reason) for event in played.notifications(NeighbourDown, place)]


def test_subscribe_and_unsubscribe_reach_other_brokers():
    played = SimulatedRun(
        "line:2", [(0.5, ClientSubscribe(0, "a/#")), (2.0, ClientUnsubscribe(0, "a/#"))]
    )
    assert played.run(1.0).world.sites[1].broker.is_agent_subscribed("a/b")
    assert not played.run(4.0).world.sites[1].broker.is_agent_subscribed("a/b")


def test_client_publishes_once_or_at_intervals():
    script = [
        (0.5, ClientSubscribe(1, "a")),
        (1.0, ClientPublish(0, "a", count=3, interval_s=0.25, qos=1)),
    ]
    played = SimulatedRun("line:2", script).run(2.0)
    assert [entry.at for entry in played.world.ledger.entries] == [1.0, 1.25, 1.5]
    assert {entry.qos for entry in played.world.ledger.entries} == {1}
    assert played.received(1) == [0, 1, 2]
    assert played.received(0) == []


def test_cut_is_reported_at_both_ends():
    played = SimulatedRun("line:2", [(1.0, CutLink(1, 0)), (5.0, RestoreLink(0, 1))]).run(4.9)
    assert downs(played, 0) == [(1, "connection cut")]
    assert downs(played, 1) == [(0, "connection cut")]
    assert played.lines[-1][0] == pytest.approx(1.0, abs=0.01)
    assert played.run(7.0).neighbours(0) == [1]


def test_silent_cut_is_detected_by_timeout():
    played = SimulatedRun("line:2", [(1.5, CutSilently(0, 1))]).run(3.5)
    assert played.neighbours(0) == [1]
    assert [reason for _, reason in downs(played.run(6.0), 0)] == ["silent"]


def test_one_way_cut_keeps_the_other_direction():
    script = [
        (0.5, ClientSubscribe(0, "a")),
        (0.5, ClientSubscribe(1, "a")),
        (1.0, CutOneWay(0, 1)),
        (1.1, ClientPublish(0, "a")),
        (1.1, ClientPublish(1, "a")),
    ]
    played = SimulatedRun("line:2", script).run(2.0)
    assert played.received(0) == [1]
    assert played.received(1) == []
    assert downs(played.run(6.0), 0)
    assert downs(played, 1) == [(0, "silent")]


def test_partition_lasts_until_heal():
    played = SimulatedRun("full:4", [(1.0, Partition(((0, 1), (2, 3)))), (8.0, HealAll())]).run(7.0)
    assert [played.neighbours(place) for place in range(4)] == [[1], [0], [3], [2]]
    assert played.run(10.0).neighbours(0) == [1, 2, 3]


def test_nodes_outside_a_partition_keep_their_links():
    played = SimulatedRun("full:3", [(1.0, Partition(((0,), (1,))))]).run(7.0)
    assert [played.neighbours(place) for place in range(3)] == [[2], [2], [0, 1]]


def test_link_is_added_and_removed():
    played = SimulatedRun("line:3", [(1.0, AddLink(2, 0)), (3.0, RemoveLink(0, 1))])
    assert played.run(2.0).neighbours(0) == [1, 2]
    assert played.run(5.0).neighbours(0) == [2]


def test_adding_an_existing_link_changes_nothing():
    played = SimulatedRun("line:2", [(1.0, AddLink(0, 1)), (1.0, AddLink(1, 1))]).run(2.0)
    assert list(played.world.network.links) == [(0, 1)]
    assert played.simulation.tracker.disturbance_count == 3  # the start


def test_flapping_link_goes_down_and_up_repeatedly():
    played = SimulatedRun("line:2", [(1.0, FlapLink(0, 1, hz=2.0, seconds=2.0))]).run(5.0)
    assert len(played.notifications(CutLink)) == len(played.notifications(RestoreLink)) == 4
    assert len(downs(played, 0)) >= 2
    assert played.neighbours(0) == [1]


def test_killed_agent_is_reported_to_neighbours():
    played = SimulatedRun("line:3", [(1.0, CrashAgent(1))]).run(1.1)
    assert downs(played, 0) == downs(played, 2) == [(1, "connection closed")]
    assert played.world.sites[1].node is None


def test_powered_off_agent_is_silent():
    played = SimulatedRun("line:3", [(1.5, PowerOff(1))]).run(3.5)
    assert downs(played, 0) == []
    assert downs(played.run(6.0), 0) == [(1, "silent")]


def test_suspended_agent_handles_events_after_resume():
    script = [
        (0.5, ClientSubscribe(1, "a")),
        (1.0, FreezeAgent(1, 2.0)),
        (1.5, ClientPublish(0, "a")),
    ]
    played = SimulatedRun("line:2", script)
    assert played.run(2.9).received(1) == []
    assert played.run(3.1).received(1) == [0]
    assert downs(played, 0) == []


def test_long_suspended_agent_is_lost_and_returns():
    played = SimulatedRun("line:2", [(1.0, FreezeAgent(1, 6.0))]).run(6.5)
    assert downs(played, 0) == [(1, "silent")]
    assert played.run(9.0).neighbours(0) == [1]


def test_heal_resumes_a_suspended_agent():
    played = SimulatedRun("line:2", [(1.0, FreezeAgent(1, 60.0)), (2.0, HealAll())]).run(3.0)
    assert not played.world.sites[1].is_frozen


def test_restart_with_state_keeps_identity():
    played = SimulatedRun(
        "line:2",
        [(0.5, ClientSubscribe(1, "a")), (1.0, RestartAgent(1)), (3.0, ClientPublish(0, "a"))],
    )
    before = played.run(0.9).world.sites[1].state.key
    memory = played.run(4.0).world.sites[1].state
    assert (memory.id, memory.key) == (1, before)
    assert memory.incarnation > 1
    assert played.received(1) == [0]


def test_restart_without_state_makes_a_new_node():
    script = [
        (0.5, ClientSubscribe(1, "a")),
        (1.0, CrashAgent(1)),
        (2.0, RestartAgent(1, with_state=False)),
    ]
    played = SimulatedRun("line:2", [*script, (4.0, ClientPublish(0, "a"))])
    before = played.run(0.9).world.sites[1].state.key
    memory = played.run(5.0).world.sites[1].state
    assert (memory.id, memory.incarnation) == (2, 2000)
    assert memory.key != before
    assert played.neighbours(0) == [2]
    assert played.received(1) == [0]


def test_journal_positions_continue_after_restart():
    script = [
        (0.5, ClientSubscribe(1, "a")),
        (1.0, ClientPublish(0, "a", qos=1)),
        (2.0, RestartAgent(0)),
        (4.0, ClientPublish(0, "a", qos=1)),
    ]
    assert SimulatedRun("line:2", script).run(5.0).received(1) == [0, 1]


def test_restarted_broker_has_no_clients_until_they_return():
    script = [(0.5, ClientSubscribe(1, "a")), (2.0, RestartBroker(1, return_s=2.0))]
    played = SimulatedRun(
        "line:2", [*script, (3.5, ClientPublish(0, "a")), (5.0, ClientPublish(0, "a"))]
    )
    assert played.run(3.0).world.sites[1].broker.subscriber_counts == {}
    assert played.run(6.0).world.sites[1].broker.subscriber_counts == {"a": 1}
    assert played.world.ledger.entries[0].expected_places == ()
    assert 1 in played.received(1)


def test_agent_renews_subscriptions_at_restarted_broker():
    script = [(0.5, ClientSubscribe(1, "a")), (2.0, RestartBroker(0)), (3.0, ClientPublish(0, "a"))]
    assert SimulatedRun("line:2", script).run(4.0).received(1) == [0]


def test_rolled_back_state_is_older():
    publish, disk = ClientPublish(0, "a", qos=1), DiskOptions()
    script = [(0.0, ClientSubscribe(1, "a")), (3.0, publish), (4.0, BackUpState(0)), (5.0, publish)]
    played = SimulatedRun(
        "line:2", [*script, (6.0, CutLink(0, 1)), (7.0, RollBackState(0))], disk=disk
    ).run(6.5)
    before = played.world.sites[0].state
    assert before.disk.open_outbox(0).next_sequence == 3
    played.run(8.0)
    after = played.world.sites[0].state
    assert (after.id, after.disk.open_outbox(0).next_sequence, after.restored_at) == (
        before.id,
        2,
        7.0,
    )
    assert after.incarnation > before.incarnation


def test_clone_runs_for_a_while_and_original_keeps_id():
    played = SimulatedRun("line:3", [(1.0, CloneNode(0, near=2))]).run(5.0)
    first, copy = played.world.sites[0], played.world.sites[3]
    assert played.notifications(IncarnationRaised, 0)
    assert (first.is_active, copy.is_active) == (True, True)
    played.run(1.0 + COPY_S + 0.1)
    assert (first.is_active, copy.is_active) == (True, False)


@pytest.mark.parametrize(
    "action",
    [
        RestoreLink(0, 2),
        CutLink(0, 2),
        CutOneWay(2, 0),
        PowerOff(1),
        CrashAgent(1),
        FreezeAgent(1, 1.0),
        RollBackState(1),
    ],
)
def test_impossible_actions_are_ignored(action):
    played = SimulatedRun("line:3", [(1.0, CrashAgent(1)), (2.0, action)]).run(3.0)
    assert played.simulation.tracker.disturbance_count == 5  # the start and the crash
