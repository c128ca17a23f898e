"""Cost of decoding and encoding one MQTT publication, compared with other clients."""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from types import SimpleNamespace
from typing import Any

from bench.console import say
from hansa.mqtt import packets
from hansa.mqtt.packet_reader import PacketReader
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import Side, Version

CHUNK_BYTES = 65_536
ROUNDS = 100
PAYLOAD = b"x" * 64


def measure() -> dict[str, object]:
    """Nanoseconds per publication of 64 bytes, read from chunks of 64 KiB and written in batches.

    paho-mqtt and gmqtt are measured if they are installed: from bytes to their callback, and from
    their publish to the bytes, without any socket. A ratio above 1 means that ours is faster.
    """
    answers: dict[str, object] = {}
    ours: dict[str, float] = {}
    for name, work, count in _ours():
        ours[name] = _nanoseconds(work, count)
        answers[name.replace(" ", "_")] = round(ours[name])
        say(name, f"{ours[name]:8,.0f} ns")
    for library, make in (("paho-mqtt", _paho), ("gmqtt", _gmqtt)):
        try:
            works = make()
        except ImportError:
            say(library, "not installed")
            continue
        for direction, work in zip(("read", "write"), works, strict=True):
            cost = _nanoseconds(work, len(_batch()))
            ratio = cost / ours[f"{direction} QoS 0"]
            answers[f"{library}_{direction}_ratio"] = round(ratio, 1)
            say(f"{library} {direction} QoS 0", f"{cost:8,.0f} ns  {ratio:5.1f} of ours")
    return answers


def _nanoseconds(work: Callable[[], object], count: int) -> float:
    """The best of many rounds: other load on the machine only adds time."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best / count * 1e9


def _batch(qos: int = 0, identified: bool = False) -> list[PublishPacket]:
    """As many publications as fill a chunk, on 350 topics."""
    subscriptions = (7,) if identified else ()
    topics = [f"site/{number % 7}/sensor/{number % 50}" for number in range(350)]
    size = len(topics[0]) + len(PAYLOAD) + 6
    return [
        PublishPacket(
            topics[n % 350], PAYLOAD, qos, False, False, (n + 1) * bool(qos), subscriptions
        )
        for n in range(CHUNK_BYTES // size)
    ]


def _chunk(batch: list[PublishPacket]) -> bytes:
    return PacketWriter(Version.V5, sender=Side.BROKER).encode_publications(batch)[0]


def _ours() -> Iterator[tuple[str, Callable[[], object], int]]:
    for qos in (0, 1, 2):
        batch = _batch(qos)
        reader, writer = PacketReader(Version.V5), PacketWriter(Version.V5)
        chunk = _chunk(batch)
        yield f"read QoS {qos}", partial(_read, reader, chunk), len(batch)
        yield f"write QoS {qos}", partial(writer.encode_publications, batch), len(batch)
    for qos in (0, 2):
        batch = _batch(qos, identified=True)
        reader, chunk = PacketReader(Version.V5), _chunk(batch)
        yield f"read QoS {qos} with identifier", partial(_read, reader, chunk), len(batch)


def _read(reader: PacketReader, chunk: bytes) -> list[packets.AnyPacket]:
    found: list[packets.AnyPacket] = []
    reader.feed(chunk, found)
    return found


# ---------------------------------------------------------------- the others, by their inner parts


def _paho() -> tuple[Callable[[], object], Callable[[], object]]:
    from paho.mqtt import client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    client: Any = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_message = lambda *_: None
    client._sock = SimpleNamespace(close=lambda: None)  # noqa: SLF001
    client._sock_send = len  # noqa: SLF001
    batch = _batch()
    chunk = _chunk(batch)

    def read() -> None:
        client._sock_recv = BytesIO(chunk).read  # noqa: SLF001
        for _ in batch:
            client._packet_read()  # noqa: SLF001

    def write() -> None:
        for publish in batch:
            client.publish(publish.topic, publish.payload)

    return read, write


def _gmqtt() -> tuple[Callable[[], object], Callable[[], object]]:
    import gmqtt
    from gmqtt.mqtt.package import PublishPacket as GmqttPublishPacket
    from gmqtt.mqtt.protocol import MQTTProtocol

    client: Any = gmqtt.Client("bench")
    client.on_message = lambda *_: None
    handler = client._package_handler  # noqa: SLF001
    protocol = SimpleNamespace(proto_ver=5, _connection=SimpleNamespace(put_package=handler))
    batch = _batch()
    chunk = _chunk(batch)

    def read() -> None:
        MQTTProtocol._read_packet(protocol, chunk)  # noqa: SLF001

    def write() -> None:
        for publish in batch:
            message = gmqtt.Message(publish.topic, publish.payload)
            GmqttPublishPacket.build_package(message, protocol)

    return read, write


if __name__ == "__main__":
    measure()
    sys.exit()
