"""Capture: acknowledgements, redeliveries, faults of the disk."""

import pytest
from msgspec.structs import replace
from tests.delivery.capturing import EPOCH, CapturingIncarnation, copy, incarnation, publish
from tests.delivery.shell import ME, OTHER, YOU

from hansa.delivery.capture import BROKER_STATE_RESTORED, ROLLBACK_ALARM
from hansa.delivery.dedup import redelivery
from hansa.delivery.dedup.redelivery import PACKET_ID_HALF_RANGE, RECENT_MAX
from hansa.delivery.effects import LogName
from hansa.delivery.group_commit import RETRY_S
from hansa.mqtt.packets import PubAckPacket, PubCompPacket, PubRecPacket
from hansa.mqtt.types import PACKET_IDS_MAX
from hansa.protocol.events import JournalCommitted
from hansa.protocol.model import Publication

JOURNAL = LogName.OUTBOX.alarm


# ---------------------------------------------------------------- acknowledgements


def test_durable_publications_are_acknowledged_in_order():
    agent = incarnation()
    agent.receive(publish(1), publish(2, qos=2), publish(3, topic="no"), publish(4))
    assert agent.acks == []
    assert agent.commit() == [PubAckPacket(1), PubRecPacket(2), PubAckPacket(3), PubAckPacket(4)]
    assert agent.committed == [JournalCommitted(EPOCH, 3)]
    assert agent.counters["journaled"] == 3


def test_nothing_of_an_earlier_connection_is_acknowledged_on_a_new_one():
    agent = incarnation()
    agent.receive(publish(1))
    agent.connect()
    assert agent.commit() == []


def test_record_names_the_subscription_that_matched_and_the_newest():
    agent = incarnation()
    agent.newest_subscription = 9
    agent.receive(publish(1), copy(2, b"y", by=5))
    agent.commit()
    records = agent.log.captured_records(1, 2)
    assert [(each.subscription, each.newest_subscription) for each in records] == [(0, 9), (5, 9)]


def test_publications_received_during_a_commit_wait_for_the_next_one():
    agent = incarnation()
    agent.receive(publish(1))
    agent.log.commit(agent.log.end)
    agent.receive(publish(2))
    assert agent.commits == [LogName.OUTBOX]
    agent.commits.clear()
    agent.capture.on_committed()
    agent.collect()
    assert agent.acks == [PubAckPacket(1)]
    assert agent.commit() == [PubAckPacket(1), PubAckPacket(2)]


def test_publication_without_receivers_is_acknowledged_at_once():
    agent = incarnation()
    agent.capture.receive_publications([(publish(1, topic="no"), True), (publish(2, qos=2), False)])
    agent.collect()
    assert agent.acks == [PubAckPacket(1), PubRecPacket(2)]
    assert (agent.commits, agent.log.end) == ([], 0)


def test_pubcomp_waits_until_completion_is_durable():
    agent = incarnation()
    agent.receive(publish(1, qos=2))
    agent.commit()
    agent.receive_pubrel(1)
    assert agent.acks == [PubRecPacket(1)]
    assert agent.commit() == [PubRecPacket(1), PubCompPacket(1)]
    agent = agent.crash()
    agent.receive(publish(1, qos=2))
    agent.commit()
    assert agent.captured_payloads == [b"x"]


def test_repeated_pubrel_waits_for_the_disk():
    agent = incarnation()
    agent.receive(publish(1, qos=2))
    agent.commit()
    agent.receive_pubrel(1)
    agent.reconnect()
    agent.receive_pubrel(1)
    assert agent.acks == [PubRecPacket(1)]
    assert agent.commit() == [PubRecPacket(1), PubCompPacket(1)]


def test_pubrel_for_unknown_packet_id_gets_pubcomp():
    agent = incarnation()
    agent.receive_pubrel(9)
    assert agent.acks == [PubCompPacket(9)]


def test_nothing_is_acknowledged_after_the_connection_has_ended():
    agent = incarnation()
    agent.receive(publish(1))
    agent.capture.on_disconnected()
    assert agent.commit() == []
    assert agent.committed == [JournalCommitted(EPOCH, 1)], "it is captured nevertheless"


