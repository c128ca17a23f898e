"""Injection: handshakes, restarts, session loss, full inbox, refusals."""

import pytest
from tests.delivery.injecting import InjectingIncarnation, incarnation, packet
from tests.delivery.shell import OTHER, YOU

from hansa.delivery.effects import Injected, LogName
from hansa.delivery.group_commit import RETRY_S
from hansa.delivery.inbox import (
    ENTRY_OVERHEAD_BYTES,
    PUBLISH_PACKET_IDS,
    REDELIVERED_PROPERTY,
)
from hansa.delivery.injection import COMPLETION_DELAY_S
from hansa.delivery.settings import DeliverySettings
from hansa.journal.records import InjectionCompletedRecord
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.mqtt.properties import Property, encode_properties, message_expiry
from hansa.protocol.effects import Gap
from hansa.protocol.events import InboxCommitted
from hansa.protocol.model import Publication
from hansa.simulator.world.memory_log import MemoryLog

INBOX = LogName.INBOX.alarm


# ---------------------------------------------------------------- handshakes


def test_qos_2_handshake():
    agent = incarnation()
    agent.connect()
    agent.add(Publication(YOU, 8, 1, 2, "a", b"1"))
    assert not agent.sent and not agent.committed  # nothing is sent before it is durable
    agent.commit()
    agent.expect_sent(packet(1))
    assert agent.committed == [InboxCommitted(YOU, 8, 1)]
    agent.receive(PubRecPacket(2))
    assert agent.sent == []
    agent.commit()
    agent.expect_sent(PubRelPacket(2))
    assert agent.injected == []
    agent.receive(PubCompPacket(2))
    assert agent.inbox.entries == {}
    assert [each.payload for each in agent.injected] == [b"1"]
    assert agent.counters["injected"] == 1


def test_qos_1_handshake():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, qos=1)
    agent.expect_sent(packet(1, qos=1))
    agent.receive(PubAckPacket(2))
    assert agent.inbox.entries == {}
    assert [each.payload for each in agent.injected] == [b"1"]


def test_completed_publication_without_retain_flag_leaves_no_doubt():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, qos=1)
    agent.answer(PubAckPacket(2))
    assert agent.uncertain == []


def test_publications_wait_in_inbox_without_broker():
    agent = incarnation()
    agent.deliver(1, 2)
    agent.deliver(1, origin=OTHER)
    assert agent.committed == [InboxCommitted(YOU, 8, 2), InboxCommitted(OTHER, 8, 1)]
    assert agent.sent == []
    agent.connect()
    agent.expect_sent(packet(1), packet(2), packet(3, b"1"))


def test_one_commit_acknowledges_each_origin_once():
    agent = incarnation()
    agent.store(*(Publication(node, 8, n, 1, "a", b"") for n in (1, 2) for node in (YOU, OTHER)))
    assert agent.committed == [InboxCommitted(YOU, 8, 2), InboxCommitted(OTHER, 8, 2)]


def test_time_in_the_inbox_counts_towards_the_expiry():
    agent = incarnation()
    for number, seconds in enumerate((4, 5, 60), start=1):
        raw = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, seconds),))
        agent.store(Publication(YOU, 8, number, 1, "a", b"%d" % number, properties=raw))
    agent.wall_ns += 5_900_000_000
    agent.connect()
    (said,) = agent.sent
    assert isinstance(said, PublishPacket)
    assert (said.payload, message_expiry(said.properties)) == (b"3", 55)
    assert agent.counters["dropped: expired"] == 2
    assert len(agent.inbox.entries) == 1


def test_in_flight_limit_is_smaller_of_setting_and_receive_maximum():
    agent = incarnation(in_flight_max=3)
    agent.connect(receive_maximum=2)
    agent.deliver(1, 2, 3, 4, qos=1)
    agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
    agent.receive(PubAckPacket(2))
    assert agent.sent == []  # a crash now would duplicate the first one
    agent.commit()
    agent.expect_sent(packet(3, qos=1))
    agent.disconnect()
    agent.connect(receive_maximum=9)
    agent.expect_sent(*(packet(n, qos=1, dup=n < 4) for n in (2, 3, 4)))


