"""Violated guarantees, made by hand: each is reported, and nothing else."""

import pytest
from msgspec.structs import replace
from tests.simulator.checkers.stubs import publication
from tests.simulator.worlds import SimulatedRun

from hansa.mqtt.packets import PublishPacket, UnsubscribePacket
from hansa.protocol.effects import DeliveryAbandoned, EpochRolloverRequired, Gap
from hansa.protocol.interest.shared_subscriptions import TopicInterest
from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import (
    BackUpState,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    CloneNode,
    CrashAgent,
    CutLink,
    FailDisk,
    RefuseAgent,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
)
from hansa.simulator.options import DiskOptions
from hansa.simulator.result import GuaranteeSummary

ONCE = [(0.0, ClientSubscribe(1, "a/b")), (5.0, ClientPublish(0, "a/b", qos=1))]


def play(*more, until=4.9, **options):
    """Run a guaranteed publication up to the moment before it."""
    options.setdefault("disk", DiskOptions())
    return SimulatedRun("line:2", [*ONCE, *more], **options).run(until)


def finish(played, until=20.0):
    """Run to the end; return the violated guarantees without time and seed."""
    played.run(until)
    for call in played.world.hooks.on_run_finished:
        call()
    texts = [text.partition(" (")[0] for text in played.simulation.violations]
    return [text for text in texts if text.startswith("guaranteed: ")]


def guaranteed(played):
    return played.simulation._guaranteed  # noqa: SLF001


def test_guaranteed_delivery_is_counted():
    played = play()
    assert finish(played) == []
    assert guaranteed(played).summarize() == GuaranteeSummary(1, 1, 0, 0, 0, 0)


def lose_publications(played):
    """Let the publisher's broker lose what its agent does not have, without saying so."""
    site = played.world.sites[0]
    site.broker.lose_session(played.world.now)
    if site.delivery is not None:
        site.delivery.connection.on_closed()


def test_missing_delivery_is_a_violation():
    played = play()
    played.run(5.00008)
    lose_publications(played)
    assert finish(played) == [
        "guaranteed: publication 0 on a/b at 5.000 s from n0 never reached n1"
    ]


def test_reported_gap_is_no_violation():
    played = play()
    played.run(5.0004)
    site = played.world.sites[0]
    site.state.disk.trimmed_upto = (1, 1)
    guaranteed(played).on_notification(
        played.world.sites[1], Gap(site.state.id, 1, 1, 1, "retention")
    )
    played.world.ledger.entries[0].journal_position = (1, 1)
    played.world.stop_agent(site, notify_peers=True)
    lose_publications(played)
    played.world.start_agent(site)
    assert finish(played) == []
    assert guaranteed(played).summarize() == GuaranteeSummary(1, 0, 1, 0, 1, 0)


def test_retention_of_an_origin_that_was_copied_is_a_valid_reason():
    publications = [(30.0 + n, ClientPublish(0, "a/b", qos=1)) for n in range(5)]
    cut = ((29.0, CutLink(0, 1)), (36.0, RestoreLink(0, 1)))
    disk = DiskOptions(journal_max=3)
    played = play((6.0, CloneNode(0, near=1)), *cut, *publications, disk=disk)
    assert finish(played, until=60.0) == []
    assert guaranteed(played).summarize().reported == 2


@pytest.mark.parametrize("reason", ["retention", "new epoch", "end of lease", "nodes_max"])
def test_gap_without_valid_reason_is_a_violation(reason):
    played = play()
    played.world.sites[0].state.disk.trimmed_upto = (1, 1)
    guaranteed(played).on_notification(played.world.sites[1], Gap(NodeId(0), 1, 1, 2, reason))
    assert len(finish(played)) == 1


def captured_twice(qos, stop_count, filters, *, is_restored=False):
    """A publication has two positions in the journal of an agent that was stopped that often, or
    that has restored an older state."""
    subscribed = [(4.0, ClientSubscribe(1, name)) for name in filters]
    played = play(*subscribed, (6.0, ClientPublish(0, "a/b", qos=qos)), until=10.0)
    site = played.world.sites[0]
    log = site.state.disk.outbox
    last = list(log.captured_records(1, log.next_sequence))[-1]
    log.append(replace(last, sequence=log.next_sequence))
    log.commit(log.end)
    site.process_run += 2 * stop_count
    if is_restored:
        site.state.restored_at = played.world.now
        guaranteed(played).on_agent_started(site)
    return finish(played)