def test_first_of_several_subscriptions_is_recorded():
    agent = incarnation()
    agent.receive(replace(publish(1), subscription_ids=(5, 6)))
    agent.commit()
    assert [each.subscription for each in agent.log.captured_records(1, 1)] == [5]


# ---------------------------------------------------------------- receivers


def test_heard_receiver_is_reported_when_durable():
    """The log records from which position on nothing was sent to a receiver."""
    agent = incarnation()
    agent.receive(publish(1), publish(2))
    agent.commit()
    agent = agent.crash()
    assert agent.outbox.receivers.unreported_since == {YOU: 3}
    agent.receive(publish(3))
    agent.commit()
    agent = agent.crash()
    assert agent.outbox.receivers.unreported_since == {YOU: 3}
    agent.capture.record_progress_report(YOU)
    agent.collect()
    assert agent.reported == []
    agent.commit()
    assert agent.reported == [YOU]
    agent = agent.crash()
    assert agent.outbox.receivers.unreported_since == {YOU: 4}
    agent.capture.expire_node(YOU)
    agent.collect()
    agent.receive(publish(4))
    agent.commit()
    agent = agent.crash()
    assert agent.outbox.receivers.unreported_since == {YOU: 4}, "first for a new receiver"
    agent.capture.expire_node(YOU)
    agent.collect()
    agent.commit()
    assert agent.crash().outbox.receivers.unreported_since == {}


def test_unchanged_progress_and_unknown_nodes_are_not_written():
    agent = incarnation()
    agent.receive(publish(1))
    agent.commit()
    agent.capture.record_acknowledged({YOU: 1})
    agent.collect()
    assert agent.commits == [LogName.OUTBOX]
    agent.commit()
    end = agent.log.end
    agent.capture.record_acknowledged({YOU: 1})
    agent.capture.expire_node(OTHER)
    agent.collect()
    assert (agent.commits, agent.log.end) == ([], end)


def test_progress_report_written_during_a_commit_is_not_persisted_by_it():
    agent = incarnation()
    agent.receive(publish(1))
    first_end = agent.log.end
    agent.capture.record_progress_report(YOU)
    agent.collect()
    agent.commits.clear()
    agent.log.commit(first_end)
    agent.capture.on_committed()
    agent.collect()
    assert agent.reported == []
    agent.commit()
    assert agent.reported == [YOU]


def test_node_learns_of_the_part_that_a_commit_made_durable():
    agent = incarnation()
    agent.receive(publish(1))
    agent.capture.record_progress_report(YOU)
    first_end = agent.log.end
    agent.receive(publish(2))
    agent.capture.record_progress_report(OTHER)
    agent.collect()
    agent.commits.clear()
    agent.log.commit(first_end)
    agent.capture.on_committed()
    agent.collect()
    assert agent.committed == [JournalCommitted(EPOCH, 1)]
    assert agent.reported == [YOU]


# ---------------------------------------------------------------- redeliveries


def test_redelivery_after_crash_is_acknowledged_and_not_captured():
    agent = incarnation()
    agent.receive(publish(1), publish(2, qos=2), publish(3))
    agent.commit()
    expected = [b"another"]
    for _ in range(2):  # a second crash makes no difference
        agent = agent.crash()
        agent.receive(publish(1, dup=True), publish(2, qos=2), publish(3, b"another", dup=True))
        assert agent.commit() == [PubAckPacket(1), PubRecPacket(2), PubAckPacket(3)]
        assert agent.captured_payloads == expected
        expected = []
    assert agent.counters["redeliveries"] == 3


def test_redelivery_of_publication_that_was_not_durable_is_captured():
    agent = incarnation()
    agent.outbox.append_publication(
        Publication(ME, EPOCH, 1, 1, "a", b"x", receivers=((YOU, 0),)), 1
    )
    agent = agent.crash()
    agent.receive(publish(1))
    agent.commit()
    assert agent.captured_payloads == [b"x"]


def test_redelivery_is_acknowledged_when_its_record_is_durable():
    agent = incarnation()
    agent.receive(publish(1))
    agent.reconnect()
    agent.receive(publish(1, dup=True))
    assert agent.acks == []
    assert agent.commit() == [PubAckPacket(1)]
    assert agent.captured_payloads == [b"x"]


