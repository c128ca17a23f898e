"""Between CONNACK and the end: handshakes in both directions, quotas, subscriptions, limits."""

import pytest
from tests.mqtt.peers import established

from hansa.mqtt import packets
from hansa.mqtt.effects import (
    Close,
    HandshakePacketsReceived,
    InputIgnored,
    OversizedPublishReceived,
    ProtocolViolation,
    PublishNotSent,
    PublishReceived,
    ReceiveMaximumExceeded,
    Subscribed,
    Unsubscribed,
)
from hansa.mqtt.established import KeepAliveTimer
from hansa.mqtt.in_flight import REQUESTS_MAX
from hansa.mqtt.inputs import Publish, SendHandshakePackets, Subscribe, Unsubscribe
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PubRecPacket,
    PubRelPacket,
    SubAckPacket,
    Subscription,
    UnsubAckPacket,
)
from hansa.mqtt.packets import PublishPacket as Message
from hansa.mqtt.properties import Property as P
from hansa.mqtt.types import Version

V4, V5 = Version.V311, Version.V5
both_versions = pytest.mark.parametrize("version", Version)


def message(qos: int = 0, packet_id: int = 0, **changed) -> Message:
    return Message("a", b"x", qos, packet_id=packet_id, **changed)


def violated(reason: int, text: str) -> list[object]:
    return [ProtocolViolation(reason, text), packets.DisconnectPacket(reason), Close()]


# ---------------------------------------------------------------- from the broker


@both_versions
def test_nothing_is_acknowledged_without_command(version):
    peer = established(version)
    batch = [message(), message(1, 1), message(2, 2)]
    assert peer.receive(*batch) == [PublishReceived(batch)]


@both_versions
def test_qos_1_arrives(version):
    peer = established(version)
    peer.receive(message(1, 7), message(1, 8))
    assert peer.do(SendHandshakePackets([PubAckPacket(7), PubAckPacket(8)])) == [
        PubAckPacket(7),
        PubAckPacket(8),
    ]


@both_versions
def test_qos_2_arrives(version):
    peer = established(version)
    peer.receive(message(2, 7))
    assert peer.do(SendHandshakePackets([PubRecPacket(7)])) == [PubRecPacket(7)]
    assert peer.receive(PubRelPacket(7)) == [HandshakePacketsReceived([PubRelPacket(7)])]
    assert peer.do(SendHandshakePackets([PubCompPacket(7)])) == [PubCompPacket(7)]
    assert peer.receive(message(2, 7)) == [PublishReceived([message(2, 7)])]


def test_puback_can_carry_a_refusal():
    peer = established()
    peer.receive(message(2, 7))
    assert peer.do(SendHandshakePackets([PubRecPacket(7, 0x97)])) == [PubRecPacket(7, 0x97)]
    assert peer.receive(message(2, 7)) == [PublishReceived([message(2, 7)])]


@both_versions
def test_unacknowledged_publication_that_is_resent_is_ignored(version):
    """MQTT 5 forbids it, but brokers with a retry interval do it."""
    peer = established(version)
    peer.receive(message(2, 7))
    again = message(2, 7, dup=True)
    other = message(1, 8)
    assert peer.receive(again, other) == [
        InputIgnored("PUBLISH 7 was resent before it was acknowledged"),
        PublishReceived([other]),
    ]


def test_packet_id_in_flight_must_not_be_reused():
    peer = established()
    peer.receive(message(1, 7))
    text = "PUBLISH: packet id 7 is still in flight"
    assert peer.receive(message(), message(1, 7)) == [
        PublishReceived([message()]),
        *violated(0x82, text),
    ]


def test_exceeded_receive_maximum_is_reported_once():
    peer = established(receive_maximum=2)
    batch = [message(1, packet_id) for packet_id in (1, 2, 3, 4)]
    assert peer.receive(*batch) == [ReceiveMaximumExceeded(2), PublishReceived(batch)]
    assert peer.receive(message(1, 5)) == [PublishReceived([message(1, 5)])]