def test_publication_with_two_positions_is_a_violation():
    violation = ["guaranteed: n0 has captured a publication twice"]
    assert captured_twice(1, 0, filters=("a/#", "+/b")) == violation
    assert captured_twice(2, 1, filters=("a/#", "+/b")) == violation
    assert captured_twice(1, 1, filters=("a/b",)) == violation


def test_overlap_copy_of_qos_1_may_be_captured_again_after_a_stop():
    assert captured_twice(1, 1, filters=("a/#", "+/b")) == []


def test_restored_origin_may_capture_copies_of_filters_that_it_does_not_know():
    assert captured_twice(2, 0, filters=("a/#", "+/b"), is_restored=True) == []
    violation = ["guaranteed: n0 has captured a publication twice"]
    assert captured_twice(2, 0, filters=("a/b",), is_restored=True) == violation


def test_abandoned_delivery_without_reason_is_a_violation():
    played = play()
    guaranteed(played).on_notification(played.world.sites[0], DeliveryAbandoned(NodeId(1), 1, 1, 1))
    assert len(finish(played)) == 1


def test_gap_of_a_vanished_origin_is_allowed():
    played = play()
    guaranteed(played).on_notification(played.world.sites[1], Gap(NodeId(77), 1, 1, 1, "retention"))
    assert finish(played) == []


@pytest.mark.parametrize(
    "more",
    [
        [(5.00005, ClientUnsubscribe(1, "a/b"))],
        [(5.00005, CrashAgent(1))],
        [(5.00005, CrashAgent(0)), (6.0, RestartAgent(0, with_state=False))],
        [(5.00005, CrashAgent(1)), (6.0, RestartAgent(1, with_state=False))],
    ],
    ids=["given up", "not in reach", "origin lost its disk", "receiver lost its disk"],
)
def test_events_that_end_a_guarantee(more):
    played = play(*more)
    played.run(5.00008)
    lose_publications(played)
    assert finish(played) == []
    assert guaranteed(played).summarize().promised == 0


def test_replaced_filter_keeps_the_guarantee():
    """The topic stays subscribed although the acknowledged filter is removed."""
    played = play((5.00005, ClientSubscribe(1, "a/#")), (5.00006, ClientUnsubscribe(1, "a/b")))
    played.run(5.00008)
    lose_publications(played)
    assert len(finish(played)) == 1


def test_nothing_is_guaranteed_before_acknowledgement():
    script = [(5.0, ClientSubscribe(1, "a")), (5.0, ClientPublish(0, "a", qos=1))]
    played = SimulatedRun("line:2", script, disk=DiskOptions()).run(4.0)
    assert finish(played) == []
    assert guaranteed(played).summarize() == GuaranteeSummary(0, 0, 0, 0, 0, 0)


@pytest.mark.pure
def test_acknowledged_interest_counts_if_the_publisher_loses_it():
    """The state of the publisher's own node is no excuse."""
    played = play()
    played.world.sites[0].node._remote_interest.in_force.clear()  # noqa: SLF001
    unsubscribe_all(played, 0)
    assert len(finish(played)) == 1


def unsubscribe_all(played, place):
    """Let a node see no interest of others in force."""
    site = played.world.sites[place]
    site.node.receivers_in_force = lambda topic: ()
    site.node._remote_interest.receivers = lambda topic: ()  # noqa: SLF001
    site.node._forwarding._share_selector.topic_interest = lambda topic: TopicInterest(())  # noqa: SLF001


@pytest.mark.pure
def test_unacknowledged_interest_counts_after_convergence_limit():
    late = (30.0, ClientPublish(0, "a/b", qos=1))
    played = play(late, until=1.0)
    unsubscribe_all(played, 0)
    played.world.sites[1].node._interest_acks.acknowledged_by.clear()  # noqa: SLF001
    assert finish(played, until=29.0) == []
    assert len(finish(played, until=40.0)) == 1


def test_broker_internal_topics_are_not_guaranteed():
    script = [(0.0, ClientSubscribe(1, "$SYS/#")), (20.0, ClientPublish(0, "$SYS/uptime", qos=1))]
    played = SimulatedRun("line:2", script, disk=DiskOptions())
    assert finish(played, until=30.0) == []


