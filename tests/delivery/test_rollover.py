"""Epoch rollover: what the new log holds, and what waits for it."""

from tests.delivery.capturing import EPOCH, CapturingIncarnation, copy, incarnation, publish
from tests.delivery.shell import OTHER, YOU

from hansa.delivery.dedup import redelivery
from hansa.delivery.dedup.redelivery import content_digest
from hansa.delivery.effects import LogName
from hansa.delivery.group_commit import RETRY_S
from hansa.delivery.outbox import OutboxLog
from hansa.journal.records import (
    CaptureCompletedRecord,
    RedeliverableRecord,
    SessionStartedRecord,
)
from hansa.mqtt.packets import PubAckPacket, PubCompPacket, PubRecPacket
from hansa.protocol.events import EpochStarted, JournalCommitted, ProgressReportPersisted
from hansa.simulator.world.memory_log import MemoryLog

JOURNAL = LogName.OUTBOX.alarm


def test_rollover_keeps_unacknowledged_publications():
    agent = incarnation()
    agent.receive(publish(1, b"acknowledged"), publish(2, b"former"))
    agent.commit()
    agent.capture.record_acknowledged({YOU: 1})
    agent.collect()
    agent.commit()
    agent = agent.crash()
    agent.receive(publish(3, b"known", qos=2), publish(4, b"waits", qos=2))
    agent.capture.schedule_rollover(9)
    agent.receive(publish(5, b"held", qos=2))
    agent.receive_pubrel(3)
    assert agent.deadline() == agent.context.now
    agent.advance(0.0)
    assert agent.deadline() is None, "the epoch is built"
    agent.build_epoch()
    assert agent.acks == [PubRecPacket(3), PubRecPacket(4)]
    assert agent.epochs_started == [EpochStarted(9, 4, ((YOU, 3),))]
    assert (agent.removed_epochs, agent.deadline()) == (1, agent.context.now)
    agent.commit()
    agent.advance(0.0)
    assert agent.commit() == [PubRecPacket(3), PubRecPacket(4), PubRecPacket(5), PubCompPacket(3)]
    assert agent.committed[-1] == JournalCommitted(9, 4)
    copied = agent.log.captured_records(1, 4)
    assert [(each.sequence, each.payload, each.receivers) for each in copied] == [
        (1, b"former", ((YOU, 0),)),
        (2, b"known", ((YOU, 1),)),
        (3, b"waits", ((YOU, 2),)),
        (4, b"held", ((YOU, 3),)),
    ]
    assert agent.captured_payloads == [b"known", b"waits", b"held"]
    agent.reconnect()
    agent.receive(publish(4, b"waits", qos=2))
    assert agent.commit()[-1] == PubRecPacket(4)
    assert agent.captured_payloads[3:] == []


def test_nothing_is_captured_twice_after_rollover_and_crash():
    agent = incarnation()
    agent.receive(publish(1, b"former", qos=2), publish(2, b"over", qos=2))
    agent.commit()
    agent.capture.record_acknowledged({YOU: 1})
    agent.receive(publish(3, b"recent", qos=2), publish(4, b"settled", qos=2))
    agent.commit()
    agent.receive_pubrel(2, 4)
    agent.commit()
    agent.roll_over(9)
    agent = agent.crash()
    agent.receive(publish(1, b"former", qos=2), publish(3, b"recent", qos=2))
    assert agent.commit() == [PubRecPacket(1), PubRecPacket(3)]
    assert agent.captured_payloads == []
    agent.receive(publish(2, b"over", qos=2), publish(4, b"settled", qos=2))
    assert agent.captured_payloads == [b"over", b"settled"]  # these ids were free
    agent.receive_pubrel(1, 3)
    agent.commit()
    agent = agent.crash()
    agent.receive(publish(1, b"former", qos=2), publish(3, b"recent", qos=2))
    assert agent.captured_payloads == [b"former", b"recent"]  # and now these are free


def test_session_lost_during_rollover_is_recorded_in_new_epoch():
    agent = incarnation()
    agent.receive(publish(1, b"same", qos=2))
    agent.commit()
    agent.capture.schedule_rollover(9)
    agent.advance(0.0)
    agent.connect(session_present=False)
    agent.build_epoch()
    agent.commit()
    agent = agent.crash()
    agent.receive(publish(1, b"same", qos=2))
    assert agent.captured_payloads == [b"same"], "of the new session, not a redelivery"


def test_sessions_lost_during_one_rollover_need_one_record():
    def records_after(loss_count: int) -> int:
        agent = incarnation()
        agent.capture.schedule_rollover(9)
        agent.advance(0.0)
        for _ in range(loss_count):
            agent.connect(session_present=False)
        agent.build_epoch()
        agent.commit()
        return sum(isinstance(each, SessionStartedRecord) for each in agent.log.replay())

    assert records_after(3) == records_after(1) == records_after(0) + 1


