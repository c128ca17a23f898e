"""Our client with a real broker: both versions, all QoS levels, chosen packet ids and
acknowledgements.

The client blocks on a plain socket; a missing response ends in the timeout of the socket.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.mqtt.mosquitto import Broker, Client

from hansa.mqtt import inputs
from hansa.mqtt.effects import (
    Connected,
    Disconnected,
    HandshakePacketsReceived,
    OversizedPublishReceived,
    PublishReceived,
    Subscribed,
    Unsubscribed,
)
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
    Subscription,
)
from hansa.mqtt.properties import Property as P
from hansa.mqtt.properties import encode_properties
from hansa.mqtt.types import Version

V4, V5 = Version.V311, Version.V5
both_versions = pytest.mark.parametrize("version", Version)


@pytest.fixture(scope="module")
def running(mosquitto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory: Path = tmp_path_factory.mktemp("mosquitto")
    one = Broker(mosquitto, directory, "max_inflight_messages 100", "max_queued_messages 10000")
    yield one
    one.close()


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    yield running
    running.close_all()


def connect(broker: Broker, name: str, version: Version = V5, **changed) -> tuple[Client, bool]:
    given = {"clean_start": True, **changed}
    client = Client(broker, ConnectOptions(client_id=name, version=version, **given))
    return client, client.wait(Connected).session_present


def subscribe(client: Client, *subscriptions: Subscription, identifier: int | None = None) -> bytes:
    client.do(inputs.Subscribe(subscriptions, identifier))
    return client.wait(Subscribed).reasons


def publish(client: Client, *batch: PublishPacket) -> None:
    """Publish and complete every handshake."""
    client.do(inputs.Publish(batch))
    open_ids = {each.packet_id for each in batch if each.qos}
    while open_ids:
        for step in client.wait(HandshakePacketsReceived).batch:
            if isinstance(step, PubRecPacket):
                client.do(inputs.SendHandshakePackets([PubRelPacket(step.packet_id)]))
            else:
                open_ids.remove(step.packet_id)


def receive(client: Client, count: int) -> list[PublishPacket]:
    """Wait for this many publications, without acknowledging."""
    found: list[PublishPacket] = []
    while len(found) < count:
        found += client.wait(PublishReceived).batch
    return found


def test_limits_are_reported(broker):
    client = Client(broker, ConnectOptions(client_id="limits", keep_alive=11, clean_start=True))
    limits = client.wait(Connected).broker_limits
    assert (limits.receive_maximum, limits.keep_alive, limits.qos_max) == (100, 11, 2)
    client.do(inputs.Disconnect())


@both_versions
def test_publications_of_all_qos_levels_reach_another_client(broker, version):
    topic = f"all/{version}"
    sender, _ = connect(broker, f"all-out-{version}", version)
    taker, _ = connect(broker, f"all-in-{version}", version)
    assert subscribe(taker, Subscription(f"{topic}/#", 2)) == b"\x02"

    sent = [
        PublishPacket(f"{topic}/{qos}", b"x" * size, qos, packet_id=64_000 + qos if qos else 0)
        for qos, size in ((0, 0), (1, 200), (2, 70_000))
    ]
    publish(sender, *sent)

    got = receive(taker, 3)
    assert [(each.topic, each.payload, each.qos) for each in got] == [
        (each.topic, each.payload, each.qos) for each in sent
    ]
    one, two = got[1].packet_id, got[2].packet_id
    taker.do(inputs.SendHandshakePackets([PubAckPacket(one), PubRecPacket(two)]))
    assert taker.wait(HandshakePacketsReceived).batch == [PubRelPacket(two)]
    taker.do(inputs.SendHandshakePackets([PubCompPacket(two)]))
    for client in (sender, taker):
        client.do(inputs.Disconnect())


def test_no_local_and_subscription_identifiers(broker):
    taker, _ = connect(broker, "ids-in")
    sender, _ = connect(broker, "ids-out")
    wide = Subscription("ids/#", 1, no_local=True, retain_as_published=True, retain_handling=2)
    narrow = Subscription("ids/a", 1, no_local=True)
    assert subscribe(taker, wide, identifier=300) == b"\x01"
    assert subscribe(taker, narrow, identifier=7) == b"\x01"

    taker.do(inputs.Publish([PublishPacket("ids/a", b"own")]))
    raw = encode_properties(
        (
            (P.CONTENT_TYPE, "text/plain"),
            (P.RESPONSE_TOPIC, "ids/answers"),
            (P.CORRELATION_DATA, b"\x00\x01"),
            (P.USER_PROPERTY, ("k", "v")),
            (P.USER_PROPERTY, ("k", "w")),
        )
    )
    sender.do(inputs.Publish([PublishPacket("ids/a", b"other", retain=True, properties=raw)]))
    copies = receive(taker, 2)
    assert sorted(copy.subscription_ids for copy in copies) == [(7,), (300,)]
    assert {copy.payload for copy in copies} == {b"other"}
    assert {copy.retain for copy in copies if copy.subscription_ids == (300,)} == {True}
    assert {copy.properties for copy in copies} == {raw}

    taker.do(inputs.Unsubscribe(("ids/a", "ids/never")))
    assert taker.wait(Unsubscribed).reasons == b"\x00\x11"
    sender.do(inputs.Publish([PublishPacket("ids/a", b"", retain=True)]))


def test_bridge_bit_suppresses_own_publications_in_311(broker):
    client, _ = connect(broker, "bridge", V4, bridge=True)
    other, _ = connect(broker, "bridge-other", V4)
    subscribe(client, Subscription("bridge", 0))
    client.do(inputs.Publish([PublishPacket("bridge", b"own")]))
    client.do(inputs.Ping())
    other.do(inputs.Publish([PublishPacket("bridge", b"other")]))
    assert receive(client, 1) == [PublishPacket("bridge", b"other")]


@both_versions
def test_resumed_session_redelivers_unacknowledged_publications(broker, version):
    lasting = {"clean_start": False, "session_expiry": 300 if version is V5 else 0}
    name = f"resume-{version}"
    topic = f"resume/{version}"
    taker, present = connect(broker, name, version, **lasting)
    assert not present
    subscribe(taker, Subscription(topic, 2))
    sender, _ = connect(broker, f"{name}-out", version)
    publish(
        sender, *(PublishPacket(topic, b"%d" % n, 1 + n // 3, packet_id=n) for n in (1, 2, 3, 4))
    )
    before = receive(taker, 4)
    ids = [each.packet_id for each in before]
    taker.do(inputs.SendHandshakePackets([PubAckPacket(ids[0]), PubRecPacket(ids[2])]))
    assert taker.wait(HandshakePacketsReceived).batch == [PubRelPacket(ids[2])]
    taker.drop()

    taker, present = connect(broker, name, version, **lasting)
    assert present
    again: list[object] = [*receive(taker, 2), *taker.wait(HandshakePacketsReceived).batch]
    assert again == [
        PublishPacket(topic, b"2", 1, dup=True, packet_id=ids[1]),
        PublishPacket(topic, b"4", 2, dup=True, packet_id=ids[3]),
        PubRelPacket(ids[2]),
    ]
    taker.do(
        inputs.SendHandshakePackets(
            [PubAckPacket(ids[1]), PubRecPacket(ids[3]), PubCompPacket(ids[2])]
        )
    )
    assert taker.wait(HandshakePacketsReceived).batch == [PubRelPacket(ids[3])]
    taker.do(inputs.SendHandshakePackets([PubCompPacket(ids[3])]))
    taker.do(inputs.Disconnect())


def test_backlog_beyond_receive_maximum_arrives_after_resumption(broker):
    """Mosquitto 2.0.11 then sends as many again for every acknowledged redelivery."""
    lasting: dict[str, Any] = {"session_expiry": 300, "receive_maximum": 5, "clean_start": False}
    taker, _ = connect(broker, "window", **lasting)
    subscribe(taker, Subscription("window", 1))
    sender, _ = connect(broker, "window-out")
    publish(sender, *(PublishPacket("window", b"%d" % n, 1, packet_id=n) for n in range(1, 21)))
    first = receive(taker, 5)
    taker.drop()
    taker, _ = connect(broker, "window", **lasting)
    again: list[PublishPacket] = []
    while len(again) < 20:
        batch = taker.wait(PublishReceived).batch
        taker.do(inputs.SendHandshakePackets([PubAckPacket(each.packet_id) for each in batch]))
        again += batch
    assert [each.payload for each in first] == [b"1", b"2", b"3", b"4", b"5"]
    assert [int(each.payload) for each in again] == [*range(1, 21)]
    assert [each.dup for each in again] == [True] * 5 + [False] * 15


@both_versions
def test_injection_survives_a_crash_on_either_side_of_its_record(broker, version):
    """With a record of PUBREC only PUBREL is resent, without one PUBLISH: one copy each."""
    lasting = {"clean_start": False, "session_expiry": 300 if version is V5 else 0}
    name, topic = f"inject-{version}", f"inject/{version}"
    taker, _ = connect(broker, f"{name}-in", version)
    subscribe(taker, Subscription(topic, 0))
    sender, _ = connect(broker, name, version, **lasting)
    two = [PublishPacket(topic, b"%d" % n, 2, packet_id=n) for n in (1, 2)]
    sender.do(inputs.Publish(two))
    assert [*sender.wait(HandshakePacketsReceived).batch] in (
        [PubRecPacket(1)],
        [PubRecPacket(1), PubRecPacket(2)],
    )
    sender.do(inputs.SendHandshakePackets([PubRelPacket(1)]))
    sender.drop()

    sender, present = connect(broker, name, version, **lasting)
    assert present
    resent = PublishPacket(topic, b"2", 2, dup=True, packet_id=2)
    sender.do(inputs.SendHandshakePackets([PubRelPacket(1)]))
    sender.do(inputs.Publish([resent]))
    answers = [
        *sender.wait(HandshakePacketsReceived).batch,
        *sender.wait(HandshakePacketsReceived).batch,
    ]
    assert [type(each) for each in answers] == [PubCompPacket, PubRecPacket]
    sender.do(inputs.SendHandshakePackets([PubRelPacket(2)]))
    assert sender.wait(HandshakePacketsReceived).batch == [PubCompPacket(2)]
    sender.do(inputs.Publish([PublishPacket(topic, b"end")]))
    assert [each.payload for each in receive(taker, 3)] == [b"1", b"2", b"end"]


def test_takeover_is_reported(broker):
    old, _ = connect(broker, "twice")
    connect(broker, "twice")
    ending = old.wait(Disconnected)  # Mosquitto 2.0.11 does not say why, later ones do
    assert (ending.reason, ending.by_broker) in ((0x8E, True), (None, False))


def test_oversized_publication_is_dropped_in_5_and_sent_in_311(broker):
    takers = {
        version: connect(broker, f"large-{version}", version, packet_bytes_max=1_000)[0]
        for version in Version
    }
    for taker in takers.values():
        subscribe(taker, Subscription("large", 1))
    sender, _ = connect(broker, "large-out")
    sender.do(
        inputs.Publish([PublishPacket("large", bytes(2_000)), PublishPacket("large", b"small")])
    )
    for taker in takers.values():
        assert [each.payload for each in receive(taker, 1)] == [b"small"]
    assert takers[V4].wait(OversizedPublishReceived).publication.packet_bytes == 2_010