def test_unacknowledged_publications_are_bounded_by_packet_ids():
    peer = established(V4)
    peer.receive(*(message(2, packet_id) for packet_id in range(1, 65_536)))
    text = "PUBLISH: packet id 1 is still in flight"
    assert peer.receive(message(2, 1)) == [ProtocolViolation(0x82, text), Close()]


@pytest.mark.parametrize("release", [[PubAckPacket(1)], [PubRecPacket(2, 0x80)]])
def test_acknowledgement_frees_receive_maximum(release):
    peer = established(receive_maximum=2)
    peer.receive(message(1, 1), message(2, 2))
    peer.do(SendHandshakePackets(release))
    assert peer.receive(message(1, 3)) == [PublishReceived([message(1, 3)])]


def test_qos_2_frees_receive_maximum_at_pubcomp():
    peer = established(receive_maximum=1)
    peer.receive(message(2, 1))
    peer.do(SendHandshakePackets([PubRecPacket(1)]))
    peer.receive(PubRelPacket(1))
    peer.do(SendHandshakePackets([PubCompPacket(1)]))
    assert peer.receive(message(2, 2)) == [PublishReceived([message(2, 2)])]


def test_releases_of_earlier_connections_do_not_count():
    peer = established(receive_maximum=1, present=True)
    assert peer.receive(PubRelPacket(5), PubRelPacket(6)) == [
        HandshakePacketsReceived([PubRelPacket(5), PubRelPacket(6)])
    ]
    assert peer.receive(message(2, 1)) == [PublishReceived([message(2, 1)])]
    assert peer.do(SendHandshakePackets([PubCompPacket(5), PubCompPacket(6)])) == [
        PubCompPacket(5),
        PubCompPacket(6),
    ]


def test_repeated_pubrel_is_ignored():
    peer = established()
    peer.receive(PubRelPacket(5))
    assert peer.receive(PubRelPacket(5)) == [InputIgnored("1 PUBREL unexpected, first packet id 5")]


@pytest.mark.parametrize("qos", [1, 2])
def test_pubrel_without_our_pubrec_is_a_violation(qos):
    peer = established()
    peer.receive(message(qos, 7))
    assert peer.receive(PubRelPacket(6), PubRelPacket(7)) == [
        HandshakePacketsReceived([PubRelPacket(6)]),
        *violated(0x82, "PUBREL: packet id 7 was not acknowledged with PUBREC"),
    ]


@pytest.mark.parametrize(
    "answer",
    [PubAckPacket(8), PubRecPacket(7), PubCompPacket(7), PubAckPacket(0)],
    ids=lambda answer: repr(answer)[:14],
)
def test_wrong_handshake_packet_is_an_error_of_the_caller(answer):
    peer = established()
    peer.receive(message(1, 7))
    with pytest.raises(ValueError, match="not the next step of a handshake"):
        peer.do(SendHandshakePackets([answer]))


def test_oversized_publication_awaits_acknowledgement():
    peer = established(V4, packet_bytes_max=256)
    large = Message("a", bytes(300), 1, packet_id=7)
    expected = OversizedPublishReceived(packets.OversizedPublish("a", 1, False, 7, 308))
    assert peer.receive(large) == [expected]
    again = Message("a", bytes(300), 1, dup=True, packet_id=7)
    assert peer.receive(again) == [InputIgnored("PUBLISH 7 was resent before it was acknowledged")]
    assert peer.do(SendHandshakePackets([PubAckPacket(7)])) == [PubAckPacket(7)]
    expected = OversizedPublishReceived(packets.OversizedPublish("a", 0, False, 0, 306))
    assert peer.receive(Message("a", bytes(300))) == [expected]


# ---------------------------------------------------------------- to the broker


