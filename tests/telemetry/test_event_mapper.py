"""What a node handles and wants becomes records: one test per thing that has to be worked out."""

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


class Told:
    """A narrator with a clock of its own, and all it put."""

    def __init__(self, sample: int = 1):
        self.records: list[schema.AnyRecord] = []
        self.now = 100
        self.narrator = EventMapper(self.records.append, (HERE, 5), sample, lambda: self.now)
        self.narrator.on_effect(0, NeighbourUp(PEER, LINK))
        self.records.clear()

    def handled(self, event: events.Event, *wanted: effects.Effect) -> list[Any]:
        self.narrator.on_event_handled(event, wanted)
        return self.taken()

    def taken(self) -> list[Any]:
        told = list(self.records)
        self.records.clear()
        return told


def copy(number: int = 9, qos: int = 0, hops: int = 0, origin: NodeId = FAR) -> Publication:
    return Publication(origin, 4, number, qos, "a/b", b"21.5", hops=hops)


def test_a_copy_comes_and_goes_on():
    told = Told()
    size = len(encode(copy()))
    assert told.handled(FrameReceived(LINK, copy()), Deliver(copy()), Send(LINK, copy(hops=1))) == [
        schema.CopyReceived(100, FAR, 4, 9, 0, "a/b", 4, size, 1, PEER)
    ]
    told.narrator.on_frame_sent(LINK, copy(hops=1), size)
    told.narrator.on_delivered(copy())
    assert told.taken() == [
        schema.CopySent(100, FAR, 4, 9, 0, "a/b", 4, size, 2, PEER),
        schema.Delivered(100, FAR, 4, 9, 0, "a/b", 4, 1),
    ]


def test_what_is_dropped_has_the_name_of_the_copy_in_hand():
    told = Told()
    wanted = Duplicate(FAR, 9), Dropped(FAR, 9, "hop limit")
    assert told.handled(FrameReceived(LINK, copy(qos=1)), *wanted)[1:] == [
        schema.Duplicate(100, FAR, 4, 9, 1, PEER),
        schema.Dropped(100, FAR, 4, 9, 1, "hop limit"),
    ]


def test_a_publication_that_starts_here_is_captured_once():
    told = Told()
    first = copy(origin=HERE)
    event = ClientPublished("a/b", b"21.5")
    captured = [schema.Captured(100, HERE, 4, 9, 0, "a/b", 4)]
    assert told.handled(event, Send(LINK, first), Send(LinkId(8), first)) == captured
    assert told.handled(event, Dropped(HERE, 10, "no route to the core")) == [
        schema.Dropped(100, HERE, 5, 10, 0, "no route to the core")
    ]
    sure = copy(origin=HERE, qos=2)
    assert told.handled(event, AppendToJournal(sure)) == [
        schema.Captured(100, HERE, 4, 9, 2, "a/b", 4)
    ]
    assert told.handled(events.JournalCommitted(4, 9), Send(LINK, sure)) == []


def test_a_raised_incarnation_names_what_starts_later():
    told = Told()
    told.handled(events.TimerFired(), effects.IncarnationRaised(6))
    assert told.taken() == []
    (dropped,) = told.handled(ClientPublished("a/b", b""), Dropped(HERE, 1, "no route to the core"))
    assert dropped == schema.Dropped(100, HERE, 6, 1, 0, "no route to the core")


def test_what_was_repaired_has_no_hops():
    told = Told()
    frame = RepairResponse(HERE, FAR, 4, 8, 9, 0, (), 0)
    for wrapped in (frame, SequencedFrame(1, frame)):
        told.handled(FrameReceived(LINK, copy(8, qos=1, hops=2)), Deliver(copy(8, qos=1, hops=2)))
        told.handled(FrameReceived(LINK, wrapped), Deliver(copy(qos=1)))
        told.narrator.on_delivered(copy(8, qos=1))
        told.narrator.on_delivered(copy(qos=1))
        assert [each.hops for each in told.taken()] == [3, None]


def test_what_waited_for_the_broker_may_come_later_than_its_hops_are_remembered():
    told = Told()
    wanted = [Deliver(copy(number, qos=1)) for number in range(PENDING_DELIVERIES_MAX + 1)]
    told.handled(events.InboxCommitted(FAR, 4, 7), *wanted)
    told.narrator.on_delivered(copy(0, qos=1))
    told.narrator.on_delivered(copy(1, qos=1))
    assert [each.hops for each in told.taken()] == [None, 1]


def test_of_what_is_ignored_only_control_is_told():
    told = Told()
    assert told.handled(ClientPublished("$SYS/x", b""), Ignored("local only")) == []
    assert told.handled(FrameReceived(LINK, copy()), Ignored("unknown node"))[1:] == []
    assert told.handled(events.TimerFired(), Ignored("senseless")) == [
        schema.Ignored(100, "senseless")
    ]


