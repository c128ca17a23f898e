"""Content digests, the order of packet ids, and what recovery knows of captured publications."""

import pytest

from hansa.delivery.dedup.history import CaptureHistory
from hansa.delivery.dedup.reconnect_overlap import PreviousCaptures
from hansa.delivery.dedup.redelivery import (
    PACKET_ID_HALF_RANGE,
    RECENT_MAX,
    RISES_MIN,
    PacketIdOrder,
    RedeliveryCandidate,
    content_digest,
)
from hansa.journal.records import (
    CaptureCompletedRecord,
    CapturedRecord,
    RedeliverableRecord,
    SessionStartedRecord,
)
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import Property, encode_properties
from hansa.mqtt.types import PACKET_IDS_MAX


def captured(sequence: int, packet_id: int, qos: int = 2, payload: bytes = b"x") -> CapturedRecord:
    return CapturedRecord(sequence, qos, "a", payload, False, b"", (), packet_id, 1)


def test_content_digest_ignores_remaining_expiry():
    first, again, other = (
        PublishPacket(
            "a",
            b"1",
            2,
            properties=encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, seconds), each)),
        )
        for seconds, each in (
            (60, (Property.CONTENT_TYPE, "a")),
            (59, (Property.CONTENT_TYPE, "a")),
            (60, (Property.CONTENT_TYPE, "b")),
        )
    )
    assert content_digest(first) == content_digest(again) != content_digest(other)


@pytest.mark.parametrize(
    "other",
    [
        PublishPacket("ab", b"cd", 2),
        PublishPacket("b", b"bcd", 2),
        PublishPacket("a", b"bcd", 1),
        PublishPacket("a", b"bcd", 2, retain=True),
        PublishPacket("a", b"b", 2),
    ],
)
def test_content_digest_covers_topic_payload_qos_and_retain_flag(other):
    assert content_digest(PublishPacket("a", b"bcd", 2)) != content_digest(other)


# ---------------------------------------------------------------- packet ids


def observed(*packet_ids: int) -> tuple[list[bool], bool]:
    order = PacketIdOrder()
    return [order.observe(each) for each in packet_ids], order.is_ascending


def test_packet_ids_are_compared_with_the_one_before():
    assert observed(10, 5, 6, 7) == ([False] * 4, True), "one step back"
    assert observed(5, 5, 5, 5) == ([False] * 4, False), "an id that is reused at once is no rise"


def test_step_back_of_an_ascending_broker_is_a_rollback():
    rises = range(1, RISES_MIN + 1)
    assert observed(*rises, 50) == ([False] * RISES_MIN + [True], True)
    assert observed(*rises[:-1], 50) == ([False] * RISES_MIN, True), "too few to be sure"


def test_skipped_packet_ids_rise_and_half_of_all_is_a_step_back():
    rises = range(2, 2 * RISES_MIN + 1, 2)
    assert observed(*rises, 50) == ([False] * RISES_MIN + [True], True)
    assert observed(*rises, rises[-1] + PACKET_ID_HALF_RANGE)[0][-1] is True
    assert observed(*rises, rises[-1] + PACKET_ID_HALF_RANGE - 1)[0][-1] is False


def test_first_packet_id_is_no_step_back():
    assert observed(60_000, 59_999, 59_998) == ([False] * 3, True)
    assert observed(60_000, 59_999, 59_998, 59_997) == ([False] * 4, False)
    order = PacketIdOrder()
    for packet_id in (3, 2, 1):
        order.observe(packet_id)
    order.reset()
    order.observe(60_000)
    assert order.is_ascending, "nor is the first one of a session"


def test_wrap_around_and_skipped_packet_ids_are_no_steps_back():
    before_wrap = range(PACKET_IDS_MAX - RISES_MIN, PACKET_IDS_MAX + 1)
    found, is_ascending = observed(*before_wrap, 1, 2, 5, 9)
    assert (any(found), is_ascending) == (False, True)


def test_broker_that_steps_back_often_reuses_packet_ids():
    found, is_ascending = observed(*range(1, RISES_MIN + 1), 1, 2, 1, 2, 1, 2)
    assert found[RISES_MIN:] == [True, False, True, False, False, False]
    assert not is_ascending


