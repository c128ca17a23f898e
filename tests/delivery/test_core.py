"""The core as a whole: what its parts do together for each input."""

from dataclasses import replace

import pytest
from tests.delivery.core_shell import V5, V311_LASTING, CoreIncarnation, Disk, copies
from tests.delivery.shell import OTHER, YOU, limits

from hansa.delivery import inputs
from hansa.delivery.core import (
    ACK_RECORD_INTERVAL_S,
    CLONE_CHECK_ALONE_S,
    CLONE_CHECK_S,
    COPY_ALARM,
    BrokerTraits,
)
from hansa.delivery.dedup.selection import OVERLAP_WAIT_S
from hansa.delivery.effects import (
    Commit,
    FeedNode,
    LogName,
    RemoveConnectMarker,
    SaveSubscriptions,
    SendHandshakePackets,
)
from hansa.delivery.group_commit import RETRY_S
from hansa.delivery.poison_quarantine import DISCONNECTS_MAX
from hansa.delivery.quota_backoff import BACKOFF_MIN_S
from hansa.delivery.settings import DeliverySettings
from hansa.journal.records import ReceiverAckRecord
from hansa.mqtt.packets import (
    OversizedPublish,
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.mqtt.types import Version
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import Gap
from hansa.protocol.events import (
    EpochStarted,
    InboxCommitted,
    JournalCommitted,
    ProgressReportPersisted,
    StoreUncertain,
)
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import Publication


def remote(number: int, qos: int = 1, topic: str = "a", retain: bool = False) -> Publication:
    return Publication(YOU, 8, number, qos, topic, b"%d" % number, retain, version=number)


def connected(*filters: str, disk: Disk | None = None) -> CoreIncarnation:
    """Return an incarnation with a new session and these subscriptions; everything is durable."""
    agent = CoreIncarnation(disk)
    agent.connect(session_present=False)
    agent.commit()
    agent.save()
    agent.subscribe(*filters)
    agent.events.clear()
    return agent


# ---------------------------------------------------------------- connections


def test_connection_asks_the_node_to_check_stored_values():
    agent = CoreIncarnation()
    agent.connect()
    assert agent.events == [StoreUncertain((), True)]


def test_connect_marker_stays_until_session_loss_is_durable_in_both_logs():
    agent = CoreIncarnation()
    agent.connect(session_present=False)
    assert agent.has_marker()
    agent.deliver(remote(1))
    agent.disk.outbox.commit(agent.disk.outbox.end)
    agent.commits.remove(LogName.OUTBOX)
    agent.handle(inputs.Committed(LogName.OUTBOX))
    agent.commit()
    assert not agent.has_marker()
    agent.disconnect()
    agent.handle(inputs.ConnectStarted())
    assert agent.handle(inputs.ConnectRefused()) == [RemoveConnectMarker()]


def test_nothing_is_acknowledged_while_disconnected():
    agent = connected("a/b")
    agent.receive(*copies(1))
    agent.disconnect()
    agent.commit()
    assert agent.sent == []


def test_broker_is_known_to_send_overlap_copies_and_to_keep_its_session():
    assert BrokerTraits() == BrokerTraits(
        local_topics=(), sends_overlap_copies=True, is_session_uncertain=False
    )


def test_connect_marker_waits_for_the_inbox_log():
    """The session loss marked publications in flight."""
    agent = connected()
    agent.deliver(remote(1))
    agent.commit()
    agent.disconnect()
    agent.connect(session_present=False)
    assert agent.commits == [LogName.OUTBOX, LogName.INBOX]
    for name in (LogName.OUTBOX, LogName.INBOX):
        assert agent.has_marker()
        agent.commits.remove(name)
        agent.disk.log(name).commit(agent.disk.log(name).end)
        agent.handle(inputs.Committed(name))
    assert not agent.has_marker()


@pytest.mark.parametrize("name", LogName)
def test_connect_marker_stays_if_the_session_loss_cannot_be_written(name):
    """Otherwise the next incarnation takes a new publication for a redelivery of the lost
    session."""
    agent = connected("a/b")
    agent.receive(*copies(1, qos=2))
    agent.deliver(remote(1))
    agent.commit()
    agent.disk.log(name).failure = "broken"
    agent.disconnect()
    agent.connect(session_present=False)
    agent.commit()
    assert agent.has_marker()


def test_marker_of_previous_incarnation_makes_the_session_uncertain():
    agent = CoreIncarnation(Disk(has_marker=True))
    agent.connect()
    assert agent.counters["broker sessions uncertain"] == 1
    assert not agent.has_marker()


def test_effects_of_a_first_connection_are_complete_and_in_order():
    agent = CoreIncarnation()
    assert agent.handle(inputs.ConnectStarted()) == []
    assert agent.handle(inputs.Connected(False, limits())) == [
        Commit(LogName.OUTBOX),
        SaveSubscriptions(),
        FeedNode(StoreUncertain((), True)),
        Commit(LogName.INBOX),
    ]


# ---------------------------------------------------------------- capture


def test_one_copy_of_a_publication_is_captured_and_all_are_acknowledged():
    agent = connected("a/#", "a/b")
    agent.receive(*copies(1, 2))
    agent.commit()
    agent.expect_sent(PubAckPacket(1), PubAckPacket(2))
    assert [each.payload for each in agent.disk.outbox.captured_records(1, 9)] == [b"x"]
    assert agent.events == [JournalCommitted(7, 1)]


def test_copy_that_waits_is_captured_by_the_timer():
    agent = connected("a/#", "a/b")
    agent.receive(*copies(2))
    assert (agent.commits, agent.deadline()) == ([], OVERLAP_WAIT_S)
    agent.advance(OVERLAP_WAIT_S)
    agent.commit()
    agent.expect_sent(PubAckPacket(1))
    assert agent.disk.outbox.next_sequence == 2


def test_waiting_copy_is_forgotten_with_the_connection():
    agent = connected("a/#", "a/b")
    agent.receive(*copies(2))
    agent.disconnect()
    agent.advance(OVERLAP_WAIT_S)
    assert (agent.sent, agent.disk.outbox.next_sequence) == ([], 1)


def test_qos_2_publication_of_a_client():
    agent = connected("a/b")
    agent.receive(*copies(1, qos=2))
    agent.commit()
    agent.expect_sent(PubRecPacket(1))
    agent.answer(PubRelPacket(1))
    agent.commit()
    agent.expect_sent(PubCompPacket(1))


def test_publication_too_large_is_dropped_and_acknowledged():
    agent = connected("a")
    for qos, ack in ((1, PubAckPacket(1)), (2, PubRecPacket(1))):
        agent.handle(inputs.OversizedReceived(OversizedPublish("a", qos, False, 1, 99_999)))
        agent.expect_sent(ack)
    assert agent.dropped == {TOO_LARGE: 2}
    assert agent.disk.outbox.next_sequence == 1


def test_qos_0_copies_are_selected():
    agent = connected("a/#", "a/b")
    batch = copies(1, 2, qos=0)
    assert agent.core.select_qos0(batch, 1.0) == [batch[0]]
    assert agent.context.now == 1.0


def test_echoes_of_mqtt_3_1_1_are_not_captured():
    agent = CoreIncarnation(sends_overlap_copies=False)
    agent.connect(False, limits(version=Version.V311, subscription_ids_available=False))
    agent.subscribe("a/#", "a/b")
    agent.core.expect_echoes([("a/b", b"x"), ("a/b", b"y")], 1.0)
    assert agent.context.now == 1.0
    assert not agent.core.is_awaiting_echoes(2.0)
    assert agent.context.now == 2.0
    agent.receive(
        *(PublishPacket("a/b", payload, 1, packet_id=n) for n, payload in ((1, b"x"), (2, b"y")))
    )
    agent.expect_sent(PubAckPacket(1), PubAckPacket(2))
    assert agent.disk.outbox.next_sequence == 1


@pytest.mark.parametrize("qos_max", [0, 2])
def test_echo_of_an_injected_publication_is_not_captured(qos_max):
    agent = CoreIncarnation()
    agent.connect(False, limits(version=Version.V311, qos_max=qos_max))
    agent.subscribe("a")
    agent.deliver(Publication(YOU, 8, 1, 1, "a", b"x"))
    agent.commit()
    agent.receive(*(PublishPacket("a", b"x", 1, packet_id=each) for each in (1, 2)))
    assert agent.counters["echoes"] == 1
    assert agent.disk.outbox.next_sequence == 2, "the second one is of a client"


def test_echoes_of_qos_0_are_not_queued_for_the_next_connection():
    agent = CoreIncarnation()
    agent.connect(False, V311_LASTING)
    agent.subscribe("a")
    agent.core.expect_echoes([("a", b"x")], agent.now)
    agent.disconnect()
    agent.connect(True, V311_LASTING)
    client = PublishPacket("a", b"x")
    assert agent.core.select_qos0([client], agent.now) == [client]


def test_packet_id_of_an_echo_is_free_after_pubrel():
    agent = CoreIncarnation()
    agent.connect(False, V311_LASTING)
    agent.subscribe("a")
    agent.deliver(Publication(YOU, 8, 1, 2, "a", b"x"))
    agent.commit()
    echo = PublishPacket("a", b"x", 2, packet_id=7)
    agent.receive(echo)
    agent.answer(PubRelPacket(7))
    agent.disconnect()
    agent.connect(True, V311_LASTING)
    agent.receive(echo)
    assert agent.disk.outbox.next_sequence == 2, "the second one is of a client"


def interrupted(*accepted: int) -> Disk:
    """Return the disk of an agent that crashed with three QoS 2 publications in flight, of which
    the broker had accepted some."""
    agent = CoreIncarnation()
    agent.connect(False, V311_LASTING)
    agent.save()
    agent.deliver(*(remote(n, qos=2) for n in (1, 2, 3)))
    agent.commit()
    agent.answer(*(PubRecPacket(1 + n) for n in accepted))
    agent.commit()
    return agent.crashed()


@pytest.mark.parametrize(
    ("accepted", "granted", "in_doubt"),
    [
        ((1,), V311_LASTING, 2),
        ((1, 2, 3), V311_LASTING, 0),
        ((1,), replace(V311_LASTING, receive_maximum=1), 1),
        ((1,), V5, 0),
    ],
)
def test_echoes_of_publications_in_flight_are_in_doubt_after_a_crash(accepted, granted, in_doubt):
    """Those of an accepted one are expected when PUBREL is sent; MQTT 5 has none."""
    agent = CoreIncarnation(interrupted(*accepted))
    agent.connect(True, granted)
    assert agent.counters["echoes in doubt"] == in_doubt


def test_echoes_of_publications_never_sent_are_not_in_doubt():
    agent = CoreIncarnation()
    agent.deliver(remote(1, qos=2))
    agent.commit()
    agent.connect(True, V311_LASTING)
    assert agent.counters["echoes in doubt"] == 0


def test_late_copy_after_reconnect_is_not_captured():
    agent = connected("a/#", "a/b")
    agent.receive(*copies(1, qos=2))
    agent.commit()
    agent.disconnect()
    agent.connect()
    agent.receive(*copies(2, qos=2, first_packet_id=2, dup=True))
    assert agent.counters["overlap copies after reconnect"] == 1
    assert agent.disk.outbox.next_sequence == 2


# ---------------------------------------------------------------- progress of receivers


def recorded_progress(agent: CoreIncarnation) -> list[tuple[int, int]]:
    records = agent.disk.outbox.replay()
    return [(each.node, each.sequence) for each in records if isinstance(each, ReceiverAckRecord)]


def captured_twins(has_restarted: bool) -> CoreIncarnation:
    """Two identical publications at QoS 2. The broker sends both copies of the first. Then it
    restarts, so that it sends only one copy of the second: once over a connection that breaks, and
    marked DUP over the next one."""
    agent = connected("a/#", "a/b")
    agent.receive(*copies(2, 1, qos=2))
    agent.commit()
    agent.answer(PubRelPacket(1), PubRelPacket(2))
    agent.commit()
    if has_restarted:
        agent = CoreIncarnation(agent.crashed())
    else:
        agent.disconnect()
    agent.connect()
    agent.disconnect()
    agent.connect()
    agent.receive(*copies(2, qos=2, first_packet_id=3, dup=True))
    agent.advance(OVERLAP_WAIT_S)
    return agent


def test_lone_copy_of_an_identical_publication_is_captured():
    assert captured_twins(has_restarted=False).disk.outbox.next_sequence == 3


def test_lone_copy_of_an_identical_publication_is_dropped_and_counted_after_a_restart():
    """A limit that docs/how-to/troubleshoot.md describes: the journal does not say which copies of
    the first publication had arrived."""
    agent = captured_twins(has_restarted=True)
    assert agent.disk.outbox.next_sequence == 2
    assert agent.counters["overlap copies after reconnect"] == 1


def test_progress_is_recorded_while_receivers_are_behind():
    agent = connected("a/b")
    assert agent.deadline() is None
    agent.receive(*copies(1, 1))
    agent.commit()
    assert agent.deadline() == ACK_RECORD_INTERVAL_S
    agent.progress = {YOU: 1}
    agent.advance(ACK_RECORD_INTERVAL_S / 2)
    assert recorded_progress(agent) == []
    agent.advance(ACK_RECORD_INTERVAL_S / 2)
    assert recorded_progress(agent) == [(YOU, 1)]
    assert agent.deadline() == 2 * ACK_RECORD_INTERVAL_S
    agent.progress = {YOU: 2}
    agent.advance(ACK_RECORD_INTERVAL_S)
    assert recorded_progress(agent) == [(YOU, 1), (YOU, 2)]
    assert agent.deadline() is None
    agent.receive(*copies(1, first_packet_id=3))
    assert agent.deadline() == agent.now + ACK_RECORD_INTERVAL_S


def test_progress_is_recorded_after_a_restart():
    agent = connected("a/b")
    agent.receive(*copies(1))
    agent.commit()
    again = CoreIncarnation(agent.crashed())
    assert again.deadline() == ACK_RECORD_INTERVAL_S


def test_node_starts_from_the_restored_state():
    agent = connected("a/b")
    agent.receive(*copies(1, 1))
    agent.progress = {YOU: 1}
    agent.advance(ACK_RECORD_INTERVAL_S)
    agent.deliver(remote(5))
    agent.commit()
    again = CoreIncarnation(agent.crashed())
    assert again.core.restored_state() == RestoredState(
        7,
        3,
        last_assigned={YOU: 2},
        acknowledged={YOU: 1},
        unreported_since={YOU: 3},
        accepted={YOU: (8, 5)},
    )


def test_heard_and_expired_nodes_are_recorded():
    agent = connected("a/b")
    agent.receive(*copies(1))
    agent.commit()
    agent = CoreIncarnation(agent.crashed())
    agent.handle(inputs.ProgressReported(YOU))
    assert ProgressReportPersisted(YOU) not in agent.events
    agent.commit()
    assert ProgressReportPersisted(YOU) in agent.events
    agent.handle(inputs.ExpireNode(YOU))
    agent.commit()
    assert CoreIncarnation(agent.crashed()).core.restored_state().last_assigned == {}


# ---------------------------------------------------------------- injection


def test_publication_of_another_node_is_injected():
    agent = connected()
    agent.deliver(remote(1))
    agent.commit()
    agent.expect_sent(PublishPacket("a", b"1", 1, packet_id=2))
    assert agent.events == [InboxCommitted(YOU, 8, 1)]
    agent.answer(PubAckPacket(2))
    assert [each.sequence for each in agent.injected] == [1]


def test_publication_that_cannot_be_sent_is_dropped():
    agent = connected()
    agent.deliver(remote(1))
    agent.commit()
    (said,) = agent.sent
    assert isinstance(said, PublishPacket)
    agent.handle(inputs.PublicationsNotSent([said], "too large"))
    assert agent.dropped == {"too large": 1}
    assert agent.core.inbox.entries == {}


def test_local_topics_are_neither_captured_nor_injected():
    agent = CoreIncarnation(local_topics=("stay/#",))
    agent.connect(session_present=False)
    agent.commit()
    agent.subscribe("#")
    agent.deliver(remote(1, topic="stay/a"))
    agent.receive(*copies(1, topic="stay/a"))
    agent.commit()
    agent.expect_sent(PubAckPacket(1))
    assert agent.disk.outbox.next_sequence == 1


def has_pending(agent: CoreIncarnation) -> bool:
    return agent.core.has_pending_retained


def test_qos_0_value_follows_a_pending_one():
    agent = connected()
    assert not has_pending(agent)
    agent.deliver(remote(1, qos=1, retain=True))
    assert has_pending(agent)
    held, later = remote(2, qos=0, retain=True), remote(3, qos=0, retain=True)
    assert agent.core.hold_back([held, ("t", b"plain")]) == ([("t", b"plain")], [])
    others, caused = agent.core.hold_back([later])
    agent.perform(caused)
    assert others == []
    assert [(each.payload, each.retain) for each in agent.published_qos0] == [(b"2", False)]
    agent.commit()
    agent.answer(PubAckPacket(2))
    assert agent.published_qos0[1:] == [later]
    assert not has_pending(agent)


def test_mark_is_passed_when_everything_before_it_has_reached_the_broker():
    agent = connected()
    assert agent.core.has_passed(agent.core.delivery_mark)
    agent.deliver(remote(1), remote(2))
    mark = agent.core.delivery_mark
    agent.commit()
    assert not agent.core.has_passed(mark)
    agent.answer(PubAckPacket(2))
    assert not agent.core.has_passed(mark)
    agent.deliver(remote(3))
    agent.answer(PubAckPacket(3))
    assert agent.core.has_passed(mark)
    assert not agent.core.has_passed(agent.core.delivery_mark)


def test_mark_includes_publications_that_wait_for_room():
    agent = CoreIncarnation(settings=DeliverySettings(inbox_bytes=1))
    agent.connect(session_present=False)
    agent.deliver(remote(1), remote(2))
    assert agent.core.injection.waiting_count == 1
    mark = agent.core.delivery_mark
    agent.commit()
    agent.answer(PubAckPacket(2))
    assert not agent.core.has_passed(mark)
    agent.commit()
    agent.answer(PubAckPacket(3))
    assert agent.core.has_passed(mark)


def test_mark_ignores_quarantined_publications():
    agent = connected()
    agent.deliver(remote(1))
    agent.commit()
    mark = agent.core.delivery_mark
    for _ in range(DISCONNECTS_MAX):
        assert not agent.core.has_passed(mark)
        agent.disconnect()
        agent.connect()
    assert agent.core.has_passed(mark)


def test_mark_ignores_publications_that_the_broker_refuses_for_quota():
    """It may do so indefinitely. Meanwhile stored values of all topics have to be read: other
    nodes would not get the values of new interest."""
    agent = connected()
    agent.deliver(remote(1))
    agent.commit()
    mark = agent.core.delivery_mark
    agent.answer(PubAckPacket(2, 0x97))
    assert agent.core.has_passed(mark)
    agent.advance(BACKOFF_MIN_S)
    assert agent.core.has_passed(mark), "it is only sent again"
    agent.answer(PubAckPacket(2))
    agent.deliver(remote(2))
    assert not agent.core.has_passed(agent.core.delivery_mark)


# ---------------------------------------------------------------- the disk


@pytest.mark.parametrize("name", LogName)
def test_failed_commit_raises_alarm_and_is_repeated(name):
    agent = connected("a/b")
    if name is LogName.OUTBOX:
        agent.receive(*copies(1))
    else:
        agent.deliver(remote(1))
    agent.commits.remove(name)
    agent.handle(inputs.CommitFailed(name, "no space"))
    assert agent.alarm(name.alarm) == "no space"
    agent.advance(RETRY_S)
    assert name in agent.commits
    agent.commit()
    assert (agent.alarm(name.alarm), len(agent.sent)) == ("", 1)


def test_shell_can_request_a_commit():
    agent = CoreIncarnation()
    assert agent.core.request_commit(1.0) == [Commit(LogName.OUTBOX)]
    assert agent.context.now == 1.0


# ---------------------------------------------------------------- epochs


def cloned(agent: CoreIncarnation) -> CoreIncarnation:
    return CoreIncarnation(agent.crashed(), is_cloned=True)


def test_copied_log_starts_a_new_epoch_after_a_while():
    agent = connected("a/b")
    agent.receive(*copies(1))
    agent.commit()
    agent = cloned(agent)
    text = "the journal was an old copy: epoch 8 starts, publications may be lost"
    assert agent.alarm(COPY_ALARM) == text
    assert agent.core.capture.deadline == CLONE_CHECK_ALONE_S
    agent.now = 1.0
    agent.handle(inputs.NodeContacted())
    assert agent.core.capture.deadline == 1.0 + CLONE_CHECK_S
    agent.deliver(remote(1))
    assert agent.core.inbox.entries == {}, "if the original runs, it is the receiver"
    mark = agent.core.delivery_mark
    agent.advance(CLONE_CHECK_S)
    agent.build_epoch()
    assert EpochStarted(8, 2, ((YOU, 1),)) in agent.events
    assert agent.counters["epoch rollovers"] == 1
    assert len(agent.core.inbox.entries) == 1
    assert not agent.core.has_passed(mark)
    agent.commit()
    agent.deliver(remote(2))
    assert len(agent.core.inbox.entries) == 2
    agent.handle(inputs.NodeContacted())
    assert agent.core.capture.deadline == agent.now, "only the postponed steps are left"
    agent.advance(0.0)
    assert agent.core.capture.deadline is None


def test_old_copy_found_by_a_receiver_starts_a_new_epoch_at_once():
    agent = connected("a/b")
    agent.receive(*copies(1))
    agent.commit()
    agent.expect_sent(PubAckPacket(1))
    agent.progress = {YOU: 1}
    agent.handle(inputs.StartEpoch(20))
    assert recorded_progress(agent) == [(YOU, 1)], "so that it is not copied"
    agent.receive(*copies(1, first_packet_id=2))
    agent.advance(0.0)
    assert [plan.epoch for plan in agent.plans] == [20]
    agent.build_epoch()
    assert EpochStarted(20, 1, ()) in agent.events
    agent.advance(0.0)
    agent.commit()
    agent.expect_sent(PubAckPacket(2))
    assert agent.disk.outbox.next_sequence == 2


def test_old_copy_found_by_a_receiver_waits_if_it_is_a_clone():
    agent = cloned(connected())
    agent.handle(inputs.StartEpoch(20))
    assert agent.core.capture.deadline == CLONE_CHECK_S


def test_new_epoch_is_greater_than_the_old_one():
    agent = connected()
    agent.handle(inputs.StartEpoch(3))
    agent.advance(0.0)
    assert [plan.epoch for plan in agent.plans] == [8]


def test_epoch_that_cannot_be_built_is_built_again():
    agent = connected()
    agent.handle(inputs.StartEpoch(9))
    agent.advance(0.0)
    agent.plans.clear()
    agent.handle(inputs.EpochNotBuilt("full"))
    assert agent.alarm(LogName.OUTBOX.alarm) == "full"
    agent.advance(RETRY_S)
    assert (len(agent.plans), agent.core.capture.deadline) == (1, None)
    agent.advance(RETRY_S)
    agent.build_epoch()
    assert (agent.plans, agent.alarm(LogName.OUTBOX.alarm)) == ([], "")


def test_rollover_requested_before_the_node_knows_the_new_epoch_follows():
    agent = connected("a/b")
    agent.handle(inputs.StartEpoch(9))
    agent.advance(0.0)
    agent.build_epoch()
    agent.handle(inputs.StartEpoch(30))
    agent.receive(*copies(1, qos=2))
    agent.advance(0.0)
    assert [plan.epoch for plan in agent.plans] == [30]
    agent.build_epoch()
    agent.advance(0.0)
    agent.commit()
    assert PubRecPacket(1) in agent.sent


def test_connect_marker_waits_for_the_new_epoch():
    """A session that is lost during the rollover must be recorded in the new log: it holds the
    redelivery candidates of the lost session."""
    agent = connected("a/b")
    agent.handle(inputs.StartEpoch(9))
    agent.advance(0.0)
    agent.disconnect()
    agent.connect(session_present=False)
    agent.commit()
    assert agent.has_marker(), "the loss is durable in the old log only"
    agent.build_epoch()
    assert agent.has_marker()
    agent.commit()
    assert not agent.has_marker()


def test_connect_marker_follows_the_end_of_the_new_log():
    """It is shorter than the old one if receivers have most publications."""
    agent = connected("a/b")
    for number in range(1, 20):
        agent.receive(*copies(1, payload=b"%d" % number, first_packet_id=number, qos=2))
        agent.answer(PubRelPacket(number))
    agent.commit()
    agent.progress[YOU] = 19
    agent.handle(inputs.StartEpoch(9))
    agent.advance(0.0)
    agent.disconnect()
    agent.connect(session_present=False)
    agent.build_epoch()
    agent.commit()
    assert agent.disk.outbox.end < 19
    assert not agent.has_marker()


# ---------------------------------------------------------------- determinism


def test_same_inputs_cause_the_same_effects():
    def effects_of_a_run() -> list[object]:
        agent = CoreIncarnation()
        found: list[object] = []
        for happened in (
            inputs.ConnectStarted(),
            inputs.RequireFilters(["c", "a/#", "b", "a/b"]),
            inputs.Connected(False, limits()),
            inputs.SubscriptionsSaved(True),
            inputs.PublicationsReceived(copies(1, 2)),
            inputs.Deliver([remote(1), Gap(OTHER, 1, 1, 2, "retention"), remote(2, qos=2)]),
            inputs.Committed(LogName.OUTBOX),
            inputs.Disconnected(),
            inputs.Connected(True, limits()),
            inputs.TimerFired(),
        ):
            found.append(agent.core.handle(happened, agent.now))
            agent.now += 0.1
        return found

    assert effects_of_a_run() == effects_of_a_run()


def test_acknowledgements_leave_before_the_node_learns_of_the_commit():
    agent = connected("a/b")
    agent.receive(*copies(1))
    agent.commits.clear()
    agent.disk.outbox.commit(agent.disk.outbox.end)
    assert agent.handle(inputs.Committed(LogName.OUTBOX)) == [
        SendHandshakePackets([PubAckPacket(1)]),
        FeedNode(JournalCommitted(7, 1)),
    ]
