"""From the broker into the journal: what is acknowledged when, and what is known again."""

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
"""Every record has a segment of its own."""


class Life:
    """One life of an agent, between a broker and a node made of lists. Whoever publishes to `no`
    reaches nobody."""

    def __init__(
        self, path: Path, session_present: bool = True, settings: JournalSettings = LARGE
    ) -> None:
        self._path = path
        self.answers: list[AnyHandshakePacket] = []
        self.kept: list[JournalCommitted] = []
        self.heard: list[NodeId] = []
        self.reopened: list[EpochStarted] = []
        self.problems: list[str] = []
        self.started: list[bytes] = []
        self.keeping = OutboxJournal(path, ME, 7, settings)
        self._epoch = self.keeping.writer.epoch
        self._number = self.keeping.writer.next_sequence
        self.newest_subscription = 0
        self.broker_problems: list[str] = []
        self.capture = Capture(
            self.keeping,
            CaptureCallbacks(
                self._start,
                self._answer,
                self._tell,
                self.problems.append,
                self.broker_problems.append,
                lambda: self.newest_subscription,
            ),
        )
        self.capture.on_connected(session_present)

    def _start(self, publish: PublishPacket) -> Publication | None:
        if publish.topic == "no":
            return None
        self.started.append(publish.payload)
        number, self._number = self._number, self._number + 1
        previous = ((YOU, number - 1),)
        return Publication(
            ME, self._epoch, number, publish.qos, publish.topic, publish.payload, previous=previous
        )

    def _tell(self, news: JournalCommitted | HeardPersisted | EpochStarted) -> None:
        if isinstance(news, JournalCommitted):
            self.kept.append(news)
        elif isinstance(news, HeardPersisted):
            self.heard.append(news.node)
        else:
            self._epoch, self._number = news.epoch, news.next_seq
            self.reopened.append(news)

    async def renew(self, epoch: int) -> None:
        """Begin a new epoch, and wait until it has begun and nothing of the old one is left."""
        self.capture.schedule_rollover(epoch)
        await self.rolled_over()

    async def rolled_over(self) -> None:
        await until(lambda: len(self.reopened) > 0, "a new epoch")
        former = self._path / f"{7:020d}"
        await until(lambda: not former.exists(), "the end of the old one")

    def _answer(self, batch: Sequence[AnyHandshakePacket]) -> None:
        self.answers += batch

    def receive(self, *batch: PublishPacket) -> None:
        self.capture.receive_publications([(publish, True) for publish in batch])

    @property
    def unsynced(self) -> int:
        return self.keeping.writer.end - self.keeping.writer.durable

    async def answered(self, count: int) -> list[AnyHandshakePacket]:
        await until(lambda: len(self.answers) >= count, f"{count} answers")
        return self.answers

    def crash(self) -> None:
        """End, and leave the disk as it is now."""
        crash(self._path, self.keeping.writer)


def publish(
    packet_id: int, payload: bytes = b"x", qos: int = 1, topic: str = "a", dup: bool = False
) -> PublishPacket:
    return PublishPacket(topic, payload, qos, dup=dup, packet_id=packet_id)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_durable_publications_are_acknowledged_in_order(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1), publish(2, qos=2), publish(3, topic="no"), publish(4))
        assert life.answers == []
        assert await life.answered(4) == [
            PubAckPacket(1),
            PubRecPacket(2),
            PubAckPacket(3),
            PubAckPacket(4),
        ]
        assert life.kept[-1] == JournalCommitted(7, 3)
        await life.capture.stop()

    run(work)


def test_heard_receiver_is_reported_when_durable(tmp_path):
    """A life knows from which position on the former ones sent somebody nothing."""

    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1), publish(2))
        await life.answered(2)
        life.crash()
        life = Life(tmp_path)
        assert life.keeping.receivers.unheard_since == {YOU: 3}
        life.receive(publish(3))
        await life.answered(1)
        life.crash()
        life = Life(tmp_path)
        assert life.keeping.receivers.unheard_since == {YOU: 3}
        life.capture.record_heard(YOU)
        assert life.heard == []
        await until(lambda: life.heard == [YOU], "heard")
        life.crash()
        life = Life(tmp_path)
        assert life.keeping.receivers.unheard_since == {YOU: 4}
        life.capture.expire_node(YOU)
        life.receive(publish(4))
        await life.answered(1)
        life.crash()
        life = Life(tmp_path)
        assert life.keeping.receivers.unheard_since == {YOU: 4}, "first for a new receiver"
        life.capture.expire_node(YOU)
        await life.capture.stop()
        assert OutboxJournal(tmp_path, ME, 7, JournalSettings()).receivers.unheard_since == {}

    run(work)