# ---------------------------------------------------------------- recovery


def restored(
    *records: CapturedRecord | RedeliverableRecord | SessionStartedRecord | CaptureCompletedRecord,
) -> CaptureHistory:
    history = CaptureHistory()
    for record in records:
        history.apply(record)
    return history


def test_reused_packet_id_replaces_the_candidate():
    history = restored(captured(1, 5, qos=1), captured(2, 6), captured(3, 5))
    assert [(each.packet_id, each.sequence) for each in history.recent_candidates()] == [
        (6, 2),
        (5, 3),
    ]


def test_completion_of_an_earlier_use_of_a_packet_id_is_ignored():
    history = restored(captured(1, 5), captured(2, 5), CaptureCompletedRecord(1))
    assert [each.sequence for each in history.recent_candidates()] == [2]
    history.apply(CaptureCompletedRecord(2))
    history.apply(CaptureCompletedRecord(2))
    assert history.recent_candidates() == []


def test_carried_candidate_is_restored():
    candidate = RedeliveryCandidate(5, 2, b"digest", -5, subscription=3, newest_subscription=4)
    assert restored(candidate.to_record()).recent_candidates() == [candidate]


def test_new_session_has_no_candidates():
    history = restored(captured(1, 5), SessionStartedRecord(1), captured(2, 6))
    assert [each.sequence for each in history.recent_candidates()] == [2]
    assert list(history.previous.captured.values()) == history.recent_candidates()


def test_recovered_qos_1_candidates_are_bounded():
    extra = 3
    history = restored(
        captured(1, 60_000),
        *(captured(1 + n, n, qos=1) for n in range(1, RECENT_MAX + extra + 1)),
    )
    found = [each.packet_id for each in history.recent_candidates()]
    assert found == [60_000, *range(extra + 1, RECENT_MAX + extra + 1)]


def test_previous_captures_are_bounded():
    previous = PreviousCaptures()
    for number in range(RECENT_MAX + 2):
        previous.add(RedeliveryCandidate(number, 1, b"%d" % number, number))
    assert len(previous.captured) == RECENT_MAX
    assert next(iter(previous.captured)) == b"2"


def test_identical_publication_is_the_newest_capture():
    previous = PreviousCaptures()
    first, second, again = (
        RedeliveryCandidate(number, 2, digest, number)
        for number, digest in ((1, b"x"), (2, b"y"), (3, b"x"))
    )
    for each in (first, second, again):
        previous.add(each)
    assert list(previous.captured.values()) == [second, again]
    previous.mark_completed(again)
    assert list(previous.captured.values()) == [again]


def test_completed_publication_ends_the_wait_for_copies_of_earlier_ones():
    history = restored(
        captured(1, 5, payload=b"1"), captured(2, 6, payload=b"2"), CaptureCompletedRecord(2)
    )
    previous = history.previous
    assert [each.sequence for each in previous.captured.values()] == [2]
    assert previous.last_completed is previous.last
    assert previous.last is not None and previous.last.is_acknowledged


def test_packet_id_of_a_completed_publication_is_known_until_it_is_reused():
    completed = captured(1, 5), CaptureCompletedRecord(1)
    assert [each.sequence for each in restored(*completed).completed.values()] == [1]
    assert restored(*completed, captured(2, 5, qos=1)).completed == {}
    assert restored(*completed, SessionStartedRecord(1)).completed == {}


def test_completion_without_captures_is_the_last_one():
    previous = PreviousCaptures()
    candidate = RedeliveryCandidate(5, 2, b"x", 1)
    previous.mark_completed(candidate)
    assert (previous.captured, previous.last_completed) == ({}, candidate)


def test_packet_ids_say_how_many_publications_arrived():
    """At least: steps back and steps of half of all packet ids say nothing."""
    carried = RedeliverableRecord(-9, 9, 2, b"digest", 0, 0)
    packet_ids = 50, 53, 52, 52 + PACKET_ID_HALF_RANGE, 60 + PACKET_ID_HALF_RANGE
    history = restored(carried, *(captured(n, each) for n, each in enumerate(packet_ids, 1)))
    found = [each.received_index for each in history.recent_candidates()]
    assert (found, history.received_count) == ([0, 0, 3, 3, 3, 11], 11)