def test_rolled_back_node_has_no_obligation_to_newer_interest():
    """Its broker sends it publications before it has any neighbour."""
    script = [
        (1.0, BackUpState(0)),
        (3.0, ClientSubscribe(1, "a/b")),
        (8.0, CutLink(0, 1)),
        (9.0, RollBackState(0)),
        (10.0, ClientPublish(0, "a/b", qos=1)),
        (11.0, RestoreLink(0, 1)),
        (30.0, ClientPublish(0, "a/b", qos=1)),
    ]
    played = SimulatedRun("line:2", script, disk=DiskOptions())
    assert finish(played, until=40.0) == []
    assert played.received(1) == [1]
    assert guaranteed(played).summarize().promised == 1


def test_broker_may_drop_qos_2_after_roll_back():
    publish = [
        (6.0, ClientPublish(0, "a/b", qos=2)),
        (30.0, ClientPublish(0, "a/b", qos=2, count=3)),
    ]
    played = play((5.5, BackUpState(1)), *publish, (6.5, RollBackState(1)), until=6.4)
    broker = played.world.sites[1].broker
    unreleased = PublishPacket("z", b"of the newer state", 2, packet_id=999)
    broker.receive_from_agent(broker.agent_connection, unreleased, played.world.now)
    entries = played.run(29.0).world.ledger.entries
    played.run(31.0)
    del entries[2].delivered_at[1]
    assert finish(played, until=40.0) == []
    del entries[3].delivered_at[1]
    assert len(finish(played, until=41.0)) == 1


def test_publication_before_new_epoch_may_be_duplicated():
    played = play(
        (6.0, RollBackState(0)),
        (5.5, BackUpState(0)),
        (7.0, ClientPublish(0, "z", qos=2)),
        until=8.0,
    )
    receiver, entry = played.world.sites[1], played.world.ledger.entries[1]
    copy = publication(qos=2)
    guaranteed(played).on_delivered(receiver, copy, entry)
    guaranteed(played).on_notification(played.world.sites[0], EpochRolloverRequired(9))
    guaranteed(played).on_delivered(receiver, copy, entry)
    assert finish(played) == []


def test_only_origin_reports_what_retention_removed_from_an_old_copy():
    """The receiver had publications of the newer state at the positions that the copy assigned to
    others, and the journal holds two. A removed one that was acknowledged is a violation."""
    script = [
        (5.5, BackUpState(0)),
        (6.0, ClientPublish(0, "a/b", qos=1, count=3)),
        (7.0, CutLink(0, 1)),
        (8.0, RollBackState(0)),
        (9.0, ClientPublish(0, "a/b", qos=1, count=5)),
        (11.0, RestoreLink(0, 1)),
    ]
    played = play(*script, disk=DiskOptions(journal_max=2))
    assert finish(played) == []
    assert played.received(1) == [0, 1, 2, 3, 7, 8]
    assert guaranteed(played).summarize().reported == 3
    ended = played.world.sites[0].state.disk.ended_epochs
    assert ended == {1: (4, {1: 1})}
    ended[1] = (4, {1: 3})
    assert [text[:26] for text in finish(played)] == [
        "guaranteed: publication 4 ",
        "guaranteed: publication 5 ",
    ]


def test_lease_that_ends_before_capture_ends_the_guarantee():
    script = [
        (5.5, CutLink(0, 1)),
        (9.0, RefuseAgent(0, 5.0)),
        (9.5, ClientPublish(0, "a/b", qos=1)),
        (13.9, RestoreLink(0, 1)),
        (40.0, ClientPublish(0, "a/b", qos=1)),
    ]
    lease = ProtocolSettings(interest_lease=5.0)
    played = play(*script, protocol=lease)
    assert finish(played, until=50.0) == []
    assert played.received(1) == [0, 2]


def test_missing_subscription_of_agent_is_a_violation():
    played = play()
    played.run(4.95)
    played.world.publish(played.world.sites[0], "a/b", 8, 1, False)
    assert played.simulation.violations == []
    broker = played.world.sites[0].broker
    unsubscribe = UnsubscribePacket(999, ("a/b",))
    broker.receive_from_agent(broker.agent_connection, unsubscribe, played.world.now)
    expected = "guaranteed: n0 is not subscribed to a/b, what n1 counts on"
    assert finish(played) == [expected]


FAILED_DISK = ((3.0, ClientSubscribe(1, "c")), (4.0, FailDisk(0)))


def test_agent_with_failed_disk_has_no_subscriptions_in_a_new_session():
    """The guarantee continues after a restart of the agent."""
    again = [(at, ClientPublish(0, "a/b", qos=1)) for at in (8.0, 12.0)]
    played = play(*FAILED_DISK, (4.5, RestartBroker(0)), (9.0, RestartAgent(0)), *again)
    assert finish(played) == []
    assert played.received(1) == [2]
    assert guaranteed(played).summarize().promised == 1


