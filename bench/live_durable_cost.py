"""CPU of two agents per publication of QoS 1 and 2, with scripted brokers.

The brokers send publications in batches of a fixed size, the next one when the last is delivered
and acknowledged. So agents do the same work in every run, however fast or busy the machine is, and
the cost of a wake-up can be told from that of a publication. A busy machine still raises the CPU
time of the same work, so two versions are compared by turns.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.console import say
from hansa.mqtt import packets
from hansa.mqtt.packet_reader import PacketReader
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.properties import Property
from hansa.mqtt.types import Side, Version
from hansa.simulator.topologies import parse_topology
from hansa.testbed.embedded import EmbeddedBrokerStub
from hansa.testbed.federation import LocalFederation

TOPIC = "bench/durable"
PAYLOAD = b"x" * 64
BATCHES = (1, 10, 100)
COUNT = 4_000
"""Publications per batch size and QoS."""

WARM_UP = 500
TIMEOUT_S = 60.0
RECEIVE_MAXIMUM = 1_000
SUBSCRIPTION_POLL_S = 0.01


def measure() -> dict[str, object]:
    """CPU of two agents per publication of QoS 1 and 2, for batches of 1, 10 and 100."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    environment = {"HANSA_LOG": "warning", "HANSA_BROKER_OBSERVER": "static"}
    running = LocalFederation(parse_topology("line:2", seed=1), environment)
    near, far = (ScriptedBroker(node.broker.port) for node in running.nodes)
    for node, broker in zip(running.nodes, (near, far), strict=True):
        node.broker = broker
    running.nodes[0].environment["HANSA_BROKER_FILTERS"] = "bench/none"
    running.nodes[1].environment["HANSA_BROKER_FILTERS"] = TOPIC
    try:
        await running.start()
        await running.wait_until_converged()
        while not near.has_subscriber:
            await asyncio.sleep(SUBSCRIPTION_POLL_S)
        agents = [node.agent.pid for node in running.nodes if node.agent is not None]
        for qos in (1, 2):
            await _deliver(near, far, qos, WARM_UP, max(BATCHES))
            for batch in BATCHES:
                with _cpu_micros(agents, COUNT) as (capture, injection):
                    await _deliver(near, far, qos, COUNT, batch)
                us = [capture.pop(), injection.pop()]
                name = f"QoS {qos}, batches of {batch}"
                say(name, f"capture {us[0]:6.1f} µs  injection {us[1]:6.1f} µs")
                answers[f"qos_{qos}_batch_{batch}"] = [round(each, 1) for each in us]
    finally:
        await running.stop()
    return answers


async def _deliver(
    near: "ScriptedBroker", far: "ScriptedBroker", qos: int, count: int, batch: int
) -> None:
    for _ in range(count // batch):
        near.expect(batch)
        far.expect(batch)
        near.publish(qos, batch)
        async with asyncio.timeout(TIMEOUT_S):
            await near.is_done.wait()
            await far.is_done.wait()


@contextmanager
def _cpu_micros(pids: list[int], count: int) -> Iterator[list[list[float]]]:
    """Yield a list per process; at the end it holds the CPU in microseconds per publication."""
    before = [_cpu_ns(pid) for pid in pids]
    spent: list[list[float]] = [[] for _ in pids]
    yield spent
    for pid, began, each in zip(pids, before, spent, strict=True):
        each.append((_cpu_ns(pid) - began) / count / 1_000)


def _cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads of a process, finer than the ticks of `stat`."""
    threads = Path(f"/proc/{pid}/task")
    return sum(
        int((threads / name / "schedstat").read_text().split()[0]) for name in os.listdir(threads)
    )


class ScriptedBroker(EmbeddedBrokerStub):
    """Completes the handshakes of an agent's clients, and publishes to its main client."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._server: asyncio.Server | None = None
        self._connections: list[_ServedClient] = []
        self._subscriber: _ServedClient | None = None
        self._remaining = 0
        self.is_done = asyncio.Event()
        """Set when as many handshakes have ended as expected."""

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _ServedClient(self), "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def has_subscriber(self) -> bool:
        return self._subscriber is not None

    def expect(self, count: int) -> None:
        """Wait for the end of so many handshakes from now on."""
        self._remaining = count
        self.is_done.clear()

    def on_handshakes_ended(self, count: int) -> None:
        self._remaining -= count
        if count and self._remaining <= 0:
            self.is_done.set()

    def on_subscribed(self, client: "_ServedClient", filters: list[str]) -> None:
        if client.is_main and TOPIC in filters:
            self._subscriber = client

    def publish(self, qos: int, count: int) -> None:
        """Send publications to the agent, with one write."""
        assert self._subscriber is not None
        self._subscriber.publish(qos, count)


class _ServedClient(asyncio.Protocol):
    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._reader = PacketReader(Version.V5, sender=Side.CLIENT)
        self._writer = PacketWriter(Version.V5, sender=Side.BROKER)
        self._packet_id = 0
        self._identifiers: tuple[int, ...] = ()
        self.is_main = False
        """Whether this is the client that captures, not one that reads stored values."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received: list[packets.AnyPacket] = []
        self._reader.feed(data, received)
        answers: list[packets.AnyHandshakePacket] = []
        ended = 0
        for packet in received:
            match packet:
                case packets.PublishPacket(qos=1):
                    answers.append(packets.PubAckPacket(packet.packet_id))
                    ended += 1
                case packets.PublishPacket(qos=2):
                    answers.append(packets.PubRecPacket(packet.packet_id))
                case packets.PubRecPacket():
                    answers.append(packets.PubRelPacket(packet.packet_id))
                case packets.PubRelPacket():
                    answers.append(packets.PubCompPacket(packet.packet_id))
                    ended += 1
                case packets.PubAckPacket() | packets.PubCompPacket():
                    ended += 1
                case _:
                    self._answer(packet)
        if answers:
            self._transport.write(self._writer.encode_handshake_packets(answers))
        self._broker.on_handshakes_ended(ended)

    def _answer(self, packet: packets.AnyPacket) -> None:
        answer: packets.Packet
        match packet:
            case packets.ConnectPacket():
                self.is_main = packet.client_id.endswith("agent")
                granted = ((Property.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM),)
                answer = packets.ConnAckPacket(properties=granted)
            case packets.SubscribePacket():
                filters = [each.topic_filter for each in packet.subscriptions]
                self._identifiers = tuple(
                    value
                    for name, value in packet.properties
                    if name is Property.SUBSCRIPTION_IDENTIFIER and isinstance(value, int)
                )
                self._broker.on_subscribed(self, filters)
                granted_qos = bytes(each.qos for each in packet.subscriptions)
                answer = packets.SubAckPacket(packet.packet_id, granted_qos)
            case packets.UnsubscribePacket():
                answer = packets.UnsubAckPacket(packet.packet_id, bytes(len(packet.filters)))
            case packets.PingReqPacket():
                answer = packets.PingRespPacket()
            case _:
                return
        self._transport.write(self._writer.encode(answer))

    def publish(self, qos: int, count: int) -> None:
        data: list[bytes] = []
        for _ in range(count):
            self._packet_id = self._packet_id % RECEIVE_MAXIMUM + 1
            publish = packets.PublishPacket(
                TOPIC, PAYLOAD, qos, packet_id=self._packet_id, subscription_ids=self._identifiers
            )
            data.append(self._writer.encode(publish))
        self._transport.write(b"".join(data))
