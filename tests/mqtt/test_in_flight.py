"""Handshakes of QoS 1 and 2, and pending requests."""

import pytest

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.in_flight import (
    REQUEST_IDS_MIN,
    REQUESTS_MAX,
    InFlightHandshakes,
    PendingRequests,
)
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PubRecPacket,
    PubRelPacket,
    SubAckPacket,
    SubscribePacket,
    Subscription,
    UnsubAckPacket,
    UnsubscribePacket,
)

TWO = (Subscription("a"), Subscription("b"))


def test_qos_1_takes_one_step():
    one = InFlightHandshakes()
    one.start(7, qos=1)
    assert (7 in one, one.count) == (True, 1)
    assert one.advance(PubAckPacket(7))
    assert (7 in one, one.count) == (False, 0)


def test_qos_2_takes_three_steps():
    one = InFlightHandshakes()
    one.start(7, qos=2)
    for step, after in (
        (PubRecPacket(7), PubRelPacket),
        (PubRelPacket(7), PubCompPacket),
        (PubCompPacket(7), None),
    ):
        assert one.advance(step)
        assert one.expected_packet(7) is after


@pytest.mark.parametrize("refusal", [PubRecPacket(7, 0x97), PubRecPacket(7, 0x80)])
def test_refused_pubrec_ends_the_handshake(refusal):
    one = InFlightHandshakes()
    one.start(7, qos=2)
    assert one.advance(refusal)
    assert 7 not in one


def test_pubrel_with_a_reason_still_needs_pubcomp():
    one = InFlightHandshakes()
    one.start(7, qos=2)
    one.advance(PubRecPacket(7))
    assert one.advance(PubRelPacket(7, 0x92))
    assert one.expected_packet(7) is PubCompPacket


@pytest.mark.parametrize(
    "step", [PubRecPacket(7), PubCompPacket(7), PubRelPacket(7), PubAckPacket(8)]
)
def test_wrong_step_changes_nothing(step):
    one = InFlightHandshakes()
    one.start(7, qos=1)
    assert not one.advance(step)
    assert one.expected_packet(7) is PubAckPacket


def test_resumed_handshake_is_not_counted():
    one = InFlightHandshakes()
    assert one.resume(7)
    assert (7 in one, one.count) == (True, 0)
    assert not one.resume(7)
    assert one.advance(PubCompPacket(7))
    assert (7 in one, one.count) == (False, 0)


def test_request_ids_wrap_and_skip_pending_ones():
    one = PendingRequests()
    first = UnsubscribePacket(one.next_id(), ("a",))
    one.add(first)
    used = []
    for _ in range(REQUESTS_MAX):
        packet_id = one.next_id()
        one.add(UnsubscribePacket(packet_id, ("b",)))
        one.match_response(UnsubAckPacket(packet_id))
        used.append(packet_id)
    assert first.packet_id == REQUEST_IDS_MIN
    assert used == [*range(REQUEST_IDS_MIN + 1, 65_536), REQUEST_IDS_MIN + 1]


def test_requests_are_bounded():
    one = PendingRequests()
    for _ in range(REQUESTS_MAX):
        one.add(UnsubscribePacket(one.next_id(), ("a",)))
    assert one.remaining == 0
    with pytest.raises(ValueError, match="536 requests are pending"):
        one.next_id()


def test_response_matches_its_request_once():
    one = PendingRequests()
    request = SubscribePacket(one.next_id(), TWO)
    one.add(request)
    assert one.match_response(SubAckPacket(65_000, b"\0\x80")) == request
    with pytest.raises(BrokerMisbehaved, match="SUBACK: no pending request has packet id 65000"):
        one.match_response(SubAckPacket(65_000, b"\0\x80"))


@pytest.mark.parametrize("answer", [SubAckPacket(65_000, b"\0"), SubAckPacket(65_000, b"\0\0\0")])
def test_every_filter_needs_a_reason_code(answer):
    one = PendingRequests()
    one.add(SubscribePacket(one.next_id(), TWO))
    with pytest.raises(BrokerMisbehaved, match="reason codes for 2 filters"):
        one.match_response(answer)


def test_unsuback_does_not_match_subscribe():
    one = PendingRequests()
    one.add(SubscribePacket(one.next_id(), TWO))
    with pytest.raises(BrokerMisbehaved, match="UNSUBACK: no pending request has packet id 65000"):
        one.match_response(UnsubAckPacket(65_000, b"\0\0"))