def copy(packet_id: int, payload: bytes, by: int, qos: int = 2, dup: bool = True) -> PublishPacket:
    """What the subscription with that identifier brings."""
    return replace(publish(packet_id, payload, qos, dup=dup), subscription_ids=(by,))


def test_overlap_copy_is_recognised_after_restart(tmp_path):
    """Two subscriptions bring everything; the copies of the second come when the agent is back."""

    async def work() -> None:
        life = Life(tmp_path)
        life.newest_subscription = 2
        names = (b"one", b"two", b"three")
        life.receive(*(copy(n, name, 1, dup=False) for n, name in enumerate(names, 1)))
        await life.answered(3)
        life.crash()

        def rests(*copies: PublishPacket) -> list[bool]:
            return [life.capture.captured_subscription(each) == 1 for each in copies]

        life = Life(tmp_path)
        second = [copy(9, name, 2) for name in names]
        assert rests(*second) == [False, False, True], "it would go on with the others first"
        life.capture.receive_pubrel([2])
        assert rests(*second) == [False, True, True]
        assert rests(copy(9, b"two", 2, dup=False), copy(9, b"three", 2, dup=False)) == [
            True,
            False,
        ]
        assert rests(copy(9, b"two", 1)) == [False], "the same filter brings no other copy"
        assert rests(copy(9, b"two", 3)) == [False], "nor does one that was not there yet"
        assert rests(copy(9, b"three", 2, qos=1)) == [False], "rather twice than never"
        assert life.capture.counters["overlap copies after reconnect"] == 4
        life.capture.on_connected(session_present=False)
        await until(lambda: not life.unsynced, "that it is another session")
        life.crash()
        life = Life(tmp_path)
        assert rests(*second) == [False] * 3
        await life.capture.stop()

    run(work)


@pytest.mark.parametrize("settings", [LARGE, ONE_EACH])
def test_overlap_copy_of_completed_publication_is_recognised_after_restart(tmp_path, settings):
    """Also if others that were captured before or after it may come again, at QoS 1."""

    async def work() -> None:
        life = Life(tmp_path, settings=settings)
        life.newest_subscription = 2
        life.receive(copy(1, b"one", 1, qos=1, dup=False), copy(2, b"two", 1, dup=False))
        await life.answered(2)
        life.capture.receive_pubrel([2])
        await life.answered(3)
        life.crash()

        life = Life(tmp_path, settings=settings)
        life.newest_subscription = 2
        life.capture.receive_pubrel([3])
        assert life.capture.captured_subscription(copy(4, b"two", 2, dup=False)) == 1, (
            "another copy was gone on"
        )
        later = [copy(n, b"%d" % n, 1, qos=1, dup=False) for n in (5, 6)]
        life.receive(*later)
        await life.answered(3)
        life.crash()

        life = Life(tmp_path, settings=settings)
        assert life.capture.captured_subscription(copy(4, b"two", 2)) == 1
        await life.capture.stop()

    run(work)


