"""Events and effects of a node as telemetry records."""

from typing import Any

import pytest

from hansa.protocol import effects, events
from hansa.protocol.effects import (
    AppendToJournal,
    Deliver,
    Dropped,
    Duplicate,
    Ignored,
    NeighbourUp,
    Send,
)
from hansa.protocol.events import ClientPublished, FrameReceived
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    AnnouncementRequest,
    CoreAnnouncement,
    Heartbeat,
    RepairResponse,
    SequencedFrame,
)
from hansa.telemetry import schema
from hansa.telemetry.event_mapper import PENDING_DELIVERIES_MAX, EventMapper, is_sampled

HERE, PEER, FAR = NodeId(1), NodeId(2), NodeId(3)
LINK = LinkId(7)


class MappedRecords:
    """An event mapper with a manual clock, and the records it emitted."""

    def __init__(self, sample: int = 1):
        self.records: list[schema.AnyRecord] = []
        self.now = 100
        self.mapper = EventMapper(self.records.append, (HERE, 5), sample, lambda: self.now)
        self.mapper.on_effect(0, NeighbourUp(PEER, LINK))
        self.records.clear()

    def handle(self, event: events.Event, *outputs: effects.Effect) -> list[Any]:
        self.mapper.on_event_handled(event, outputs)
        return self.take()

    def take(self) -> list[Any]:
        emitted = list(self.records)
        self.records.clear()
        return emitted


def copy(number: int = 9, qos: int = 0, hops: int = 0, origin: NodeId = FAR) -> Publication:
    return Publication(origin, 4, number, qos, "a/b", b"21.5", hops=hops)


def test_forwarded_copy_is_recorded_as_received_sent_and_delivered():
    mapped = MappedRecords()
    size = len(encode(copy()))
    assert mapped.handle(
        FrameReceived(LINK, copy()), Deliver(copy()), Send(LINK, copy(hops=1))
    ) == [schema.CopyReceived(100, FAR, 4, 9, 0, "a/b", 4, size, 1, PEER)]
    mapped.mapper.on_frame_sent(LINK, copy(hops=1), size)
    mapped.mapper.on_delivered(copy())
    assert mapped.take() == [
        schema.CopySent(100, FAR, 4, 9, 0, "a/b", 4, size, 2, PEER),
        schema.Delivered(100, FAR, 4, 9, 0, "a/b", 4, 1),
    ]


def test_dropped_copies_are_recorded_with_their_epoch_and_qos():
    mapped = MappedRecords()
    outputs = Duplicate(FAR, 9), Dropped(FAR, 9, "hop limit")
    assert mapped.handle(FrameReceived(LINK, copy(qos=1)), *outputs)[1:] == [
        schema.Duplicate(100, FAR, 4, 9, 1, PEER),
        schema.Dropped(100, FAR, 4, 9, 1, "hop limit"),
    ]


def test_local_publication_is_captured_once():
    mapped = MappedRecords()
    first = copy(origin=HERE)
    event = ClientPublished("a/b", b"21.5")
    captured = [schema.Captured(100, HERE, 4, 9, 0, "a/b", 4)]
    assert mapped.handle(event, Send(LINK, first), Send(LinkId(8), first)) == captured
    assert mapped.handle(event, Dropped(HERE, 10, "no route to the core")) == [
        schema.Dropped(100, HERE, 5, 10, 0, "no route to the core")
    ]
    guaranteed = copy(origin=HERE, qos=2)
    assert mapped.handle(event, AppendToJournal(guaranteed)) == [
        schema.Captured(100, HERE, 4, 9, 2, "a/b", 4)
    ]
    assert mapped.handle(events.JournalCommitted(4, 9), Send(LINK, guaranteed)) == []


def test_later_publications_have_the_raised_incarnation():
    mapped = MappedRecords()
    mapped.handle(events.TimerFired(), effects.IncarnationRaised(6))
    assert mapped.take() == []
    (dropped,) = mapped.handle(
        ClientPublished("a/b", b""), Dropped(HERE, 1, "no route to the core")
    )
    assert dropped == schema.Dropped(100, HERE, 6, 1, 0, "no route to the core")