def completed(agent: CapturingIncarnation, packet_id: int = 1) -> None:
    """Capture a publication of QoS 2 and complete its handshake."""
    agent.receive(publish(packet_id, qos=2))
    agent.commit()
    agent.receive_pubrel(packet_id)
    agent.commit()


@pytest.mark.parametrize("is_agent_restarted", [False, True])
def test_publication_that_a_restarted_broker_sends_after_pubrel_is_not_captured_again(
    is_agent_restarted,
):
    """Mosquitto restores handshakes beyond `max_inflight_messages` as if nothing was sent."""
    agent = incarnation()
    completed(agent)
    if is_agent_restarted:
        agent = agent.crash()
        agent.captured_payloads.append(b"x")
    agent.reconnect()
    for _ in range(2):
        agent.sent.clear()
        agent.receive(publish(1, qos=2, dup=True))
        agent.commit()
        agent.capture.receive_pubrel([1])
        agent.commit()
        agent.collect()
        assert agent.sent == [PubRecPacket(1), PubCompPacket(1)]
        agent.reconnect()
    assert agent.captured_payloads == [b"x"]


@pytest.mark.parametrize("change", ["other content", "not DUP", "new session", "id used again"])
@pytest.mark.parametrize("is_agent_restarted", [False, True])
def test_another_publication_with_a_completed_packet_id_is_captured(change, is_agent_restarted):
    agent = incarnation()
    completed(agent)
    if change == "id used again":
        agent.receive(publish(1, b"y", qos=2))
        agent.commit()
        agent.receive_pubrel(1)
        agent.commit()
    if is_agent_restarted:
        before, agent = agent.captured_payloads, agent.crash()
        agent.captured_payloads[:0] = before
    agent.connect(session_present=change != "new session")
    payload = b"z" if change == "other content" else b"x"
    agent.receive(publish(1, payload, qos=2, dup=change != "not DUP"))
    assert agent.captured_payloads[-1:] == [payload]
    assert len(agent.captured_payloads) == (3 if change == "id used again" else 2)


def test_bounded_number_of_completed_publications_is_restored(monkeypatch):
    monkeypatch.setattr(redelivery, "RECENT_MAX", 2)
    agent = incarnation()
    for packet_id in (1, 2, 3):  # the first one falls out
        completed(agent, packet_id)
    agent = agent.crash()
    agent.reconnect()
    for packet_id in (1, 2, 3):
        agent.receive(publish(packet_id, qos=2, dup=True))
    assert len(agent.captured_payloads) == 1


def test_completed_publications_are_forgotten_in_time(monkeypatch):
    monkeypatch.setattr(redelivery, "PACKET_ID_HALF_RANGE", 3)
    monkeypatch.setattr(redelivery, "RECENT_MAX", 2)
    agent = incarnation()
    for packet_id in (1, 2, 3):  # the first one falls out
        completed(agent, packet_id)
    agent.reconnect()
    agent.receive(publish(1, qos=2, dup=True), publish(3, qos=2, dup=True))
    agent.receive(publish(2, qos=2, dup=True))  # too many publications since
    assert len(agent.captured_payloads) == 5


def test_completed_publication_of_a_broker_that_reuses_packet_ids_is_captured_again():
    """It may be another publication with equal content: a loss would be worse."""
    agent = incarnation()
    for packet_id in (9, 1, 9, 1, 9, 1, 2):
        completed(agent, packet_id)
    count = len(agent.captured_payloads)
    agent.reconnect()
    agent.receive(publish(2, qos=2, dup=True))
    assert len(agent.captured_payloads) == count + 1


def test_same_packet_id_on_one_connection_is_another_publication():
    agent = incarnation()
    agent.receive(publish(1))
    agent.commit()
    agent.receive(publish(1))
    agent.commit()
    assert agent.captured_payloads == [b"x", b"x"]