def test_overlap_copy_of_completed_publication_is_recognised_after_rollover(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.newest_subscription = 2
        life.receive(copy(1, b"one", 1, qos=1, dup=False), copy(2, b"two", 1, dup=False))
        await life.answered(2)
        life.capture.receive_pubrel([2])
        await life.answered(3)
        await life.renew(9)
        await until(lambda: not life.unsynced, "what the next life has to know")
        life.crash()
        life = Life(tmp_path)
        assert life.capture.captured_subscription(copy(4, b"two", 2)) == 1
        assert [seen.packet_id for seen in life.keeping.dedup.redelivery.candidates()] == [1]
        await life.capture.stop()

    run(work)


def test_overlap_copy_belongs_to_last_publication_before_reconnect(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.newest_subscription = 3
        life.receive(copy(1, b"one", 3, dup=False), copy(2, b"two", 3, dup=False))
        await life.answered(2)
        rest_of = life.capture.captured_subscription
        assert not rest_of(copy(9, b"two", 2)), "on this connection"
        life.capture.on_connected(True)
        copies = [copy(9, name, 2) for name in (b"one", b"two")]
        assert [rest_of(each) for each in copies] == [0, 3]
        unsent = copy(9, b"two", 2, dup=False)
        assert not rest_of(unsent)
        life.capture.receive_pubrel([2])
        assert rest_of(unsent) == 3
        life.capture.on_connected(True)
        assert rest_of(unsent) == 3, "nothing else came meanwhile"
        life.receive(copy(5, b"three", 1))
        life.capture.on_connected(True)
        assert not rest_of(unsent)
        life.capture.on_connected(False)
        assert not rest_of(copies[1])
        await life.capture.stop()

    run(work)


def test_publication_without_receivers_is_acknowledged_at_once(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.capture.receive_publications(
            [(publish(1, topic="no"), True), (publish(2, qos=2), False)]
        )
        assert life.answers == [PubAckPacket(1), PubRecPacket(2)]
        await life.capture.stop()

    run(work)


def test_redelivery_after_crash_is_acknowledged_and_not_captured(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1), publish(2, qos=2), publish(3))
        await life.answered(3)
        life.crash()
        for _ in range(2):  # a second crash does not change it
            life = Life(tmp_path)
            life.receive(publish(1, dup=True), publish(2, qos=2), publish(3, b"another", dup=True))
            assert await life.answered(3) == [PubAckPacket(1), PubRecPacket(2), PubAckPacket(3)]
            assert life.started == [b"another"][: len(life.started)]
            life.crash()
        assert life.capture.counters["redeliveries"] >= 2

    run(work)


def test_redelivery_of_publication_that_was_not_durable_is_captured(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.keeping.append_publication(
            Publication(ME, 7, 1, 1, "a", b"x", previous=((YOU, 0),)), 1
        )
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(1))
        await life.answered(1)
        assert life.started == [b"x"]
        await life.capture.stop()

    run(work)


def test_same_packet_id_on_one_connection_is_another_publication(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1))
        await life.answered(1)
        life.receive(publish(1))
        await life.answered(2)
        assert life.started == [b"x", b"x"]
        await life.capture.stop()

    run(work)


def test_same_packet_id_on_next_connection_is_redelivery(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1))
        life.capture.on_disconnected()
        life.capture.on_connected(session_present=True)
        life.receive(publish(1, dup=True))
        assert await life.answered(1) == [PubAckPacket(1)]
        assert life.started == [b"x"]
        await life.capture.stop()

    run(work)


def test_reused_packet_id_is_another_publication(tmp_path):
    """At QoS 1 a broker uses ids again without a word; only what it says to repeat is a repeat."""

    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1), publish(2))
        await life.answered(2)
        life.receive(publish(1, qos=2))  # the id of what was acknowledged, used again
        await life.answered(3)
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(2), publish(1, qos=2, dup=True))
        await life.answered(2)
        assert life.started == [b"x"]  # the first; the second is what was captured last
        await life.capture.stop()

    run(work)


def test_session_loss_is_remembered_after_restart(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1, qos=2))
        await life.answered(1)
        life.capture.on_disconnected()
        life.capture.on_connected(session_present=False)
        end = life.keeping.writer.end
        await until(lambda: life.keeping.writer.durable >= end, "settled on disk")
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(1, qos=2))
        await life.answered(1)
        assert life.started == [b"x"]  # the new session's first publication, not the old one's
        await life.capture.stop()

    run(work)


def test_lost_session_has_no_redeliveries(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1), publish(2, qos=2))
        await life.answered(2)
        life.crash()
        life = Life(tmp_path, session_present=False)
        life.receive(publish(1))
        await life.answered(1)
        life.crash()  # it stays forgotten
        life = Life(tmp_path)
        life.receive(publish(2, qos=2))
        await life.answered(1)
        assert life.started == [b"x"]
        await life.capture.stop()

    run(work)


def test_pubcomp_waits_until_completion_is_durable(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1, qos=2))
        await life.answered(1)
        life.capture.receive_pubrel([1])
        assert life.answers == [PubRecPacket(1)]
        assert await life.answered(2) == [PubRecPacket(1), PubCompPacket(1)]
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(1, qos=2))
        await life.answered(1)
        assert life.started == [b"x"]
        await life.capture.stop()

    run(work)


def test_repeated_pubrel_waits_for_the_disk(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1, qos=2))
        await life.answered(1)
        life.capture.receive_pubrel([1])
        life.capture.on_disconnected()
        life.capture.on_connected(session_present=True)
        life.capture.receive_pubrel([1])
        assert life.answers == [PubRecPacket(1)]
        assert (await life.answered(2))[1] == PubCompPacket(1)
        await life.capture.stop()

    run(work)


