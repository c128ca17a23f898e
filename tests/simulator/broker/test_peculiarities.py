"""The real broker shows the peculiarities of Mosquitto 2.0 that docs/simulator.md lists."""

from itertools import count

import pytest
from tests.simulator.broker.comparison import compare
from tests.simulator.broker.scripts import (
    Connect,
    Cut,
    FixedScript,
    RestartBroker,
    SendPacket,
    Step,
    Wait,
)

from hansa.mqtt import packets
from hansa.mqtt.packets import AnyPacket, ConnectPacket, PublishPacket, Subscription
from hansa.mqtt.properties import Properties, Property, encode_properties
from hansa.simulator.broker import MosquittoSettings, Restart

AGENT, CLIENT, AGENT_AGAIN = 1, 2, 3


@pytest.fixture
def play(mosquitto, tmp_path):
    """Play steps on the model and a real broker, and return what the agent received."""

    def run(settings: MosquittoSettings, *steps: Step) -> list[AnyPacket]:
        script = FixedScript(settings, *steps)
        compare((mosquitto,), tmp_path, script)
        return script.received[AGENT] + script.received.get(AGENT_AGAIN, [])

    return run


def connect(
    connection_id: int,
    receive_max: int = 100,
    clean_start: bool = False,
    expiry_s: int = 1_000_000,
) -> Connect:
    properties: Properties = (
        (Property.SESSION_EXPIRY_INTERVAL, expiry_s),
        (Property.RECEIVE_MAXIMUM, receive_max),
    )
    client_id = "client" if connection_id == CLIENT else "agent"
    packet = ConnectPacket(client_id, clean_start=clean_start, properties=properties)
    return Connect(connection_id, packet)


def subscribe(topic_filter: str, identifier: int, **options: bool) -> SendPacket:
    properties: Properties = ((Property.SUBSCRIPTION_IDENTIFIER, identifier),)
    subscription = Subscription(topic_filter, 2, **options)
    return SendPacket(AGENT, packets.SubscribePacket(1, (subscription,), properties))


def publish(numbers: range, qos: int = 1, topic: str = "a/b") -> list[Step]:
    steps: list[Step] = []
    for number in numbers:
        packet = PublishPacket(topic, b"%d" % number, qos, packet_id=number)
        steps.append(SendPacket(CLIENT, packet))
        if qos == 2:
            steps.append(SendPacket(CLIENT, packets.PubRelPacket(number)))
    return steps


def payloads(received: list[AnyPacket]) -> list[bytes]:
    return [each.payload for each in received if isinstance(each, PublishPacket)]


def test_absent_session_gets_one_copy_after_a_restart(play):
    settings = MosquittoSettings()
    received = play(
        settings,
        connect(AGENT),
        subscribe("a/b", 1),
        subscribe("#", 2),
        connect(CLIENT),
        *publish(range(1, 2)),
        RestartBroker(Restart.STOPPED),
        connect(CLIENT),
        *publish(range(2, 3)),
        connect(AGENT_AGAIN),
    )
    copies = [each for each in received if isinstance(each, PublishPacket) and not each.dup]
    assert [(each.payload, each.subscription_ids) for each in copies] == [
        (b"1", (1,)),
        (b"1", (2,)),
        (b"2", (1,)),
    ]


def test_allow_duplicate_messages_gives_all_copies_after_a_restart(play):
    settings = MosquittoSettings(allow_duplicate_messages=True)
    received = play(
        settings,
        connect(AGENT),
        subscribe("a/b", 1),
        subscribe("#", 2),
        RestartBroker(Restart.STOPPED),
        connect(CLIENT),
        *publish(range(1, 2)),
        connect(AGENT_AGAIN),
    )
    assert payloads(received) == [b"1", b"1"]


def test_more_publications_in_flight_than_the_client_allows(play):
    settings = MosquittoSettings()
    received = play(
        settings,
        connect(AGENT, receive_max=2),
        subscribe("#", 1),
        connect(CLIENT),
        *publish(range(1, 7)),
        SendPacket(AGENT, packets.PubAckPacket(1)),
    )
    assert payloads(received) == [b"1", b"2", b"3", b"4"]


def test_new_publication_overtakes_the_queue_and_separates_copies(play):
    """With more in flight than the limit, an acknowledgement beyond it makes room without sending
    from the queue. The next publication takes the room, for one of its two copies."""
    received = play(
        MosquittoSettings(),
        connect(AGENT, receive_max=2),
        subscribe("a/b", 1),
        subscribe("#", 2),
        connect(CLIENT),
        *publish(range(1, 2), qos=2),
        *publish(range(2, 3), qos=1),
        *publish(range(3, 4), qos=2),
        *publish(range(4, 5), qos=1),
        *publish(range(5, 7), qos=2),
        *(SendPacket(AGENT, packets.PubRecPacket(each)) for each in (1, 2)),
        *(SendPacket(AGENT, packets.PubCompPacket(each)) for each in (1, 2)),
        *(SendPacket(AGENT, packets.PubAckPacket(each)) for each in (3, 4)),
        *(SendPacket(AGENT, packets.PubRecPacket(each)) for each in (5, 6)),
        SendPacket(AGENT, packets.PubAckPacket(7)),
        *publish(range(7, 8), qos=2),
        SendPacket(AGENT, packets.PubAckPacket(8)),
        *(SendPacket(AGENT, packets.PubCompPacket(each)) for each in (5, 6)),
    )
    numbers = [int(each) for each in payloads(received)]
    assert numbers == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 7, 6, 6, 7]


