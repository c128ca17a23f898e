"""The delivery service: events for the node, full disk, copied journal, marks."""

import asyncio
import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.agent.waiting import until

from hansa.agent.alarms import Alarms
from hansa.agent.delivery.poison_quarantine import DISCONNECTS_MAX
from hansa.agent.delivery.service import DeliveryService
from hansa.agent.delivery.settings import DeliverySettings
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.storage.state_directory import StateDirectory
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version
from hansa.protocol.effects import Gap, NodeReachable, ReadJournal
from hansa.protocol.events import Event, InboxCommitted, JournalRead, StoreUncertain
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings


class Driver:
    """Records the events for a node that does not run."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.events: list[Event] = []

    def feed(self, *events: Event) -> None:
        self.events += events

    def capture_guaranteed(self, publication: Any) -> None:
        raise AssertionError("nothing is published")


class Broker:
    """A broker that is never connected."""

    def __init__(self) -> None:
        self.superseded: list[str] = []
        self.published: list[Publication] = []

    def publish(self, publications: Any) -> None:
        self.published += publications

    def inject(self, batch: Any) -> None:
        raise AssertionError("nothing is injected")

    def send_handshake_steps(self, batch: Any) -> None:
        raise AssertionError("nothing is answered")

    def is_local_topic(self, topic: str) -> bool:
        return False

    def discard_delayed(self, topics: Iterable[str]) -> None:
        self.superseded += topics

    newest_subscription = 0


class Scene:
    """A delivery service with a state directory and no agent."""

    def __init__(self, path: Path) -> None:
        self.state = StateDirectory(path)
        self.identity = self.state.start_incarnation("n", (), 1.0)
        self.alarms = Alarms()
        made = DeliveryService(
            self.state, self.identity, DeliverySettings(), self.alarms, RecordedTopics()
        )
        self.driver = Driver(Node(self.identity, ProtocolSettings(), made.restored_state()))
        self.broker = Broker()
        made.attach(self.driver, self.broker)
        self.delivery = made

    async def close(self) -> None:
        await self.delivery.stop()
        self.state.close()


def test_copied_journal_delivers_only_after_rollover(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.service.CLONE_CHECK_S", 0.0)
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
        made, inbox = scene.delivery, scene.delivery.injection.inbox
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
            made.injection.quarantine.on_disconnected([*inbox.entries.values()])
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
        made = scene.delivery
        made.deliver([Publication(NodeId(9), 7, 1, 1, "value", b"x", True, version=1)])
        gone = Publication(NodeId(9), 7, 1, 0, "value", b"", True, version=2)
        assert made.has_pending_retained
        assert made.hold_back([gone]) == []
        made._report_uncertain(("value",))  # noqa: SLF001
        made._report_uncertain(("value", "other"))  # noqa: SLF001
        assert not any(isinstance(each, StoreUncertain) for each in scene.driver.events)
        await until(lambda: StoreUncertain(("value", "other")) in scene.driver.events, "events")
        await scene.close()

    asyncio.run(work())


def test_session_losses_on_full_disk_are_recorded_later(tmp_path, monkeypatch):
    limits = BrokerLimits(version=Version.V5, client_id="x", keep_alive=30, session_expiry=0)

    async def work() -> None:
        scene = Scene(tmp_path)
        marker, mark = scene.delivery.connect_marker, tmp_path / "connecting"
        with monkeypatch.context() as broken:
            broken.setattr(os, "pwrite", full)
            for _ in range(3):
                await marker.before_connect()
                scene.delivery.on_connected(False, True, limits)
                scene.delivery.on_disconnected()
            await until(lambda: "journal" in scene.alarms.active, "the alarm")
            await until(lambda: len(scene.delivery._loss_tasks) == 1, "one that waits")  # noqa: SLF001
            assert mark.exists()
        await until(lambda: not mark.exists(), "all noted")
        await scene.close()

    asyncio.run(work())


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_truncated_records_are_logged_and_counted(tmp_path, caplog):
    async def work() -> None:
        former = Scene(tmp_path)
        me, epoch = former.identity.node, former.identity.incarnation
        former.delivery.capture.journal.append_publication(
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

        monkeypatch.setattr(scene.delivery.capture.journal, "read_journal", fail)
        scene.delivery.perform(ReadJournal(NodeId(2), epoch, 3, 9, 1_000))
        await until(lambda: len(faults) == 1, "the fault to be events")
        assert scene.driver.events[-1] == JournalRead(NodeId(2), epoch, 3, 3, ())
        await scene.close()

    asyncio.run(work())
