"""Limits in a CONNACK, and their defaults."""

import pytest

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.limits import BrokerLimits, limits_from_connack
from hansa.mqtt.options import NEVER_EXPIRES, ConnectOptions
from hansa.mqtt.packets import ConnAckPacket
from hansa.mqtt.properties import Property as P
from hansa.mqtt.types import Version

V4, V5 = Version.V311, Version.V5


def test_missing_properties_mean_defaults_of_the_standard():
    options = ConnectOptions(client_id="me", keep_alive=30, session_expiry=60)
    assert limits_from_connack(ConnAckPacket(), options) == BrokerLimits(
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
        shared_subscriptions_available=True,
        subscription_ids_available=True,
    )


def test_all_limits_are_read():
    properties = (
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
    assert limits_from_connack(
        ConnAckPacket(properties=properties), ConnectOptions(client_id="", session_expiry=9)
    ) == BrokerLimits(
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
        shared_subscriptions_available=False,
        subscription_ids_available=False,
    )


def test_311_has_no_subscription_identifiers():
    assert not limits_from_connack(
        ConnAckPacket(), ConnectOptions(client_id="me", version=V4)
    ).subscription_ids_available


def test_too_small_maximum_packet_size_is_refused():
    connack = ConnAckPacket(properties=((P.MAXIMUM_PACKET_SIZE, 63),))
    with pytest.raises(BrokerMisbehaved, match="packets of at most 63 bytes, 64 are needed"):
        limits_from_connack(connack, ConnectOptions(client_id="me"))


@pytest.mark.parametrize(("clean_start", "expiry"), [(True, 0), (False, NEVER_EXPIRES)])
def test_session_of_3_1_1_never_expires_unless_it_is_clean(clean_start, expiry):
    options = ConnectOptions(
        client_id="", version=Version.V311, clean_start=clean_start, session_expiry=9
    )
    assert limits_from_connack(ConnAckPacket(), options).session_expiry == expiry