def test_repaired_deliveries_have_no_hops():
    mapped = MappedRecords()
    frame = RepairResponse(HERE, FAR, 4, 8, 9, 0, (), 0)
    for wrapped in (frame, SequencedFrame(1, frame)):
        mapped.handle(FrameReceived(LINK, copy(8, qos=1, hops=2)), Deliver(copy(8, qos=1, hops=2)))
        mapped.handle(FrameReceived(LINK, wrapped), Deliver(copy(qos=1)))
        mapped.mapper.on_delivered(copy(8, qos=1))
        mapped.mapper.on_delivered(copy(qos=1))
        assert [each.hops for each in mapped.take()] == [3, None]


def test_hops_of_the_oldest_pending_delivery_are_forgotten_at_the_bound():
    mapped = MappedRecords()
    outputs = [Deliver(copy(number, qos=1)) for number in range(PENDING_DELIVERIES_MAX + 1)]
    mapped.handle(events.InboxCommitted(FAR, 4, 7), *outputs)
    mapped.mapper.on_delivered(copy(0, qos=1))
    mapped.mapper.on_delivered(copy(1, qos=1))
    assert [each.hops for each in mapped.take()] == [None, 1]


def test_only_ignored_control_input_is_recorded():
    mapped = MappedRecords()
    assert mapped.handle(ClientPublished("$SYS/x", b""), Ignored("local only")) == []
    assert mapped.handle(FrameReceived(LINK, copy()), Ignored("unknown node"))[1:] == []
    assert mapped.handle(events.TimerFired(), Ignored("senseless")) == [
        schema.Ignored(100, "senseless")
    ]


def test_control_frames_are_recorded_with_their_announcement():
    mapped = MappedRecords()
    mapped.mapper.on_frame_sent(LINK, SequencedFrame(1, CoreAnnouncement(FAR, 1, 8, 2)), 30)
    mapped.mapper.on_frame_sent(LinkId(99), AnnouncementRequest(FAR, 1, 8, 0), 12)
    assert mapped.take() == [
        schema.ControlFrameSent(100, "CoreAnnouncement", 30, PEER, FAR, 8, 2, 1),
        schema.ControlFrameSent(100, "AnnouncementRequest", 12, None),
    ]


def test_answered_heartbeat_gives_the_round_trip_time():
    mapped = MappedRecords()
    mapped.now = 1_000_000
    mapped.mapper.on_frame_sent(LINK, Heartbeat(3, 0, 0, 0), 20)
    mapped.take()
    mapped.now = 4_500_000
    assert mapped.handle(FrameReceived(LINK, Heartbeat(1, 2, 0, 0))) == []
    assert mapped.handle(FrameReceived(LINK, Heartbeat(1, 3, 1_000, 0))) == [
        schema.RoundTrip(4_500_000, PEER, 2.5)
    ]
    assert mapped.handle(events.TimerFired(), effects.NeighbourDown(PEER, "silent")) == [
        schema.LinkDown(4_500_000, PEER, "silent")
    ]
    assert mapped.handle(FrameReceived(LINK, Heartbeat(1, 3, 1_000, 0))) == []


def test_echo_may_cross_the_next_heartbeat():
    """This happens if both ends send at the same moment."""
    mapped = MappedRecords()
    for number, at in ((3, 1_000_000), (4, 2_000_000)):
        mapped.now = at
        mapped.mapper.on_frame_sent(LINK, Heartbeat(number, 0, 0, 0), 20)
    mapped.take()
    mapped.now = 3_000_000
    assert mapped.handle(FrameReceived(LINK, Heartbeat(1, 3, 500, 0))) == [
        schema.RoundTrip(3_000_000, PEER, 1.5)
    ]


