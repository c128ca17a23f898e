"""Overlap copies that arrive after a reconnect or a restart."""

import pytest
from tests.delivery.capturing import CapturingIncarnation, copy, incarnation, publish

from hansa.delivery.dedup.redelivery import content_digest
from hansa.delivery.effects import LogName
from hansa.journal.records import (
    CaptureCompletedRecord,
    RedeliverableRecord,
)
from hansa.mqtt.packets import PublishPacket

JOURNAL = LogName.OUTBOX.alarm


def are_late_copies(agent: CapturingIncarnation, *copies: PublishPacket) -> list[bool]:
    return [agent.capture.captured_subscription(each) == 1 for each in copies]


def test_overlap_copy_is_recognised_after_restart():
    """Two subscriptions match; copies of the second arrive after the restart."""
    agent = incarnation()
    agent.newest_subscription = 2
    names = (b"one", b"two", b"three")
    agent.receive(*(copy(n, name, 1, dup=False) for n, name in enumerate(names, 1)))
    agent.commit()
    agent = agent.crash()
    second = [copy(9, name, 2) for name in names]
    assert are_late_copies(agent, *second) == [False, False, True], (
        "the broker would resume the others first"
    )
    agent.receive_pubrel(2)
    assert are_late_copies(agent, *second) == [False, True, True]
    unsent = [copy(9, name, 2, dup=False) for name in names[1:]]
    assert are_late_copies(agent, *unsent) == [True, False]
    assert are_late_copies(agent, copy(9, b"two", 1)) == [False], "one filter, one copy"
    assert are_late_copies(agent, copy(9, b"two", 3)) == [False], "the filter did not exist yet"
    assert are_late_copies(agent, copy(9, b"three", 2, qos=1)) == [False], "rather twice than never"
    assert agent.counters["overlap copies after reconnect"] == 4
    agent.connect(session_present=False)
    assert are_late_copies(agent, *second) == [False] * 3
    agent.commit()
    agent = agent.crash()
    assert are_late_copies(agent, *second) == [False] * 3


@pytest.mark.parametrize("segment_records", [1_000, 1])
def test_overlap_copy_of_completed_publication_is_recognised_after_restart(segment_records):
    """Also if earlier and later QoS 1 publications may be redelivered."""
    agent = incarnation(segment_records)
    agent.newest_subscription = 2
    agent.receive(copy(1, b"one", 1, qos=1, dup=False), copy(2, b"two", 1, dup=False))
    agent.commit()
    agent.receive_pubrel(2)
    agent.commit()
    agent = agent.crash()
    agent.newest_subscription = 2
    agent.receive_pubrel(3)
    assert are_late_copies(agent, copy(4, b"two", 2, dup=False)) == [True], (
        "the broker completed another copy"
    )
    agent.receive(*(copy(n, b"%d" % n, 1, qos=1, dup=False) for n in (5, 6)))
    agent.commit()
    agent = agent.crash()
    assert are_late_copies(agent, copy(4, b"two", 2)) == [True]


def test_overlap_copy_of_completed_publication_is_recognised_after_rollover():
    agent = incarnation()
    agent.newest_subscription = 2
    agent.receive(copy(1, b"one", 1, qos=1, dup=False), copy(2, b"two", 1, dup=False))
    agent.commit()
    agent.receive_pubrel(2)
    agent.commit()
    agent.roll_over(9)
    agent.commit()
    agent = agent.crash()
    assert are_late_copies(agent, copy(4, b"two", 2)) == [True]
    assert [seen.packet_id for seen in agent.outbox.dedup.redelivery.candidates()] == [1]


def test_overlap_copy_belongs_to_last_publication_before_reconnect():
    agent = incarnation()
    agent.newest_subscription = 3
    agent.receive(copy(1, b"one", 3, dup=False), copy(2, b"two", 3, dup=False))
    agent.commit()
    captured_subscription = agent.capture.captured_subscription
    assert not captured_subscription(copy(9, b"two", 2)), "on this connection"
    agent.connect()
    copies = [copy(9, name, 2) for name in (b"one", b"two")]
    assert [captured_subscription(each) for each in copies] == [0, 3]
    unsent = copy(9, b"two", 2, dup=False)
    assert not captured_subscription(unsent)
    agent.receive_pubrel(2)
    assert captured_subscription(unsent) == 3
    agent.connect()
    assert captured_subscription(unsent) == 3, "nothing else arrived meanwhile"
    agent.receive(copy(5, b"three", 1))
    agent.connect()
    assert not captured_subscription(unsent)
    agent.connect(session_present=False)
    assert not captured_subscription(copies[1])


def test_handshake_completed_on_an_earlier_connection_is_not_resumed():
    """What follows on the next connection is a new publication with equal content."""
    agent = incarnation()
    agent.newest_subscription = 2
    agent.receive(copy(1, b"x", 1, dup=False))
    agent.commit()
    agent.receive_pubrel(1)
    agent.reconnect()
    assert not agent.capture.captured_subscription(copy(2, b"x", 2, dup=False))


def test_handshake_resumed_on_an_earlier_connection_is_not_resumed_again():
    agent = incarnation()
    agent.newest_subscription = 3
    agent.receive(copy(1, b"x", 1, dup=False))
    agent.commit()
    agent.reconnect()
    agent.receive_pubrel(1)
    unsent = copy(3, b"x", 3, dup=False)
    assert agent.capture.captured_subscription(unsent) == 1
    agent.receive(copy(2, b"x", 2), is_selected=False)
    agent.reconnect()
    assert not agent.capture.captured_subscription(unsent)