def test_completions_count_as_in_flight_until_each_is_durable():
    agent = incarnation(in_flight_max=2)
    agent.connect()
    agent.deliver(1, 2, 3, 4, qos=1)
    agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
    agent.receive(PubAckPacket(2))
    agent.log.commit(agent.log.end)
    agent.receive(PubAckPacket(3))
    agent.commits.clear()
    agent.injection.on_committed()
    agent.collect()
    agent.expect_sent(packet(3, qos=1))
    agent.commit()
    agent.expect_sent(packet(4, qos=1))


@pytest.mark.parametrize("qos", [1, 2])
def test_completion_waits_for_a_commit_that_other_records_need(qos):
    agent = incarnation()
    agent.connect()
    agent.deliver(1, qos=qos)
    if qos == 2:
        agent.receive(PubRecPacket(2))
        assert agent.commits, "PUBREL waits for it"
        agent.commit()
    agent.receive(PubAckPacket(2) if qos == 1 else PubCompPacket(2))
    assert (agent.commits, agent.injection.deadline) == ([], COMPLETION_DELAY_S)
    agent.deliver(2, qos=qos)
    assert agent.injection.deadline is None
    agent = agent.crash()
    assert list(agent.inbox.entries) == [2]


def test_completion_is_committed_after_a_delay():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, qos=1)
    agent.receive(PubAckPacket(2))
    agent.advance(COMPLETION_DELAY_S)
    agent.commit()
    agent = agent.crash()
    assert agent.inbox.entries == {}


def test_completions_that_take_half_of_the_places_are_committed_at_once():
    agent = incarnation(in_flight_max=4)
    agent.connect()
    agent.deliver(1, 2, 3, 4, qos=1)
    agent.receive(PubAckPacket(2))
    assert agent.commits == []
    agent.receive(PubAckPacket(3))
    assert agent.commits == [LogName.INBOX]


def test_publications_of_one_batch_are_reported_together():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2, qos=1)
    agent.context.take_effects()
    agent.injection.on_handshake_packets([PubAckPacket(2), PubAckPacket(3)])
    (reported,) = agent.context.take_effects()
    assert isinstance(reported, Injected)
    assert [each.payload for each in reported.records] == [b"1", b"2"]


def test_packet_ids_wrap_around():
    log = MemoryLog(5)
    log.append(InjectionCompletedRecord(PUBLISH_PACKET_IDS - 2))
    agent = InjectingIncarnation(log, DeliverySettings())
    agent.connect()
    agent.deliver(1, 2, qos=1)
    agent.expect_sent(
        *(
            PublishPacket("a", b"%d" % number, 1, packet_id=packet_id)
            for number, packet_id in ((1, PUBLISH_PACKET_IDS), (2, 1))
        )
    )


def test_qos_is_lowered_to_maximum_of_broker():
    agent = incarnation()
    agent.connect(qos_max=1)
    agent.deliver(1)
    agent.expect_sent(packet(1, qos=1))
    agent.disconnect()
    agent.connect(qos_max=0)
    agent.expect_sent(PublishPacket("a", b"1"))
    assert agent.inbox.entries == {}
    assert [each.payload for each in agent.injected] == [b"1"]


@pytest.mark.parametrize("topic", ["stays", "$SYS/x"])
def test_local_topic_is_accepted_and_not_published(topic):
    agent = incarnation()
    agent.connect()
    agent.add(Publication(YOU, 8, 1, 1, topic, b"x"))
    agent.deliver(2)
    agent.expect_sent(packet(1, b"2"))
    assert agent.committed == [InboxCommitted(YOU, 8, 2)]
    assert agent.counters["dropped: local topic"] == 1
    agent = agent.crash()
    assert agent.inbox.origin_progress == {YOU: (8, 2)}


@pytest.mark.parametrize("topic", ["stays", "$SYS/x"])
def test_last_publication_to_a_local_topic_is_acknowledged_to_its_origin(topic):
    agent = incarnation()
    agent.store(Publication(YOU, 8, 1, 1, topic, b"x"))
    assert agent.committed == [InboxCommitted(YOU, 8, 1)]
    assert agent.crash().inbox.origin_progress == {YOU: (8, 1)}


