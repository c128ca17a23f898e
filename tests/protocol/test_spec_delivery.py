"""Section 7 of docs/protocol.md: guaranteed delivery."""

from typing import Any, TypeVar

import pytest
from tests.protocol.federation import views
from tests.protocol.wire_of_nodes import DELAY, Wire, key

from hansa.protocol.clock import AHEAD_MAX_MS, WallClock
from hansa.protocol.delivery.outbox import Outbox
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    AppendToJournal,
    Deliver,
    DeliveryAbandoned,
    EpochRolloverRequired,
    Gap,
    Ignored,
    InterestInstalled,
    PersistPeer,
    PersistProgressReport,
    ReadJournal,
    Repaired,
    Send,
)
from hansa.protocol.events import (
    ClientPublished,
    FrameReceived,
    InboxCommitted,
    JournalCommitted,
    JournalRead,
    PeersPersisted,
    PeersRestored,
)
from hansa.protocol.interest.shared_subscriptions import TopicInterest
from hansa.protocol.model import RECEIVERS_MAX, Identity, LinkId, NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import InterestAcks, PendingNotice, Receipt, RepairResponse

T = TypeVar("T")
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def settled(links: str, *subscriptions: tuple[int, str], **settings: Any) -> Wire:
    """Converged nodes with interest and an empty log."""
    wire = Wire(links, **settings)
    for place, name in subscriptions:
        wire.subscribe(place, name)
    wire.run(1.0)
    wire.log.clear()
    return wire


def is_copy(source: int, target: int, frame: object) -> bool:
    return isinstance(frame, Publication)


def lose(wire: Wire, place: int, *qualities: int) -> None:
    """Publish to `a`, and lose all copies on their first link."""
    wire.is_lost = is_copy
    for qos in qualities:
        wire.publish(place, "a", qos=qos)
    wire.run(0.0)
    wire.is_lost = lambda *_: False


def link_to(wire: Wire, place: int, neighbour: int) -> LinkId:
    return wire.nodes[place].status().neighbours[NodeId(neighbour)].link


def taken(wire: Wire, place: int) -> list[tuple[int, int]]:
    delivered = (effect.publication for effect in wire.effects(place, Deliver))
    return [(item.origin, item.sequence) for item in delivered]


def numbers(wire: Wire, place: int) -> list[int]:
    return [effect.publication.sequence for effect in wire.effects(place, Deliver)]


def unicasts(wire: Wire, place: int, kind: type[T]) -> list[T]:
    sends = wire.effects(place, Send)
    return [effect.frame for effect in sends if isinstance(effect.frame, kind)]


def test_7_1_publication_names_its_receivers_with_their_previous_position():
    """7.1 All nodes with matching interest are receivers, reachable or not; without one it is not
    journaled."""
    wire = settled("1-2 1-3", (2, "a"), (3, "a"), (3, "b"))
    wire.cut("1-3")
    wire.run(0.1)
    for topic in ("a", "b", "a", "nobody"):
        wire.publish(1, topic, qos=1)
    kept = [effect.publication for effect in wire.effects(1, AppendToJournal)]
    assert [item.sequence for item in kept] == [1, 2, 3]
    assert [dict(item.receivers) for item in kept] == [
        {TWO: 0, THREE: 0},
        {THREE: 1},
        {TWO: 1, THREE: 2},
    ]


def test_7_1_receivers_beyond_the_limit_get_it_from_the_journal():
    """7.1 A copy names 1,024 receivers; the others are reminded at once and request it."""
    wire = settled("1-2", (2, "a"))
    crowd = tuple(NodeId(number) for number in range(10, 10 + RECEIVERS_MAX))
    table = wire.nodes[1]._forwarding.table  # noqa: SLF001
    table.plan("a").interest = TopicInterest((*crowd, TWO))
    (keep,) = wire.give(1, ClientPublished("a", b"late", qos=1))
    assert isinstance(keep, AppendToJournal)
    assert [to for to, _ in keep.publication.receivers] == [*crowd, TWO]
    wire.run(0.5)
    sends = [send.frame for send in wire.effects(1, Send)]
    (copy,) = (frame for frame in sends if isinstance(frame, Publication))
    assert [to for to, _ in copy.receivers] == [*crowd]
    assert wire.deliveries() == {2: [b"late"]}
    assert wire.nodes[1].delivery.acknowledged == {TWO: 1}