def test_broker_packets_wait_for_rollover_on_failing_disk():
    agent = incarnation()
    agent.receive(publish(1))
    agent.commit()
    agent.capture.schedule_rollover(9)
    agent.receive(publish(2))
    agent.advance(0.0)
    for _ in range(2):
        agent.plans.clear()
        agent.capture.on_epoch_not_built("full")
        agent.collect()
        assert (agent.alarm(JOURNAL), agent.captured_payloads) == ("full", [b"x"])
        assert agent.deadline() == agent.context.now + RETRY_S
        agent.advance(RETRY_S / 2)
        assert agent.plans == [], "the pause is not over"
        agent.advance(RETRY_S / 2)
    agent.build_epoch()
    agent.advance(0.0)
    assert agent.commit() == [PubAckPacket(1), PubAckPacket(2)]
    assert agent.alarm(JOURNAL) == ""
    assert agent.epochs_started == [EpochStarted(9, 2, ((YOU, 1),))]


def test_capture_continues_in_the_new_epoch_if_the_old_log_fails_meanwhile():
    agent = incarnation()
    agent.capture.schedule_rollover(9)
    agent.advance(0.0)
    agent.log.failure = "cannot write"
    agent.connect(session_present=False)
    assert agent.alarm(JOURNAL) == "cannot write"
    agent.build_epoch()
    assert agent.alarm(JOURNAL) == ""
    agent.advance(0.0)
    agent.receive(publish(1))
    assert agent.commit() == [PubAckPacket(1)]


def test_broker_packets_that_wait_for_rollover_are_forgotten_at_disconnection():
    agent = incarnation()
    agent.capture.schedule_rollover(9)
    agent.receive(publish(1))
    agent.capture.on_disconnected()
    agent.advance(0.0)
    agent.build_epoch()
    agent.advance(0.0)
    assert (agent.captured_payloads, agent.commit()) == ([], [])


def test_node_expired_during_rollover_is_no_receiver_in_new_epoch():
    agent = incarnation()
    agent.receive(publish(1))
    agent.commit()
    agent.capture.schedule_rollover(9)
    agent.advance(0.0)
    agent.capture.expire_node(YOU)
    agent.capture.expire_node(OTHER)  # which was none
    agent.build_epoch()
    agent.commit()
    assert agent.outbox.receivers.last_assigned == {}
    assert agent.crash().outbox.receivers.last_assigned == {}


def test_progress_is_not_recorded_in_a_log_that_is_being_copied():
    """The positions are those of the old epoch; receivers report them again."""
    agent = incarnation()
    agent.receive(publish(1))
    agent.commit()
    agent.capture.schedule_rollover(9)
    agent.advance(0.0)
    end = agent.log.end
    agent.capture.record_acknowledged({YOU: 1})
    agent.capture.record_progress_report(YOU)
    agent.collect()
    assert agent.log.end == end
    agent.build_epoch()
    agent.commit()
    assert agent.outbox.receivers.acknowledged == {}
    assert ProgressReportPersisted(YOU) not in agent.events


def test_new_epoch_does_not_wait_for_offsets_of_the_old_log():
    agent = incarnation()
    agent.receive(*(publish(n, b"%d" % n, qos=2) for n in range(1, 9)))
    agent.commit()
    agent.capture.record_acknowledged({YOU: 8})
    agent.receive_pubrel(*range(1, 9))
    agent.commit()
    agent.roll_over(9)
    agent.acks.clear()
    agent.receive_pubrel(8)
    assert agent.acks == [PubCompPacket(8)], "repeated: its completion is durable"


def test_publications_of_the_old_epoch_are_not_reported_as_committed():
    """The node knows them by their new positions."""
    agent = incarnation()
    agent.receive(publish(1), publish(2))
    agent.capture.record_progress_report(YOU)
    agent.collect()
    agent.roll_over(9)
    assert agent.acks == [PubAckPacket(1), PubAckPacket(2)], "copying made them durable"
    agent.receive(publish(3))
    agent.commit()
    assert agent.committed == [JournalCommitted(9, 3)]
    assert agent.reported == []


def test_crash_during_rollover_keeps_old_epoch():
    agent = incarnation()
    agent.receive(publish(1))
    agent.commit()
    agent.capture.schedule_rollover(9)
    agent.advance(0.0)
    assert agent.plans and agent.epochs_started == []
    agent = agent.crash()
    assert (agent.log.epoch, agent.log.next_sequence) == (EPOCH, 2)


def test_pending_rollover_is_brought_forward():
    agent = incarnation()
    agent.capture.schedule_rollover(9, 30.0)
    agent.capture.schedule_rollover(8, 5.0)
    assert agent.deadline() == 5.0
    agent.advance(4.9)
    assert agent.plans == []
    agent.advance(0.1)
    assert [plan.epoch for plan in agent.plans] == [9]