def test_control_frames_are_told_with_what_they_announce():
    told = Told()
    told.narrator.on_frame_sent(LINK, SequencedFrame(1, CoreAnnouncement(FAR, 1, 8, 2)), 30)
    told.narrator.on_frame_sent(LinkId(99), AnnouncementRequest(FAR, 1, 8, 0), 12)
    assert told.taken() == [
        schema.ControlFrameSent(100, "Announce", 30, PEER, FAR, 8, 2, 1),
        schema.ControlFrameSent(100, "Solicit", 12, None),
    ]


def test_a_heartbeat_that_comes_back_tells_the_round_trip():
    told = Told()
    told.now = 1_000_000
    told.narrator.on_frame_sent(LINK, Heartbeat(3, 0, 0, 0), 20)
    told.taken()
    told.now = 4_500_000
    assert told.handled(FrameReceived(LINK, Heartbeat(1, 2, 0, 0))) == []
    assert told.handled(FrameReceived(LINK, Heartbeat(1, 3, 1_000, 0))) == [
        schema.RoundTrip(4_500_000, PEER, 2.5)
    ]
    assert told.handled(events.TimerFired(), effects.NeighbourDown(PEER, "silent")) == [
        schema.LinkDown(4_500_000, PEER, "silent")
    ]
    assert told.handled(FrameReceived(LINK, Heartbeat(1, 3, 1_000, 0))) == []


def test_an_echo_may_cross_the_next_heartbeat():
    """As it does where both ends send at the same moment."""
    told = Told()
    for number, at in ((3, 1_000_000), (4, 2_000_000)):
        told.now = at
        told.narrator.on_frame_sent(LINK, Heartbeat(number, 0, 0, 0), 20)
    told.taken()
    told.now = 3_000_000
    assert told.handled(FrameReceived(LINK, Heartbeat(1, 3, 500, 0))) == [
        schema.RoundTrip(3_000_000, PEER, 1.5)
    ]


def test_parents_are_told_with_those_gained_and_lost():
    told = Told()

    def change(*parents: int) -> list[Any]:
        nodes = tuple(map(NodeId, parents))
        return told.handled(events.TimerFired(), effects.ParentsChanged(FAR, 1, 8, 2, nodes))

    assert change(4, 5) == [schema.ParentsChanged(100, FAR, 8, 2, (4, 5), (4, 5), ())]
    assert change(5, 6) == [schema.ParentsChanged(100, FAR, 8, 2, (5, 6), (6,), (4,))]
    assert change() == [schema.ParentsChanged(100, FAR, 8, 2, (), (), (5, 6))]
    assert change(6) == [schema.ParentsChanged(100, FAR, 8, 2, (6,), (6,), ())]


def test_interest_is_told_filter_by_filter():
    told = Told()
    event = events.InterestChanged(("a/#", "b"), ("c",))
    orders = effects.SubscribeAtBroker(("d",)), effects.UnsubscribeAtBroker(("e", "f"))
    assert told.handled(event, *orders) == [
        schema.InterestAdded(100, "a/#"),
        schema.InterestAdded(100, "b"),
        schema.InterestRemoved(100, "c"),
        schema.SubscribedAtBroker(100, "d"),
        schema.UnsubscribedAtBroker(100, "e"),
        schema.UnsubscribedAtBroker(100, "f"),
    ]


def test_all_other_news_are_told_in_their_own_words():
    told = Told()
    news = (
        effects.LinkRefused(LINK, "federation"),
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
    assert told.handled(events.TimerFired(), *news) == [
        schema.LinkRefused(100, "federation"),
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


def test_a_sample_is_the_same_publications_in_every_record():
    told = Told(sample=4)
    for number in range(1_000):
        told.narrator.on_event_handled(FrameReceived(LINK, copy(number)), [Duplicate(FAR, number)])
        told.narrator.on_frame_sent(LINK, copy(number), 40)
        told.narrator.on_delivered(copy(number))
    by_kind: dict[type, list[int]] = {}
    for record in told.taken():
        by_kind.setdefault(type(record), []).append(record.seq)
    expected = [number for number in range(1_000) if is_sampled(number, 4)]
    assert by_kind == dict.fromkeys(
        (schema.CopyReceived, schema.Duplicate, schema.CopySent, schema.Delivered), expected
    )
    assert 200 < len(expected) < 300


@pytest.mark.parametrize("sample", [2, 4, 8, 10, 16, 100])
def test_topics_that_take_turns_are_all_in_a_sample(sample):
    taken = [number % sample for number in range(100 * sample) if is_sampled(number, sample)]
    assert 70 < len(taken) < 130
    assert len(set(taken)) > sample / 2


def test_none_is_none():
    assert not any(is_sampled(number, 0) for number in range(100))
