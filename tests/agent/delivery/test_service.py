"""The delivery service: events for the node, full disk, copied journal, marks, its stop."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.waiting import PATIENCE, until

from hansa.agent.alarms import Alarms
from hansa.agent.delivery import crash_points
from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.delivery.service import DeliveryService
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.storage import connect_marker, subscription_file
from hansa.agent.storage.state_directory import SUBSCRIPTIONS_FILE, StateDirectory
from hansa.delivery import inputs
from hansa.delivery.core import BrokerTraits
from hansa.delivery.effects import LogName
from hansa.delivery.poison_quarantine import DISCONNECTS_MAX
from hansa.delivery.settings import DeliverySettings
from hansa.journal.records import InboxRecord
from hansa.journal.writer import JournalWriter
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import PubAckPacket, PublishPacket, Subscription
from hansa.mqtt.types import Version
from hansa.protocol.effects import Gap, NodeReachable, ReadJournal
from hansa.protocol.events import Event, InboxCommitted, JournalRead, StoreUncertain
from hansa.protocol.model import NodeId, PlainMessage, Publication
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings


class Driver:
    """Records the events for a node that does not run."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.events: list[Event] = []

    def feed(self, *events: Event) -> None:
        self.events += events

    def assign_position(self, publication: Any) -> None:
        raise AssertionError("nothing is published")

    def on_injected(self, records: Sequence[InboxRecord]) -> None:
        """Telemetry is not tested here."""


class Broker:
    """Records what is sent to a broker."""

    def __init__(self) -> None:
        self.superseded: list[str] = []
        self.published: list[Publication] = []
        self.injected: list[PublishPacket] = []
        self.requests: list[str] = []

    def publish(self, publications: Any) -> None:
        self.published += publications

    def inject(self, batch: Any) -> None:
        self.injected += batch

    def send_handshake_packets(self, batch: Any) -> None:
        raise AssertionError("nothing is answered")

    def send_subscribe(self, subscription: Subscription, identifier: int | None) -> None:
        self.requests.append(subscription.topic_filter)

    def send_unsubscribe(self, topic_filter: str) -> None:
        raise AssertionError("nothing is unsubscribed")

    def discard_delayed(self, topics: Iterable[str]) -> None:
        self.superseded += topics


LIMITS = BrokerLimits(version=Version.V5, client_id="x", keep_alive=30, session_expiry=0)


class Scene:
    """A delivery service with a state directory and no agent."""

    def __init__(self, path: Path) -> None:
        self.state = StateDirectory(path)
        self.identity = self.state.start_incarnation("n", (), 1.0)
        self.alarms = Alarms()
        made = DeliveryService(
            self.state,
            self.identity,
            DeliverySettings(),
            self.alarms,
            RecordedTopics(),
            BrokerTraits(),
        )
        self.driver = Driver(Node(self.identity, ProtocolSettings(), made.restored_state()))
        self.broker = Broker()
        made.attach(self.driver, self.broker, self.driver)
        self.delivery = made

    async def close(self) -> None:
        await self.delivery.stop()
        self.state.close()