@both_versions
def test_publishes_with_given_packet_ids(version):
    peer = established(version)
    batch = [message(), message(1, 64_999), message(2, 1, dup=True)]
    assert peer.do(Publish(batch)) == batch


@both_versions
def test_qos_1_is_published(version):
    peer = established(version)
    peer.do(Publish([message(1, 7), message(1, 8)]))
    assert peer.receive(PubAckPacket(7), PubAckPacket(8)) == [
        HandshakePacketsReceived([PubAckPacket(7), PubAckPacket(8)])
    ]
    assert peer.do(Publish([message(1, 7)])) == [message(1, 7)]


@both_versions
def test_qos_2_is_released_only_on_command(version):
    peer = established(version)
    peer.do(Publish([message(2, 7)]))
    assert peer.receive(PubRecPacket(7)) == [HandshakePacketsReceived([PubRecPacket(7)])]
    assert peer.do(SendHandshakePackets([PubRelPacket(7)])) == [PubRelPacket(7)]
    assert peer.receive(PubCompPacket(7)) == [HandshakePacketsReceived([PubCompPacket(7)])]


@both_versions
def test_release_of_an_earlier_connection(version):
    """The record is on disk, so PUBREL alone: never PUBLISH again."""
    peer = established(version, present=True)
    quota = peer.session.quota
    assert peer.do(SendHandshakePackets([PubRelPacket(7)])) == [PubRelPacket(7)]
    assert peer.session.quota == quota
    with pytest.raises(ValueError, match="still in flight"):
        peer.do(Publish([message(2, 7)]))
    assert peer.receive(PubCompPacket(7)) == [HandshakePacketsReceived([PubCompPacket(7)])]
    assert peer.session.quota == quota


@pytest.mark.parametrize("refusal", [PubAckPacket(7, 0x97), PubRecPacket(7, 0x87)])
def test_refused_publication_ends_its_handshake(refusal):
    peer = established(granted=((P.RECEIVE_MAXIMUM, 1),))
    peer.do(Publish([message(1 if type(refusal) is PubAckPacket else 2, 7)]))
    assert peer.session.quota == 0
    assert peer.receive(refusal) == [HandshakePacketsReceived([refusal])]
    assert (refusal.is_refused, peer.session.quota) == (True, 1)


def test_packet_id_of_earlier_connection_can_be_released():
    peer = established(present=True)
    peer.do(Publish([message(2, 7)]))
    peer.receive(PubRecPacket(7, 0x91))
    assert peer.do(SendHandshakePackets([PubRelPacket(7)])) == [PubRelPacket(7)]
    assert peer.receive(PubCompPacket(7)) == [HandshakePacketsReceived([PubCompPacket(7)])]


def test_pubcomp_not_found_ends_the_handshake():
    peer = established(present=True)
    peer.do(SendHandshakePackets([PubRelPacket(7)]))
    assert peer.receive(PubCompPacket(7, 0x92)) == [
        HandshakePacketsReceived([PubCompPacket(7, 0x92)])
    ]


def test_quota_is_the_brokers_receive_maximum():
    peer = established(granted=((P.RECEIVE_MAXIMUM, 2),))
    peer.do(Publish([message(1, 1), message(2, 2), message()]))
    assert peer.session.quota == 0
    with pytest.raises(ValueError, match="1 publications exceed the quota of 0"):
        peer.do(Publish([message(1, 3)]))
    assert peer.do(Publish([message()])) == [message()]
    peer.receive(PubAckPacket(1), PubRecPacket(2))
    assert peer.session.quota == 1
    peer.do(SendHandshakePackets([PubRelPacket(2)]))
    peer.receive(PubCompPacket(2))
    assert peer.session.quota == 2


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ([message(1, 0)], "packet ids 0 to 0, not 1 to 64999"),
        ([message(1, 65_000)], "packet ids 65000 to 65000, not 1 to 64999"),
        ([message(1, 5), message(2, 5)], "still in flight"),
        ([message(1, 7)], "still in flight"),
    ],
)
def test_packet_ids_must_be_free(batch, text):
    peer = established()
    peer.do(Publish([message(2, 7)]))
    with pytest.raises(ValueError, match=text):
        peer.do(Publish(batch))


