"""A client with the handshakes of QoS 1 and 2 that counts accepted publications."""

import time
from typing import Any

from msgspec.structs import replace
from tests.agent.live import PATIENCE, Client

from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import Version


class GuaranteedClient(Client):
    """Completes the handshakes of both directions."""

    def __init__(self, port: int, version: Version = Version.V5, **options: Any) -> None:
        self.accepted = 0
        self._next_id = 1
        super().__init__(port, version=version, **options)

    def _do(self, event: inputs.Input) -> None:
        if isinstance(event, inputs.Closed):
            raise ConnectionError("the broker has gone")
        super()._do(event)
        new, self._answered = self.received[self._answered :], len(self.received)
        batch = [
            (packets.PubAckPacket if each.qos == 1 else packets.PubRecPacket)(each.packet_id)
            for each in new
            if each.qos
        ]
        if batch:
            self._do(inputs.SendHandshakePackets(batch))
        steps = [
            each for each in self._others if isinstance(each, effects.HandshakePacketsReceived)
        ]
        self._others = [
            each for each in self._others if not isinstance(each, effects.HandshakePacketsReceived)
        ]
        for each in steps:
            self._take_steps(each.batch)

    _answered = 0

    def _take_steps(self, steps: Any) -> None:
        ids = [step.packet_id for step in steps]
        match steps[0]:
            case packets.PubRecPacket():
                self._do(inputs.SendHandshakePackets([packets.PubRelPacket(each) for each in ids]))
            case packets.PubRelPacket():
                self._do(inputs.SendHandshakePackets([packets.PubCompPacket(each) for each in ids]))
            case _:
                self.accepted += len(ids)

    def subscribe_qos2(self, *filters: str) -> "GuaranteedClient":
        return self.subscribe_as(*(packets.Subscription(name, 2) for name in filters))

    def subscribe_as(self, *wishes: packets.Subscription) -> "GuaranteedClient":
        self._do(inputs.Subscribe(wishes))
        self._wait(effects.Subscribed)
        return self

    def publish_guaranteed(self, qos: int, topic: str, *payloads: bytes) -> None:
        """Publish, and wait until the broker has acknowledged everything."""
        self.publish_as(*(packets.PublishPacket(topic, payload, qos) for payload in payloads))

    def publish_as(self, *publications: packets.PublishPacket) -> None:
        """Publish packets; wait until the broker has acknowledged those above QoS 0."""
        expected = self.accepted + sum(each.qos > 0 for each in publications)
        waiting = [self._numbered(each) for each in publications]
        deadline = time.monotonic() + PATIENCE
        while waiting or self.accepted < expected:
            assert time.monotonic() < deadline, f"{expected - self.accepted} are not accepted"
            batch, waiting = waiting[: self._session.quota], waiting[self._session.quota :]
            if batch:
                self._do(inputs.Publish(batch))
            if self.accepted < expected:
                self._read(0.1)

    def _numbered(self, publication: packets.PublishPacket) -> packets.PublishPacket:
        if not publication.qos:
            return publication
        packet_id = self._next_id
        self._next_id = 1 + packet_id % 60_000
        return replace(publication, packet_id=packet_id)

    def forget(self) -> None:
        """Discard the received publications."""
        self.received.clear()
        self._answered = 0

    def read_for(self, seconds: float) -> None:
        """Read until nothing arrives for `seconds`."""
        while self._read(seconds):
            pass

    def read_until(self, count: int, pause: float = 0.3, patience: float = PATIENCE) -> list[bytes]:
        """Read until `count` publications arrived, and `pause` longer for unexpected ones; return
        all payloads."""
        deadline = time.monotonic() + patience
        while len(self.received) < count:
            assert time.monotonic() < deadline, f"{len(self.received)} of {count} have come"
            self._read(0.1)
        self.read_for(pause)
        return [each.payload for each in self.received]