def test_copied_journal_delivers_only_after_rollover(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.delivery.core.CLONE_CHECK_S", 0.0)
    other = NodeId(9)
    publication = Publication(other, 7, 1, 1, "a", b"x")

    async def work() -> None:
        await Scene(tmp_path / "original").close()
        shutil.copytree(tmp_path / "original", tmp_path / "copy")
        scene = Scene(tmp_path / "copy")
        scene.delivery.deliver([publication])
        mark = scene.delivery.delivery_mark
        assert (scene.delivery.status()["inbox"], scene.delivery.has_passed(mark)) == (0, False)
        scene.delivery.on_notification(NodeReachable(other))
        await until(lambda: InboxCommitted(other, 7, 1) in scene.driver.events, "what came early")
        assert scene.delivery.status()["inbox"] == 1
        assert scene.delivery.all_counters()["epoch rollovers"] == 1
        await scene.close()

    asyncio.run(work())


def test_mark_is_passed_when_everything_before_it_reached_the_broker(tmp_path):
    async def work() -> None:
        scene = Scene(tmp_path)
        made, inbox = scene.delivery, scene.delivery.core.inbox
        assert made.has_passed(made.delivery_mark)
        made.deliver([Publication(NodeId(9), 7, number, 1, "a", b"x") for number in (1, 2)])
        mark = made.delivery_mark
        made.deliver([Publication(NodeId(9), 7, 3, 1, "a", b"x")])
        first, second, _ = inbox.entries.values()
        inbox.mark_completed(second)
        assert not made.has_passed(mark)
        inbox.mark_completed(first)
        assert made.has_passed(mark)
        assert not made.has_passed(made.delivery_mark)
        for _ in range(DISCONNECTS_MAX):
            made.core.injection.quarantine.on_disconnected([*inbox.entries.values()])
        assert made.has_passed(made.delivery_mark)  # quarantined
        await scene.close()

    asyncio.run(work())


def test_delivered_value_discards_delayed_values(tmp_path):
    async def work() -> None:
        scene = Scene(tmp_path)
        value = Publication(NodeId(9), 7, 1, 1, "value", b"x", retain=True)
        gap = Gap(NodeId(9), 7, 2, 2, "test")
        scene.delivery.deliver([value, gap, Publication(NodeId(9), 7, 3, 1, "a", b"x")])
        assert scene.broker.superseded == ["value"]
        await scene.close()

    asyncio.run(work())


def test_retained_value_of_qos_0_waits_and_uncertain_topics_are_reported(tmp_path):
    async def work() -> None:
        scene = Scene(tmp_path)
        made, broker, events = scene.delivery, scene.broker, scene.driver.events
        made.deliver([Publication(NodeId(9), 7, 1, 1, "value", b"x", True, version=1)])
        gone = Publication(NodeId(9), 7, 1, 0, "value", b"", True, version=2)
        assert made.has_pending_retained
        assert made.hold_back([gone]) == []
        await until(lambda: InboxCommitted(NodeId(9), 7, 1) in events, "durable")
        made.handle(inputs.Connected(True, LIMITS))
        made.handle(inputs.Disconnected())
        assert StoreUncertain(("value",)) not in events
        made.handle(inputs.Connected(True, LIMITS))
        assert events[-2:] == [StoreUncertain(("value",)), StoreUncertain((), True)]
        first, again = broker.injected
        assert (first.topic, first.packet_id, again.dup) == ("value", again.packet_id, True)
        made.handle(inputs.HandshakePacketsReceived([PubAckPacket(first.packet_id)]))
        assert broker.published == [gone]
        await scene.close()

    asyncio.run(work())


def test_value_of_qos_0_follows_one_that_waits_for_the_core(tmp_path, monkeypatch):
    """The node delivers both while the core handles another input."""
    first = Publication(NodeId(9), 7, 1, 1, "value", b"x", True, version=1)
    second = Publication(NodeId(9), 7, 1, 0, "value", b"y", True, version=2)

    async def work() -> None:
        scene = Scene(tmp_path)
        made, broker = scene.delivery, scene.broker

        def publish(publications: Sequence[PlainMessage | Publication]) -> None:
            if made.has_pending_retained:
                publications = made.hold_back(publications)
            broker.published += [each for each in publications if isinstance(each, Publication)]

        def feed(event: Event) -> None:
            if event == StoreUncertain((), True):
                made.deliver([first])
                publish([second])

        monkeypatch.setattr(broker, "publish", publish)
        monkeypatch.setattr(scene.driver, "feed", feed)
        made.handle(inputs.Connected(True, LIMITS))
        await until(lambda: broker.injected, "the first one is durable")
        assert broker.published == []
        made.handle(inputs.HandshakePacketsReceived([PubAckPacket(broker.injected[0].packet_id)]))
        assert broker.published == [second]
        await scene.close()

    asyncio.run(work())


def test_session_losses_on_full_disk_are_recorded_later(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.delivery.group_commit.RETRY_S", 0.05)

    async def work() -> None:
        scene = Scene(tmp_path)
        made, mark = scene.delivery, tmp_path / "connecting"
        with monkeypatch.context() as broken:
            broken.setattr(os, "pwrite", full)
            for _ in range(3):
                await made.before_connect()
                made.handle(inputs.Connected(False, LIMITS))
                made.handle(inputs.Disconnected())
            await until(lambda: "journal not writable" in scene.alarms.active, "the alarm")
            assert mark.exists()
        await until(lambda: not mark.exists(), "all noted")
        assert "journal not writable" not in scene.alarms.active
        await scene.close()

    asyncio.run(work())


def test_connect_marker_of_a_new_attempt_outlives_the_loss_before_it(tmp_path, monkeypatch):
    """Otherwise a crash before CONNACK would hide that the broker lost the session again."""
    may_commit, may_create = threading.Event(), threading.Event()
    commit = JournalWriter.commit

    def commit_late(writer: JournalWriter) -> int:
        assert may_commit.wait(PATIENCE)
        return commit(writer)

    async def work() -> None:
        scene = Scene(tmp_path)
        made, mark = scene.delivery, tmp_path / "connecting"
        handle, handled = made.handle, list[inputs.Input]()

        def handle_and_note(happened: inputs.Input) -> None:
            handle(happened)
            handled.append(happened)

        with monkeypatch.context() as slow:
            slow.setattr(made, "handle", handle_and_note)
            slow.setattr(JournalWriter, "commit", commit_late)
            await made.before_connect()
            made.handle(inputs.Connected(False, LIMITS))
            made.handle(inputs.Disconnected())
            slow.setattr(connect_marker, "sync_directory", lambda _: may_create.wait(PATIENCE))
            connecting = asyncio.create_task(made.before_connect())
            await asyncio.sleep(0)
            may_commit.set()
            commits = [inputs.Committed(name) for name in LogName]
            await until(lambda: all(each in handled for each in commits), "the loss is durable")
            may_create.set()
            await connecting
        assert mark.exists()
        made.handle(inputs.Connected(True, LIMITS))
        assert not mark.exists()
        await scene.close()

    asyncio.run(work())


def test_fault_of_one_effect_does_not_stop_the_others(tmp_path, monkeypatch):
    """A commit that does not start would stop delivery until the agent is restarted."""
    may_commit = threading.Event()
    commit = JournalWriter.commit

    def commit_late(writer: JournalWriter) -> int:
        made = commit(writer)
        assert may_commit.wait(PATIENCE)
        return made

    async def work() -> None:
        faults: list[BaseException] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        scene = Scene(tmp_path)
        made, events = scene.delivery, scene.driver.events
        made.handle(inputs.Connected(True, LIMITS))
        monkeypatch.setattr(JournalWriter, "commit", commit_late)
        made.deliver([Publication(NodeId(9), 7, 1, 1, "a", b"x")])
        inbox = made.core.inbox.log
        await until(lambda: inbox.durable == inbox.end, "the first one is on disk")
        made.deliver([Publication(NodeId(9), 7, 2, 1, "a", b"y")])
        feed = scene.driver.feed

        def fail_once(event: Event) -> None:
            monkeypatch.setattr(scene.driver, "feed", feed)
            fail(event)

        monkeypatch.setattr(scene.driver, "feed", fail_once)
        may_commit.set()
        await until(lambda: InboxCommitted(NodeId(9), 7, 2) in events, "the second one is durable")
        assert [str(each) for each in faults] == ["a fault"]
        await scene.close()

    asyncio.run(work())


def test_commit_that_raised_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.delivery.group_commit.RETRY_S", 0.05)

    async def work() -> None:
        faults: list[BaseException] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        scene = Scene(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(JournalWriter, "commit", fail)
            scene.delivery.deliver([Publication(NodeId(9), 7, 1, 1, "a", b"x")])
            await until(lambda: "inbox not writable" in scene.alarms.active, "the alarm")
        await until(lambda: InboxCommitted(NodeId(9), 7, 1) in scene.driver.events, "durable")
        assert str(faults[0]) == "a fault"
        assert "inbox not writable" not in scene.alarms.active
        await scene.close()

    asyncio.run(work())


def fail(*_: object) -> None:
    raise RuntimeError("a fault")


def test_fault_of_one_input_does_not_stop_the_others(tmp_path, monkeypatch):
    async def work() -> None:
        scene = Scene(tmp_path)
        made = scene.delivery

        def feed(*fed: Event) -> None:
            if StoreUncertain((), True) in fed:
                monkeypatch.setattr(made.core.injection, "add_publications", fail)
                made.deliver([Publication(NodeId(9), 7, 1, 1, "a", b"x")])
                made.handle(inputs.RequireFilters(["a"]))

        monkeypatch.setattr(scene.driver, "feed", feed)
        with pytest.raises(RuntimeError, match="a fault"):
            made.handle(inputs.Connected(True, LIMITS))
        assert made.core.subscriptions.required == ("a",)
        await scene.close()

    asyncio.run(work())


def test_subscriptions_wait_for_the_disk_and_the_loop_does_not(tmp_path, monkeypatch):
    may_sync = threading.Event()
    monkeypatch.setattr(subscription_file, "sync_file", lambda file: may_sync.wait(PATIENCE))

    async def work() -> None:
        scene = Scene(tmp_path)
        made, broker = scene.delivery, scene.broker
        made.handle(inputs.RequireFilters(["a"]))
        made.handle(inputs.Connected(False, LIMITS))
        made.deliver([Publication(NodeId(9), 7, 1, 1, "b", b"x")])
        await until(lambda: broker.injected, "injected meanwhile")
        assert broker.requests == []
        may_sync.set()
        await until(lambda: broker.requests == ["a"], "subscribed")
        await scene.close()

    asyncio.run(work())


def test_crash_points_of_commits_need_a_durable_publication(tmp_path, monkeypatch):
    """A crash point that any commit passed would end an agent before the step that it names."""
    passed: list[int] = []
    monkeypatch.setattr(crash_points, "IS_ARMED", True)
    monkeypatch.setattr(crash_points, "pass_crash_point", passed.append)

    async def work() -> None:
        scene = Scene(tmp_path)
        made, events = scene.delivery, scene.driver.events
        await made.before_connect()
        made.handle(inputs.Connected(False, LIMITS))
        await until(lambda: len(passed) == 2, "the session loss is durable")
        made.handle(inputs.Disconnected())
        await made.before_connect()
        made.handle(inputs.Connected(True, LIMITS))
        made.deliver([Publication(NodeId(9), 7, 1, 1, "a", b"x")])
        await until(lambda: InboxCommitted(NodeId(9), 7, 1) in events, "durable")
        await scene.close()

    asyncio.run(work())
    assert passed == [
        DeliveryCrashPoint.SESSION_LOST,
        DeliveryCrashPoint.SESSION_LOSS_DURABLE,
        DeliveryCrashPoint.INBOX_APPENDED,
        DeliveryCrashPoint.INBOX_DURABLE,
        DeliveryCrashPoint.PUBLISHED,
    ]


def test_inputs_after_stop_are_ignored(tmp_path):
    async def work() -> None:
        scene = Scene(tmp_path)
        await scene.close()
        for _ in range(3):
            scene.delivery.handle(inputs.RequireFilters(["a"]))
        assert not scene.delivery._inputs  # noqa: SLF001
        assert scene.delivery.core.saved_subscriptions.identifiers == {}

    asyncio.run(work())


def test_stop_waits_for_the_file_of_subscriptions(tmp_path, monkeypatch):
    """Otherwise the file could be closed while a thread writes to it."""
    is_syncing, may_sync = threading.Event(), threading.Event()

    def sync(file: int) -> None:
        is_syncing.set()
        assert may_sync.wait(PATIENCE)

    async def work() -> None:
        scene = Scene(tmp_path)
        with monkeypatch.context() as slow:
            slow.setattr(subscription_file, "sync_file", sync)
            scene.delivery.handle(inputs.RequireFilters(["a"]))
            scene.delivery.handle(inputs.Connected(False, LIMITS))
            await until(is_syncing.is_set, "the disk is asked")
            stopping = asyncio.create_task(scene.close())
            await asyncio.sleep(0.05)
            assert not stopping.done()
            may_sync.set()
            await stopping
        assert scene.broker.requests == []
        assert b'"a"' in (tmp_path / SUBSCRIPTIONS_FILE).read_bytes()
        scene = Scene(tmp_path)
        assert scene.delivery.core.saved_subscriptions.identifiers == {"a": 1}
        await scene.close()

    asyncio.run(work())


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_truncated_records_are_logged_and_counted(tmp_path, caplog):
    async def work() -> None:
        former = Scene(tmp_path)
        me, epoch = former.identity.node, former.identity.incarnation
        former.delivery.core.outbox.append_publication(
            Publication(me, epoch, 1, 1, "a", b"x"), packet_id=1
        )
        await former.close()
        for name, torn in (("journal/*", b"\1\2\3"), ("inbox", b"\1\2")):
            (file,) = tmp_path.glob(f"{name}/*.log")
            file.write_bytes(file.read_bytes() + torn)
        with caplog.at_level("INFO"):
            scene = Scene(tmp_path)
        assert "torn records truncated in journal bytes=3" in caplog.messages
        assert scene.delivery.all_counters()["truncated bytes in journal"] == 3
        assert scene.delivery.all_counters()["truncated bytes in inbox"] == 2
        assert not scene.alarms.active
        await scene.close()

    asyncio.run(work())


def test_exception_while_reading_journal_returns_empty_result(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async def work() -> None:
        scene = Scene(tmp_path)
        epoch = scene.identity.incarnation
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: faults.append(said))

        def fail(order: ReadJournal) -> JournalRead:
            raise RuntimeError("a fault")

        monkeypatch.setattr(scene.delivery._files.outbox, "read_journal", fail)  # noqa: SLF001
        scene.delivery.perform(ReadJournal(NodeId(2), epoch, 3, 9, 1_000))
        await until(lambda: len(faults) == 1, "the fault to be events")
        assert scene.driver.events[-1] == JournalRead(NodeId(2), epoch, 3, 3, ())
        await scene.close()

    asyncio.run(work())


def test_event_loop_runs_while_logs_close(tmp_path, monkeypatch):
    goes_on = threading.Event()
    close = JournalWriter.close

    def slow(writer: JournalWriter) -> None:
        assert goes_on.wait(PATIENCE), "the loop waits for the disk"
        close(writer)

    async def work() -> None:
        scene = Scene(tmp_path)
        monkeypatch.setattr(JournalWriter, "close", slow)
        asyncio.get_running_loop().call_soon(goes_on.set)
        await scene.close()

    asyncio.run(work())