def test_publication_to_a_local_topic_is_not_acknowledged_before_it_is_durable():
    """Its record is written while a commit runs, which does not include it."""
    agent = incarnation()
    agent.add(Publication(YOU, 8, 1, 2, "a", b"1"))
    first_end = agent.log.end
    agent.add(Publication(YOU, 8, 2, 2, "stays", b"2"))
    agent.commits.clear()
    agent.log.commit(first_end)
    agent.injection.on_committed()
    agent.collect()
    assert agent.committed == [InboxCommitted(YOU, 8, 1)]
    agent.commit()
    assert agent.committed == [InboxCommitted(YOU, 8, 1), InboxCommitted(YOU, 8, 2)]


def test_requested_retained_value_is_not_acknowledged_to_its_origin():
    """It has no position."""
    agent = incarnation()
    agent.connect()
    agent.store(Publication(YOU, 8, 0, 1, "a", b"1", True))
    agent.expect_sent(PublishPacket("a", b"1", 1, True, packet_id=2))
    assert (agent.committed, agent.inbox.origin_progress) == ([], {})


def test_unknown_and_late_acknowledgements_are_ignored():
    agent = incarnation()
    agent.connect()
    agent.receive(PubAckPacket(2), PubRecPacket(3), PubCompPacket(4))
    agent.not_sent([packet(5)], "too large")
    agent.commit()
    assert (agent.sent, agent.injected, agent.log.end) == ([], [], 0)
    assert not agent.dropped
    agent.deliver(1, qos=1)
    agent.disconnect()
    agent.receive(PubAckPacket(2))
    assert (agent.injected, list(agent.inbox.entries)) == ([], [1])


# ---------------------------------------------------------------- restarts and reconnections


def test_restart_resumes_every_handshake():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2, 3)
    agent.expect_sent(packet(1), packet(2), packet(3))
    agent.answer(PubRecPacket(2), PubRecPacket(3))
    agent.expect_sent(PubRelPacket(2), PubRelPacket(3))
    agent.answer(PubCompPacket(2))
    agent = agent.crash()
    assert agent.inbox.origin_progress == {YOU: (8, 3)}
    agent.connect()
    agent.expect_sent(PubRelPacket(3), packet(3, dup=True))
    agent.answer(PubRecPacket(4))
    agent.expect_sent(PubRelPacket(4))
    agent.receive(PubCompPacket(3), PubCompPacket(4))
    agent.deliver(4)
    agent.expect_sent(packet(4))


def test_value_of_qos_0_follows_one_that_was_recovered():
    """Whatever its version: the recovered one is older."""
    agent = incarnation()
    agent.store(Publication(YOU, 8, 1, 1, "a", b"old", True, version=9))
    agent = agent.crash()
    newer = Publication(YOU, 8, 0, 0, "a", b"new", True, version=0)
    assert agent.injection.retained_order.hold_back([newer]) == []


def test_publication_not_durably_accepted_is_sent_again():
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.expect_sent(packet(1))
    agent.receive(PubRecPacket(2))
    agent = agent.crash()
    agent.connect()
    agent.expect_sent(packet(1, dup=True))


def test_reconnect_after_pubrec_sends_pubrel():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2)
    agent.expect_sent(packet(1), packet(2))
    agent.receive(PubRecPacket(2))
    agent.disconnect()
    agent.connect()
    agent.expect_sent(packet(2, dup=True))
    agent.commit()
    agent.expect_sent(PubRelPacket(2))


def test_commit_while_disconnected_sends_nothing():
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.expect_sent(packet(1))
    agent.receive(PubRecPacket(2))
    agent.disconnect()
    agent.commit()
    assert agent.sent == []
    agent.connect()
    agent.expect_sent(PubRelPacket(2))


def test_failed_commit_is_repeated_after_a_pause():
    agent = incarnation()
    agent.connect()
    agent.add(Publication(YOU, 8, 1, 1, "a", b"1"))
    agent.commits.clear()
    agent.injection.group_commit.on_failed("no space")
    agent.collect()
    assert (agent.alarm(INBOX), agent.injection.deadline) == ("no space", RETRY_S)
    agent.advance(RETRY_S)
    agent.commit()
    agent.expect_sent(packet(1, qos=1))
    assert (agent.alarm(INBOX), agent.injection.deadline) == ("", None)