def test_parents_are_recorded_with_those_gained_and_lost():
    mapped = MappedRecords()

    def change(*parents: int) -> list[Any]:
        nodes = tuple(map(NodeId, parents))
        return mapped.handle(events.TimerFired(), effects.ParentsChanged(FAR, 1, 8, 2, nodes))

    assert change(4, 5) == [schema.ParentsChanged(100, FAR, 8, 2, (4, 5), (4, 5), ())]
    assert change(5, 6) == [schema.ParentsChanged(100, FAR, 8, 2, (5, 6), (6,), (4,))]
    assert change() == [schema.ParentsChanged(100, FAR, 8, 2, (), (), (5, 6))]
    assert change(6) == [schema.ParentsChanged(100, FAR, 8, 2, (6,), (6,), ())]


def test_interest_is_recorded_per_filter():
    mapped = MappedRecords()
    event = events.InterestChanged(("a/#", "b"), ("c",))
    orders = effects.SubscribeAtBroker(("d",)), effects.UnsubscribeAtBroker(("e", "f"))
    assert mapped.handle(event, *orders) == [
        schema.InterestAdded(100, "a/#"),
        schema.InterestAdded(100, "b"),
        schema.InterestRemoved(100, "c"),
        schema.SubscribedAtBroker(100, "d"),
        schema.UnsubscribedAtBroker(100, "e"),
        schema.UnsubscribedAtBroker(100, "f"),
    ]


def test_other_effects_map_to_records_of_the_same_name():
    mapped = MappedRecords()
    outputs = (
        effects.LinkRefused(LINK, "federation"),
        effects.PeerMisbehaved(LINK, "forged"),
        effects.NodeReachable(FAR),
        effects.NodeUnreachable(FAR),
        effects.CoreElected("a/#", FAR),
        effects.CoreLost("a/#", FAR),
        effects.MeshJoined("a/#"),
        effects.MeshLeft("a/#"),
        effects.InterestInstalled(3),
        effects.Repaired(FAR, 2),
        effects.Gap(FAR, 4, 1, 2, "trimmed"),
        effects.DeliveryAbandoned(FAR, 4, 1, 2),
        effects.EpochRolloverRequired(8),
    )
    assert mapped.handle(events.TimerFired(), *outputs) == [
        schema.LinkRefused(100, "federation"),
        schema.Ignored(100, "forged"),
        schema.NodeReachable(100, FAR),
        schema.NodeUnreachable(100, FAR),
        schema.CoreElected(100, "a/#", FAR),
        schema.CoreLost(100, "a/#", FAR),
        schema.MeshJoined(100, "a/#"),
        schema.MeshLeft(100, "a/#"),
        schema.InterestInstalled(100, "3"),
        schema.Repaired(100, FAR, 2),
        schema.Gap(100, FAR, 4, 1, 2, "trimmed"),
        schema.DeliveryAbandoned(100, FAR, 4, 1, 2),
        schema.EpochRolloverRequired(100, 8),
    ]


def test_sample_selects_the_same_publications_for_every_kind():
    mapped = MappedRecords(sample=4)
    for number in range(1_000):
        mapped.mapper.on_event_handled(FrameReceived(LINK, copy(number)), [Duplicate(FAR, number)])
        mapped.mapper.on_frame_sent(LINK, copy(number), 40)
        mapped.mapper.on_delivered(copy(number))
    by_kind: dict[type, list[int]] = {}
    for record in mapped.take():
        by_kind.setdefault(type(record), []).append(record.sequence)
    expected = [number for number in range(1_000) if is_sampled(number, 4)]
    assert by_kind == dict.fromkeys(
        (schema.CopyReceived, schema.Duplicate, schema.CopySent, schema.Delivered), expected
    )
    assert 200 < len(expected) < 300


@pytest.mark.parametrize("sample", [2, 4, 8, 10, 16, 100])
def test_sample_contains_all_of_alternating_topics(sample):
    taken = [number % sample for number in range(100 * sample) if is_sampled(number, sample)]
    assert 70 < len(taken) < 130
    assert len(set(taken)) > sample / 2


def test_sample_rate_zero_selects_nothing():
    assert not any(is_sampled(number, 0) for number in range(100))