def test_pubrel_for_unknown_packet_id_gets_pubcomp(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.capture.receive_pubrel([9])
        assert life.answers == [PubCompPacket(9)]
        await life.capture.stop()

    run(work)


def test_qos_1_candidates_expire_after_half_of_all_packet_ids(tmp_path):
    """However many connections that took, and whoever captured it."""

    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1), publish(2, qos=2))
        await life.answered(2)
        life.crash()
        life = Life(tmp_path)
        for start in range(3, PACKET_ID_HALF_RANGE, 4_000):
            life.capture.receive_publications(
                [(publish(start + each, topic="no"), False) for each in range(4_000)]
            )
            life.capture.on_connected(session_present=True)
        life.receive(publish(1, dup=True), publish(2, qos=2, dup=True))
        await until(lambda: life.answers[-1:] == [PubRecPacket(2)], "the last answer")
        assert life.started == [b"x"]
        await life.capture.stop()

    run(work)


def test_qos_1_is_captured_again_at_broker_that_reuses_packet_ids(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        for _ in range(4):
            life.receive(publish(1), publish(2, qos=2))
            await life.answered(2)
            life.answers.clear()
            life.capture.receive_pubrel([2])
            await life.answered(1)
            life.answers.clear()
        life.receive(publish(2, qos=2))
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(1, dup=True))
        await life.answered(1)
        assert life.started == [b"x"]
        await life.capture.stop()

    run(work)


def test_new_session_resets_packet_id_order(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(*(publish(packet_id) for packet_id in range(1, 150)))
        await life.answered(149)
        life.capture.on_connected(session_present=False)
        await until(lambda: not life.unsynced, "that it is another session")
        life.crash()
        life = Life(tmp_path)
        told = life.broker_problems
        life.receive(publish(1))
        await life.answered(1)
        assert not told
        await life.capture.stop()

    run(work)


def test_packet_id_order_that_steps_back_raises_alarm(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(*(publish(packet_id) for packet_id in range(1, 150)))
        life.receive(publish(150, b"on", qos=2))
        await life.answered(150)
        life.crash()
        life = Life(tmp_path)
        told = life.broker_problems
        life.receive(publish(149, dup=True))
        assert not told
        life.receive(publish(120, b"new"), publish(150, b"on", qos=2))
        await life.answered(3)
        assert life.started == [b"new", b"on"]
        assert told[0].startswith("the broker restored an older saved state")
        await life.capture.stop()

    run(work)


def test_failing_disk_delays_acknowledgements_and_raises_alarm(tmp_path, monkeypatch):
    async def work() -> None:
        life = Life(tmp_path)

        def fail() -> int:
            raise JournalUnusable("no space")

        monkeypatch.setattr(life.keeping.writer, "commit", fail)
        monkeypatch.setattr("hansa.agent.storage.retry.RETRY_S", 0.01)
        life.receive(publish(1))
        await until(lambda: life.problems, "the problem")
        assert (life.answers, life.kept, life.problems[0]) == ([], [], "no space")
        monkeypatch.undo()
        assert await life.answered(1) == [PubAckPacket(1)]
        assert life.problems[-1] == ""
        await life.capture.stop()

    run(work)


def test_unusable_journal_leaves_publications_at_broker(tmp_path, monkeypatch):
    async def work() -> None:
        life = Life(tmp_path)

        def fail(record: object) -> int:
            raise JournalUnusable("broken")

        monkeypatch.setattr(life.keeping.writer, "append", fail)
        life.receive(publish(1), publish(2), publish(3, topic="no"))
        assert (life.answers, life.started) == ([], [b"x"])
        assert life.problems == ["broken"]
        await life.capture.stop()

    run(work)


def test_rollover_keeps_unacknowledged_publications(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1, b"acknowledged"), publish(2, b"former"))
        await life.answered(2)
        life.capture.record_acknowledged({YOU: 1})
        await until(lambda: not life.unsynced, "the note")
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(3, b"known", qos=2), publish(4, b"waits", qos=2))
        life.capture.schedule_rollover(9)
        life.receive(publish(5, b"held", qos=2))
        life.capture.receive_pubrel([3])
        assert await life.answered(4) == [
            PubRecPacket(3),
            PubRecPacket(4),
            PubRecPacket(5),
            PubCompPacket(3),
        ]
        assert life.reopened == [EpochStarted(9, 4, ((YOU, 3),))]
        assert life.kept[-1] == JournalCommitted(9, 4)
        recalled = life.keeping.read_journal(ReadJournal(YOU, 9, 0, 4, 1_000))
        assert [(each.sequence, each.payload, each.previous) for each in recalled.publications] == [
            (1, b"former", ((YOU, 0),)),
            (2, b"known", ((YOU, 1),)),
            (3, b"waits", ((YOU, 2),)),
            (4, b"held", ((YOU, 3),)),
        ]
        assert life.started == [b"known", b"waits", b"held"]
        life.capture.on_connected(session_present=True)
        life.receive(publish(4, b"waits", qos=2))
        assert (await life.answered(5))[-1] == PubRecPacket(4)
        assert life.started[3:] == []
        await life.capture.stop()

    run(work)