def test_failed_disk_excuses_no_unsubscription():
    played = play(*FAILED_DISK)
    broker = played.world.sites[0].broker
    unsubscribe = UnsubscribePacket(999, ("a/b",))
    broker.receive_from_agent(broker.agent_connection, unsubscribe, played.world.now)
    assert list(broker.granted) == ["c"]
    expected = "guaranteed: n0 is not subscribed to a/b, what n1 counts on"
    assert finish(played) == [expected]


def delivered(qos, *numbers, between=lambda broker: None, window=20):
    """Deliver publications at node 1 in this order, call `between`, and deliver them once more."""
    publish = (6.0, ClientPublish(0, "z", qos=qos, count=5, interval_s=0.1))
    played = play(publish, disk=DiskOptions(in_flight_max=window), until=7.0)
    receiver, entries = played.world.sites[1], played.world.ledger.entries
    for number in numbers:
        guaranteed(played).on_delivered(receiver, publication(qos=qos), entries[number])
    between(receiver.broker)
    for number in sorted({*numbers}):
        guaranteed(played).on_delivered(receiver, publication(qos=qos), entries[number])
    return [text.partition(" (")[0] for text in played.simulation.violations]


def test_reordered_and_duplicate_deliveries_are_violations():
    assert delivered(1, 2, 1) == [
        "guaranteed: n1 delivers publication 1 after 2",
        "guaranteed: n1 delivers publication 1 again",
        "guaranteed: n1 delivers publication 2 again",
    ]


def test_only_passed_over_publications_may_be_reordered():
    played = play((6.0, ClientPublish(0, "z", qos=1, count=5, interval_s=0.1)), until=7.0)
    entries = played.world.ledger.entries
    entries[2].was_passed_over = True
    for number in (4, 2, 3):
        guaranteed(played).on_delivered(played.world.sites[1], publication(qos=1), entries[number])
    assert finish(played) == ["guaranteed: n1 delivers publication 3 after 4"]


def reconnect(broker):
    broker.close_agent(7.0)
    broker.connect_agent(True, 20, 7.0)


def test_allowed_duplicates_by_qos():
    assert delivered(1, 1, between=reconnect) == []
    assert delivered(2, 1, between=reconnect) == ["guaranteed: n1 delivers publication 1 again"]
    assert delivered(2, 1, between=lambda broker: broker.lose_session(7.0)) == []


def test_allowed_duplicates_are_bounded_by_in_flight():
    assert delivered(1, 1, 2, between=reconnect, window=2) == []
    assert delivered(1, 1, 2, 3, between=reconnect, window=2) == [
        "guaranteed: n1 delivers more than 2 publications again"
    ]


def test_rolled_back_journal_is_a_violation_unless_copied():
    played = play()
    guaranteed(played).on_notification(played.world.sites[0], EpochRolloverRequired(9))
    assert finish(played) == ["guaranteed: n0 has lost part of its journal"]
    played = play((6.0, CloneNode(0, near=1)))
    played.run(6.0)
    guaranteed(played).on_notification(played.world.sites[0], EpochRolloverRequired(9))
    assert finish(played) == []


def promised_after_a_clone(seconds):
    """Publish at the original some seconds after a clone has started, which runs for five
    seconds."""
    publish = (6.0 + seconds, ClientPublish(0, "a/b", qos=1))
    played = play((6.0, CloneNode(0, near=1)), publish)
    assert finish(played, until=40.0) == []
    return guaranteed(played).summarize().promised


def test_guarantees_pause_during_id_conflict():
    assert promised_after_a_clone(1.0) == 0
    assert promised_after_a_clone(20.0) == 1


def test_new_epoch_guarantees_its_publications():
    publish = [(at, ClientPublish(0, "a/b", qos=1)) for at in (26.0, 28.0)]
    played = play((6.0, CloneNode(0, near=1)), *publish, until=27.0)
    guaranteed(played).on_notification(played.world.sites[0], EpochRolloverRequired(9))
    assert finish(played, until=40.0) == []
    assert guaranteed(played).summarize().promised == 1


@pytest.mark.parametrize("options", [{"disk": None}, {}])
def test_nothing_is_guaranteed_without_disk_or_at_qos_0(options):
    played = SimulatedRun(
        "line:2", [(0.0, ClientSubscribe(1, "a")), (5.0, ClientPublish(0, "a"))], **options
    )
    assert finish(played) == []
    assert guaranteed(played).summarize().promised == 0