@pytest.mark.parametrize("count", [1, 40])
def test_every_segment_restores_complete_state(count):
    agent = incarnation(segment_records=2)
    agent.connect()
    agent.deliver(1, 2)
    agent.expect_sent(packet(1), packet(2))
    agent.answer(PubRecPacket(2))
    agent.expect_sent(PubRelPacket(2))
    for number in range(3, 3 + count):
        agent.deliver(number, qos=1)
        agent.expect_sent(packet(number, qos=1))
        agent.answer(PubAckPacket(1 + number))
    agent = agent.crash()
    assert agent.inbox.origin_progress == {YOU: (8, 2 + count)}
    agent.connect()
    agent.expect_sent(PubRelPacket(2), packet(2, dup=True))
    agent.deliver(100)
    agent.expect_sent(packet(3 + count, b"100"))


# ---------------------------------------------------------------- full inbox


def test_full_inbox_acknowledges_nothing():
    agent = incarnation(inbox_bytes=300)
    agent.deliver(1, 2, 3, qos=1)
    assert (agent.committed, agent.injection.waiting_count) == ([InboxCommitted(YOU, 8, 2)], 1)
    agent.connect()
    agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
    agent.answer(PubAckPacket(2))
    agent.expect_sent(packet(3, qos=1))
    assert agent.committed[-1] == InboxCommitted(YOU, 8, 3)


def test_inbox_is_full_above_its_bound():
    agent = incarnation(inbox_bytes=ENTRY_OVERHEAD_BYTES + len("a") + len(b"1"))
    agent.deliver(1, 2, 3)
    assert (len(agent.inbox.entries), agent.injection.waiting_count) == (2, 1)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("was_sent", [False, True])
def test_expired_qos_1_publication_is_not_sent_again(is_restarted, was_sent):
    agent = expired_while_away(1, is_restarted, was_sent)
    assert agent.sent == []
    assert agent.counters["dropped: expired"] == 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_handshake_of_an_expired_qos_2_publication_is_resumed(is_restarted):
    """The broker may have its first copy and wait for PUBREL. With an expiry of 0, Mosquitto would
    keep it without expiry."""
    agent = expired_while_away(2, is_restarted, was_sent=True)
    (said,) = agent.sent
    assert isinstance(said, PublishPacket)
    assert (said.payload, message_expiry(said.properties)) == (b"old", 1)


def expired_while_away(qos: int, is_restarted: bool, was_sent: bool) -> InjectingIncarnation:
    """Return an agent that connects an hour after it got a publication that is valid for 60 s."""
    properties = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, 60),))
    agent = incarnation()
    if was_sent:
        agent.connect()
    agent.store(Publication(YOU, 8, 1, qos, "a", b"old", properties=properties))
    agent.disconnect()
    if is_restarted:
        agent = agent.crash()
    agent.sent.clear()
    agent.wall_ns += 3_600 * 10**9
    agent.connect()
    return agent


def test_room_of_expired_publications_is_used():
    """No acknowledgement of the broker follows."""
    agent = incarnation(inbox_bytes=1)
    raw = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, 1),))
    agent.store(Publication(YOU, 8, 1, 1, "a", b"", properties=raw))
    agent.deliver(2, qos=1)
    agent.wall_ns += 2_000_000_000
    agent.connect()
    agent.commit()
    agent.expect_sent(packet(2, qos=1))


def test_room_of_publications_that_cannot_be_sent_is_used():
    agent = incarnation(inbox_bytes=1)
    agent.connect()
    agent.deliver(1, 2, qos=1)
    agent.expect_sent(packet(1, qos=1))
    agent.not_sent([packet(1, qos=1)], "too large")
    agent.commit()
    agent.expect_sent(packet(2, qos=1))


def test_room_of_publications_dropped_after_session_loss_is_used():
    agent = incarnation(inbox_bytes=1, session_loss_policy="no-dup")
    agent.connect()
    agent.deliver(1, 2, qos=1)
    agent.expect_sent(packet(1, qos=1))
    agent.disconnect()
    agent.connect(session_present=False)
    agent.commit()
    agent.expect_sent(packet(2, qos=1))


