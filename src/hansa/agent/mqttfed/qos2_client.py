"""A client that publishes and receives at QoS 2, as `mqtt-fed` does with all its messages.

Messages published while the broker is disconnected are dropped and counted: a late announcement
would revive a core that no longer exists.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from hansa.agent.broker.connection import ConnectionFactory
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import REFUSAL_CODE_MIN, Version

QUEUE_MAX = 10_000
"""Publications that wait for handshakes; more are dropped."""

IN_FLIGHT_MAX = 200
PACKET_ID_MAX = 60_000


class Qos2Client:
    def __init__(
        self,
        connection: ConnectionFactory,
        on_status: Callable[[str], None],
        filters: Sequence[str] = (),
        on_received: Callable[[Sequence[packets.PublishPacket]], None] = lambda batch: None,
    ) -> None:
        """`on_received` gets publications that match `filters`, except the client's own.
        `on_status` gets the reason when there is no connection, and an empty text when there is
        one."""
        self.counters: Counter[str] = Counter()
        self.connection = connection(self._on_effect)
        self.problem = "not connected yet"
        """Why it is unusable now; empty if it is usable."""
        self._on_status = on_status
        self._filters = filters
        self._on_received = on_received
        self._queue: deque[tuple[str, bytes]] = deque()
        self._unaccepted: set[int] = set()  # packet ids without PUBREC
        self._accepted: set[int] = set()  # packet ids without PUBCOMP
        self._last_id = 0
        self._is_online = False

    def publish(self, topic: str, payload: bytes) -> None:
        if not self._is_online:
            self.counters["dropped: broker disconnected"] += 1
        elif len(self._queue) >= QUEUE_MAX:
            self.counters["dropped: broker buffer full"] += 1
        else:
            self._queue.append((topic, payload))
            self._send()

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._receive_publications(batch)
            case effects.HandshakePacketsReceived(steps):
                self._receive_handshake_steps(steps)
            case effects.Connected(broker_limits=limits):
                self._on_connected(limits.version)
            case effects.Subscribed(subscriptions=asked, reasons=reasons):
                for subscription, reason in zip(asked, reasons, strict=True):
                    if reason >= REFUSAL_CODE_MIN:
                        self._set_problem(f"the broker refuses {subscription.topic_filter!r}")
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._on_disconnected(effect.text)
            case effects.PublishNotSent(batch=unsent, reason=reason):
                self.counters["dropped: the broker cannot take it"] += len(unsent)
                self._unaccepted -= {p.packet_id for p in unsent if not isinstance(p, tuple)}
                self._send()  # room for others
            case _:
                pass

    def _on_connected(self, version: Version) -> None:
        if self._filters and version is not Version.V5:
            self._set_problem(
                "mqtt-fed needs a broker with MQTT 5: without No Local echoes would loop"
            )
            return
        self._is_online = True
        self._set_problem("")
        if self._filters:
            subscriptions = tuple(
                packets.Subscription(name, qos=2, no_local=True, retain_handling=2)
                for name in self._filters
            )
            self.connection.submit(inputs.Subscribe(subscriptions))

    def _on_disconnected(self, reason: str) -> None:
        lost = len(self._queue) + len(self._unaccepted)
        self.counters["dropped: broker disconnected"] += lost
        self._is_online = False
        self._queue.clear()
        self._unaccepted.clear()
        self._accepted.clear()
        self._set_problem(reason)

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        self._on_status(problem)

    def _send(self) -> None:
        connection = self.connection.client_connection
        room = min(IN_FLIGHT_MAX - len(self._unaccepted), connection.quota if connection else 0)
        batch: list[packets.PublishPacket] = []
        while self._queue and len(batch) < room:
            topic, payload = self._queue.popleft()
            batch.append(packets.PublishPacket(topic, payload, qos=2, packet_id=self._free_id()))
        if batch:
            self.connection.submit(inputs.Publish(batch))

    def _free_id(self) -> int:
        while True:
            self._last_id = 1 + self._last_id % PACKET_ID_MAX
            if not any(self._last_id in taken for taken in (self._unaccepted, self._accepted)):
                self._unaccepted.add(self._last_id)
                return self._last_id

    def _receive_publications(self, batch: Sequence[packets.PublishPacket]) -> None:
        for kind, qos in ((packets.PubAckPacket, 1), (packets.PubRecPacket, 2)):
            answers = [kind(each.packet_id) for each in batch if each.qos == qos]
            if answers:
                self.connection.submit(inputs.SendHandshakePackets(answers))
        self._on_received(batch)

    def _receive_handshake_steps(self, steps: Sequence[packets.AnyHandshakePacket]) -> None:
        ids = [step.packet_id for step in steps if not step.is_refused]
        match steps[0]:
            case packets.PubRecPacket():
                self.counters["dropped: the broker refuses it"] += len(steps) - len(ids)
                self._unaccepted -= {step.packet_id for step in steps}
                self._accepted.update(ids)
                if ids:
                    self.connection.submit(
                        inputs.SendHandshakePackets([packets.PubRelPacket(each) for each in ids])
                    )
            case packets.PubRelPacket():
                answers = [packets.PubCompPacket(step.packet_id) for step in steps]
                self.connection.submit(inputs.SendHandshakePackets(answers))
            case _:
                self._accepted -= {step.packet_id for step in steps}
        self._send()