def test_reused_packet_id_is_another_publication():
    """A QoS 1 packet id may be reused at once; only DUP marks a redelivery."""
    agent = incarnation()
    agent.receive(publish(1), publish(2))
    agent.commit()
    agent.receive(publish(1, qos=2))  # reused packet id
    agent.commit()
    agent = agent.crash()
    agent.receive(publish(2), publish(1, qos=2, dup=True))
    agent.commit()
    assert agent.captured_payloads == [b"x"]  # the first; the second was captured before


def test_session_loss_is_remembered_after_restart():
    agent = incarnation()
    agent.receive(publish(1, qos=2))
    agent.commit()
    agent.reconnect(session_present=False)
    agent.commit()
    agent = agent.crash()
    agent.receive(publish(1, qos=2))
    agent.commit()
    assert agent.captured_payloads == [b"x"]  # first publication of the new session


def test_lost_session_has_no_redeliveries():
    agent = incarnation()
    agent.receive(publish(1), publish(2, qos=2))
    agent.commit()
    agent.log.crash()
    agent = CapturingIncarnation(agent.log, session_present=False)
    agent.receive(publish(1))
    agent.commit()
    agent = agent.crash()  # the session loss is durable
    agent.receive(publish(2, qos=2))
    agent.commit()
    assert agent.captured_payloads == [b"x"]


def test_publication_of_a_new_session_is_no_redelivery_of_the_lost_one():
    """It was in transit when the connection ended, so the broker sends it again."""
    agent = incarnation()
    agent.receive(publish(1), publish(2, qos=2))
    agent.commit()
    agent.reconnect(session_present=False)
    agent.reconnect()
    agent.receive(publish(1, dup=True), publish(2, qos=2, dup=True))
    assert len(agent.captured_payloads) == 4


def test_qos_1_candidates_expire_after_half_of_all_packet_ids():
    """For any number of connections, and in any incarnation."""
    agent = incarnation()
    agent.receive(publish(1), publish(2, qos=2))
    agent.commit()
    agent = agent.crash()
    for start in range(3, PACKET_ID_HALF_RANGE, 4_000):
        agent.receive(
            *(publish(start + each, topic="no") for each in range(4_000)), is_selected=False
        )
        agent.reconnect()
    agent.receive(publish(1, dup=True), publish(2, qos=2, dup=True))
    assert agent.commit()[-1] == PubRecPacket(2)
    assert agent.captured_payloads == [b"x"]


def test_candidates_of_a_long_connection_are_bounded():
    agent = incarnation(segment_records=1 << 20)
    count = 2 * RECENT_MAX
    agent.receive(*(publish(n) for n in range(1, count + 1)))
    agent.commit()
    agent.receive(publish(count + 1))
    assert len(agent.outbox.dedup.redelivery.candidates()) <= RECENT_MAX
    candidates = agent.outbox.dedup.redelivery
    agent.receive(*(publish(count + n) for n in range(2, RECENT_MAX + 1)))
    assert len(candidates._candidates) <= 2 * RECENT_MAX  # noqa: SLF001


def test_redelivered_candidate_counts_as_recent(monkeypatch):
    """Its second acknowledgement may be lost, too."""
    monkeypatch.setattr(redelivery, "RECENT_MAX", 4)
    agent = incarnation()
    agent.receive(*(publish(number) for number in range(1, 5)))
    agent.commit()
    agent.reconnect()
    agent.receive(publish(1, dup=True))
    agent.receive(publish(5), publish(6))
    agent.commit()
    agent.reconnect()
    agent.receive(publish(1, dup=True))
    assert len(agent.captured_payloads) == 6
    assert agent.counters["redeliveries"] == 2


def test_qos_1_is_captured_again_at_broker_that_reuses_packet_ids():
    agent = incarnation()
    for _ in range(4):
        agent.receive(publish(1), publish(2, qos=2))
        agent.commit()
        agent.receive_pubrel(2)
        agent.commit()
    agent.receive(publish(2, qos=2))
    agent = agent.crash()
    agent.receive(publish(1, dup=True))
    agent.commit()
    assert agent.captured_payloads == [b"x"]


