"""The limits that a broker grants in CONNACK, with the defaults of the standard.

`limits_from_connack` extracts them; other modules enforce them.
"""

from dataclasses import dataclass

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.options import NEVER_EXPIRES, ConnectOptions
from hansa.mqtt.packets import ConnAckPacket
from hansa.mqtt.properties import Property, PropertyValue
from hansa.mqtt.types import PACKET_BYTES_MAX, Reason, Version

PACKET_BYTES_FLOOR = 64
"""Smallest usable maximum packet size: handshake packets need a few bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """The capabilities and limits of the broker, for one connection."""

    version: Version
    client_id: str
    """Our client id, or the one that the broker assigned because we sent none."""
    keep_alive: int
    """Seconds; our value, unless the broker requested another."""
    session_expiry: int
    """Seconds; our value, unless the broker requested another. In 3.1.1 a session that is not clean
    never expires."""
    receive_maximum: int = 65_535
    """Publications of QoS 1 and 2 that may be in flight to the broker."""
    packet_bytes_max: int = PACKET_BYTES_MAX
    qos_max: int = 2
    retain_available: bool = True
    topic_alias_maximum: int = 0
    wildcards_available: bool = True
    shared_subscriptions_available: bool = True
    """Unknown in 3.1.1 and therefore assumed."""
    subscription_ids_available: bool = True
    """Always false in 3.1.1."""


def limits_from_connack(connack: ConnAckPacket, options: ConnectOptions) -> BrokerLimits:
    """Return the limits of a successful CONNACK; raise BrokerMisbehaved if they are unusable."""
    connack_properties: dict[Property, PropertyValue] = dict(connack.properties)

    def number(name: Property, default: int) -> int:
        value = connack_properties.get(name, default)
        assert isinstance(value, int)
        return value

    size = number(Property.MAXIMUM_PACKET_SIZE, PACKET_BYTES_MAX)
    if size < PACKET_BYTES_FLOOR:
        problem = f"CONNACK: packets of at most {size} bytes, {PACKET_BYTES_FLOOR} are needed"
        raise BrokerMisbehaved(problem, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
    version_5 = options.version is Version.V5
    expiry = options.session_expiry
    if not version_5:
        expiry = 0 if options.clean_start else NEVER_EXPIRES
    return BrokerLimits(
        version=options.version,
        client_id=str(
            connack_properties.get(Property.ASSIGNED_CLIENT_IDENTIFIER, options.client_id)
        ),
        keep_alive=number(Property.SERVER_KEEP_ALIVE, options.keep_alive),
        session_expiry=number(Property.SESSION_EXPIRY_INTERVAL, expiry),
        receive_maximum=number(Property.RECEIVE_MAXIMUM, 65_535),
        packet_bytes_max=size,
        qos_max=number(Property.MAXIMUM_QOS, 2),
        retain_available=bool(number(Property.RETAIN_AVAILABLE, 1)),
        topic_alias_maximum=number(Property.TOPIC_ALIAS_MAXIMUM, 0),
        wildcards_available=bool(number(Property.WILDCARD_SUBSCRIPTION_AVAILABLE, 1)),
        shared_subscriptions_available=bool(number(Property.SHARED_SUBSCRIPTION_AVAILABLE, 1)),
        subscription_ids_available=bool(
            number(Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1) and version_5
        ),
    )
