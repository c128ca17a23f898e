"""SUBSCRIBE and UNSUBSCRIBE: ids of their own, and answers that must fit."""

import pytest

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.packets import (
    SubAckPacket,
    SubscribePacket,
    Subscription,
    UnsubAckPacket,
    UnsubscribePacket,
)
from hansa.mqtt.requests import REQUEST_IDS_MIN, REQUESTS_MAX, PendingRequests

TWO = (Subscription("a"), Subscription("b"))


def test_ids_go_round_and_skip_those_that_wait():
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


def test_there_is_a_last_one():
    one = PendingRequests()
    for _ in range(REQUESTS_MAX):
        one.add(UnsubscribePacket(one.next_id(), ("a",)))
    assert one.remaining == 0
    with pytest.raises(ValueError, match="536 requests wait"):
        one.next_id()


def test_answer_gives_the_request_once():
    one = PendingRequests()
    request = SubscribePacket(one.next_id(), TWO)
    one.add(request)
    assert one.match_response(SubAckPacket(65_000, b"\0\x80")) == request
    with pytest.raises(BrokerMisbehaved, match="SubAck: an answer to request 65000, which was not"):
        one.match_response(SubAckPacket(65_000, b"\0\x80"))


@pytest.mark.parametrize("answer", [SubAckPacket(65_000, b"\0"), SubAckPacket(65_000, b"\0\0\0")])
def test_every_filter_has_its_code(answer):
    one = PendingRequests()
    one.add(SubscribePacket(one.next_id(), TWO))
    with pytest.raises(BrokerMisbehaved, match="reason codes for 2 filters"):
        one.match_response(answer)


def test_unsuback_does_not_answer_subscribe():
    one = PendingRequests()
    one.add(SubscribePacket(one.next_id(), TWO))
    with pytest.raises(BrokerMisbehaved, match="UnsubAck: an answer to request 65000"):
        one.match_response(UnsubAckPacket(65_000, b"\0\0"))