def test_gap_is_recorded_after_publications_before_it():
    """Otherwise the publications before the gap would not be requested after a restart."""
    agent = incarnation(inbox_bytes=300)
    agent.deliver(1, 2, 3, qos=1)
    agent.store(Gap(YOU, 8, 4, 6, "retention"))
    agent = agent.crash()
    assert (agent.inbox.origin_progress, list(agent.inbox.gaps)) == ({YOU: (8, 2)}, [])
    agent.add(Gap(OTHER, 8, 1, 2, "retention"))
    agent.deliver(3, qos=1)
    agent.add(Gap(YOU, 8, 4, 6, "retention"))
    agent.connect()
    agent.answer(PubAckPacket(2), PubAckPacket(3))
    assert InboxCommitted(YOU, 8, 3) in agent.committed
    agent = agent.crash()
    assert agent.inbox.origin_progress == {YOU: (8, 6), OTHER: (8, 2)}
    assert [(each.first, each.last) for each in agent.inbox.gaps] == [(1, 2), (4, 6)]


# ---------------------------------------------------------------- session loss


def test_session_loss_sends_in_flight_publications_again():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2)
    agent.expect_sent(packet(1), packet(2))
    agent.answer(PubRecPacket(2))
    agent.expect_sent(PubRelPacket(2))
    agent.disconnect()
    agent.deliver(3)
    agent.connect(session_present=False)
    assert agent.sent == [], "the marks are not durable"
    agent.commit()
    agent.expect_sent(*(packet(n, marked=n < 3) for n in (1, 2, 3)))
    assert agent.counters["injections uncertain"] == 2
    agent = agent.crash()
    agent.connect()
    agent.expect_sent(*(packet(n, dup=True, marked=n < 3) for n in (1, 2, 3)))
    assert agent.inbox.origin_progress == {YOU: (8, 3)}


def test_session_loss_without_publications_in_flight_changes_nothing():
    agent = incarnation()
    agent.deliver(1)
    end = agent.log.end
    agent.connect(session_present=False)
    agent.expect_sent(packet(1))
    assert (agent.log.end, agent.counters["injections uncertain"]) == (end, 0)


def test_session_loss_keeps_order_of_publications_not_durable():
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.expect_sent(packet(1))
    agent.disconnect()
    agent.add(Publication(YOU, 8, 2, 2, "a", b"2"))  # not durable when the session is lost
    agent.connect(session_present=False)
    agent.commit()
    agent.expect_sent(packet(1, marked=True), packet(2))
    agent.disconnect()
    agent.connect()
    agent.expect_sent(packet(1, dup=True, marked=True), packet(2, dup=True))
    assert agent.committed[-1].sequence == 2
    agent = agent.crash()
    agent.connect()
    agent.expect_sent(packet(1, dup=True, marked=True), packet(2, dup=True))


def test_session_loss_keeps_acknowledgements_that_wait_for_the_disk():
    """A publication to a local topic has no entry in the inbox."""
    agent = incarnation()
    agent.add(Publication(YOU, 8, 1, 1, "stays", b"x"))
    agent.connect(session_present=False)
    agent.commit()
    assert agent.committed == [InboxCommitted(YOU, 8, 1)]


def test_redelivered_property_is_added_once_and_not_to_retained_values():
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.store(Publication(YOU, 8, 2, 2, "a", b"2", retain=True))
    for _ in range(2):
        agent.disconnect()
        agent.sent.clear()
        agent.connect(session_present=False)
        agent.commit()
    properties = [each.properties for each in agent.sent if isinstance(each, PublishPacket)]
    assert properties == [REDELIVERED_PROPERTY, b""]


def test_at_most_receive_maximum_of_recovered_entries_is_uncertain():
    agent = incarnation(session_loss_policy="no-dup")
    agent.deliver(1, 2, 3, 4, 5, 6)
    agent = agent.crash()
    for lost, left in ((2, (3, 4)), (4, (5, 6))):
        agent.connect(session_present=False, receive_maximum=2)
        agent.commit()
        agent.expect_sent(*(packet(n) for n in left))
        assert agent.counters["injections uncertain"] == lost
        agent.disconnect()


def test_accepted_publications_do_not_reduce_the_uncertain_ones():
    """The previous incarnation had as many others in flight as the window allows."""
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2, 3)
    agent.answer(PubRecPacket(2))
    agent = agent.crash()
    agent.connect(session_present=False, receive_maximum=2)
    assert agent.counters["injections uncertain"] == 3


