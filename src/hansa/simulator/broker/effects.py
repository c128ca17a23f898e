"""The output of the model broker, in the order to perform."""

import msgspec

from hansa.mqtt.packets import AnyPacket


class SendToClient(msgspec.Struct, frozen=True):
    connection_id: int
    packet: AnyPacket


class CloseConnection(msgspec.Struct, frozen=True):
    """The broker closes a connection. It does not want `disconnected` for it."""

    connection_id: int
    reason: str


Effect = SendToClient | CloseConnection