def test_released_publication_is_sent_again_after_a_restart(play):
    settings = MosquittoSettings(max_inflight_messages=1)
    received = play(
        settings,
        connect(AGENT),
        subscribe("#", 1),
        connect(CLIENT),
        *publish(range(1, 3), qos=2),
        SendPacket(AGENT, packets.PubRecPacket(1)),
        SendPacket(AGENT, packets.PubRecPacket(2)),
        RestartBroker(Restart.STOPPED),
        connect(AGENT_AGAIN),
    )
    assert payloads(received) == [b"1", b"2", b"2"]


def test_refused_publication_returns_a_quota(play):
    settings = MosquittoSettings(max_inflight_messages=1)
    numbers = count(1)
    received = play(
        settings,
        connect(AGENT),
        *(SendPacket(AGENT, PublishPacket("t", b"", 2, packet_id=next(numbers))) for _ in range(4)),
    )
    reasons = [each.reason for each in received if isinstance(each, packets.PubRecPacket)]
    assert reasons == [0, 0x97, 0, 0x97]


def test_publish_repeated_twice_ends_the_connection(play):
    packet = SendPacket(AGENT, PublishPacket("t", b"", 2, packet_id=1))
    received = play(MosquittoSettings(), connect(AGENT), packet, packet, packet)
    assert received[-1] == packets.DisconnectPacket(0x82)


def test_packet_id_in_use_replaces_the_publication(play):
    received = play(
        MosquittoSettings(),
        connect(AGENT),
        subscribe("#", 1),
        connect(CLIENT),
        SendPacket(CLIENT, PublishPacket("t", b"lost", 2, packet_id=1)),
        SendPacket(CLIENT, PublishPacket("t", b"new", 1, packet_id=1)),
        SendPacket(CLIENT, packets.PubRelPacket(1)),
    )
    assert payloads(received) == [b"new"]


def test_session_that_began_with_clean_start_is_not_saved(play):
    received = play(
        MosquittoSettings(),
        connect(AGENT, clean_start=True),
        RestartBroker(Restart.STOPPED),
        connect(AGENT_AGAIN),
    )
    present = [each.session_present for each in received if isinstance(each, packets.ConnAckPacket)]
    assert present == [False, False]


def test_repeated_subscription_keeps_no_local(play):
    received = play(
        MosquittoSettings(),
        connect(AGENT),
        subscribe("#", 1, no_local=True),
        subscribe("#", 2),
        SendPacket(AGENT, PublishPacket("t", b"own")),
    )
    assert payloads(received) == []


def test_shared_subscription_gets_retained_messages_and_is_not_saved(play):
    received = play(
        MosquittoSettings(),
        connect(AGENT),
        SendPacket(AGENT, PublishPacket("t", b"1", retain=True)),
        subscribe("$share/g/t", 1),
        RestartBroker(Restart.STOPPED),
        connect(AGENT_AGAIN),
        SendPacket(AGENT_AGAIN, PublishPacket("t", b"2", 1, packet_id=1)),
    )
    assert payloads(received) == [b"1"]
    assert received[-1] == packets.PubAckPacket(1, 0x10)


def test_takeover_sends_no_disconnect(play):
    received = play(MosquittoSettings(), connect(AGENT), connect(AGENT_AGAIN), Cut(AGENT_AGAIN))
    assert [type(each) for each in received] == [packets.ConnAckPacket] * 2


@pytest.mark.long
def test_session_expires_but_not_after_a_restart(play):
    received = play(
        MosquittoSettings(),
        connect(AGENT, expiry_s=1),
        Cut(AGENT),
        connect(AGENT_AGAIN, expiry_s=1),
        RestartBroker(Restart.STOPPED),
        Wait(4.0),
        connect(AGENT_AGAIN, expiry_s=1),
        Cut(AGENT_AGAIN),
        Wait(4.0),
        connect(AGENT_AGAIN),
    )
    present = [each.session_present for each in received if isinstance(each, packets.ConnAckPacket)]
    assert present == [False, True, True, False]


@pytest.mark.long
def test_messages_expire(play):
    expiry = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, 1),))
    received = play(
        MosquittoSettings(),
        connect(AGENT),
        subscribe("queued", 1),
        Cut(AGENT),
        connect(CLIENT),
        SendPacket(CLIENT, PublishPacket("queued", b"", 1, packet_id=1, properties=expiry)),
        SendPacket(CLIENT, PublishPacket("queued", b"kept", 1, packet_id=2)),
        SendPacket(CLIENT, PublishPacket("stored", b"old", retain=True, properties=expiry)),
        SendPacket(CLIENT, PublishPacket("stored/too", b"kept too", retain=True)),
        Wait(4.0),
        connect(AGENT_AGAIN),
        SendPacket(AGENT_AGAIN, packets.SubscribePacket(1, (Subscription("stored/#"),))),
    )
    assert payloads(received) == [b"kept", b"kept too"]
