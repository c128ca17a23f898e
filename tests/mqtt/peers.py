"""A broker made of the other half of our codec, joined to a connection without a socket."""

from hansa.mqtt import inputs, packets
from hansa.mqtt.connection import ClientConnection
from hansa.mqtt.effects import Effect, Write
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packet_reader import PacketReader
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.packets import ConnAckPacket, PublishPacket
from hansa.mqtt.properties import Properties
from hansa.mqtt.types import Side, Version


class Peer:
    """A connection and its broker, at a time that the test sets."""

    def __init__(self, options: ConnectOptions) -> None:
        self.session = ClientConnection(options)
        self.now = 0.0
        self._reader = PacketReader(options.version, sender=Side.CLIENT)
        self._writer = PacketWriter(options.version, sender=Side.BROKER)

    def do(self, event: inputs.Input) -> list[Effect | PublishPacket | packets.Packet]:
        """Return the effects of an input, with written bytes decoded into packets."""
        answer: list[Effect | PublishPacket | packets.Packet] = []
        for effect in self.session.handle(event, self.now):
            if isinstance(effect, Write):
                found: list[packets.AnyPacket] = []
                self._reader.feed(effect.data, found)
                answer += found  # type: ignore[arg-type]  # a session writes no oversized ones
            else:
                answer.append(effect)
        return answer

    def receive(
        self, *sent: PublishPacket | packets.Packet
    ) -> list[Effect | PublishPacket | packets.Packet]:
        """Return the effects of packets of the broker, received in one chunk."""
        return self.do(inputs.Received(b"".join(map(self._writer.encode, sent))))

    def raw(self, text: str) -> list[Effect | PublishPacket | packets.Packet]:
        """Return the effects of bytes that no correct broker sends."""
        return self.do(inputs.Received(bytes.fromhex(text)))

    def wait(self, until: float) -> list[Effect | PublishPacket | packets.Packet]:
        """Return the effects of the timer at this time."""
        self.now = until
        return self.do(inputs.TimerFired())


def options(version: Version = Version.V5, **changed) -> ConnectOptions:
    return ConnectOptions(client_id="me", version=version, **changed)


def established(
    version: Version = Version.V5, present: bool = False, granted: Properties = (), **changed
) -> Peer:
    """A connection that the broker has just accepted, at time 0."""
    peer = Peer(options(version, **changed))
    peer.do(inputs.Opened())
    peer.receive(ConnAckPacket(session_present=present, properties=granted))
    return peer
