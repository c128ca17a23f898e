"""What a CONNACK grants, and what counts when it says nothing."""

import pytest

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.limits import Limits, read
from hansa.mqtt.options import Options
from hansa.mqtt.packets import ConnAck
from hansa.mqtt.properties import Property as P
from hansa.mqtt.types import Version

V4, V5 = Version.V311, Version.V5


def test_silence_means_the_defaults_of_the_standard():
    options = Options(client_id="me", keep_alive=30, session_expiry=60)
    assert read(ConnAck(), options) == Limits(
        version=V5,
        client_id="me",
        keep_alive=30,
        session_expiry=60,
        receive_maximum=65_535,
        packet_bytes_max=268_435_460,
        qos_max=2,
        retain_available=True,
        topic_alias_maximum=0,
        wildcards_available=True,
        shared_available=True,
        identifiers_available=True,
    )


def test_everything_may_be_said():
    stated = (
        (P.ASSIGNED_CLIENT_IDENTIFIER, "you"),
        (P.SERVER_KEEP_ALIVE, 5),
        (P.SESSION_EXPIRY_INTERVAL, 0),
        (P.RECEIVE_MAXIMUM, 20),
        (P.MAXIMUM_PACKET_SIZE, 1_000),
        (P.MAXIMUM_QOS, 1),
        (P.RETAIN_AVAILABLE, 0),
        (P.TOPIC_ALIAS_MAXIMUM, 10),
        (P.WILDCARD_SUBSCRIPTION_AVAILABLE, 0),
        (P.SHARED_SUBSCRIPTION_AVAILABLE, 0),
        (P.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 0),
    )
    assert read(ConnAck(properties=stated), Options(client_id="", session_expiry=9)) == Limits(
        version=V5,
        client_id="you",
        keep_alive=5,
        session_expiry=0,
        receive_maximum=20,
        packet_bytes_max=1_000,
        qos_max=1,
        retain_available=False,
        topic_alias_maximum=10,
        wildcards_available=False,
        shared_available=False,
        identifiers_available=False,
    )


def test_311_has_no_identifiers():
    assert not read(ConnAck(), Options(client_id="me", version=V4)).identifiers_available


def test_broker_that_takes_no_packets_is_of_no_use():
    connack = ConnAck(properties=((P.MAXIMUM_PACKET_SIZE, 63),))
    with pytest.raises(BrokerMisbehaved, match="packets of at most 63 bytes, 64 are needed"):
        read(connack, Options(client_id="me"))