def test_no_dup_policy_drops_uncertain_publications():
    agent = incarnation(session_loss_policy="no-dup")
    agent.connect()
    agent.deliver(1)
    agent.expect_sent(packet(1))
    agent.disconnect()
    agent.deliver(2)
    agent.connect(session_present=False)
    agent.expect_sent(packet(2))
    assert agent.counters["injections uncertain"] == 1


def test_lower_receive_maximum_does_not_reduce_uncertain_publications():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2, 3)
    agent.expect_sent(packet(1), packet(2), packet(3))
    agent.disconnect()
    agent.connect(session_present=False, receive_maximum=1)
    agent.commit()
    agent.expect_sent(packet(1, marked=True))
    assert agent.counters["injections uncertain"] == 3


# ---------------------------------------------------------------- refusals


def test_refused_publication_is_counted_and_completed():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2, qos=2)
    agent.deliver(3, qos=1)
    agent.expect_sent(packet(1), packet(2), packet(3, qos=1))
    agent.receive(PubRecPacket(2, 0x87))
    agent.not_sent([packet(2)], "too large")
    agent.receive(PubAckPacket(4, 0x10))  # no matching subscribers: not a refusal
    assert agent.inbox.entries == {}
    assert agent.dropped == {"too large": 1, "the broker refuses it (0x87 not authorized)": 1}
    assert [each.payload for each in agent.injected] == [b"3"]


def test_packet_identifier_in_use_is_accepted_for_redelivery_only():
    """EMQX returns this for a publication that it has, until PUBREL."""
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.expect_sent(packet(1))
    agent = agent.crash()
    agent.connect()
    agent.expect_sent(packet(1, dup=True))
    agent.deliver(2)
    agent.expect_sent(packet(2))
    agent.answer(PubRecPacket(2, 0x91), PubRecPacket(3, 0x91))
    agent.expect_sent(PubRelPacket(2))
    agent.receive(PubCompPacket(2))
    assert agent.inbox.entries == {}
    assert agent.dropped == {"the broker refuses it (0x91 packet identifier in use)": 1}


@pytest.mark.parametrize("reason", [0x92, 0x97])
def test_refused_pubrel_completes_the_publication(reason):
    """Packet identifier not found: the broker has released it. A quota refers to PUBLISH only."""
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.answer(PubRecPacket(2))
    agent.receive(PubCompPacket(2, reason))
    assert (agent.inbox.entries, len(agent.injected), agent.dropped) == ({}, 1, {})


# ---------------------------------------------------------------- unusable log


def test_unusable_log_stops_handshakes():
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.expect_sent(packet(1))
    agent.log.failure = "broken"
    agent.receive(PubRecPacket(2))
    agent.deliver(2)
    assert (agent.sent, agent.alarm(INBOX), agent.injection.waiting_count) == ([], "broken", 1)


def test_nothing_is_published_after_log_failure():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, qos=1)
    agent.expect_sent(packet(1, qos=1))
    agent.log.failure = "broken"
    agent.receive(PubAckPacket(2))
    agent.disconnect()
    agent.connect()
    assert agent.sent == []


def test_record_written_during_a_commit_is_committed_next():
    agent = incarnation()
    agent.connect()
    agent.add(Publication(YOU, 8, 1, 2, "a", b"1"))
    first_end = agent.log.end
    agent.add(Publication(YOU, 8, 2, 2, "a", b"2"))
    assert agent.commits == [LogName.INBOX]
    agent.commits.clear()
    agent.log.commit(first_end)
    agent.injection.on_committed()
    agent.collect()
    agent.expect_sent(packet(1))
    assert agent.commits == [LogName.INBOX]


@pytest.mark.parametrize("policy", ["no-loss", "no-dup"])
def test_publications_beyond_the_window_of_the_new_session_count_as_not_sent(policy):
    """A limit that docs/delivery.md states: a crash loses the knowledge of what was in flight."""
    agent = incarnation(session_loss_policy=policy)
    agent.connect(receive_maximum=3)
    agent.deliver(1, 2, 3)
    agent = agent.crash()
    agent.connect(session_present=False, receive_maximum=2)
    agent.commit()
    agent.expect_sent(
        *([packet(1, marked=True), packet(2, marked=True)] if policy == "no-loss" else [packet(3)])
    )
    assert agent.counters["injections uncertain"] == 2
