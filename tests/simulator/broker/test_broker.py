"""Behaviour of the model broker that depends on time or cannot be compared with a real one."""

from hansa.mqtt import packets
from hansa.mqtt.packets import ConnectPacket, PublishPacket, Subscription
from hansa.mqtt.properties import Property, encode_properties
from hansa.mqtt.types import Version
from hansa.simulator.broker import (
    CloseConnection,
    MosquittoModel,
    MosquittoSettings,
    MosquittoVersion,
    Restart,
    SendToClient,
)

NEVER = 0xFFFFFFFF


def connect(
    broker: MosquittoModel,
    client_id: str,
    connection_id: int,
    now: float = 0.0,
    expiry_s: int = NEVER,
) -> bool:
    """Connect without clean start; return whether the session is present."""
    properties = ((Property.SESSION_EXPIRY_INTERVAL, expiry_s),)
    packet = ConnectPacket(client_id, clean_start=False, properties=properties)
    first = broker.receive(connection_id, packet, now)[0]
    assert isinstance(first, SendToClient)
    assert isinstance(first.packet, packets.ConnAckPacket)
    return first.packet.session_present


def subscribe(broker: MosquittoModel, connection_id: int, topic_filter: str, qos: int = 2) -> None:
    packet = packets.SubscribePacket(1, (Subscription(topic_filter, qos),))
    broker.receive(connection_id, packet, 0.0)


def test_session_expires_after_its_interval():
    broker = MosquittoModel()
    connect(broker, "a", 1, 10.0, expiry_s=5)
    broker.disconnected(1, 10.5)
    assert connect(broker, "a", 2, 15.9, expiry_s=5)
    broker.disconnected(2, 20.0)
    assert not connect(broker, "a", 3, 26.0)


def test_session_expiry_ends_subscriptions():
    broker = MosquittoModel()
    connect(broker, "a", 1, expiry_s=5)
    subscribe(broker, 1, "t")
    broker.disconnected(1, 0.0)
    publish = PublishPacket("t", b"", 1, packet_id=1)
    connect(broker, "b", 2)
    assert broker.receive(2, publish, 5.0) == [SendToClient(2, packets.PubAckPacket(1))]
    assert broker.receive(2, publish, 6.0) == [SendToClient(2, packets.PubAckPacket(1, 0x10))]


def test_message_expiry_counts_down_and_ends():
    broker = MosquittoModel()
    connect(broker, "a", 1)
    subscribe(broker, 1, "t")
    broker.disconnected(1, 0.0)
    connect(broker, "b", 2)
    for packet_id, interval in ((1, 10), (2, 100)):
        expiry = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, interval),))
        broker.receive(2, PublishPacket("t", b"x", 1, packet_id=packet_id, properties=expiry), 0.0)
    session = ConnectPacket("a", clean_start=False)
    left = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, 80),))
    assert broker.receive(3, session, 20.0)[1:] == [
        SendToClient(3, PublishPacket("t", b"x", 1, packet_id=2, properties=left))
    ]


def test_killed_broker_has_the_state_of_the_last_autosave():
    broker = MosquittoModel(MosquittoSettings(autosave_interval=60))
    connect(broker, "a", 1, 0.0)
    broker.advance(61.0)
    connect(broker, "b", 2, 62.0)
    assert broker.restart(Restart.KILLED, 63.0) == [
        CloseConnection(1, "broker killed"),
        CloseConnection(2, "broker killed"),
    ]
    assert connect(broker, "a", 3, 64.0)
    assert not connect(broker, "b", 4, 64.0)


def test_stopped_broker_keeps_everything_and_an_erased_one_nothing():
    broker = MosquittoModel()
    connect(broker, "a", 1)
    broker.restart(Restart.STOPPED, 1.0)
    assert connect(broker, "a", 2, 2.0)
    broker.restart(Restart.ERASED, 3.0)
    assert not connect(broker, "a", 3, 4.0)


def test_broker_without_persistence_keeps_nothing():
    broker = MosquittoModel(MosquittoSettings(is_persistent=False))
    connect(broker, "a", 1)
    broker.restart(Restart.STOPPED, 1.0)
    assert not connect(broker, "a", 2, 2.0)


def test_dropped_publications_are_counted():
    broker = MosquittoModel(MosquittoSettings(max_queued_messages=2))
    connect(broker, "a", 1)
    subscribe(broker, 1, "t")
    broker.disconnected(1, 0.0)
    connect(broker, "b", 2)
    for packet_id in range(1, 6):
        broker.receive(2, PublishPacket("t", b"", 1, packet_id=packet_id), 0.0)
    assert broker.dropped_count == 3


def test_client_without_id_gets_one():
    broker = MosquittoModel()
    first, second = (
        broker.receive(connection_id, ConnectPacket(""), 0.0)[0] for connection_id in (1, 2)
    )
    assert isinstance(first, SendToClient)
    assert first != second
    refused = ConnectPacket("", Version.V311, clean_start=False)
    assert broker.receive(3, refused, 0.0) == [
        SendToClient(3, packets.ConnAckPacket(reason=2)),
        CloseConnection(3, "no client identifier"),
    ]


def test_packets_of_unknown_connections_are_ignored():
    broker = MosquittoModel()
    assert broker.receive(1, packets.PingReqPacket(), 0.0) == []
    assert broker.disconnected(1, 0.0) == []


def test_restored_session_expires_in_2_1_but_not_in_2_0():
    for version, is_present in ((MosquittoVersion.V2_0, True), (MosquittoVersion.V2_1, False)):
        broker = MosquittoModel(MosquittoSettings(version))
        connect(broker, "a", 1, expiry_s=5)
        broker.restart(Restart.STOPPED, 1.0)
        assert connect(broker, "a", 2, 7.0) is is_present