@pytest.mark.parametrize("packet_id", [7, 65_000])
def test_early_pubrel_is_an_error_of_the_caller(packet_id):
    peer = established()
    peer.do(Publish([message(2, 7)]))
    with pytest.raises(ValueError, match="not the next step"):
        peer.do(SendHandshakePackets([PubRelPacket(packet_id)]))


def test_unexpected_acknowledgement_is_ignored():
    assert established().receive(PubAckPacket(9), PubAckPacket(8), PubRecPacket(9)) == [
        InputIgnored("2 PUBACK unexpected, first packet id 9"),
        InputIgnored("1 PUBREC unexpected, first packet id 9"),
    ]


@pytest.mark.parametrize("answer", [PubAckPacket(7), PubCompPacket(7)])
def test_acknowledgement_of_another_type_is_a_violation(answer):
    peer = established()
    peer.do(Publish([message(2, 7)]))
    text = f"{packets.packet_name(type(answer))}: not the next step of packet id 7"
    assert peer.receive(answer) == violated(0x82, text)


def test_unsupported_publications_are_reported_and_the_rest_sent():
    granted = ((P.MAXIMUM_QOS, 1), (P.RETAIN_AVAILABLE, 0), (P.MAXIMUM_PACKET_SIZE, 100))
    peer = established(granted=granted)
    exact, kept = message(2, 1), message(retain=True)
    large, wrong = Message("a", bytes(100), 1, packet_id=2), Message("#", b"")
    odd, fine = message(-1, 4), message(1, 3)
    plain = ("a", b"plain")
    assert peer.do(Publish([exact, kept, large, wrong, odd, fine, plain])) == [
        PublishNotSent((exact,), "QoS 2, the broker's limit is 1"),
        PublishNotSent((kept,), "retained, which the broker does not support"),
        PublishNotSent((large,), "larger than the broker takes"),
        PublishNotSent((wrong,), "no topic name"),
        PublishNotSent((odd,), "no QoS, or sent again without one"),
        fine,
        Message(*plain),
    ]
    assert peer.session.quota == 65_534


def test_nothing_is_written_for_an_empty_batch():
    assert established().do(Publish([])) == []


# ---------------------------------------------------------------- subscribing

FENCED = Subscription("a/#", 2, no_local=True, retain_as_published=True, retain_handling=2)


def test_subscribe_reports_granted_qos():
    peer = established()
    subscriptions = (FENCED, Subscription("b", 1))
    properties = ((P.SUBSCRIPTION_IDENTIFIER, 5),)
    sent = packets.SubscribePacket(65_000, subscriptions, properties)
    assert peer.do(Subscribe(subscriptions, identifier=5)) == [sent]
    answer = SubAckPacket(65_000, b"\x02\x87", ((P.REASON_STRING, "not b"),))
    assert peer.receive(answer) == [Subscribed(subscriptions, b"\x02\x87", 5, "not b")]


@both_versions
def test_unsubscribes(version):
    peer = established(version)
    assert peer.do(Unsubscribe(("a", "b"))) == [packets.UnsubscribePacket(65_000, ("a", "b"))]
    reasons = b"\x00\x11" if version is V5 else b"\x00\x00"
    answer = UnsubAckPacket(65_000, reasons if version is V5 else b"")
    assert peer.receive(answer) == [Unsubscribed(("a", "b"), reasons)]