def test_segments_carry_the_state_of_an_adopted_epoch():
    agent = incarnation()
    agent.receive(publish(1, qos=2))
    agent.commit()
    agent.roll_over(9)
    carried = list(agent.log.carried_state())
    restored = OutboxLog(MemoryLog(9), carried, lambda: 0)
    assert restored.receivers == agent.outbox.receivers
    assert [each.packet_id for each in restored.dedup.redelivery.candidates()] == [1]


def test_publications_of_an_ended_epoch_are_not_reported_as_committed():
    agent = incarnation()
    agent.commit()
    agent.receive(publish(1))
    agent.roll_over(EPOCH + 1)
    agent.receive(publish(2))
    agent.commit()
    assert agent.committed == [JournalCommitted(EPOCH + 1, 2)]


def test_publication_of_an_ended_epoch_is_recorded_with_its_negated_packet_id():
    """The new epoch gives its position to another publication."""
    agent = incarnation()
    agent.receive(copy(7, b"one", 1, dup=False))
    agent.commit()
    agent.receive_pubrel(7)
    agent.capture.record_acknowledged({YOU: 1})
    agent.commit()
    agent.roll_over(9)
    digest = content_digest(copy(7, b"one", 1))
    assert [each for each in agent.log.replay() if not isinstance(each, SessionStartedRecord)] == [
        RedeliverableRecord(-7, 7, 2, digest, 1, 0),
        CaptureCompletedRecord(-7),
    ]


def filled_and_completed(count: int) -> CapturingIncarnation:
    """Return an agent whose receivers and broker have everything."""
    agent = incarnation()
    agent.receive(*(publish(n, b"%d" % n, qos=2) for n in range(1, count + 1)))
    agent.commit()
    agent.capture.record_acknowledged({YOU: count})
    agent.receive_pubrel(*range(1, count + 1))
    agent.commit()
    agent.acks.clear()
    return agent


def test_new_epoch_makes_waiting_publications_durable():
    agent = filled_and_completed(8)
    agent.receive(publish(9, b"9"))
    assert agent.acks == []
    agent.roll_over(9)
    assert agent.acks == [PubAckPacket(9)]


def test_completed_publication_sent_again_after_rollover_is_acknowledged_at_once():
    agent = filled_and_completed(8)
    agent.roll_over(9)
    agent.reconnect()
    agent.receive(publish(8, b"8", qos=2, dup=True))
    assert agent.acks == [PubRecPacket(8)]


def test_first_commit_of_a_new_epoch_reports_nothing_of_the_old_one():
    agent = incarnation()
    agent.receive(publish(1), publish(2))
    agent.roll_over(9)
    agent.commit()
    assert agent.committed == []


def test_pending_rollover_is_brought_forward_if_the_log_has_failed():
    agent = incarnation()
    agent.capture.schedule_rollover(9, 30.0)
    agent.log.failure = "broken"
    agent.capture.record_acknowledged({YOU: 1})
    agent.capture.schedule_rollover(9, 5.0)
    assert agent.deadline() == 5.0


def test_redelivery_candidate_has_the_position_of_the_new_epoch():
    agent = filled_and_completed(8)
    agent.receive(publish(9, b"9", qos=2))
    agent.commit()
    agent.roll_over(9)
    agent.commit()
    agent.reconnect()
    agent.acks.clear()
    agent.receive(publish(9, b"9", qos=2, dup=True))
    assert agent.acks == [PubRecPacket(9)], "it is durable in the new log"
    agent.receive_pubrel(9)
    assert agent.log.replay()[-1] == CaptureCompletedRecord(1)


def test_candidates_of_a_session_lost_during_rollover_are_completed():
    """A crash may keep these records and lose the SessionStartedRecord after them."""
    agent = incarnation()
    agent.receive(publish(1, qos=2), publish(2, b"y", qos=2))
    agent.commit()
    agent.capture.schedule_rollover(9)
    agent.advance(0.0)
    agent.reconnect(session_present=False)
    agent.build_epoch()
    *records, last = agent.log.replay()
    assert isinstance(last, SessionStartedRecord)
    truncated = OutboxLog(MemoryLog(9), records, lambda: 0)
    assert truncated.dedup.redelivery.candidates() == []


def test_candidates_that_have_expired_are_not_candidates_in_the_new_epoch(monkeypatch):
    """The broker uses packet id 1 for an overlap copy, which is not captured."""
    monkeypatch.setattr(redelivery, "RECENT_MAX", 2)
    agent = incarnation()
    agent.receive(*(publish(n, b"%d" % n) for n in (1, 2, 3)))
    agent.commit()
    agent.roll_over(9)
    agent.commit()
    end = agent.log.end
    agent.receive_pubrel(1)
    assert agent.log.end == end
