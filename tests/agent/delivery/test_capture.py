"""Capture: acknowledgements, redeliveries, overlap copies, epoch rollover."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.delivery.crashing import crash
from tests.agent.waiting import until

from hansa.agent.delivery.capture import Capture, CaptureCallbacks
from hansa.agent.delivery.dedup.redelivery import PACKET_ID_HALF_RANGE
from hansa.agent.delivery.epoch_rollover import EpochRollover
from hansa.agent.delivery.outbox_journal import OutboxJournal
from hansa.errors import JournalUnusable
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.mqtt.packets import (
    AnyHandshakePacket,
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
)
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import EpochStarted, HeardPersisted, JournalCommitted
from hansa.protocol.model import NodeId, Publication

ME, YOU = NodeId(1), NodeId(2)
LARGE = JournalSettings()
ONE_EACH = JournalSettings(segment_bytes=1)
"""Every record starts a segment."""


class Incarnation:
    """Capture with a broker and a node made of lists. No node is interested in the topic `no`."""

    def __init__(
        self, path: Path, session_present: bool = True, settings: JournalSettings = LARGE
    ) -> None:
        self._path = path
        self.acks: list[AnyHandshakePacket] = []
        self.committed: list[JournalCommitted] = []
        self.heard: list[NodeId] = []
        self.epochs_started: list[EpochStarted] = []
        self.problems: list[str] = []
        self.captured_payloads: list[bytes] = []
        self.journal = OutboxJournal(path, ME, 7, settings)
        self._epoch = self.journal.writer.epoch
        self._next_sequence = self.journal.writer.next_sequence
        self.newest_subscription = 0
        self.broker_problems: list[str] = []
        self.capture = Capture(
            self.journal,
            CaptureCallbacks(
                self._assign_position,
                self._send_steps,
                self._on_event,
                self.problems.append,
                self.broker_problems.append,
                lambda: self.newest_subscription,
            ),
        )
        self.capture.on_connected(session_present)

    def _assign_position(self, publish: PublishPacket) -> Publication | None:
        if publish.topic == "no":
            return None
        self.captured_payloads.append(publish.payload)
        number, self._next_sequence = self._next_sequence, self._next_sequence + 1
        previous = ((YOU, number - 1),)
        return Publication(
            ME, self._epoch, number, publish.qos, publish.topic, publish.payload, previous=previous
        )

    def _on_event(self, event: JournalCommitted | HeardPersisted | EpochStarted) -> None:
        if isinstance(event, JournalCommitted):
            self.committed.append(event)
        elif isinstance(event, HeardPersisted):
            self.heard.append(event.node)
        else:
            self._epoch, self._next_sequence = event.epoch, event.next_seq
            self.epochs_started.append(event)

    async def roll_over(self, epoch: int) -> None:
        """Roll over and wait until the old epoch is deleted."""
        self.capture.schedule_rollover(epoch)
        await self.rolled_over()

    async def rolled_over(self) -> None:
        await until(lambda: len(self.epochs_started) > 0, "a new epoch")
        former = self._path / f"{7:020d}"
        await until(lambda: not former.exists(), "the end of the old one")

    def _send_steps(self, batch: Sequence[AnyHandshakePacket]) -> None:
        self.acks += batch

    def receive(self, *batch: PublishPacket) -> None:
        self.capture.receive_publications([(publish, True) for publish in batch])

    @property
    def unsynced(self) -> int:
        return self.journal.writer.end - self.journal.writer.durable

    async def acknowledged(self, count: int) -> list[AnyHandshakePacket]:
        await until(lambda: len(self.acks) >= count, f"{count} acks")
        return self.acks

    def crash(self) -> None:
        """Crash: leave the disk as it is now."""
        crash(self._path, self.journal.writer)


def publish(
    packet_id: int, payload: bytes = b"x", qos: int = 1, topic: str = "a", dup: bool = False
) -> PublishPacket:
    return PublishPacket(topic, payload, qos, dup=dup, packet_id=packet_id)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_durable_publications_are_acknowledged_in_order(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1), publish(2, qos=2), publish(3, topic="no"), publish(4))
        assert agent.acks == []
        assert await agent.acknowledged(4) == [
            PubAckPacket(1),
            PubRecPacket(2),
            PubAckPacket(3),
            PubAckPacket(4),
        ]
        assert agent.committed[-1] == JournalCommitted(7, 3)
        await agent.capture.stop()

    run(work)


def test_heard_receiver_is_reported_when_durable(tmp_path):
    """The journal records from which position on nothing was sent to a receiver."""

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1), publish(2))
        await agent.acknowledged(2)
        agent.crash()
        agent = Incarnation(tmp_path)
        assert agent.journal.receivers.unheard_since == {YOU: 3}
        agent.receive(publish(3))
        await agent.acknowledged(1)
        agent.crash()
        agent = Incarnation(tmp_path)
        assert agent.journal.receivers.unheard_since == {YOU: 3}
        agent.capture.record_heard(YOU)
        assert agent.heard == []
        await until(lambda: agent.heard == [YOU], "heard")
        agent.crash()
        agent = Incarnation(tmp_path)
        assert agent.journal.receivers.unheard_since == {YOU: 4}
        agent.capture.expire_node(YOU)
        agent.receive(publish(4))
        await agent.acknowledged(1)
        agent.crash()
        agent = Incarnation(tmp_path)
        assert agent.journal.receivers.unheard_since == {YOU: 4}, "first for a new receiver"
        agent.capture.expire_node(YOU)
        await agent.capture.stop()
        assert OutboxJournal(tmp_path, ME, 7, JournalSettings()).receivers.unheard_since == {}

    run(work)


def copy(packet_id: int, payload: bytes, by: int, qos: int = 2, dup: bool = True) -> PublishPacket:
    """Return the copy of the subscription with identifier `by`."""
    return replace(publish(packet_id, payload, qos, dup=dup), subscription_ids=(by,))


def test_overlap_copy_is_recognised_after_restart(tmp_path):
    """Two subscriptions match; copies of the second arrive after the restart."""

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.newest_subscription = 2
        names = (b"one", b"two", b"three")
        agent.receive(*(copy(n, name, 1, dup=False) for n, name in enumerate(names, 1)))
        await agent.acknowledged(3)
        agent.crash()

        def are_late_copies(*copies: PublishPacket) -> list[bool]:
            return [agent.capture.captured_subscription(each) == 1 for each in copies]

        agent = Incarnation(tmp_path)
        second = [copy(9, name, 2) for name in names]
        assert are_late_copies(*second) == [False, False, True], (
            "it would go on with the others first"
        )
        agent.capture.receive_pubrel([2])
        assert are_late_copies(*second) == [False, True, True]
        assert are_late_copies(copy(9, b"two", 2, dup=False), copy(9, b"three", 2, dup=False)) == [
            True,
            False,
        ]
        assert are_late_copies(copy(9, b"two", 1)) == [False], (
            "the same filter brings no other copy"
        )
        assert are_late_copies(copy(9, b"two", 3)) == [False], "nor does one that was not there yet"
        assert are_late_copies(copy(9, b"three", 2, qos=1)) == [False], "rather twice than never"
        assert agent.capture.counters["overlap copies after reconnect"] == 4
        agent.capture.on_connected(session_present=False)
        await until(lambda: not agent.unsynced, "that it is another session")
        agent.crash()
        agent = Incarnation(tmp_path)
        assert are_late_copies(*second) == [False] * 3
        await agent.capture.stop()

    run(work)


@pytest.mark.parametrize("settings", [LARGE, ONE_EACH])
def test_overlap_copy_of_completed_publication_is_recognised_after_restart(tmp_path, settings):
    """Also if earlier and later QoS 1 publications may be redelivered."""

    async def work() -> None:
        agent = Incarnation(tmp_path, settings=settings)
        agent.newest_subscription = 2
        agent.receive(copy(1, b"one", 1, qos=1, dup=False), copy(2, b"two", 1, dup=False))
        await agent.acknowledged(2)
        agent.capture.receive_pubrel([2])
        await agent.acknowledged(3)
        agent.crash()

        agent = Incarnation(tmp_path, settings=settings)
        agent.newest_subscription = 2
        agent.capture.receive_pubrel([3])
        assert agent.capture.captured_subscription(copy(4, b"two", 2, dup=False)) == 1, (
            "another copy was gone on"
        )
        later = [copy(n, b"%d" % n, 1, qos=1, dup=False) for n in (5, 6)]
        agent.receive(*later)
        await agent.acknowledged(3)
        agent.crash()

        agent = Incarnation(tmp_path, settings=settings)
        assert agent.capture.captured_subscription(copy(4, b"two", 2)) == 1
        await agent.capture.stop()

    run(work)


def test_overlap_copy_of_completed_publication_is_recognised_after_rollover(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.newest_subscription = 2
        agent.receive(copy(1, b"one", 1, qos=1, dup=False), copy(2, b"two", 1, dup=False))
        await agent.acknowledged(2)
        agent.capture.receive_pubrel([2])
        await agent.acknowledged(3)
        await agent.roll_over(9)
        await until(lambda: not agent.unsynced, "what the next agent has to know")
        agent.crash()
        agent = Incarnation(tmp_path)
        assert agent.capture.captured_subscription(copy(4, b"two", 2)) == 1
        assert [seen.packet_id for seen in agent.journal.dedup.redelivery.candidates()] == [1]
        await agent.capture.stop()

    run(work)


def test_overlap_copy_belongs_to_last_publication_before_reconnect(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.newest_subscription = 3
        agent.receive(copy(1, b"one", 3, dup=False), copy(2, b"two", 3, dup=False))
        await agent.acknowledged(2)
        rest_of = agent.capture.captured_subscription
        assert not rest_of(copy(9, b"two", 2)), "on this connection"
        agent.capture.on_connected(True)
        copies = [copy(9, name, 2) for name in (b"one", b"two")]
        assert [rest_of(each) for each in copies] == [0, 3]
        unsent = copy(9, b"two", 2, dup=False)
        assert not rest_of(unsent)
        agent.capture.receive_pubrel([2])
        assert rest_of(unsent) == 3
        agent.capture.on_connected(True)
        assert rest_of(unsent) == 3, "nothing else came meanwhile"
        agent.receive(copy(5, b"three", 1))
        agent.capture.on_connected(True)
        assert not rest_of(unsent)
        agent.capture.on_connected(False)
        assert not rest_of(copies[1])
        await agent.capture.stop()

    run(work)


def test_publication_without_receivers_is_acknowledged_at_once(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.capture.receive_publications(
            [(publish(1, topic="no"), True), (publish(2, qos=2), False)]
        )
        assert agent.acks == [PubAckPacket(1), PubRecPacket(2)]
        await agent.capture.stop()

    run(work)


def test_redelivery_after_crash_is_acknowledged_and_not_captured(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1), publish(2, qos=2), publish(3))
        await agent.acknowledged(3)
        agent.crash()
        for _ in range(2):  # a second crash makes no difference
            agent = Incarnation(tmp_path)
            agent.receive(publish(1, dup=True), publish(2, qos=2), publish(3, b"another", dup=True))
            assert await agent.acknowledged(3) == [
                PubAckPacket(1),
                PubRecPacket(2),
                PubAckPacket(3),
            ]
            assert agent.captured_payloads == [b"another"][: len(agent.captured_payloads)]
            agent.crash()
        assert agent.capture.counters["redeliveries"] >= 2

    run(work)


def test_redelivery_of_publication_that_was_not_durable_is_captured(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.journal.append_publication(
            Publication(ME, 7, 1, 1, "a", b"x", previous=((YOU, 0),)), 1
        )
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(1))
        await agent.acknowledged(1)
        assert agent.captured_payloads == [b"x"]
        await agent.capture.stop()

    run(work)


def test_same_packet_id_on_one_connection_is_another_publication(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1))
        await agent.acknowledged(1)
        agent.receive(publish(1))
        await agent.acknowledged(2)
        assert agent.captured_payloads == [b"x", b"x"]
        await agent.capture.stop()

    run(work)


def test_same_packet_id_on_next_connection_is_redelivery(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1))
        agent.capture.on_disconnected()
        agent.capture.on_connected(session_present=True)
        agent.receive(publish(1, dup=True))
        assert await agent.acknowledged(1) == [PubAckPacket(1)]
        assert agent.captured_payloads == [b"x"]
        await agent.capture.stop()

    run(work)


def test_reused_packet_id_is_another_publication(tmp_path):
    """A QoS 1 packet id may be reused at once; only DUP marks a redelivery."""

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1), publish(2))
        await agent.acknowledged(2)
        agent.receive(publish(1, qos=2))  # reused packet id
        await agent.acknowledged(3)
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(2), publish(1, qos=2, dup=True))
        await agent.acknowledged(2)
        assert agent.captured_payloads == [b"x"]  # the first; the second was captured before
        await agent.capture.stop()

    run(work)


def test_session_loss_is_remembered_after_restart(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, qos=2))
        await agent.acknowledged(1)
        agent.capture.on_disconnected()
        agent.capture.on_connected(session_present=False)
        end = agent.journal.writer.end
        await until(lambda: agent.journal.writer.durable >= end, "settled on disk")
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, qos=2))
        await agent.acknowledged(1)
        assert agent.captured_payloads == [b"x"]  # first publication of the new session
        await agent.capture.stop()

    run(work)


def test_lost_session_has_no_redeliveries(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1), publish(2, qos=2))
        await agent.acknowledged(2)
        agent.crash()
        agent = Incarnation(tmp_path, session_present=False)
        agent.receive(publish(1))
        await agent.acknowledged(1)
        agent.crash()  # the session loss is durable
        agent = Incarnation(tmp_path)
        agent.receive(publish(2, qos=2))
        await agent.acknowledged(1)
        assert agent.captured_payloads == [b"x"]
        await agent.capture.stop()

    run(work)


def test_pubcomp_waits_until_completion_is_durable(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, qos=2))
        await agent.acknowledged(1)
        agent.capture.receive_pubrel([1])
        assert agent.acks == [PubRecPacket(1)]
        assert await agent.acknowledged(2) == [PubRecPacket(1), PubCompPacket(1)]
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, qos=2))
        await agent.acknowledged(1)
        assert agent.captured_payloads == [b"x"]
        await agent.capture.stop()

    run(work)


def test_repeated_pubrel_waits_for_the_disk(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, qos=2))
        await agent.acknowledged(1)
        agent.capture.receive_pubrel([1])
        agent.capture.on_disconnected()
        agent.capture.on_connected(session_present=True)
        agent.capture.receive_pubrel([1])
        assert agent.acks == [PubRecPacket(1)]
        assert (await agent.acknowledged(2))[1] == PubCompPacket(1)
        await agent.capture.stop()

    run(work)


def test_pubrel_for_unknown_packet_id_gets_pubcomp(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.capture.receive_pubrel([9])
        assert agent.acks == [PubCompPacket(9)]
        await agent.capture.stop()

    run(work)


def test_qos_1_candidates_expire_after_half_of_all_packet_ids(tmp_path):
    """For any number of connections, and in any incarnation."""

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1), publish(2, qos=2))
        await agent.acknowledged(2)
        agent.crash()
        agent = Incarnation(tmp_path)
        for start in range(3, PACKET_ID_HALF_RANGE, 4_000):
            agent.capture.receive_publications(
                [(publish(start + each, topic="no"), False) for each in range(4_000)]
            )
            agent.capture.on_connected(session_present=True)
        agent.receive(publish(1, dup=True), publish(2, qos=2, dup=True))
        await until(lambda: agent.acks[-1:] == [PubRecPacket(2)], "the last answer")
        assert agent.captured_payloads == [b"x"]
        await agent.capture.stop()

    run(work)


def test_qos_1_is_captured_again_at_broker_that_reuses_packet_ids(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        for _ in range(4):
            agent.receive(publish(1), publish(2, qos=2))
            await agent.acknowledged(2)
            agent.acks.clear()
            agent.capture.receive_pubrel([2])
            await agent.acknowledged(1)
            agent.acks.clear()
        agent.receive(publish(2, qos=2))
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, dup=True))
        await agent.acknowledged(1)
        assert agent.captured_payloads == [b"x"]
        await agent.capture.stop()

    run(work)


def test_new_session_resets_packet_id_order(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(*(publish(packet_id) for packet_id in range(1, 150)))
        await agent.acknowledged(149)
        agent.capture.on_connected(session_present=False)
        await until(lambda: not agent.unsynced, "that it is another session")
        agent.crash()
        agent = Incarnation(tmp_path)
        problems = agent.broker_problems
        agent.receive(publish(1))
        await agent.acknowledged(1)
        assert not problems
        await agent.capture.stop()

    run(work)


def test_packet_id_order_that_steps_back_raises_alarm(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(*(publish(packet_id) for packet_id in range(1, 150)))
        agent.receive(publish(150, b"on", qos=2))
        await agent.acknowledged(150)
        agent.crash()
        agent = Incarnation(tmp_path)
        problems = agent.broker_problems
        agent.receive(publish(149, dup=True))
        assert not problems
        agent.receive(publish(120, b"new"), publish(150, b"on", qos=2))
        await agent.acknowledged(3)
        assert agent.captured_payloads == [b"new", b"on"]
        assert problems[0].startswith("the broker restored an older saved state")
        await agent.capture.stop()

    run(work)


def test_failing_disk_delays_acknowledgements_and_raises_alarm(tmp_path, monkeypatch):
    async def work() -> None:
        agent = Incarnation(tmp_path)

        def fail() -> int:
            raise JournalUnusable("no space")

        monkeypatch.setattr(agent.journal.writer, "commit", fail)
        monkeypatch.setattr("hansa.agent.storage.retry.RETRY_S", 0.01)
        agent.receive(publish(1))
        await until(lambda: agent.problems, "the problem")
        assert (agent.acks, agent.committed, agent.problems[0]) == ([], [], "no space")
        monkeypatch.undo()
        assert await agent.acknowledged(1) == [PubAckPacket(1)]
        assert agent.problems[-1] == ""
        await agent.capture.stop()

    run(work)


def test_unusable_journal_leaves_publications_at_broker(tmp_path, monkeypatch):
    async def work() -> None:
        agent = Incarnation(tmp_path)

        def fail(record: object) -> int:
            raise JournalUnusable("broken")

        monkeypatch.setattr(agent.journal.writer, "append", fail)
        agent.receive(publish(1), publish(2), publish(3, topic="no"))
        assert (agent.acks, agent.captured_payloads) == ([], [b"x"])
        assert agent.problems == ["broken"]
        await agent.capture.stop()

    run(work)


def test_rollover_keeps_unacknowledged_publications(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, b"acknowledged"), publish(2, b"former"))
        await agent.acknowledged(2)
        agent.capture.record_acknowledged({YOU: 1})
        await until(lambda: not agent.unsynced, "the note")
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(3, b"known", qos=2), publish(4, b"waits", qos=2))
        agent.capture.schedule_rollover(9)
        agent.receive(publish(5, b"held", qos=2))
        agent.capture.receive_pubrel([3])
        assert await agent.acknowledged(4) == [
            PubRecPacket(3),
            PubRecPacket(4),
            PubRecPacket(5),
            PubCompPacket(3),
        ]
        assert agent.epochs_started == [EpochStarted(9, 4, ((YOU, 3),))]
        assert agent.committed[-1] == JournalCommitted(9, 4)
        recalled = agent.journal.read_journal(ReadJournal(YOU, 9, 0, 4, 1_000))
        assert [(each.sequence, each.payload, each.previous) for each in recalled.publications] == [
            (1, b"former", ((YOU, 0),)),
            (2, b"known", ((YOU, 1),)),
            (3, b"waits", ((YOU, 2),)),
            (4, b"held", ((YOU, 3),)),
        ]
        assert agent.captured_payloads == [b"known", b"waits", b"held"]
        agent.capture.on_connected(session_present=True)
        agent.receive(publish(4, b"waits", qos=2))
        assert (await agent.acknowledged(5))[-1] == PubRecPacket(4)
        assert agent.captured_payloads[3:] == []
        await agent.capture.stop()

    run(work)


def test_nothing_is_captured_twice_after_rollover_and_crash(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, b"former", qos=2), publish(2, b"over", qos=2))
        await agent.acknowledged(2)
        agent.capture.record_acknowledged({YOU: 1})
        agent.receive(publish(3, b"recent", qos=2), publish(4, b"settled", qos=2))
        await agent.acknowledged(4)
        agent.capture.receive_pubrel([2, 4])
        await agent.acknowledged(6)
        await agent.roll_over(9)
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, b"former", qos=2), publish(3, b"recent", qos=2))
        assert await agent.acknowledged(2) == [PubRecPacket(1), PubRecPacket(3)]
        assert agent.captured_payloads == []
        agent.receive(publish(2, b"over", qos=2), publish(4, b"settled", qos=2))
        assert agent.captured_payloads == [
            b"over",
            b"settled",
        ]  # these ids were free
        agent.capture.receive_pubrel([1, 3])
        await agent.acknowledged(6)
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, b"former", qos=2), publish(3, b"recent", qos=2))
        assert agent.captured_payloads == [b"former", b"recent"]  # and now these are free
        await agent.capture.stop()

    run(work)


def test_session_lost_during_rollover_is_recorded_in_new_epoch(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, b"same", qos=2))
        await agent.acknowledged(1)
        agent.capture.schedule_rollover(9)
        agent.capture.on_connected(session_present=False)
        await agent.roll_over(9)
        await until(lambda: not agent.unsynced, "what was forgotten")
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.receive(publish(1, b"same", qos=2))
        assert agent.captured_payloads == [b"same"], "the new session's, not the same again"
        await agent.capture.stop()

    run(work)


def test_broker_packets_wait_for_rollover_on_failing_disk(tmp_path, monkeypatch):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1))
        await agent.acknowledged(1)
        full = True

        def commit(writer: JournalWriter) -> int:
            if full:
                raise JournalUnusable("full")
            return real(writer)

        real = JournalWriter.commit
        monkeypatch.setattr(JournalWriter, "commit", commit)
        monkeypatch.setattr("hansa.agent.storage.retry.RETRY_S", 0.01)
        agent.capture.schedule_rollover(9)
        agent.receive(publish(2))
        await until(lambda: len(agent.problems) > 1, "another attempt")
        assert (agent.captured_payloads, agent.epochs_started) == ([b"x"], [])
        full = False
        assert await agent.acknowledged(2) == [PubAckPacket(1), PubAckPacket(2)]
        assert agent.problems[-1] == ""
        assert agent.epochs_started == [EpochStarted(9, 2, ((YOU, 1),))]
        await agent.capture.stop()

    run(work)


def test_node_expired_during_rollover_is_no_receiver_in_new_epoch(tmp_path, monkeypatch):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1))
        await agent.acknowledged(1)
        has_begun, is_forgotten = threading.Event(), threading.Event()
        renew = agent.journal.build_rollover

        def renew_late(rollover: EpochRollover) -> JournalWriter:
            has_begun.set()
            is_forgotten.wait(60)
            return renew(rollover)

        monkeypatch.setattr(agent.journal, "build_rollover", renew_late)
        agent.capture.schedule_rollover(9)
        await until(has_begun.is_set, "its beginning")
        agent.capture.expire_node(YOU)
        is_forgotten.set()
        await agent.rolled_over()
        await until(lambda: not agent.unsynced, "the note")
        assert agent.journal.receivers.last_assigned == {}
        agent.crash()
        assert Incarnation(tmp_path).journal.receivers.last_assigned == {}

    run(work)


def test_stop_during_rollover_keeps_old_epoch(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.receive(publish(1))
        await agent.acknowledged(1)
        agent.capture.schedule_rollover(9)
        await agent.capture.stop()
        assert agent.epochs_started == []

    run(work)
    again = OutboxJournal(tmp_path, ME, 7, JournalSettings())
    assert (again.writer.epoch, again.writer.next_sequence) in {(7, 2), (9, 2)}
    again.writer.close()