def test_7_1_publication_without_receivers_may_be_journaled_and_does_not_leave():
    """7.1 A recorded publication has a position and does not leave. The group's filter matches its
    topic, but no node is interested."""
    wire = settled("1-2", (2, "a/b"), group_depth=1)
    kept = wire.nodes[1].assign_position(ClientPublished("a/c", b"x", 1))
    assert (kept.sequence, kept.receivers) == (1, ())
    wire.give(1, JournalCommitted(kept.epoch, kept.sequence))
    wire.run(10.0)
    assert wire.copies() == []


def test_7_2_nothing_leaves_before_the_journal_is_durable():
    """7.2 `AppendToJournal`, then `JournalCommitted`, then it leaves."""
    wire = settled("1-2", (2, "a"))
    wire.disk_works = False
    wire.publish(1, "a", qos=1)
    wire.publish(1, "a", qos=2)
    wire.run(10.0)
    assert wire.copies() == []
    wire.give(1, JournalCommitted(1, 1))
    assert wire.copies() == [(1, 2)]
    wire.give(1, JournalCommitted(1, 2))
    assert wire.copies() == [(1, 2), (1, 2)]


def test_7_3_each_is_delivered_once_and_in_the_order_of_its_origin():
    """7.3 Later ones are buffered; accepted ones stay duplicates."""
    wire = settled("1-2 2-3 1-3", (3, "a"))
    wire.delay = lambda source, target: 0.3 if source == 1 else DELAY
    wire.publish(1, "a", b"slow", qos=1)
    wire.run(0.005)
    wire.delay = lambda source, target: DELAY
    wire.publish(1, "a", b"quick", qos=2)
    wire.run(0.015)
    assert numbers(wire, 3) == []
    wire.run(1.0)
    assert numbers(wire, 3) == [1, 2]
    for step in [step for step in wire.log if step.place == 3]:
        wire.give(3, step.event)
    assert numbers(wire, 3) == [1, 2]


def test_7_3_pending_publication_is_delivered_even_without_interest():
    """7.3 Even without interest: the broker knows whether it keeps it for a session."""
    wire = settled("1-2", (2, "a"), (2, "b"))
    wire.unsubscribe(2, "a")
    for topic in ("a", "b", "a"):
        wire.publish(1, topic, qos=1)
    wire.run(0.1)
    assert numbers(wire, 2) == [1, 2, 3]
    assert unicasts(wire, 2, Receipt)[-1] == Receipt(ONE, TWO, 1, 3, 3)


def test_7_3_pending_publication_is_delivered_before_the_interest_is_known():
    """7.3 Even without interest: after a start, delivery does not wait for the observer."""
    wire = settled("1-2", (2, "a"))
    wire.stop(2)
    wire.publish(1, "a", b"meanwhile", qos=1)
    wire.start(2, Identity(TWO, key(2), 2), restored=RestoredState())
    wire.join("1-2")
    wire.publish(1, "a", b"then", qos=1)
    wire.run(5.0)
    assert wire.deliveries() == {2: [b"meanwhile", b"then"]}


def test_7_3_publication_that_was_never_subscribed_is_not_delivered():
    """7.3 It is accepted, so that later ones are; topics of former filters are delivered."""
    wire = settled("1-2", (2, "a"), (2, "b"))
    wire.unsubscribe(2, "b")
    wire.run(2.0)
    link = link_to(wire, 2, 1)
    for number, topic in enumerate(("a", "never", "b"), start=1):
        copy = Publication(ONE, 1, number, 2, topic, b"x", receivers=((TWO, number - 1),))
        wire.give(2, FrameReceived(link, copy))
    assert [each.publication.topic for each in wire.effects(2, Deliver)] == ["a", "b"]
    reason = "publication to a topic that was never announced here"
    assert views(wire)[2].counters == {reason: 1}


def test_7_4_gap_is_requested_from_the_origin_and_filled_from_its_journal():
    """7.4 Requested after 20 ms, answered hop by hop."""
    wire = settled("1-2 2-3", (3, "a"))
    lose(wire, 1, 1, 2)
    wire.publish(1, "a", qos=1)
    wire.run(0.5)
    assert numbers(wire, 3) == [1, 2, 3]
    assert wire.effects(1, ReadJournal) == [ReadJournal(THREE, 1, 0, 3, 8 * 65_536)]
    assert wire.effects(3, Repaired) == [Repaired(ONE, 3)]


