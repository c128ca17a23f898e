"""One incarnation of capture alone: the node and the broker are lists."""

from msgspec.structs import replace
from tests.delivery.shell import ME, YOU, Shell, build_epoch

from hansa.delivery.capture import Capture
from hansa.delivery.effects import LogName
from hansa.delivery.outbox import OutboxLog
from hansa.mqtt.packets import AnyHandshakePacket, PublishPacket
from hansa.protocol.events import EpochStarted, Event, JournalCommitted, ProgressReportPersisted
from hansa.protocol.model import NodeId, Publication
from hansa.simulator.world.memory_log import MemoryLog

EPOCH = 7


class CapturingIncarnation(Shell):
    """Capture into a log that outlives it. No node is interested in the topic `no`."""

    def __init__(self, log: MemoryLog, session_present: bool = True) -> None:
        super().__init__()
        self.log = log
        self.outbox = OutboxLog(log, log.replay(), lambda: self.wall_ns)
        self.outbox.start_incarnation()
        self.captured_payloads: list[bytes] = []
        self.newest_subscription = 0
        self._position = log.epoch, log.next_sequence
        self.capture = Capture(
            self.context, self.outbox, self._assign_position, lambda: self.newest_subscription
        )
        self.connect(session_present)

    def _assign_position(self, publish: PublishPacket) -> Publication | None:
        if publish.topic == "no":
            return None
        self.captured_payloads.append(publish.payload)
        epoch, number = self._position
        self._position = epoch, number + 1
        previous = ((YOU, number - 1),)
        return Publication(
            ME, epoch, number, publish.qos, publish.topic, publish.payload, receivers=previous
        )

    @property
    def acks(self) -> list[PublishPacket | AnyHandshakePacket]:
        return self.sent

    @property
    def committed(self) -> list[Event]:
        return [each for each in self.events if isinstance(each, JournalCommitted)]

    @property
    def reported(self) -> list[NodeId]:
        return [each.node for each in self.events if isinstance(each, ProgressReportPersisted)]

    @property
    def epochs_started(self) -> list[EpochStarted]:
        return [each for each in self.events if isinstance(each, EpochStarted)]

    def collect(self) -> None:
        """Perform the effects of the last call."""
        count = len(self.epochs_started)
        self.perform(self.context.take_effects())
        for event in self.epochs_started[count:]:
            self._position = event.epoch, event.next_sequence

    # ------------------------------------------------------------ inputs

    def connect(self, session_present: bool = True) -> None:
        self.capture.on_connected(session_present)
        self.collect()

    def reconnect(self, session_present: bool = True) -> None:
        self.capture.on_disconnected()
        self.connect(session_present)

    def receive(self, *batch: PublishPacket, is_selected: bool = True) -> None:
        self.capture.receive_publications([(publish, is_selected) for publish in batch])
        self.collect()

    def receive_pubrel(self, *packet_ids: int) -> None:
        self.capture.receive_pubrel(packet_ids)
        self.collect()

    def commit(self) -> list[PublishPacket | AnyHandshakePacket]:
        """Carry out all commits; return all acknowledgements so far."""
        while self.commits:
            self.commit_once()
        return self.acks

    def commit_once(self) -> None:
        """Carry out one commit of everything appended so far."""
        assert self.commits.pop() is LogName.OUTBOX
        self.log.commit(self.log.end)
        self.capture.on_committed()
        self.collect()

    def deadline(self) -> float | None:
        return self.capture.deadline

    def advance(self, seconds: float) -> None:
        self.context.now += seconds
        self.capture.on_timer()
        self.collect()

    def build_epoch(self) -> None:
        """Carry out `BuildEpoch`."""
        self.log = build_epoch(self.log, self.plans.pop())
        self.capture.on_epoch_built(self.log)
        self.commits.clear()
        self.collect()

    def roll_over(self, epoch: int) -> None:
        """Start a new epoch, up to the step after which broker packets are handled again."""
        self.capture.schedule_rollover(epoch)
        self.advance(0.0)
        self.build_epoch()
        self.advance(0.0)

    def crash(self) -> "CapturingIncarnation":
        """Lose what is not durable; return the next incarnation."""
        self.log.crash()
        return CapturingIncarnation(self.log)


def incarnation(segment_records: int = 1_000) -> CapturingIncarnation:
    """Return the first incarnation with an empty log."""
    return CapturingIncarnation(MemoryLog(EPOCH, segment_records=segment_records))


def publish(
    packet_id: int, payload: bytes = b"x", qos: int = 1, topic: str = "a", dup: bool = False
) -> PublishPacket:
    return PublishPacket(topic, payload, qos, dup=dup, packet_id=packet_id)


def copy(packet_id: int, payload: bytes, by: int, qos: int = 2, dup: bool = True) -> PublishPacket:
    """Return the copy of the subscription with identifier `by`."""
    return replace(publish(packet_id, payload, qos, dup=dup), subscription_ids=(by,))
