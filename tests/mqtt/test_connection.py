"""One connection: start, end, and keep alive in between."""

import pytest
from tests.mqtt.peers import Peer, established, options

from hansa.mqtt import packets
from hansa.mqtt.connection import ClientConnection
from hansa.mqtt.effects import (
    Close,
    Connected,
    ConnectRefused,
    Disconnected,
    HandshakePacketsReceived,
    InputIgnored,
    PingRespReceived,
    ProtocolViolation,
    PublishNotSent,
    PublishReceived,
    Write,
)
from hansa.mqtt.inputs import (
    Closed,
    Disconnect,
    Input,
    Opened,
    Ping,
    Publish,
    Received,
    SendHandshakePackets,
    Subscribe,
    TimerFired,
)
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.options import NEVER_EXPIRES
from hansa.mqtt.packets import (
    ConnAckPacket,
    PubAckPacket,
    PubCompPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.mqtt.packets import PublishPacket as Message
from hansa.mqtt.properties import Property as P
from hansa.mqtt.types import Version

V4, V5 = Version.V311, Version.V5
both_versions = pytest.mark.parametrize("version", Version)


def limits(version: Version = V5, **changed) -> BrokerLimits:
    identifiers = {"subscription_ids_available": version is V5}
    expiry = 0 if version is V5 else NEVER_EXPIRES
    given = {"keep_alive": 30, "session_expiry": expiry, **identifiers, **changed}
    return BrokerLimits(version=version, client_id="me", **given)


# ---------------------------------------------------------------- the beginning


@both_versions
def test_connects(version):
    peer = Peer(options(version))
    assert peer.do(Opened()) == [options(version).make_connect_packet()]
    assert peer.receive(ConnAckPacket()) == [Connected(False, limits(version))]


@both_versions
def test_resumes_session_that_is_present(version):
    """Everything may arrive in one chunk with the CONNACK."""
    peer = Peer(options(version))
    peer.do(Opened())
    again = Message("a", b"x", 2, dup=True, packet_id=3)
    assert peer.receive(ConnAckPacket(session_present=True), again, PubRelPacket(7)) == [
        Connected(True, limits(version)),
        PublishReceived([again]),
        HandshakePacketsReceived([PubRelPacket(7)]),
    ]
    assert peer.do(SendHandshakePackets([PubRecPacket(3), PubCompPacket(7)])) == [
        PubRecPacket(3),
        PubCompPacket(7),
    ]


def test_applies_limits_of_the_broker():
    granted = ((P.RECEIVE_MAXIMUM, 20), (P.SERVER_KEEP_ALIVE, 5), (P.MAXIMUM_QOS, 1))
    peer = Peer(options())
    peer.do(Opened())
    assert peer.receive(ConnAckPacket(properties=granted)) == [
        Connected(False, limits(receive_maximum=20, keep_alive=5, qos_max=1))
    ]
    assert peer.session.quota == 20


REFUSALS = [  # version, bridge, bytes, expected
    (V5, False, "20 03 00 84 00", (0x84, "0x84 unsupported protocol version", True)),
    (V5, False, "20 02 00 01", (1, "0x01 unacceptable protocol version", True)),
    (V5, False, "20 02 00 05", (5, "0x05 not authorized", True)),
    (V5, False, "20 03 00 86 00", (0x86, "0x86 bad user name or password", False)),
    (V5, False, "20 07 00 87 04 1f0001 78", (0x87, "0x87 not authorized, 'x'", False)),
    (V5, False, "20 07 00 9d 04 1c0001 78", (0x9D, "0x9d server moved, 'x'", False)),
    (V4, False, "20 02 00 01", (1, "0x01 unacceptable protocol version", False)),
    (V4, False, "20 03 00 84 00", (0x84, "0x84 unsupported protocol version", False)),
    (V4, True, "20 02 00 01", (1, "0x01 unacceptable protocol version", True)),
    (V4, True, "20 03 00 84 00", (0x84, "0x84 unsupported protocol version", True)),
    (V4, True, "20 02 00 05", (5, "0x05 not authorized", False)),
]


@pytest.mark.parametrize(("version", "bridge", "text", "expected"), REFUSALS)
def test_connect_is_refused(version, bridge, text, expected):
    peer = Peer(options(version, bridge=bridge))
    peer.do(Opened())
    assert peer.raw(text) == [ConnectRefused(*expected), Close()]


@pytest.mark.parametrize(
    ("version", "bridge", "older"), [(V5, False, True), (V4, True, True), (V4, False, False)]
)
def test_close_without_connack_may_mean_unsupported_version(version, bridge, older):
    peer = Peer(options(version, bridge=bridge))
    peer.do(Opened())
    assert peer.do(Closed("reset")) == [ConnectRefused(None, "reset", older), Close()]


def test_missing_connack_times_out():
    peer = Peer(options(answer_timeout=4.0))
    peer.do(Opened())
    assert peer.session.next_deadline() == 4.0
    assert peer.wait(3.9) == []
    assert peer.wait(4.0) == [
        ConnectRefused(None, "no CONNACK within 4 seconds", True, True),
        Close(),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d0 00", "PINGRESP: expected exactly one CONNACK first"),
        ("20 03 00 00 00 20 03 00 00 00", "CONNACK: expected exactly one CONNACK first"),
        ("e0 00", "DISCONNECT: expected exactly one CONNACK first"),
        ("20 03 01 00 00", "CONNACK: session present, although clean start was requested"),
    ],
)
def test_first_packet_must_be_connack(text, message):
    peer = Peer(options(clean_start=True))
    peer.do(Opened())
    violation = ProtocolViolation(0x82, message)
    assert peer.raw(text) == [violation, packets.DisconnectPacket(0x82), Close()]