def test_7_4_lost_response_is_requested_again():
    """7.4 After 1 s, then at growing intervals; at once when the origin becomes reachable."""
    wire = settled("1-2", (2, "a"))
    lose(wire, 1, 1)
    wire.is_lost = lambda source, target, frame: isinstance(frame, RepairResponse)
    wire.publish(1, "a", qos=1)
    start = wire.now
    wire.run(40.0)
    asked = [
        round(step.at - start)
        for step in wire.log
        for effect in step.effects
        if isinstance(effect, Send)
        and isinstance(effect.frame, Receipt)
        and effect.frame.bytes_requested
    ]
    assert asked == [0, 1, 3, 7, 15, 23, 31, 39]
    wire.is_lost = lambda *_: False
    wire.cut("1-2")
    wire.run(0.1)
    wire.join("1-2")
    wire.run(0.2)
    assert numbers(wire, 2) == [1, 2]


def test_7_4_large_repair_takes_several_responses():
    """7.4 As many frames as were requested, one after the other, then the next."""
    wire = settled("1-2", (2, "a"), repair_bytes=300, repair_frames=2)
    wire.is_lost = is_copy
    for _ in range(10):
        wire.publish(1, "a", b"x" * 68, qos=1)
    wire.run(2.0)
    assert numbers(wire, 2) == [*range(1, 11)]
    assert wire.effects(2, Repaired) == [Repaired(ONE, 3)] * 3 + [Repaired(ONE, 1)]
    assert [frame.more for frame in unicasts(wire, 1, RepairResponse)] == [
        True,
        False,
        True,
        False,
    ]
    assert len(wire.effects(1, ReadJournal)) == 2


def test_7_4_lost_part_of_a_response_is_requested_again():
    """7.4 After 1 s."""
    wire = settled("1-2", (2, "a"), repair_bytes=300, repair_frames=2)
    wire.is_lost = lambda source, target, frame: (
        is_copy(source, target, frame) or (isinstance(frame, RepairResponse) and not frame.more)
    )
    for _ in range(6):
        wire.publish(1, "a", b"x" * 68, qos=1)
    wire.run(1.5)
    assert numbers(wire, 2) == [1, 2, 3]
    wire.is_lost = is_copy
    wire.run(1.0)
    assert numbers(wire, 2) == [*range(1, 7)]


def test_7_4_uncommitted_publications_of_an_earlier_incarnation_are_sent_again():
    """7.4 A response counts only after the accepted or acknowledged position."""
    wire = settled("1-2", (2, "a"))
    wire.publish(1, "a", b"1", qos=2)
    wire.run(0.5)
    wire.disk_works = False
    for payload in (b"2", b"3", b"4"):
        wire.is_lost = is_copy if payload == b"3" else lambda *_: False
        wire.publish(1, "a", payload, qos=2)
        wire.give(1, JournalCommitted(1, int(payload)))
    wire.run(0.5)
    assert wire.effects(1, ReadJournal) == [ReadJournal(TWO, 1, 2, 4, 8 * 65_536)]
    wire.stop(2)
    wire.start(
        2, Identity(TWO, key(2), incarnation=2), restored=RestoredState(accepted={ONE: (1, 1)})
    )
    wire.subscribe(2, "a")
    wire.join("1-2")
    wire.run(0.5)
    kept = {
        effect.publication.sequence: effect.publication
        for effect in wire.effects(1, AppendToJournal)
    }
    wire.journals[1] = [kept[number] for number in sorted(kept)]
    wire.disk_works = True
    wire.give(1, JournalRead(TWO, 1, 2, 4, (kept[3], kept[4])))
    wire.run(10.0)
    assert wire.deliveries() == {2: [b"1", b"2", b"2", b"3", b"4"]}
    assert Ignored("repair response without the position before it") in wire.effects(2, Ignored)


def test_7_4_forwarded_unicast_without_a_route_is_counted():
    """7.4 Hop by hop; its source will retry."""
    wire = settled("1-2", (2, "a"))
    link = next(link for place, link in wire.ends if place == 2)
    frame = Receipt(THREE, ONE, 1, 5, 5)
    assert wire.give(2, FrameReceived(link, frame)) == [Ignored("unicast without a route")]