@pytest.mark.parametrize(("qos", "captured_by"), [(1, 0), (2, 1)])
def test_copy_of_a_publication_of_the_previous_incarnation_counts_only_at_qos_1(qos, captured_by):
    """It may be a new publication with equal content: a duplicate is allowed, a loss is not."""
    agent = incarnation()
    agent.newest_subscription = 2
    agent.receive(copy(1, b"x", by=1, qos=qos, dup=False))
    agent.commit()
    restarted = agent.crash()
    assert restarted.capture.captured_subscription(copy(2, b"x", by=2, qos=qos)) == captured_by


def test_overlap_copy_of_completed_publication_before_the_last_is_recognised_after_restart():
    """Every record starts a segment, which carries the last completed publication."""
    agent = incarnation(segment_records=1)
    agent.newest_subscription = 2
    agent.receive(copy(1, b"one", 1, dup=False))
    agent.commit()
    agent.receive_pubrel(1)
    agent.commit()
    agent.receive(copy(2, b"two", 1, dup=False))
    agent.commit()
    agent = agent.crash()
    assert are_late_copies(agent, copy(4, b"one", 2), copy(4, b"two", 2)) == [True, True]


def test_last_completed_publication_is_carried_once():
    agent = incarnation()
    agent.receive(copy(1, b"one", 1, dup=False))
    agent.commit()
    agent.receive_pubrel(1)
    carried = list(agent.outbox.dedup.carried_records())
    digest = content_digest(copy(1, b"one", 1))
    assert carried == [RedeliverableRecord(1, 1, 2, digest, 1, 0), CaptureCompletedRecord(1)]


def test_nothing_of_a_lost_session_has_overlap_copies():
    agent = incarnation()
    agent.newest_subscription = 2
    agent.receive(copy(1, b"x", 1, dup=False))
    agent.commit()
    agent.reconnect(session_present=False)
    assert are_late_copies(agent, copy(2, b"x", 2)) == [False]


def test_overlap_copy_of_a_lost_session_is_not_resumed():
    """The packet id 8 of such a copy belongs to another publication of the new session."""
    agent = incarnation()
    agent.newest_subscription = 2
    agent.receive(copy(7, b"x", 1, dup=False))
    agent.receive(copy(8, b"x", 2, dup=False), is_selected=False)
    agent.commit()
    agent.reconnect(session_present=False)
    agent.receive(copy(8, b"y", 1, dup=False), copy(9, b"x", 1, dup=False))
    agent.commit()
    agent.reconnect()
    agent.receive_pubrel(8)
    assert are_late_copies(agent, copy(10, b"x", 2, dup=False)) == [False]


def test_copies_of_the_previous_incarnation_end_with_the_first_capture():
    agent = incarnation()
    agent.newest_subscription = 2
    agent.receive(copy(1, b"x", 1, dup=False))
    agent.commit()
    agent = agent.crash()
    agent.receive(publish(2, b"new", qos=2))
    assert are_late_copies(agent, copy(3, b"x", 2)) == [False]


@pytest.mark.parametrize(("resumed", "is_copy"), [(1, True), (2, False), (3, True)])
def test_remembered_overlap_copies_are_bounded(monkeypatch, resumed, is_copy):
    """The packet id that was not used for the longest time is forgotten first."""
    monkeypatch.setattr("hansa.delivery.dedup.reconnect_overlap.RECENT_MAX", 2)
    agent = incarnation()
    agent.newest_subscription = 3
    agent.receive(copy(9, b"x", 1, dup=False))
    for packet_id in (1, 2, 1, 3):
        agent.receive(copy(packet_id, b"x", 2, dup=False), is_selected=False)
    agent.commit()
    agent.reconnect()
    agent.receive_pubrel(resumed)
    assert are_late_copies(agent, copy(4, b"x", 3, dup=False)) == [is_copy]


def test_overlap_copy_of_a_publication_that_is_not_acknowledged_is_recognised():
    agent = incarnation()
    agent.newest_subscription = 2
    agent.receive(copy(1, b"x", 1, dup=False))
    agent.reconnect()
    assert are_late_copies(agent, copy(2, b"x", 2)) == [True]


def test_copy_that_the_broker_had_not_sent_belongs_to_the_last_publication():
    """The handshake of another copy, which was not captured, was resumed."""
    agent = incarnation()
    agent.newest_subscription = 2
    agent.receive(copy(1, b"one", 1, dup=False), copy(2, b"two", 1, dup=False))
    agent.commit()
    agent = agent.crash()
    agent.receive_pubrel(9)
    unsent = [copy(10, name, 2, dup=False) for name in (b"one", b"two")]
    assert are_late_copies(agent, *unsent) == [False, True]


def test_last_completed_publication_is_carried_for_a_while(monkeypatch):
    monkeypatch.setattr("hansa.delivery.dedup.reconnect_overlap.RECENT_MAX", 3)
    agent = incarnation()
    agent.receive(*(publish(n, b"%d" % n) for n in range(1, 5)), publish(5, qos=2))
    agent.commit()
    agent.receive_pubrel(5)
    is_carried = []
    for packet_id in (6, 7, 8):
        agent.receive(publish(packet_id, b"%d" % packet_id))
        carried = agent.outbox.dedup.carried_records()
        is_carried.append(CaptureCompletedRecord(5) in carried)
    assert is_carried == [True, True, False]