@pytest.mark.parametrize(("reuse_count", "captured_count"), [(0, 0), (2, 0), (3, 1)])
def test_identical_qos_1_publication_is_lost_until_three_packet_ids_were_reused(
    reuse_count, captured_count
):
    """A limit in docs/delivery.md. The broker sends a publication under the packet id of the one
    before; the connection breaks before it arrives."""
    agent = incarnation()
    for _ in range(1 + reuse_count):
        agent.receive(publish(1))
        agent.commit()
    agent.captured_payloads.clear()
    agent.reconnect()
    agent.receive(publish(1, dup=True))
    assert len(agent.captured_payloads) == captured_count


def test_new_session_resets_packet_id_order():
    agent = incarnation()
    agent.receive(*(publish(packet_id) for packet_id in range(1, 150)))
    agent.commit()
    agent.connect(session_present=False)
    agent.commit()
    agent = agent.crash()
    agent.receive(publish(1))
    agent.commit()
    assert agent.alarm(ROLLBACK_ALARM) == ""


def test_first_packet_id_of_a_new_session_is_no_step_back():
    """In the same incarnation."""
    agent = incarnation()
    agent.receive(*(publish(packet_id) for packet_id in range(1, 150)))
    agent.commit()
    agent.reconnect(session_present=False)
    agent.reconnect()
    agent.receive(publish(1))
    assert agent.alarm(ROLLBACK_ALARM) == ""


def test_packet_id_order_that_steps_back_raises_alarm():
    agent = incarnation()
    agent.receive(*(publish(packet_id) for packet_id in range(1, 150)))
    agent.receive(publish(150, b"on", qos=2))
    agent.commit()
    agent = agent.crash()
    agent.receive(publish(149, dup=True))
    assert agent.alarm(ROLLBACK_ALARM) == ""
    agent.receive(publish(120, b"new"), publish(150, b"on", qos=2))
    agent.commit()
    assert agent.captured_payloads == [b"new", b"on"]
    assert agent.alarms[ROLLBACK_ALARM] == [BROKER_STATE_RESTORED]


def test_reused_packet_id_moves_its_candidate_to_the_end():
    agent = incarnation()
    agent.receive(publish(1, b"a"), publish(2, b"b"), publish(1, b"c"))
    candidates = agent.outbox.dedup.redelivery.candidates()
    assert [each.packet_id for each in candidates] == [2, 1]


def test_redelivered_packet_id_on_the_same_connection_is_another_publication():
    agent = incarnation()
    agent.receive(publish(1))
    agent.commit()
    agent.reconnect()
    agent.receive(publish(1, dup=True), publish(1, dup=True))
    assert agent.captured_payloads == [b"x", b"x"]


@pytest.mark.parametrize("is_redelivered", [False, True])
def test_candidate_that_is_not_acknowledged_does_not_expire(monkeypatch, is_redelivered):
    monkeypatch.setattr(redelivery, "RECENT_MAX", 2)
    agent = incarnation()
    agent.receive(publish(1))
    if is_redelivered:
        agent.commit()
        agent.reconnect()
        agent.receive(publish(2, b"2"), publish(1, dup=True))
    agent.receive(*(publish(n, b"%d" % n) for n in range(3, 7)))
    agent.reconnect()
    agent.receive(publish(1, dup=True))
    assert agent.captured_payloads.count(b"x") == 1


def test_completed_publication_is_forgotten_when_its_packet_id_is_reused(monkeypatch):
    monkeypatch.setattr(redelivery, "RECENT_MAX", 2)
    agent = incarnation()
    agent.receive(publish(5, qos=2))
    agent.commit()
    agent.receive_pubrel(5)
    agent.receive(publish(5, b"reuses"), *(publish(n, b"%d" % n) for n in (6, 7, 8)))
    agent.commit()
    agent.reconnect()
    agent.receive(publish(5, qos=2, dup=True))
    assert agent.captured_payloads.count(b"x") == 2


@pytest.mark.parametrize("qos", [1, 2])
def test_packet_id_of_a_full_round_ago_is_no_redelivery_after_a_crash(qos):
    """With 15 filters that match, the broker uses 15 packet ids per publication, so the window of
    captured publications is longer than all packet ids."""
    before = incarnation(segment_records=100_000)
    packet_ids = range(1, PACKET_IDS_MAX, 15)
    before.receive(*[publish(each, qos=qos) for each in packet_ids])
    before.commit()
    if qos == 2:
        before.receive_pubrel(*packet_ids)
        before.commit()
    after = before.crash()
    after.receive(publish(1, qos=qos, dup=True))
    assert after.captured_payloads == [b"x"]