def test_7_5_receipt_is_sent_when_the_delivery_is_durable():
    """7.5 `InboxCommitted`, then `Receipt`."""
    wire = settled("1-2", (2, "a"))
    wire.disk_works = False
    wire.publish(1, "a", qos=1)
    wire.give(1, JournalCommitted(1, 1))
    wire.run(0.5)
    assert unicasts(wire, 2, Receipt) == []
    wire.give(2, InboxCommitted(ONE, 1, 1))
    wire.run(0.1)
    assert unicasts(wire, 2, Receipt) == [Receipt(ONE, TWO, 1, 1, 1)]
    assert wire.nodes[1].delivery.acknowledged_by_all == 1


def test_7_5_silent_receiver_is_reminded_of_the_last_publication():
    """7.5 Reminded after 1 s, then 2, up to 8 s, until it has answered."""
    wire = settled("1-2", (2, "a"))
    wire.is_lost = lambda source, target, frame: isinstance(frame, Publication | Receipt)
    wire.publish(1, "a", qos=1)
    start = wire.now
    wire.run(30.0)
    reminded = [
        round(step.at - start)
        for step in wire.log
        for effect in step.effects
        if isinstance(effect, Send) and isinstance(effect.frame, PendingNotice)
    ]
    assert reminded == [1, 3, 7, 15, 23]
    wire.is_lost = lambda *_: False
    wire.run(10.0)
    assert numbers(wire, 2) == [1]
    wire.log.clear()
    wire.run(20.0)
    assert unicasts(wire, 1, PendingNotice) == []


def test_7_5_partition_is_only_a_long_delay():
    """7.5 A node that becomes reachable is reminded at once."""
    wire = settled("1-2", (2, "a"))
    wire.cut("1-2")
    wire.run(1.0)
    for _ in range(3):
        wire.publish(1, "a", qos=2)
    wire.run(60.0)
    wire.join("1-2")
    wire.run(0.5)
    assert numbers(wire, 2) == [1, 2, 3]


@pytest.mark.parametrize("sequence", [3, 5, 9])
def test_7_5_receipt_counts_up_to_what_was_sent(sequence):
    """7.5 A position that was not sent cannot be acknowledged."""
    wire = settled("1-2 1-3", (2, "a"), (3, "b"))
    wire.publish(1, "a", qos=1)
    for _ in range(5):
        wire.publish(1, "b", qos=1)
    wire.run(0.5)
    wire.disk_works = False
    wire.publish(1, "a", b"pending", qos=1)
    lie = Receipt(ONE, TWO, 1, sequence, sequence)
    effects = wire.give(1, FrameReceived(link_to(wire, 1, 2), lie))
    expected = EpochRolloverRequired if sequence == 9 else Ignored
    assert [type(effect) for effect in effects] == [expected]
    assert wire.nodes[1].delivery.acknowledged[TWO] == 1
    assert wire.nodes[1].delivery.acknowledged_by_all == 1


def test_7_6_publications_lost_from_the_journal_are_a_gap():
    """7.6 The receiver reports it and continues after it."""
    wire = settled("1-2", (2, "a"), (2, "b"))
    wire.is_lost = is_copy
    for topic in ("a", "b", "a", "b"):
        wire.publish(1, topic, qos=1)
        wire.run(0.001)
    del wire.journals[1][:2]
    wire.run(2.0)
    assert wire.effects(2, Gap) == [Gap(ONE, 1, 1, 2, "retention")]
    assert numbers(wire, 2) == [3, 4]


def test_7_6_everything_is_a_gap_if_the_journal_is_empty():
    """7.6 The last pending publication was not found either."""
    wire = settled("1-2", (2, "a"))
    wire.is_lost = is_copy
    wire.publish(1, "a", qos=1)
    wire.publish(1, "a", qos=1)
    wire.run(0.001)
    wire.journals[1].clear()
    wire.run(2.0)
    assert wire.effects(2, Gap) == [Gap(ONE, 1, 1, 2, "retention")]
    wire.is_lost = lambda *_: False
    wire.publish(1, "a", qos=1)
    wire.run(0.1)
    assert numbers(wire, 2) == [3]


