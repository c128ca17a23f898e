"""One incarnation of injection alone: the node and the broker are lists."""

from collections.abc import Sequence

from tests.delivery.shell import YOU, Shell, limits

from hansa.delivery.effects import LogName
from hansa.delivery.inbox import REDELIVERED_PROPERTY, InboxLog
from hansa.delivery.injection import Injection
from hansa.delivery.settings import DeliverySettings
from hansa.mqtt.packets import AnyHandshakePacket, PublishPacket
from hansa.protocol.effects import Gap
from hansa.protocol.events import InboxCommitted, StoreUncertain
from hansa.protocol.model import NodeId, Publication
from hansa.simulator.world.memory_log import MemoryLog


class InjectingIncarnation(Shell):
    """Injection from a log that outlives it. Publications to the topic `stays` are not injected."""

    def __init__(self, log: MemoryLog, settings: DeliverySettings) -> None:
        super().__init__()
        self.log = log
        self._settings = settings
        self.inbox = InboxLog(log, log.replay(), lambda: self.wall_ns)
        self.injection = Injection(
            self.context, self.inbox, settings, lambda topic: topic == "stays"
        )

    @property
    def committed(self) -> list[InboxCommitted]:
        return [each for each in self.events if isinstance(each, InboxCommitted)]

    @property
    def uncertain(self) -> list[tuple[str, ...]]:
        """Topics whose stored values the node has to check."""
        return [each.topics for each in self.events if isinstance(each, StoreUncertain)]

    def collect(self) -> None:
        """Perform the effects of the last call."""
        self.perform(self.context.take_effects())

    # ------------------------------------------------------------ inputs

    def connect(
        self, session_present: bool = True, receive_maximum: int = 100, qos_max: int = 2
    ) -> None:
        self.injection.on_connected(session_present, limits(receive_maximum, qos_max))
        self.collect()

    def disconnect(self) -> None:
        self.injection.on_disconnected()
        self.collect()

    def add(self, *batch: Publication | Gap) -> None:
        self.injection.add_publications(batch)
        self.collect()

    def store(self, *batch: Publication | Gap) -> None:
        """Add publications and commit them."""
        self.add(*batch)
        self.commit()

    def deliver(self, *numbers: int, qos: int = 2, origin: NodeId = YOU) -> None:
        """Store publications with these positions."""
        self.store(*(Publication(origin, 8, n, qos, "a", b"%d" % n) for n in numbers))

    def receive(self, *batch: AnyHandshakePacket) -> None:
        self.injection.on_handshake_packets(batch)
        self.collect()

    def answer(self, *batch: AnyHandshakePacket) -> None:
        """Receive packets and commit what they cause, also what could wait."""
        self.receive(*batch)
        self.injection.group_commit.request()
        self.collect()
        self.commit()

    def not_sent(self, batch: Sequence[PublishPacket], reason: str) -> None:
        self.injection.on_not_sent(batch, reason)
        self.collect()

    def commit(self) -> None:
        """Carry out all commits."""
        while self.commits:
            assert self.commits.pop() is LogName.INBOX
            self.log.commit(self.log.end)
            self.injection.on_committed()
            self.collect()

    def advance(self, seconds: float) -> None:
        self.context.now += seconds
        self.injection.on_timer()
        self.collect()

    def crash(self) -> "InjectingIncarnation":
        """Lose what is not durable; return the next incarnation."""
        self.log.crash()
        return InjectingIncarnation(self.log, self._settings)


def incarnation(segment_records: int = 1_000, **settings: object) -> InjectingIncarnation:
    """Return the first incarnation with an empty log."""
    return InjectingIncarnation(
        MemoryLog(5, segment_records=segment_records),
        DeliverySettings(**settings),  # type: ignore[arg-type]
    )


def packet(
    index: int, payload: bytes = b"", qos: int = 2, dup: bool = False, marked: bool = False
) -> PublishPacket:
    """Return the PUBLISH of an inbox index; the default payload is the index."""
    properties = REDELIVERED_PROPERTY if marked else b""
    return PublishPacket("a", payload or b"%d" % index, qos, False, dup, 1 + index, (), properties)
