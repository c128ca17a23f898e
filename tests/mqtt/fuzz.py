"""Streams of a hostile broker, as one function: whatever it raises is a bug.

`fuzz_one` is made for a coverage-guided fuzzer (atheris), and the quick tests run it over generated
and damaged streams. Its first byte decides how to read, the rest is the stream.
"""

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import inputs, packets
from hansa.mqtt.connection import ClientConnection
from hansa.mqtt.effects import Close, ConnectRefused, Disconnected, Effect, ProtocolViolation
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packet_reader import PacketReader
from hansa.mqtt.packets import PublishPacket, PubRelPacket, Subscription
from hansa.mqtt.types import Side, Version

BYTES_MAX = 4_096
ACCEPTED = {Version.V311: bytes.fromhex("20020000"), Version.V5: bytes.fromhex("2003000000")}


def fuzz_one(data: bytes) -> None:
    """Read a stream in one chunk and in many, and pass it to connections; nothing may break."""
    if not data:
        return
    how, stream = data[0], data[1:]
    version = Version.V5 if how & 1 else Version.V311
    piece = (how >> 1 & 63) + 1
    for sender in Side:
        whole = _read(stream, version, sender, len(stream) + 1)
        assert _read(stream, version, sender, piece) == whole, "packets depend on the cutting"
    for accepted in (False, True):
        _run_connection(stream, version, accepted, piece)


def _read(
    stream: bytes, version: Version, sender: Side, piece: int
) -> tuple[list[packets.AnyPacket], bool]:
    reader = PacketReader(version, BYTES_MAX, sender)
    found: list[packets.AnyPacket] = []
    try:
        for start in range(0, len(stream), piece):
            reader.feed(stream[start : start + piece], found)
    except BrokerMisbehaved:
        return found, False
    return found, True


def _run_connection(stream: bytes, version: Version, accepted: bool, piece: int) -> None:
    connection = ClientConnection(
        ConnectOptions(client_id="me", version=version, packet_bytes_max=BYTES_MAX)
    )
    effects: list[Effect] = connection.handle(inputs.Opened(), 0.0)
    if accepted:
        effects += connection.handle(inputs.Received(ACCEPTED[version]), 0.0)
        publications = [PublishPacket("a", b"x", qos, packet_id=qos) for qos in (1, 2)]
        effects += connection.handle(inputs.Publish(publications), 0.0)
        effects += connection.handle(inputs.SendHandshakePackets([PubRelPacket(3)]), 0.0)
        effects += connection.handle(inputs.Subscribe((Subscription("a"),)), 0.0)
        effects += connection.handle(inputs.Unsubscribe(("a", "b")), 0.0)
    for start in range(0, len(stream), piece):
        effects += connection.handle(inputs.Received(stream[start : start + piece]), 1.0)
    effects += connection.handle(inputs.TimerFired(), 60.0)
    effects += connection.handle(inputs.Closed(), 61.0)
    endings = [each for each in effects if isinstance(each, _ENDINGS)]
    assert len(endings) == 1, "a connection ends once"
    assert effects.count(Close()) == 1, "a connection is closed once"


_ENDINGS = (ConnectRefused, Disconnected, ProtocolViolation)