def test_7_6_buffered_publications_before_a_loss_are_delivered():
    """7.6 A gap contains only missing publications."""
    wire = settled("1-2", (2, "a"))
    wire.is_lost = lambda source, target, frame: (
        isinstance(frame, Receipt) or (isinstance(frame, Publication) and frame.sequence in (1, 4))
    )
    for number in range(1, 6):
        wire.publish(1, "a", b"%d" % number, qos=2)
    wire.run(0.1)
    del wire.journals[1][:4]
    wire.is_lost = lambda *_: False
    wire.run(10.0)
    assert wire.effects(2, Gap) == [Gap(ONE, 1, n, n, "retention") for n in (1, 4)]
    assert numbers(wire, 2) == [2, 3, 5]


def test_7_7_interest_is_persisted_before_it_is_acknowledged():
    """7.7 `PersistPeer` before 6.3."""
    wire = Wire()
    wire.disk_works = False
    wire.start(1, restored=RestoredState())
    wire.start(2)
    wire.join("1-2")
    wire.run(1.0)
    wire.subscribe(2, "a")
    wire.run(0.5)
    (order,) = wire.effects(1, PersistPeer)
    assert order.node == TWO
    assert unicasts(wire, 1, InterestAcks) == []
    wire.give(1, PeersPersisted(order.save_id))
    wire.run(0.1)
    assert wire.effects(2, InterestInstalled) == [InterestInstalled(1)]


def test_7_7_restarted_node_continues_where_its_disk_ended():
    """7.7 It knows the interest of others before it has links."""
    wire = Wire()
    for place in (1, 2):
        wire.start(place, restored=RestoredState())
    wire.join("1-2")
    wire.run(0.5)
    wire.subscribe(2, "a")
    wire.run(0.5)
    wire.publish(1, "a", b"1", qos=1)
    wire.run(0.5)
    records = tuple(wire.nodes[1].membership.records_of(TWO))
    wire.stop(1)
    wire.stop(2)
    wire.start(
        1,
        Identity(ONE, key(1), 2),
        restored=RestoredState(epoch=1, next_sequence=2, last_assigned={TWO: 1}),
    )
    wire.give(1, PeersRestored(records))
    wire.publish(1, "a", b"2", qos=1)
    wire.start(2, Identity(TWO, key(2), 2), restored=RestoredState(accepted={ONE: (1, 1)}))
    wire.subscribe(2, "a")
    wire.join("1-2")
    wire.run(1.0)
    assert wire.deliveries() == {2: [b"1", b"2"]}
    assert wire.nodes[1].delivery.acknowledged_by_all == 2


def test_7_8_newer_epoch_ends_the_older_one():
    """7.8 Missing publications of the old epoch are a gap; older epochs are refused."""
    wire = settled("1-2 2-3", (2, "a"))
    link = link_to(wire, 2, 3)

    def copy(epoch: int, number: int, previous: int) -> list[object]:
        frame = Publication(THREE, epoch, number, 1, "a", b"", receivers=((TWO, previous),))
        return [*wire.give(2, FrameReceived(link, frame))]

    assert [type(effect) for effect in copy(1, 1, 0)] == [Deliver]
    assert copy(1, 5, 3) == []
    gap, deliver = copy(2, 1, 0)
    assert gap == Gap(THREE, 1, 2, 5, "new epoch")
    assert isinstance(deliver, Deliver)
    assert copy(1, 6, 5) == [Ignored("publication of an ended epoch")]


@pytest.mark.parametrize("acknowledged", [{}, {TWO: 2}], ids=["unpaid", "paid"])
def test_7_8_old_copy_of_the_journal_begins_a_new_epoch(acknowledged):
    """7.8 A receipt for a position that the journal does not have."""
    wire = settled("1-2", (2, "a"))
    for _ in range(5):
        wire.publish(1, "a", b"before", qos=1)
    wire.run(0.5)
    records = tuple(wire.nodes[1].membership.records_of(TWO))
    wire.stop(1)
    wire.run(0.5)
    wire.log.clear()
    past = RestoredState(
        epoch=1, next_sequence=3, last_assigned={TWO: 2}, acknowledged=acknowledged
    )
    wire.start(1, Identity(ONE, key(1), 9), restored=past)
    wire.give(1, PeersRestored(records))
    wire.join("1-2")
    wire.run(0.5)
    assert wire.effects(1, EpochRolloverRequired) == [EpochRolloverRequired(9)]
    wire.publish(1, "a", b"after", qos=1)
    wire.run(0.5)
    assert wire.deliveries()[2] == [b"after"]


