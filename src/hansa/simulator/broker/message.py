"""A publication as the model broker stores it."""

import msgspec

from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import message_expiry, without_expiry


class Message(msgspec.Struct, frozen=True):
    """Shared by all sessions and the retained messages that refer to it."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    """Without the message expiry interval."""
    expires_at: int = 0
    """The last second in which it is delivered; 0 if it does not expire."""


def make_message(packet: PublishPacket, second: int) -> Message:
    """Return the message of a PUBLISH that arrives in a second."""
    properties, expires_at = packet.properties, 0
    if properties:
        interval = message_expiry(properties)
        if interval:
            expires_at = second + interval
        properties = without_expiry(properties)
    return Message(packet.topic, packet.payload, packet.qos, packet.retain, properties, expires_at)