def test_responses_may_arrive_in_any_order():
    peer = established(V4)
    one, two = (Subscription("a"),), (Subscription("b"),)
    peer.do(Subscribe(one))
    peer.do(Subscribe(two))
    assert peer.receive(message(), SubAckPacket(65_001, b"\0"), SubAckPacket(65_000, b"\0")) == [
        PublishReceived([message()]),
        Subscribed(two, b"\0"),
        Subscribed(one, b"\0"),
    ]


def test_pending_requests_are_bounded():
    peer = established()
    for _ in range(REQUESTS_MAX):
        peer.do(Unsubscribe(("a",)))
    assert peer.session.request_quota == 0
    with pytest.raises(ValueError, match="536 requests are pending"):
        peer.do(Unsubscribe(("a",)))


def test_oversized_request_is_reported_as_refused():
    peer = established(granted=((P.MAXIMUM_PACKET_SIZE, 100),))
    subscriptions = (Subscription("a" * 60), Subscription("b" * 60))
    text = "a packet of 132 bytes, the limit is 100"
    assert peer.do(Subscribe(subscriptions)) == [Subscribed(subscriptions, b"\x95\x95", None, text)]
    filters = ("a" * 100,)
    text = "a packet of 107 bytes, the limit is 100"
    assert peer.do(Unsubscribe(filters)) == [Unsubscribed(filters, b"\x95", text)]
    assert peer.session.request_quota == REQUESTS_MAX


def test_subscription_identifier_needs_broker_support():
    peer = established(granted=((P.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 0),))
    with pytest.raises(ValueError, match="which this broker does not support"):
        peer.do(Subscribe((FENCED,), identifier=1))


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("90 04 fde8 00 00", 0x82, "SUBACK: no pending request has packet id 65000"),
        ("90 03 fde8 00", 0x81, "SUBACK: no reason codes, expected one per filter"),
        ("f0 00", 0x82, "AUTH: unexpected packet"),
        ("20 03 00 00 00", 0x82, "CONNACK: unexpected packet"),
    ],
)
def test_unexpected_packets_are_violations(text, reason, message):
    assert established().raw(text) == violated(reason, message)


# ---------------------------------------------------------------- keep alive


def test_ping_is_due_after_half_the_keep_alive():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    assert one.next_deadline() == 110.0
    assert not one.is_ping_due(109.9)
    assert one.is_ping_due(110.0)


def test_ping_is_due_if_only_we_send():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    one.on_sent(109.0)
    assert one.is_ping_due(110.0)


def test_ping_is_due_if_only_the_broker_sends():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    one.on_received(109.0)
    assert one.is_ping_due(110.0)


def test_timeout_counts_from_the_last_received_packet():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    one.on_ping_sent(110.0)
    assert (one.is_ping_due(114.9), one.has_timed_out(114.9), one.next_deadline()) == (
        False,
        False,
        115.0,
    )
    one.on_received(114.0)
    assert (one.has_timed_out(115.0), one.next_deadline()) == (False, 119.0)
    assert one.has_timed_out(119.0)


def test_ping_repeats_without_pingresp():
    one = KeepAliveTimer(20, timeout=50.0, now=100.0)
    one.on_ping_sent(110.0)
    one.on_received(119.0)
    assert one.is_ping_due(120.0)
    one.on_ping_sent(120.0)
    assert one.on_ping_response(121.0) == 11.0


def test_round_trip_is_reported_once():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    one.on_ping_sent(110.0)
    one.on_received(110.25)
    assert one.on_ping_response(110.25) == 0.25
    assert one.on_ping_response(110.5) is None
    assert (one.has_timed_out(1_000.0), one.next_deadline()) == (False, 120.0)


def test_keep_alive_of_zero_has_no_deadline():
    one = KeepAliveTimer(0, timeout=5.0, now=100.0)
    assert (one.next_deadline(), one.is_ping_due(1e9), one.has_timed_out(1e9)) == (
        None,
        False,
        False,
    )
    one.on_ping_sent(110.0)
    assert (one.next_deadline(), one.has_timed_out(115.0)) == (115.0, True)