def test_7_8_journal_older_than_the_epoch_begins_a_newer_one():
    """7.8 A notice of an ended epoch is answered, or the two would never agree again."""
    wire = settled("1-2", (2, "a"))
    records = tuple(wire.nodes[1].membership.records_of(TWO))
    wire.stop(1)
    wire.stop(2)
    past = RestoredState(epoch=1, next_sequence=3, last_assigned={TWO: 2})
    wire.start(1, Identity(ONE, key(1), 3), restored=past)
    wire.give(1, PeersRestored(records))
    wire.start(2, Identity(TWO, key(2), 2), restored=RestoredState(accepted={ONE: (7, 1)}))
    wire.subscribe(2, "a")
    wire.join("1-2")
    wire.run(2.0)
    assert wire.effects(1, EpochRolloverRequired) == [EpochRolloverRequired(8)]
    wire.publish(1, "a", b"after", qos=1)
    wire.run(0.5)
    assert wire.deliveries() == {2: [b"after"]}


FAR = 2 * AHEAD_MAX_MS


@pytest.mark.parametrize("epoch", [FAR, (1 << 64) - 1])
def test_7_8_receipt_of_an_epoch_ahead_of_the_clock_costs_nothing(epoch):
    """7.8 No epoch is more than a day ahead of the clock."""
    wire = settled("1-2 1-3", (2, "a"), (3, "a"))
    wire.publish(1, "a", b"before", qos=2)
    wire.run(0.5)
    lie = Receipt(ONE, THREE, epoch, 1, 1)
    assert wire.give(1, FrameReceived(link_to(wire, 1, 3), lie)) == [
        Ignored("epoch ahead of the clock")
    ]
    lose(wire, 1, 2)
    wire.run(20.0)
    assert (numbers(wire, 2), numbers(wire, 3)) == ([1, 2], [1, 2])
    assert wire.nodes[1].delivery.acknowledged_by_all == 2


