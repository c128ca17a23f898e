"""Messages recorded by agents at real brokers, subscribed elsewhere or not."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually
from tests.agent.process import Process, Scene

from hansa.agent.delivery.outbox_files import OutboxFiles
from hansa.agent.recorded_topics import TOPICS_MAX, RecordedTopics
from hansa.agent.settings import load_settings
from hansa.agent.storage.state_directory import JOURNAL_DIRECTORY
from hansa.agent.telemetry.message_recorder import MessageRecorder
from hansa.errors import JournalUnusable, UsageError
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord, JournalRecord, RecordedPublication
from hansa.journal.settings import JournalSettings
from hansa.mqtt import inputs, packets
from hansa.mqtt.properties import Property, encode_properties
from hansa.protocol.events import Event, SubscriptionsDenied, SubscriptionsGranted
from hansa.protocol.model import NodeId, Publication
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation


def journal(state: Path) -> list[JournalRecord]:
    """Return the journal records of all epochs of an agent."""
    return [
        record
        for epoch in sorted((state / JOURNAL_DIRECTORY).iterdir())
        for _, record in JournalReader(epoch).read()
    ]


def recorded(state: Path) -> list[tuple[int, str, bytes]]:
    """Return QoS, topic and payload of the recorded messages, in order."""
    return [
        (getattr(record, "qos", 0), record.topic, record.payload)
        for record in journal(state)
        if isinstance(record, RecordedPublication)
        or (isinstance(record, CapturedRecord) and record.recorded)
    ]


# ---------------------------------------------------------------- live


RECORDED = ("plant/#", "mill/+/temp")


@pytest.fixture
def pair(mosquitto: str, tmp_path: Path) -> Iterator[Live]:
    settings = {"HANSA_RECORD": ",".join(RECORDED)}
    live = Live(LocalFederation(parse_topology("line:2", 1), settings, directory=tmp_path / "kept"))

    def all_record() -> bool:
        logs = [Path(node.broker.log_file).read_text() for node in live.nodes]
        return all(f" {name}\n" in log for log in logs for name in RECORDED)

    try:
        live.start()
        eventually(all_record, "both agents subscribed to what they record")
        yield live
    finally:
        live.close()


def state(live: Live, number: int) -> Path:
    return live.nodes[number].directory / "agent"


def test_unsubscribed_publication_is_recorded_with_properties_and_not_forwarded(pair):
    pub = pair.client_of(GuaranteedClient, 0)
    pub.publish("plant/zero", b"a", b"b")
    pub.publish("attic/zero", b"c")
    content = encode_properties(((Property.CONTENT_TYPE, "text/plain"),))
    wish = packets.PublishPacket("mill/1/temp", b"d", 1, True, False, 59_999, (), content)
    pub._do(inputs.Publish([wish]))  # noqa: SLF001
    eventually(lambda: pub._read(0.1) is not None and pub.accepted == 1, "accepted")  # noqa: SLF001
    pub.publish_guaranteed(2, "plant/two", b"e")
    pub.publish_guaranteed(1, "mill/1/speed", b"f")
    expected = {
        (0, "plant/zero", b"a"),
        (0, "plant/zero", b"b"),
        (1, "mill/1/temp", b"d"),
        (2, "plant/two", b"e"),
    }
    eventually(lambda: len(recorded(state(pair, 0))) >= 4, "all recorded")
    assert set(recorded(state(pair, 0))) == expected
    assert len(recorded(state(pair, 0))) == 4
    (temp,) = [r for r in journal(state(pair, 0)) if getattr(r, "topic", "") == "mill/1/temp"]
    assert isinstance(temp, CapturedRecord)
    assert (temp.properties, temp.retain, temp.receivers) == (content, True, ())
    assert recorded(state(pair, 1)) == []
    links: Any = pair.nodes[0].status()["neighbours"]
    assert links and pair.counter(1, "injected") == 0
    assert pair.counter(0, "recorded") == 2


def test_subscribed_publication_is_recorded_once_and_delivered_and_stays_recorded(pair):
    sub = pair.client_of(GuaranteedClient, 1).subscribe_qos2("plant/#")
    pair.wait_installed(1, "plant/#")
    pub = pair.client_of(GuaranteedClient, 0)
    pub.publish_guaranteed(1, "plant/one", b"1", b"2")
    assert sub.read_until(2) == [b"1", b"2"]
    sub.unsubscribe("plant/#")

    def is_withdrawn() -> bool:
        interest: Any = pair.nodes[0].status()["interest"]
        return not any(interest["remote"].values())

    eventually(is_withdrawn, "interest withdrawn")
    pub.publish_guaranteed(1, "plant/one", b"3")
    eventually(lambda: len(recorded(state(pair, 0))) == 3, "all recorded")
    assert recorded(state(pair, 0)) == [(1, "plant/one", payload) for payload in (b"1", b"2", b"3")]
    # Other nodes may subscribe again: the broker has granted it before.
    pair.client_of(GuaranteedClient, 1).subscribe_qos2("plant/#")
    pair.wait_installed(1, "plant/#")


def agent_that_records(scene: Scene, port: int, path: Path) -> Process:
    return scene.agent(broker_port=port, state=path, record="plant/#", link_neighbours="")


def ready(agent: Process) -> None:
    eventually(lambda: agent.page("/readyz")[0] == 200, "ready")


@pytest.mark.parametrize("qos", [1, 2])
def test_killed_agent_records_each_accepted_message_once(scene, tmp_path, qos):
    broker = scene.broker("persistence true", "max_queued_messages 0")
    path = tmp_path / "state"
    agent = agent_that_records(scene, broker.port, path)
    ready(agent)
    pub = GuaranteedClient(broker.port)

    def first_is_recorded() -> bool:
        """The broker may grant the subscription after the first publications."""
        pub.publish_guaranteed(qos, "plant/ready", b"ready")
        return bool(recorded(path))

    eventually(first_is_recorded, "the first recorded")
    payloads = [b"%d" % number for number in range(600)]
    for turn in range(0, 600, 200):
        pub.publish_guaranteed(qos, "plant/x", *payloads[turn : turn + 200])
        agent.process.send_signal(signal.SIGKILL)
        agent.wait()
        agent = agent_that_records(scene, broker.port, path)
    pub.close()

    def of_x() -> list[bytes]:
        return [payload for _, topic, payload in recorded(path) if topic == "plant/x"]

    eventually(lambda: len(of_x()) >= len(payloads), "all recorded")
    assert of_x() == payloads


# ---------------------------------------------------------------- units


class FakePorts:
    """Records the calls of a node and a broker client; its disk may be full."""

    def __init__(self) -> None:
        self.fed: list[Event] = []
        self.taken: list[packets.PublishPacket] = []
        self.orders: list[tuple[str, tuple[Any, ...]]] = []
        self.records: list[RecordedPublication] = []
        self.takes = True

    def feed(self, *events: Event) -> None:
        self.fed += events

    def capture_qos0(self, publications: Any) -> None:
        self.taken += publications

    def subscribe(self, filters: Sequence[str]) -> None:
        self.orders.append(("subscribe", tuple(filters)))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        self.orders.append(("unsubscribe", tuple(filters)))

    def publish(self, publications: Any) -> None:
        self.orders.append(("publish", tuple(publications)))


def recording(ports: FakePorts) -> MessageRecorder:
    made = MessageRecorder(RecordedTopics(["a/#", "b"]), ports, 1, ports)  # type: ignore[arg-type]
    made.attach(ports)
    return made


def test_recorded_filters_stay_subscribed():
    ports = FakePorts()
    made = recording(ports)
    made.unsubscribe(["a/#", "c"])
    made.unsubscribe(["b"])
    assert ports.orders == [("subscribe", ("a/#", "b")), ("unsubscribe", ("c",))]


def test_recorded_topic_is_granted_after_broker_granted_it():
    ports = FakePorts()
    made = recording(ports)
    ports.orders.clear()
    made.subscribe(["a/#", "c"])
    assert (ports.orders, ports.fed) == ([("subscribe", ("c",))], [])
    made.feed(SubscriptionsGranted(("a/#",)), SubscriptionsDenied(("b",), "no"))
    assert ports.fed == [SubscriptionsGranted(("a/#",)), SubscriptionsDenied(("b",), "no")]
    ports.fed.clear()
    made.subscribe(["a/#", "b"])
    assert ports.fed == [SubscriptionsGranted(("a/#",))]
    made.publish([("x", b"y")])
    assert ports.orders[1:] == [("publish", (("x", b"y"),))]


def test_remembered_topics_are_bounded():
    topics = RecordedTopics(["a/+"])
    assert [f"a/{number}" in topics for number in range(TOPICS_MAX + 2)].count(False) == 0
    assert "b" not in topics
    assert not RecordedTopics()


def test_records_not_stored_are_counted(monkeypatch):
    class Full:
        def append_if_room(self, record: RecordedPublication) -> bool:
            if record.payload == b"worse":
                raise JournalUnusable("gone")
            return False

        def schedule_commit(self) -> None:
            raise AssertionError

    async def note() -> MessageRecorder:
        ports = FakePorts()
        made = MessageRecorder(RecordedTopics(["a"]), ports, 1, Full())  # type: ignore[arg-type]
        made.capture_qos0(
            [packets.PublishPacket("a", b"bad"), packets.PublishPacket("a", b"worse")]
        )
        assert len(ports.taken) == 2
        made.stop()
        return made

    assert asyncio.run(note()).counters == {"dropped: recording, disk too slow": 2}


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        (["a/#/b"], "record: .*#"),
        (["$SYS/#"], "topics with . stay with their broker"),
        (["$share/g/a"], "topics with . stay with their broker"),
        (["a"] * 1_025, "record has 1025 filters, the limit is 1024"),
    ],
)
def test_invalid_recorded_filter_is_refused(filters, reason):
    with pytest.raises(UsageError, match=reason):
        load_settings(None, {"HANSA_RECORD": ",".join(filters)})


def kept(path: Path, epoch: int, topics: RecordedTopics) -> None:
    settings = JournalSettings(retention_seconds=3_600.0)
    files = OutboxFiles(path, NodeId(1), 7, settings, topics)
    sequence = files.writer.next_sequence
    files.log_state.append_publication(Publication(NodeId(1), 7, sequence, 1, "a", b""), 1)
    files.writer.commit()
    plan = files.log_state.plan_rollover(epoch)
    files.start_epoch(files.build_epoch(plan))
    files.log_state.adopt_epoch(plan, files.writer)
    files.remove_ended_epochs()
    files.close()


def test_old_epoch_with_records_is_kept_until_retention_ends(tmp_path):
    kept(tmp_path, 8, RecordedTopics(["a"]))
    former = tmp_path / f"{7:020d}"
    assert [getattr(record, "recorded", None) for _, record in JournalReader(former).read()] == [
        True
    ]
    for path in former.glob("*.log"):
        os.utime(path, (0, 0))
    kept(tmp_path, 10, RecordedTopics(["a"]))  # in an epoch 9, because 8 was empty
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{9:020d}", f"{10:020d}"]


def test_old_epoch_is_deleted_without_recording(tmp_path):
    kept(tmp_path, 8, RecordedTopics())
    assert [path.name for path in tmp_path.iterdir()] == [f"{8:020d}"]
