"""Injection into a real Mosquitto."""

import asyncio
import threading
from pathlib import Path

from tests.agent.delivery.live_delivery import LiveDelivery
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.waiting import PATIENCE, until

from hansa.delivery import poison_quarantine
from hansa.delivery.poison_quarantine import QUARANTINE_ALARM
from hansa.mqtt import effects
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.properties import Property
from hansa.mqtt.properties import encode_properties as encode_properties
from hansa.mqtt.types import Version
from hansa.protocol.events import InboxCommitted
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.wire.codec import decode, encode

YOU = NodeId(2)
COUNT = 100
AT_ONCE = 20


class LiveIncarnation(LiveDelivery):
    """One incarnation of an agent's delivery."""

    def __init__(self, path: Path, port: int, version: Version = Version.V5) -> None:
        options = ConnectOptions(client_id="agent", session_expiry=1_000, version=version)
        super().__init__(path, port, options)

    def deliver(self, *numbers: int, qos: int = 2) -> None:
        for number in numbers:
            self.service.deliver([Publication(YOU, 8, number, qos, "a", b"%d" % number)])


class StuckIncarnation(LiveIncarnation):
    """The disk stops at the broker's first acknowledgement."""

    def __init__(self, path: Path, port: int) -> None:
        super().__init__(path, port)
        self.disk = threading.Event()
        self.disk.set()
        writer = self.service._files.inbox.writer  # noqa: SLF001
        self._commit = writer.commit
        writer.commit = self._commit_later  # type: ignore[method-assign]

    def _commit_later(self) -> int:
        assert self.disk.wait(PATIENCE)
        return self._commit()

    @property
    def accepted(self) -> int:
        """Number of publications that wait for PUBREL at the broker."""
        return sum(each.accepted_offset is not None for each in self.inbox.entries.values())

    def on_effect(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.HandshakePacketsReceived) and len(self.sessions) == 1:
            self.disk.clear()


def from_the_wire(number: int, topic: str, properties: bytes = b"") -> Publication:
    """Return a publication that a neighbour can encode, even if brokers refuse it."""
    sent = Publication(YOU, 8, number, 1, topic, b"%d" % number, properties=properties)
    got = decode(encode(sent))
    assert got == sent
    return sent


def test_invalid_publications_of_neighbours_do_not_close_connection_or_control_broker(
    scene, tmp_path
):
    broker = scene.broker()
    subscriber = scene.client_of(GuaranteedClient, broker.port).subscribe_qos2("#")
    user = ((Property.USER_PROPERTY, ("key", "one\ntwo")),)
    bad = {
        "malformed properties": [("a", b"\x02"), ("a", b"\x7f"), ("a", b"\x0b\x01")],
        "a text that a broker may refuse": [
            ("line\nbreak", b""),
            ("a\ufdd0", b""),
            ("a", encode_properties(user)),
        ],
        "local topic": [("$CONTROL/dynamic-security/v1", b""), ("$share/g/a", b"")],
    }
    batch = [from_the_wire(1, "a")]
    for topic, properties in (each for some in bad.values() for each in some):
        batch.append(from_the_wire(len(batch) + 1, topic, properties))
    batch.append(from_the_wire(len(batch) + 1, "a"))

    async def work() -> None:
        agent = LiveIncarnation(tmp_path / "state", broker.port)
        agent.service.deliver(batch)
        await until(
            lambda: InboxCommitted(YOU, 8, len(batch)) in agent.events, "stored"
        )  # as an earlier version may have left them
        agent.connection.start()
        await until(lambda: not agent.inbox.entries, "all of them")
        assert agent.sessions == [False]
        for reason, some in bad.items():
            assert agent.counters[f"dropped: {reason}"] == len(some)
        await agent.stop()

    asyncio.run(work())
    assert subscriber.read_until(2) == [b"1", b"%d" % len(batch)]


def test_publication_that_closes_connection_does_not_block_others(scene, tmp_path, monkeypatch):
    """MQTT 3.1.1 can neither refuse a publication nor announce a size limit."""
    monkeypatch.setattr(poison_quarantine, "DISCONNECTS_MAX", 3)
    broker = scene.broker("max_packet_size 500")
    subscriber = scene.client_of(GuaranteedClient, broker.port).subscribe_qos2("a")
    large = Publication(YOU, 8, 1, 1, "a", bytes(1_000))

    async def work() -> None:
        agent = LiveIncarnation(tmp_path / "state", broker.port, Version.V311)
        agent.service.deliver([large])
        agent.deliver(2, 3, qos=2)
        await until(lambda: InboxCommitted(YOU, 8, 3) in agent.events, "stored")
        agent.connection.start()
        await until(lambda: len(agent.inbox.entries) == 1, "the others")
        assert [each.record.sequence for each in agent.inbox.entries.values()] == [1]
        assert agent.core.counters["quarantined: broker closed the connection"] == 1
        assert "a publication to 'a'" in agent.alarms.active[QUARANTINE_ALARM]
        await agent.stop()

    asyncio.run(work())
    assert subscriber.read_until(2) == [b"2", b"3"]


def test_order_is_kept_if_disk_is_slower_than_reconnect(scene, tmp_path):
    """The broker still holds its maximum of QoS 2 publications, and refuses more."""
    broker = scene.broker(f"max_inflight_messages {AT_ONCE}")
    subscriber = scene.client_of(GuaranteedClient, broker.port).subscribe_qos2("a")

    numbers = range(1, 1 + COUNT)

    async def work() -> None:
        agent = StuckIncarnation(tmp_path / "state", broker.port)
        agent.deliver(*numbers)
        await until(lambda: InboxCommitted(YOU, 8, COUNT) in agent.events, "stored")
        agent.connection.start()
        await until(lambda: agent.accepted == AT_ONCE, "as many as the broker allows")
        agent.connection.abort()
        await until(lambda: agent.sessions == [False, True], "the same session")
        agent.disk.set()
        await until(lambda: not agent.inbox.entries, "all of them")
        assert agent.core.counters["injected"] == COUNT
        await agent.stop()

    asyncio.run(work())
    assert subscriber.read_until(COUNT) == [b"%d" % number for number in numbers]