@pytest.mark.parametrize("epoch", [AHEAD_MAX_MS // 2, FAR])
def test_7_8_publication_of_a_forged_epoch_does_no_lasting_harm(epoch):
    """7.8 A newer epoch ends it, if it was not refused."""
    wire = settled("1-2 2-3 3-1", (2, "a"))
    wire.publish(1, "a", b"before", qos=2)
    wire.run(0.5)
    lie = Publication(ONE, epoch, 1, 1, "a", b"lie", receivers=((TWO, 0),))
    refused = Ignored("epoch ahead of the clock") in wire.give(
        2, FrameReceived(link_to(wire, 2, 3), lie)
    )
    assert refused is (epoch == FAR)
    for payload in (b"now", b"after"):
        wire.publish(1, "a", payload, qos=2)
        wire.run(20.0)
    assert wire.deliveries()[2][-1] == b"after"
    assert bool(wire.effects(1, EpochRolloverRequired)) is not refused


def test_7_3_publication_that_overtook_the_record_of_its_origin_is_sent_again():
    """7.3 Unknown origins get no state; a real one will remind this node."""
    wire = settled("1-2", (2, "a"))
    link = next(link for place, link in wire.ends if place == 2)
    for number in range(100, 120):
        wire.give(2, FrameReceived(link, PendingNotice(TWO, NodeId(number), 1, 0)))
    copy = Publication(THREE, 1, 1, 1, "a", b"early", receivers=((TWO, 0),))
    wire.start(3)
    outbox = wire.nodes[3]._delivery.outbox  # noqa: SLF001
    kept = outbox.assign_position(ClientPublished("a", b"early", 1), (TWO,))
    wire.journals[3] = [kept]
    assert wire.give(2, FrameReceived(link, copy)) == [
        Ignored("publication of an unreachable node")
    ]
    assert wire.nodes[2].sizes()["streams"] == 0
    wire.join("3-2")
    wire.give(3, JournalCommitted(1, 1))
    wire.run(5.0)
    assert wire.deliveries() == {2: [b"early"]}


def test_7_9_nothing_is_accepted_beyond_the_uncommitted_bound():
    """7.9 It requests more when there is room."""
    wire = settled("1-2", (2, "a"), uncommitted_max=2)
    wire.disk_works = False
    for number in range(1, 6):
        wire.publish(1, "a", qos=1)
        wire.give(1, JournalCommitted(1, number))
    wire.run(5.0)
    assert numbers(wire, 2) == [1, 2]
    assert not any(frame.bytes_requested for frame in unicasts(wire, 2, Receipt))
    wire.give(2, InboxCommitted(ONE, 1, 2))
    assert numbers(wire, 2) == [1, 2, 3, 4]
    wire.give(2, InboxCommitted(ONE, 1, 4))
    assert numbers(wire, 2) == [1, 2, 3, 4, 5]


def test_7_9_bound_in_bytes_is_shared_by_all_origins():
    """7.9 If the disk or the broker hangs, memory does not grow with the federation."""
    wire = settled("1-2 2-3", (2, "a"), uncommitted_bytes_max=3_000)
    wire.disk_works = False
    for number in range(1, 9):
        for place in (1, 3):
            wire.publish(place, "a", bytes(500), qos=1)
            wire.give(place, JournalCommitted(1, number))
    wire.run(5.0)
    assert 3_000 <= wire.nodes[2].sizes()["uncommitted_bytes"] < 3_000 + 1_100
    wire.disk_works = True
    for origin in (ONE, THREE):
        kept = (effect.publication for effect in wire.effects(origin, AppendToJournal))
        wire.journals[origin] = list(kept)
        last = max((n for n in range(9) if (origin, n) in taken(wire, 2)), default=0)
        wire.give(2, InboxCommitted(origin, 1, last))
    wire.run(30.0)
    assert sorted(taken(wire, 2)) == [(origin, n) for origin in (1, 3) for n in range(1, 9)]


def test_7_10_pending_publications_end_with_the_lease():
    """7.10 Publications for it and missing ones from it are abandoned."""
    wire = settled("1-2", (1, "a"), (2, "a"), interest_lease=5.0)
    for place in (1, 2):
        lose(wire, place, 1)
    wire.is_lost = lambda source, target, frame: isinstance(frame, RepairResponse)
    for place in (1, 2):
        wire.publish(place, "a", qos=1)
    wire.run(0.2)
    wire.cut("1-2")
    wire.run(6.0)
    assert wire.effects(2, Gap) == [Gap(ONE, 1, 1, 1, "end of lease")]
    assert numbers(wire, 2) == [2], "what came is no part of the gap"
    assert wire.effects(1, DeliveryAbandoned) == [DeliveryAbandoned(TWO, 1, 1, 2)]
    assert list(wire.nodes[1].delivery.receivers) == []
    assert wire.give(1, ClientPublished("a", b"", qos=1)) == []
    assert wire.give(1, JournalRead(TWO, 1, 0, 1, ())) == []


def test_7_10_returned_node_gets_new_publications():
    """7.10 Its lease had ended on both sides; it is a receiver of new publications."""
    wire = settled("1-2 2-3", (1, "a"), (3, "a"), interest_lease=5.0)
    for place in (1, 3):
        wire.publish(place, "a", b"before", qos=2)
    wire.run(0.5)
    wire.cut("1-2")
    wire.run(1.0)
    for place in (1, 3):
        wire.publish(place, "a", b"given up", qos=2)
    wire.run(10.0)
    assert wire.effects(1, DeliveryAbandoned) == [DeliveryAbandoned(THREE, 1, 2, 2)]
    assert wire.effects(3, DeliveryAbandoned) == [DeliveryAbandoned(ONE, 1, 2, 2)]
    wire.join("1-2")
    wire.run(5.0)
    for place in (1, 3):
        wire.publish(place, "a", b"after", qos=2)
    wire.run(1.0)
    assert wire.deliveries() == {1: [b"before", b"after"], 3: [b"before", b"after"]}


def test_7_10_restarted_origin_sends_what_it_abandoned_and_still_has():
    """7.10 It continues the journal, so the receiver reports its position and gets what follows."""
    wire = settled("1-2", (2, "a"), interest_lease=5.0)
    wire.publish(1, "a", b"before", qos=2)
    wire.run(0.5)
    wire.cut("1-2")
    wire.run(1.0)
    wire.publish(1, "a", b"abandoned", qos=2)
    wire.run(10.0)
    assert wire.effects(1, DeliveryAbandoned) == [DeliveryAbandoned(TWO, 1, 2, 2)]
    wire.stop(1)
    restored = RestoredState(epoch=1, next_sequence=3)
    wire.start(1, Identity(ONE, key(1), 9), restored=restored)
    wire.join("1-2")
    wire.run(5.0)
    wire.publish(1, "a", b"after", qos=2)
    wire.run(1.0)
    assert wire.deliveries()[2] == [b"before", b"abandoned", b"after"]


def test_7_11_large_publications_get_more_time():
    """7.11 No reminder within 1 s per MiB; no second response while one may be in flight."""
    settings = ProtocolSettings(packet_bytes_max=8 << 20)
    outbox = Outbox(ONE, settings, WallClock(1))
    kept = outbox.assign_position(ClientPublished("a", bytes(4 << 20), qos=1), (TWO,))
    outbox.mark_committed(1, 1, now=0.0)
    assert outbox.handle_timer(3.9) == []
    assert outbox.handle_timer(4.0) == [PendingNotice(TWO, ONE, 1, 1)]
    asked = Receipt(TWO, TWO, 1, 0, 0, bytes_requested=100)
    recall = [ReadJournal(TWO, 1, 0, 1, 100)]
    assert outbox.receive_receipt(asked, 1, 5.0) == recall
    outbox.make_repair_responses(JournalRead(TWO, 1, 0, 1, (kept,)), now=5.0)
    assert outbox.receive_receipt(asked, 1, 8.0) == []
    outbox.on_node_reachable(TWO, 8.0)
    assert outbox.receive_receipt(asked, 1, 8.0) == recall


def test_7_12_receiver_with_positions_of_this_incarnation_shows_an_old_copy():
    """7.12 However many were captured before they met, at positions that the receiver has."""
    wire = settled("1-2", (2, "a"))
    for _ in range(3):
        wire.publish(1, "a", b"before", qos=2)
    wire.run(0.5)
    records = tuple(wire.nodes[1].membership.records_of(TWO))
    wire.stop(1)
    wire.run(0.5)
    wire.log.clear()
    wire.start(
        1,
        Identity(ONE, key(1), 9),
        restored=RestoredState(epoch=1, next_sequence=2, last_assigned={TWO: 1}),
    )
    wire.give(1, PeersRestored(records))
    for _ in range(5):
        wire.publish(1, "a", b"after", qos=2)
    wire.join("1-2")
    wire.run(1.0)
    assert wire.effects(1, EpochRolloverRequired) == [EpochRolloverRequired(9)]
    assert wire.nodes[1].delivery.acknowledged == {}, "none of them counts as taken"


def test_7_12_nothing_leaves_for_a_receiver_without_a_report_in_this_incarnation():
    """7.12 Its report is persisted, and it gets the rest from the journal."""
    wire = settled("1-2", (2, "a"))
    wire.start(3, restored=RestoredState(epoch=1, next_sequence=9))
    wire.join("3-2")
    wire.run(0.5)
    wire.log.clear()
    for payload in (b"1", b"2"):
        wire.publish(3, "a", payload, qos=1)
    wire.run(0.5)
    assert wire.effects(3, PersistProgressReport) == [PersistProgressReport(TWO)]
    assert wire.deliveries()[2] == [b"1", b"2"]
    assert len(unicasts(wire, 3, RepairResponse)) == 1
    wire.publish(3, "a", b"3", qos=1)
    wire.run(0.5)
    assert wire.deliveries()[2] == [b"1", b"2", b"3"]
    assert len(unicasts(wire, 3, RepairResponse)) == 1


def test_7_12_new_epoch_of_an_incarnation_needs_no_reports():
    """7.12 No receiver can have anything of it, even if it knows equal positions of another
    epoch."""
    wire = settled("1-2", (2, "a"))
    for payload in (b"1", b"2"):
        wire.publish(1, "a", payload, qos=2)
    wire.run(0.5)
    records = tuple(wire.nodes[1].membership.records_of(TWO))
    wire.stop(1)
    wire.run(0.5)
    wire.start(1, Identity(ONE, key(1), 9), restored=RestoredState(epoch=9))
    wire.give(1, PeersRestored(records))
    wire.join("1-2")
    wire.publish(1, "a", b"3", qos=2)
    wire.run(1.0)
    assert wire.effects(1, PersistProgressReport) == []
    assert wire.deliveries()[2] == [b"1", b"2", b"3"]