def test_peer_that_is_not_a_broker():
    peer = Peer(options())
    peer.do(Opened())
    text = "header 0x48: a packet that no broker sends in V5"
    assert peer.do(Received(b"HTTP/1.1 400 Bad Request\r\n")) == [
        ProtocolViolation(0x81, text),
        packets.DisconnectPacket(0x81),
        Close(),
    ]


# ---------------------------------------------------------------- the end


def test_disconnect_of_broker_is_reported_with_reason():
    peer = established()
    before = Message("a", b"last")
    moved = ((P.REASON_STRING, "by\nme"), (P.SERVER_REFERENCE, "b2"))
    assert peer.receive(
        before, packets.DisconnectPacket(0x8E, moved), Message("a", b"too late")
    ) == [
        PublishReceived([before]),
        Disconnected(0x8E, "0x8e session taken over, 'by\\nme', 'b2'", by_broker=True),
        Close(),
    ]


@both_versions
def test_lost_connection_is_reported(version):
    peer = established(version)
    assert peer.do(Closed("reset")) == [Disconnected(None, "reset", by_broker=False), Close()]
    assert (peer.session.quota, peer.session.request_quota) == (0, 0)


def test_disconnects_on_command():
    assert established().do(Disconnect()) == [
        Disconnected(0, "disconnected by request", by_broker=False),
        packets.DisconnectPacket(),
        Close(),
    ]


def test_disconnect_can_end_the_session():
    assert established(session_expiry=60).do(Disconnect(session_expiry=0)) == [
        Disconnected(0, "disconnected by request", by_broker=False),
        packets.DisconnectPacket(0, ((P.SESSION_EXPIRY_INTERVAL, 0),)),
        Close(),
    ]


def test_can_disconnect_before_connack():
    peer = Peer(options(V4))
    peer.do(Opened())
    assert peer.do(Disconnect())[1:] == [packets.DisconnectPacket(), Close()]


def test_violation_in_311_closes_without_disconnect_packet():
    assert established(V4).raw("00 00") == [
        ProtocolViolation(0x81, "header 0x00: a packet that no broker sends in V311"),
        Close(),
    ]


def test_packets_before_a_violation_are_handled():
    peer = established()
    first = Message("a", b"x", 1, packet_id=1)
    assert peer.raw("32 07 0001 61 0001 00 78 00 00")[0] == PublishReceived([first])