def test_nothing_is_captured_twice_after_rollover_and_crash(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1, b"former", qos=2), publish(2, b"over", qos=2))
        await life.answered(2)
        life.capture.record_acknowledged({YOU: 1})
        life.receive(publish(3, b"recent", qos=2), publish(4, b"settled", qos=2))
        await life.answered(4)
        life.capture.receive_pubrel([2, 4])
        await life.answered(6)
        await life.renew(9)
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(1, b"former", qos=2), publish(3, b"recent", qos=2))
        assert await life.answered(2) == [PubRecPacket(1), PubRecPacket(3)]
        assert life.started == []
        life.receive(publish(2, b"over", qos=2), publish(4, b"settled", qos=2))
        assert life.started == [b"over", b"settled"]  # those ids were free again
        life.capture.receive_pubrel([1, 3])
        await life.answered(6)
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(1, b"former", qos=2), publish(3, b"recent", qos=2))
        assert life.started == [b"former", b"recent"]  # and now these are
        await life.capture.stop()

    run(work)


def test_session_lost_during_rollover_is_recorded_in_new_epoch(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1, b"same", qos=2))
        await life.answered(1)
        life.capture.schedule_rollover(9)
        life.capture.on_connected(session_present=False)
        await life.renew(9)
        await until(lambda: not life.unsynced, "what was forgotten")
        life.crash()
        life = Life(tmp_path)
        life.receive(publish(1, b"same", qos=2))
        assert life.started == [b"same"], "the new session's, not the same again"
        await life.capture.stop()

    run(work)


def test_broker_packets_wait_for_rollover_on_failing_disk(tmp_path, monkeypatch):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1))
        await life.answered(1)
        full = True

        def commit(writer: JournalWriter) -> int:
            if full:
                raise JournalUnusable("full")
            return real(writer)

        real = JournalWriter.commit
        monkeypatch.setattr(JournalWriter, "commit", commit)
        monkeypatch.setattr("hansa.agent.storage.retry.RETRY_S", 0.01)
        life.capture.schedule_rollover(9)
        life.receive(publish(2))
        await until(lambda: len(life.problems) > 1, "another attempt")
        assert (life.started, life.reopened) == ([b"x"], [])
        full = False
        assert await life.answered(2) == [PubAckPacket(1), PubAckPacket(2)]
        assert life.problems[-1] == ""
        assert life.reopened == [EpochStarted(9, 2, ((YOU, 1),))]
        await life.capture.stop()

    run(work)


def test_node_expired_during_rollover_is_no_receiver_in_new_epoch(tmp_path, monkeypatch):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1))
        await life.answered(1)
        has_begun, is_forgotten = threading.Event(), threading.Event()
        renew = life.keeping.build_rollover

        def renew_late(renewal: EpochRollover) -> JournalWriter:
            has_begun.set()
            is_forgotten.wait(60)
            return renew(renewal)

        monkeypatch.setattr(life.keeping, "build_rollover", renew_late)
        life.capture.schedule_rollover(9)
        await until(has_begun.is_set, "its beginning")
        life.capture.expire_node(YOU)
        is_forgotten.set()
        await life.rolled_over()
        await until(lambda: not life.unsynced, "the note")
        assert life.keeping.receivers.last_assigned == {}
        life.crash()
        assert Life(tmp_path).keeping.receivers.last_assigned == {}

    run(work)


def test_stop_during_rollover_keeps_old_epoch(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.receive(publish(1))
        await life.answered(1)
        life.capture.schedule_rollover(9)
        await life.capture.stop()
        assert life.reopened == []

    run(work)
    again = OutboxJournal(tmp_path, ME, 7, JournalSettings())
    assert (again.writer.epoch, again.writer.next_sequence) in {(7, 2), (9, 2)}
    again.writer.close()