def test_completed_publication_is_forgotten_half_a_round_later_also_after_a_crash():
    """The packet ids of the previous incarnation count."""
    before = incarnation(segment_records=100_000)
    packet_ids = range(1, PACKET_ID_HALF_RANGE, 15)
    before.receive(*[publish(each, qos=2) for each in packet_ids])
    before.commit()
    before.receive_pubrel(*packet_ids)
    before.commit()
    after = before.crash()
    after.receive(*[publish(each, qos=1, topic="no") for each in range(40_000, 40_020)])
    after.reconnect()
    after.receive(publish(1, qos=2, dup=True))
    assert after.captured_payloads == [b"x"]
    after.receive(publish(16 + 15 * 100, qos=2, dup=True))
    assert after.captured_payloads == [b"x"]


# ---------------------------------------------------------------- faults of the disk


def test_failing_disk_delays_acknowledgements_and_raises_alarm():
    agent = incarnation()
    agent.receive(publish(1))
    agent.commits.clear()
    agent.capture.group_commit.on_failed("no space")
    agent.collect()
    assert (agent.acks, agent.committed, agent.alarm(JOURNAL)) == ([], [], "no space")
    assert agent.deadline() == RETRY_S
    agent.receive(publish(2))
    agent.advance(RETRY_S / 2)
    assert agent.commits == [], "the pause is not over"
    agent.advance(RETRY_S / 2)
    assert agent.commit() == [PubAckPacket(1), PubAckPacket(2)]
    assert (agent.alarm(JOURNAL), agent.deadline()) == ("", None)


def test_unusable_log_leaves_publications_at_broker():
    agent = incarnation()
    agent.log.failure = "broken"
    agent.receive(publish(1), publish(2), publish(3, topic="no"))
    assert (agent.acks, agent.captured_payloads) == ([], [b"x"])
    assert agent.alarms[JOURNAL] == ["broken"]
    agent.capture.record_progress_report(YOU)
    agent.capture.schedule_rollover(9)
    agent.collect()
    assert (agent.commits, agent.deadline()) == ([], None)


def test_unusable_log_does_not_complete_handshakes():
    agent = incarnation()
    agent.receive(publish(1, qos=2))
    agent.commit()
    agent.log.failure = "broken"
    agent.receive_pubrel(1)
    agent.log.commit(agent.log.end)
    agent.capture.on_committed()
    agent.collect()
    assert agent.acks == [PubRecPacket(1)]


def test_unusable_log_is_reported_when_progress_is_recorded():
    agent = incarnation()
    agent.log.failure = "broken"
    agent.capture.record_acknowledged({YOU: 1})
    agent.collect()
    assert agent.alarm(JOURNAL) == "broken"


def test_unusable_log_is_reported_when_a_handshake_ends():
    agent = incarnation()
    agent.receive(publish(1, qos=2))
    agent.commit()
    agent.log.failure = "broken"
    agent.receive_pubrel(1)
    assert agent.alarm(JOURNAL) == "broken"
    agent.receive(publish(2, b"later"))
    assert agent.captured_payloads == [b"x"]


def test_nothing_is_written_after_a_failure():
    """Only recovery knows what the log holds."""
    agent = incarnation()
    agent.log.failure = "broken"
    agent.receive(publish(1))
    agent.log.failure = ""
    end = agent.log.end
    agent.capture.record_acknowledged({YOU: 1})
    agent.capture.record_progress_report(YOU)
    agent.reconnect(session_present=False)
    assert (agent.log.end, agent.commits) == (end, [])


def test_nothing_is_acknowledged_on_later_connections_after_a_failure():
    agent = incarnation()
    agent.log.failure = "broken"
    agent.receive(publish(1))
    agent.reconnect()
    agent.receive(publish(2), publish(3, qos=2))
    assert agent.acks == []