@pytest.mark.parametrize(
    "ending", [Closed(), Received(bytes.fromhex("0000")), Received(bytes.fromhex("e000"))]
)
def test_inputs_after_the_end_are_ignored(ending):
    peer = established()
    peer.do(ending)
    late: list[Input] = [Received(bytes.fromhex("d000")), Closed(), TimerFired()]
    assert [peer.do(event) for event in late] == [[], [], []]
    assert peer.session.next_deadline() is None


def test_late_acknowledgement_is_ignored():
    """The next connection may use this id for another publication."""
    peer = established()
    peer.receive(Message("a", b"x", 1, packet_id=7))
    peer.do(Closed("reset"))
    assert peer.do(SendHandshakePackets([PubAckPacket(7)])) == [
        InputIgnored("SendHandshakePackets: reset")
    ]


def test_late_publication_is_reported_as_not_sent():
    peer = established()
    peer.do(Closed("reset"))
    assert peer.do(Publish([Message("a", b"x")])) == [
        PublishNotSent([Message("a", b"x")], "reset", connection_ended=True)
    ]


# ---------------------------------------------------------------- time


def test_pings_and_reports_round_trip():
    peer = established(keep_alive=20)
    assert peer.session.next_deadline() == 10.0
    assert peer.wait(9.0) == []
    assert peer.wait(10.0) == [packets.PingReqPacket()]
    peer.now = 10.5
    assert peer.receive(packets.PingRespPacket()) == [PingRespReceived(0.5)]
    assert peer.session.next_deadline() == 20.0


def test_hung_broker_times_out():
    peer = established(keep_alive=20, answer_timeout=3.0)
    peer.wait(10.0)
    assert peer.session.next_deadline() == 13.0
    assert peer.wait(13.0) == [
        Disconnected(None, "no response for 3 seconds", by_broker=False),
        Close(),
    ]


def test_traffic_in_both_directions_postpones_ping():
    peer = established(keep_alive=20)
    peer.now = 8.0
    peer.do(Publish([Message("a", b"x")]))
    assert peer.session.next_deadline() == 10.0
    peer.receive(Message("a", b"x"))
    assert peer.session.next_deadline() == 18.0


def test_server_keep_alive_replaces_ours():
    peer = established(keep_alive=20, granted=((P.SERVER_KEEP_ALIVE, 4),))
    assert peer.session.next_deadline() == 2.0


def test_broker_without_keep_alive_is_still_pinged():
    peer = established(keep_alive=20, granted=((P.SERVER_KEEP_ALIVE, 0),))
    assert peer.session.next_deadline() == 10.0


def test_pings_on_command():
    peer = established(keep_alive=0)
    assert peer.session.next_deadline() is None
    assert peer.do(Ping()) == [packets.PingReqPacket()]
    peer.now = 0.25
    assert peer.receive(packets.PingRespPacket(), packets.PingRespPacket()) == [
        PingRespReceived(0.25),
        InputIgnored("unexpected PINGRESP"),
    ]


# ---------------------------------------------------------------- mistakes of the caller


@pytest.mark.parametrize("event", [Publish([]), SendHandshakePackets([]), Subscribe(()), Ping()])
def test_commands_before_connack_are_errors(event):
    peer = Peer(options())
    for _ in range(2):
        with pytest.raises(ValueError, match="in state _"):
            peer.do(event)
        if peer.session.next_deadline() is None:
            peer.do(Opened())


def test_connection_cannot_be_reopened():
    peer = established()
    with pytest.raises(ValueError, match="Opened on an established connection"):
        peer.do(Opened())
    peer.do(Closed())
    with pytest.raises(ValueError, match="Opened in state _ConnectionEnded"):
        peer.do(Opened())


def test_the_same_inputs_give_the_same_effects():
    def story() -> list[object]:
        session = ClientConnection(options())
        events: list[Input] = [
            Opened(),
            Received(bytes.fromhex("2003000000")),
            Ping(),
            Publish([Message("a", b"")]),
        ]
        return [session.handle(event, float(at)) for at, event in enumerate(events)]

    assert story() == story()
    assert isinstance(ClientConnection(options()).handle(Opened(), 0.0)[0], Write)
