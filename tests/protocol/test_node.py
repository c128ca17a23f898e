"""Whole nodes, connected by simulated links."""

import dataclasses
from collections import defaultdict
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace as change
from tests.protocol.federation import link_of
from tests.protocol.wire_of_nodes import DELAY, Wire, key

from hansa.protocol.clock import AHEAD
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    CloseLink,
    CoreLost,
    Deliver,
    Dropped,
    Duplicate,
    Effect,
    Ignored,
    IncarnationRaised,
    InterestInstalled,
    LinkRefused,
    NeighbourDown,
    NeighbourUp,
    NodeUnreachable,
    ParentsChanged,
    Send,
    SubscribeAtBroker,
    UnsubscribeAtBroker,
)
from hansa.protocol.events import (
    ClientPublished,
    FrameReceived,
    InterestChanged,
    LinkClosed,
    LinkOpened,
    SubscriptionsDenied,
    TimerFired,
)
from hansa.protocol.forwarding.engine import Deliveries, Outgoing
from hansa.protocol.membership.records import InterestRecord
from hansa.protocol.model import MANAGEMENT_GROUP, Identity, LinkId, NodeId, Publication, group_id
from hansa.protocol.node import Node
from hansa.protocol.settings import ManagementBy, Metric, NonMemberForwarding, ProtocolSettings
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    PROTOCOL_VERSION,
    UNREACHABLE,
    AnnouncementRequest,
    CoreAnnouncement,
    FrameAck,
    Goodbye,
    Heartbeat,
    Hello,
    InterestAckRequest,
    InterestAcks,
    Receipt,
    SequencedFrame,
    Update,
)

T = TypeVar("T")

SIX_BROKERS = "0-1 0-2 1-3 1-4 2-3 3-4 3-5 4-5"  # Spohn 2020, figures 1 to 4
GRID = "0-1 1-2 3-4 4-5 6-7 7-8 0-3 1-4 2-5 3-6 4-7 5-8"  # Spohn 2021, three by three
RING = "1-2 2-3 3-4 4-5 5-1"
LINE = "1-2 2-3 3-4"


def subscribed(links: str, *subscriptions: tuple[int, str], **settings: Any) -> Wire:
    """Nodes whose clients subscribed one after the other, with an empty log."""
    wire = Wire(links, **settings)
    for place, topic_filter in subscriptions:
        wire.subscribe(place, topic_filter)
        wire.run(0.2)
    wire.log.clear()
    return wire


def cores(wire: Wire, group: str = "g") -> dict[int, int | None]:
    return {place: node.status().groups[group].core for place, node in sorted(wire.nodes.items())}


def members(wire: Wire, group: str = "g") -> list[int]:
    return [
        place for place, node in sorted(wire.nodes.items()) if node.status().groups[group].is_member
    ]


def routes(wire: Wire, core: int) -> dict[int, set[int]]:
    """The parents of every node towards a core."""
    return {
        place: set(node.status().cores[NodeId(core)].parents) for place, node in wire.nodes.items()
    }


def publish(
    wire: Wire, place: int, topic: str = "g", payload: bytes = b"x"
) -> dict[int, list[bytes]]:
    wire.log.clear()
    wire.publish(place, topic, payload)
    wire.run(0.2)
    return wire.deliveries()


def sent(wire: Wire, kind: type[T]) -> list[tuple[int, T]]:
    """The frames of a kind that were sent, each with the place that sent it."""
    return [
        (step.place, effect.frame)
        for step in wire.log
        for effect in step.effects
        if isinstance(effect, Send) and isinstance(effect.frame, kind)
    ]


# ---------------------------------------------------------------- handshake


def test_two_nodes_meet():
    wire = Wire("1-2")
    assert wire.effects(1, NeighbourUp) == [NeighbourUp(NodeId(2), LinkId(1))]
    assert wire.effects(2, NeighbourUp) == [NeighbourUp(NodeId(1), LinkId(2))]
    views = [node.status() for node in wire.nodes.values()]
    assert [view.reachable for view in views] == [(1, 2), (1, 2)]
    assert views[0].digest == views[1].digest


def test_interest_is_installed_at_the_other_node():
    wire = subscribed("1-2")
    wire.subscribe(2, "a/b")
    wire.run(0.1)
    assert wire.effects(1, SubscribeAtBroker) == [SubscribeAtBroker(("a/b",))]
    assert wire.effects(2, InterestInstalled) == [InterestInstalled(1)]
    view = wire.nodes[1].status()
    assert view.interest[NodeId(2)].filters == ("a/b",)
    assert view.in_force == {2: (1, 1)}


def test_interest_of_the_last_client_is_withdrawn_after_the_linger():
    wire = subscribed("1-2", (2, "g"))
    wire.unsubscribe(2, "g")
    wire.run(wire.settings.linger)
    assert wire.effects(1, UnsubscribeAtBroker) == []
    wire.run(0.1)
    assert wire.effects(1, UnsubscribeAtBroker) == [UnsubscribeAtBroker(("g",))]


def test_client_that_returns_within_the_linger_changes_nothing():
    wire = subscribed("1-2", (2, "g"))
    wire.unsubscribe(2, "g")
    wire.run(0.1)
    wire.subscribe(2, "g")
    wire.run(2.0)
    assert (wire.effects(1, UnsubscribeAtBroker), wire.effects(1, SubscribeAtBroker)) == ([], [])


def test_interest_of_a_node_alone_is_installed_at_once():
    wire = Wire()
    wire.start(1)
    assert InterestInstalled(1) in wire.give(1, InterestChanged(added=("g",)))


def test_missing_interest_acknowledgement_is_requested():
    wire = subscribed(LINE)
    wire.is_lost = lambda source, target, frame: isinstance(frame, InterestAcks)
    wire.subscribe(4, "g")
    wire.run(0.5)
    assert (wire.effects(4, InterestInstalled), wire.nodes[4].status().installed) == ([], False)
    wire.is_lost = lambda source, target, frame: False
    wire.run(1.0)
    assert wire.effects(4, InterestInstalled) == [InterestInstalled(1)]
    assert [ask.destination for place, ask in sent(wire, InterestAckRequest) if place == 4] == [
        3,
        2,
        1,
    ]


def test_unicast_frames_count_their_hops():
    wire = subscribed(LINE)
    wire.is_lost = lambda source, target, frame: isinstance(frame, InterestAcks)
    wire.subscribe(4, "g")
    wire.run(0.1)
    wire.is_lost = lambda source, target, frame: False
    wire.run(1.5)
    asked = sent(wire, InterestAckRequest)
    assert [(place, ask.hops) for place, ask in asked if ask.destination == 1] == [
        (4, 0),
        (3, 1),
        (2, 2),
    ]
    confirmed = [(p, entry) for p, frame in sent(wire, InterestAcks) for entry in frame.entries]
    assert [(p, e.hops) for p, e in confirmed if e.source == 1][-3:] == [(1, 0), (2, 1), (3, 2)]


def test_interest_that_the_broker_refuses_is_never_in_force():
    wire = subscribed("1-2")
    wire.subscribe(2, "g")
    wire.is_lost = lambda source, target, frame: True
    for reason in ("not authorised", "not authorised either"):
        effects = wire.nodes[1].handle(SubscriptionsDenied(("g",), reason), wire.now)
        assert Ignored(f"subscription denied: {reason}") in effects
    assert wire.nodes[1].status().counters == {"subscription denied": 2}


def test_simultaneous_changes_share_a_frame():
    wire = subscribed("1-2", change_delay=0.05)
    wire.subscribe(2, "a")
    wire.run(0.01)
    wire.subscribe(2, "b")
    wire.run(0.2)
    assert wire.effects(1, SubscribeAtBroker) == [SubscribeAtBroker(("a", "b"))]


def test_more_filters_than_the_bound_are_refused_and_counted():
    wire = subscribed("1-2", filters_per_node_max=2)
    wire.subscribe(2, "a", "b", "c", "d")
    wire.run(0.1)
    assert wire.effects(1, SubscribeAtBroker) == [SubscribeAtBroker(("a", "b"))]
    assert wire.nodes[2].status().counters == {"filters_per_node_max": 2}


def test_empty_interest_is_not_announced():
    wire = subscribed("1-2")
    wire.give(1, InterestChanged())
    assert [effect for step in wire.log for effect in step.effects] == []


# ---------------------------------------------------------------- the papers' examples


def test_management_mesh_of_six_brokers_is_that_of_the_paper():
    wire = Wire(SIX_BROKERS)
    assert cores(wire, MANAGEMENT_GROUP) == dict.fromkeys(range(6), 0)
    assert routes(wire, 0) == {0: set(), 1: {0}, 2: {0}, 3: {1, 2}, 4: {1}, 5: {3, 4}}


def test_group_mesh_of_six_brokers_is_that_of_the_paper():
    wire = subscribed(SIX_BROKERS, (1, "g"), (5, "g"))
    assert cores(wire) == dict.fromkeys(range(6), 1)
    assert routes(wire, 1) == {0: {1}, 1: set(), 2: {0, 3}, 3: {1}, 4: {1}, 5: {3, 4}}
    assert members(wire) == [1, 3, 4, 5]


def test_publication_inside_the_mesh_goes_to_all_mesh_neighbours():
    wire = subscribed(SIX_BROKERS, (1, "g"), (5, "g"))
    assert publish(wire, 4) == {1: [b"x"], 5: [b"x"]}
    assert wire.copies() == [(4, 1), (4, 5), (1, 3), (5, 3), (3, 5)]


def test_publication_outside_the_mesh_goes_to_the_core_first():
    wire = subscribed(SIX_BROKERS, (1, "g"), (5, "g"))
    assert publish(wire, 0) == {1: [b"x"], 5: [b"x"]}
    assert wire.copies() == [(0, 1), (1, 3), (1, 4), (3, 5), (4, 5), (5, 4)]


def test_announcement_costs_at_most_two_frames_per_link():
    wire = subscribed(SIX_BROKERS)
    wire.subscribe(1, "g")
    wire.run(0.2)
    assert len(sent(wire, CoreAnnouncement)) <= 2 * len(SIX_BROKERS.split())


def test_claims_are_sent_with_announcements_only():
    wire = subscribed(SIX_BROKERS)
    wire.subscribe(1, "g")
    wire.run(0.2)
    records = [record for _, update in sent(wire, Update) for record in update.records]
    assert {type(record) for record in records} == {InterestRecord}


def test_publisher_on_a_grid_uses_an_adjacent_member():
    wire = subscribed(GRID, (2, "g"), (7, "g"))
    assert members(wire) == [1, 2, 4, 5, 7, 8]
    assert publish(wire, 6) == {2: [b"x"], 7: [b"x"]}
    assert wire.copies()[0] == (6, 7)


@pytest.mark.parametrize("outside", NonMemberForwarding)
def test_every_subscriber_gets_one_copy_with_any_non_member_forwarding(outside):
    wire = subscribed(GRID, (2, "g"), (7, "g"), non_member_forwarding=outside)
    for publisher in range(9):
        expected = {2: [b"x"], 7: [b"x"]}
        expected.pop(publisher, None)
        assert publish(wire, publisher) == expected


# ---------------------------------------------------------------- publications


def test_publication_without_remote_interest_is_not_sent():
    wire = subscribed("1-2", (1, "g"))
    assert publish(wire, 1) == {}
    assert wire.copies() == []


def test_copy_counts_its_hops():
    wire = subscribed(LINE, (4, "g"))
    publish(wire, 1)
    assert [(place, copy.hops) for place, copy in sent(wire, Publication)] == [
        (1, 0),
        (2, 1),
        (3, 2),
    ]


def test_overlapping_filters_of_one_node_deliver_once():
    wire = subscribed("1-2", (2, "a/+"), (2, "+/b"))
    assert publish(wire, 1, "a/b") == {2: [b"x"]}
    assert wire.copies() == [(1, 2)]


def test_overlapping_filters_of_many_nodes_deliver_once_to_each():
    wire = subscribed(GRID, (0, "a/+"), (8, "+/b"), (2, "a/b"), (6, "#"), (4, "c"))
    for publisher in (1, 3, 4, 5, 7):
        assert publish(wire, publisher, "a/b") == {place: [b"x"] for place in (0, 2, 6, 8)}


def test_dollar_topics_are_never_federated():
    wire = subscribed("1-2", (2, "$SYS/#"), (2, "#"))
    assert wire.nodes[1].status().interest[NodeId(2)].filters == ("#",)
    assert publish(wire, 1, "$SYS/broker/uptime") == {}
    assert wire.copies() == []
    assert wire.nodes[1].status().counters == {"topic for this broker only": 1}


def test_shared_subscription_counts_as_its_plain_filter():
    wire = subscribed("1-2")
    wire.subscribe(2, "$share/workers/a/+")
    wire.run(0.1)
    assert wire.effects(1, SubscribeAtBroker) == [SubscribeAtBroker(("a/+",))]
    assert wire.nodes[1].status().interest[NodeId(2)].filters == ("$share/workers/a/+",)
    assert publish(wire, 1, "a/b") == {2: [b"x"]}


def test_filters_can_share_a_group_by_their_first_levels():
    wire = subscribed(LINE, (3, "a/b"), (4, "a/c"), group_depth=1)
    assert cores(wire, "a/#") == dict.fromkeys((1, 2, 3, 4), 3)
    assert publish(wire, 1, "a/b") == {3: [b"x"]}
    assert wire.copies() == [(1, 2), (2, 3), (3, 4)]


def test_qos_0_and_guaranteed_publications_are_numbered_separately():
    wire = subscribed("1-2", (2, "g"))
    for qos in (0, 1, 2):
        wire.publish(1, "g", qos=qos)
    wire.run(0.1)
    names = [(e.publication.qos, e.publication.sequence) for e in wire.effects(2, Deliver)]
    assert names == [(0, 1), (1, 1), (2, 2)]


def test_journal_continues_at_its_last_position():
    wire = subscribed("1-2", (2, "g"))
    wire.start(3, restored=RestoredState(epoch=4, next_sequence=100))
    wire.join("3-2")
    wire.run(0.2)
    for _ in range(2):
        wire.publish(3, "g", qos=1)
        wire.run(0.2)
    first, second = (effect.publication for effect in wire.effects(2, Deliver))
    assert (first.epoch, first.sequence) == (4, 100)
    assert second == Publication(
        origin=NodeId(3),
        epoch=4,
        sequence=101,
        qos=1,
        topic="g",
        payload=b"",
        target_groups=(group_id("g"),),
        receivers=((NodeId(2), 100),),
    )


def test_publication_without_a_route_to_the_core_is_dropped_and_counted():
    wire = subscribed("1-2")
    wire.is_lost = lambda source, target, frame: isinstance(frame, CoreAnnouncement)
    wire.subscribe(2, "g")
    wire.run(0.1)
    assert wire.give(1, ClientPublished("g", b"")) == [
        Dropped(NodeId(1), 1, "no route to the core")
    ]
    assert wire.nodes[1].status().counters == {"dropped: no route to the core": 1}


def test_copy_seen_before_is_a_duplicate():
    wire = subscribed("1-2", (2, "g"))
    copy = FrameReceived(LinkId(2), Publication(NodeId(9), 1, 5, 0, "g", b"x"))
    assert wire.give(2, copy) == [Deliver(Publication(NodeId(9), 1, 5, 0, "g", b"x"))]
    assert wire.give(2, copy) == [Duplicate(NodeId(9), 5)]


def test_own_publication_that_returns_is_a_duplicate():
    wire = subscribed("1-2", (2, "g"))
    copy = FrameReceived(LinkId(2), Publication(NodeId(2), 1, 5, 0, "g", b"x"))
    assert wire.give(2, copy) == [Duplicate(NodeId(2), 5)]


def test_batch_methods_handle_bytes():
    wire = subscribed("1-2", (2, "g"))
    one, two = wire.nodes[1], wire.nodes[2]
    here, there = (
        LinkId(node.status().neighbours[NodeId(n)].link) for node, n in ((one, 2), (two, 1))
    )
    outgoing: Outgoing = defaultdict(list)
    assert one.publish_batch(
        [ClientPublished("g", b"x"), ClientPublished("$g", b"y")], outgoing, 1.0
    ) == [Ignored("topic for this broker only")]
    (frame,) = outgoing.pop(here)
    deliveries: Deliveries = []
    notifications: list[Effect] = []
    assert (
        two.forward_batch(there, iter([bytes(frame)] * 2), outgoing, deliveries, notifications, 0.0)
        is None
    )
    assert notifications == [Duplicate(NodeId(1), 1)]
    assert len(deliveries) == 1
    assert not outgoing
    assert one.status().counters["topic for this broker only"] == 1


def test_bytes_before_the_hello_are_returned_and_ignored():
    wire = Wire()
    node = wire.start(1)
    wire.give(1, LinkOpened(LinkId(7), dialled=True))
    copy = Publication(NodeId(9), 1, 5, 0, "g", b"x")
    for link in (LinkId(7), LinkId(8)):
        frames = iter([encode(copy)])
        assert node.forward_batch(link, frames, defaultdict(list), [], [], 0.0) == encode(copy)
        assert Ignored("publication without a neighbour") in node.handle(
            FrameReceived(link, copy), 0.0
        )
        assert node.forward_batch(link, frames, defaultdict(list), [], [], 0.0) is None


def test_frames_on_a_closed_link_are_ignored():
    wire = Wire()
    wire.start(1)
    publication = Publication(NodeId(9), 1, 5, 0, "g", b"x")
    assert wire.give(1, FrameReceived(LinkId(7), AnnouncementRequest(NodeId(1), 1, 1, 0))) == [
        Ignored("frame on a closed link")
    ]
    assert wire.give(1, FrameReceived(LinkId(7), publication)) == [
        Ignored("publication without a neighbour")
    ]


def test_publication_before_hello_is_ignored():
    wire = Wire()
    wire.start(1)
    wire.give(1, LinkOpened(LinkId(7), dialled=True))
    publication = Publication(NodeId(9), 1, 5, 0, "g", b"x")
    assert wire.give(1, FrameReceived(LinkId(7), publication)) == [
        Ignored("publication without a neighbour")
    ]


# ---------------------------------------------------------------- covering


def test_covered_filter_is_not_announced():
    wire = subscribed("1-2")
    wire.subscribe(2, "a/b", "a/#", "a/c")
    wire.run(0.1)
    assert wire.effects(1, SubscribeAtBroker) == [SubscribeAtBroker(("a/#",))]


def test_uncovered_filter_is_installed_before_its_cover_is_withdrawn():
    wire = subscribed("1-2", (2, "a/#"))
    wire.subscribe(2, "a/b")
    wire.unsubscribe(2, "a/#")
    wire.run(2.0)
    kinds = (SubscribeAtBroker, InterestInstalled, UnsubscribeAtBroker)
    reported = [(s.place, e) for s in wire.log for e in s.effects if isinstance(e, kinds)]
    assert reported == [
        (1, SubscribeAtBroker(("a/b",))),
        (2, InterestInstalled(2)),
        (1, UnsubscribeAtBroker(("a/#",))),
        (2, InterestInstalled(3)),
    ]


def test_no_message_is_lost_while_a_filter_replaces_its_cover():
    wire = subscribed("1-2", (2, "a/#"))
    wire.subscribe(2, "a/b")
    wire.unsubscribe(2, "a/#")
    for number in range(200):
        wire.publish(1, "a/b", bytes([number]))
        wire.run(0.01)
    wire.run(0.1)
    assert wire.deliveries() == {2: [bytes([number]) for number in range(200)]}


def test_cover_is_withdrawn_after_the_maximum_delay_without_acknowledgement():
    wire = subscribed("1-2", (2, "a/#"), withdraw_delay_max=2.0)
    wire.is_lost = lambda source, target, frame: isinstance(frame, InterestAcks)
    wire.subscribe(2, "a/b")
    wire.unsubscribe(2, "a/#")
    wire.run(1.9)
    assert wire.effects(1, UnsubscribeAtBroker) == []
    wire.run(0.2)
    assert wire.effects(1, UnsubscribeAtBroker) == [UnsubscribeAtBroker(("a/#",))]


# ---------------------------------------------------------------- cores come and go


def test_smaller_of_two_simultaneous_cores_stays():
    wire = subscribed(LINE)
    wire.subscribe(1, "g")
    wire.subscribe(4, "g")
    wire.run(0.2)
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 1)
    assert publish(wire, 2) == {1: [b"x"], 4: [b"x"]}


def test_when_the_core_dies_the_nearest_member_takes_over_at_once():
    wire = subscribed(RING, (3, "g"), (5, "g"), (2, "g"))
    wire.stop(3)
    wire.run(0.2)
    assert cores(wire) == dict.fromkeys((1, 2, 4, 5), 2)
    assert publish(wire, 4) == {2: [b"x"], 5: [b"x"]}


def test_smaller_of_two_equally_near_members_takes_over():
    wire = subscribed(RING, (3, "g"), (4, "g"), (2, "g"))
    wire.stop(3)
    wire.run(0.2)
    assert cores(wire) == dict.fromkeys((1, 2, 4, 5), 2)


def test_core_without_a_successor_is_lost_with_its_group():
    wire = subscribed("1-2 2-3", (3, "g"))
    wire.stop(3)
    wire.run(0.1)
    assert wire.effects(1, CoreLost) == [CoreLost("g", NodeId(3))]
    assert publish(wire, 1) == {}
    assert wire.nodes[1].status().sizes["groups"] == 0


def test_each_side_of_a_partition_has_a_core_and_the_smaller_wins_when_they_meet():
    wire = subscribed(LINE, (1, "g"), (4, "g"))
    wire.cut("2-3")
    wire.run(0.2)
    assert cores(wire) == {1: 1, 2: 1, 3: 4, 4: 4}
    assert publish(wire, 3) == {4: [b"x"]}
    wire.join("2-3")
    wire.run(0.5)
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 1)
    assert publish(wire, 3) == {1: [b"x"], 4: [b"x"]}


def test_claim_that_overtakes_the_record_of_its_node_is_fetched_with_it():
    wire = subscribed("2-3 3-4")
    wire.start(1)
    wire.join("1-2")
    wire.run(DELAY)  # 2 knows 1, and waits a moment before it floods that
    wire.subscribe(1, "g")
    wire.run(0.1)
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 1)
    assert wire.effects(1, InterestInstalled)[-1:] == [InterestInstalled(1)]


def test_core_releases_a_group_without_interest():
    wire = subscribed("1-2", (2, "g"))
    wire.unsubscribe(2, "g")
    wire.run(2.0)
    assert wire.effects(2, CoreLost) == wire.effects(1, CoreLost) == [CoreLost("g", NodeId(2))]


def test_node_with_the_highest_capacity_is_management_core_if_configured():
    wire = Wire(management_by=ManagementBy.CAPACITY)
    for place, capacity in ((1, 1.0), (2, 1.0), (3, 4.0)):
        wire.start(place, Identity(NodeId(place), key(place), 1, capacity=capacity))
    wire.join("1-2 2-3")
    wire.run(1.0)
    assert cores(wire, MANAGEMENT_GROUP) == {1: 3, 2: 3, 3: 3}


def test_changed_capacity_changes_the_management_core():
    wire = Wire("1-2 2-3", management_by=ManagementBy.CAPACITY)
    wire.freeze(1)
    wire.stop(3)
    wire.start(3, Identity(NodeId(3), key(3), 2, capacity=4.0))
    wire.join("3-2")
    wire.run(1.0)
    wire.thaw(1)
    wire.run(1.0)
    assert cores(wire, MANAGEMENT_GROUP) == {1: 3, 2: 3, 3: 3}


# ---------------------------------------------------------------- changes of links


def test_remaining_parent_continues_when_a_link_is_cut():
    wire = subscribed(SIX_BROKERS, (1, "g"), (5, "g"))
    wire.cut("3-5")
    wire.run(DELAY)
    assert wire.effects(5, ParentsChanged) == [
        ParentsChanged(NodeId(0), 1, 1, 3, (NodeId(4),)),
        ParentsChanged(NodeId(1), 1, 1, 2, (NodeId(4),)),
    ]
    assert publish(wire, 1) == {5: [b"x"]}


def test_with_no_parent_left_the_core_is_asked_for_a_new_announcement():
    wire = subscribed("1-2 2-3 3-4 4-1", (1, "g"))
    wire.cut("1-2")
    wire.run(0.2)
    assert wire.effects(2, ParentsChanged) == [
        ParentsChanged(NodeId(1), 1, 2, UNREACHABLE, ()),
        ParentsChanged(NodeId(1), 1, 3, 3, (NodeId(3),)),
    ]
    asked = [ask for place, ask in sent(wire, AnnouncementRequest) if place == 2]
    assert (
        asked == [AnnouncementRequest(NodeId(1), 1, 2, 0)] * 2
    )  # again before the answer can arrive
    assert publish(wire, 2) == {1: [b"x"]}


def test_faster_path_is_shorter_with_the_rtt_metric():
    wire = Wire(metric=Metric.RTT)
    wire.delay = lambda source, target: 0.1 if {source, target} == {1, 3} else DELAY
    for place in (1, 2, 3):
        wire.start(place)
    wire.join("1-2 2-3 1-3")
    wire.run(3.0)
    route = wire.nodes[3].status().cores[NodeId(1)]
    assert (route.distance, route.parents) == (400, (2, 1))  # tenths of a millisecond


def test_silent_neighbour_is_lost_after_the_limit():
    wire = subscribed("1-2 2-3")
    wire.is_lost = lambda source, target, frame: 2 in (source, target) and 3 in (source, target)
    wire.run(wire.settings.heartbeat_limit + wire.settings.heartbeat_interval)
    assert wire.effects(2, NeighbourDown) == [NeighbourDown(NodeId(3), "silent")]
    assert wire.effects(1, NodeUnreachable) == [NodeUnreachable(NodeId(3))]


def test_two_neighbours_that_fall_silent_together_are_lost_together():
    wire = subscribed("1-2 1-3 2-4 3-4 1-4", (4, "g"))
    wire.is_lost = lambda source, target, frame: target == 1 and source in (2, 3)
    wire.run(4.0)
    assert [down.node for down in wire.effects(1, NeighbourDown)] == [2, 3]
    assert publish(wire, 1) == {4: [b"x"]}


def test_suspended_node_keeps_its_neighbours():
    wire = subscribed("1-2 2-3")
    wire.freeze(2)
    wire.run(10.0)
    assert wire.effects(1, NeighbourDown) == [NeighbourDown(NodeId(2), "silent")]
    woken = wire.nodes[2].handle(TimerFired(), wire.now)
    beats = [e for e in woken if isinstance(e, Send) and isinstance(e.frame, Heartbeat)]
    assert woken == beats
    assert len(beats) == 2


def test_short_suspension_goes_unnoticed():
    wire = subscribed("1-2 2-3")
    wire.freeze(2)
    wire.run(1.9)
    wire.thaw(2)
    wire.run(5.0)
    assert [wire.effects(place, NeighbourDown) for place in (1, 2, 3)] == [[], [], []]


def test_without_trust_in_closed_connections_silence_decides():
    wire = subscribed("1-2", trust_close=False)
    wire.cut("1-2")
    wire.run(1.0)
    assert wire.effects(1, NeighbourDown) == []
    wire.run(3.0)
    assert wire.effects(1, NeighbourDown) == [NeighbourDown(NodeId(2), "silent")]


def test_unknown_link_closes_without_effects():
    wire = Wire()
    wire.start(1)
    assert wire.give(1, LinkClosed(LinkId(7))) == []


def test_of_two_links_to_one_node_both_sides_keep_the_same():
    wire = Wire("1-2")
    wire.join("2-1")
    wire.run(0.5)
    kept = [node.status().neighbours for node in wire.nodes.values()]
    assert [list(view) for view in kept] == [[2], [1]]
    wire.subscribe(2, "g")
    wire.run(0.2)
    assert publish(wire, 1) == {2: [b"x"]}


# ---------------------------------------------------------------- datagrams


def lossy(wire: Wire, every: int) -> None:
    """Lose every n-th frame."""
    count = iter(range(1 << 30))
    wire.is_lost = lambda source, target, frame: next(count) % every == 0


def test_on_datagram_links_control_frames_survive_loss():
    wire = Wire()
    lossy(wire, every=3)
    for place in (1, 2, 3, 4):
        wire.start(place)
    wire.join("1-2 2-3 3-4 4-1", ordered=False)
    wire.subscribe(3, "g")
    wire.subscribe(1, "h")
    wire.run(5.0)
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 3)
    assert [node.status().installed for node in wire.nodes.values()] == [True] * 4
    assert {node.status().digest for node in wire.nodes.values()} == {wire.nodes[1].status().digest}


def test_status_shows_unacknowledged_frames():
    wire = Wire()
    for place in (1, 2, 3):
        wire.start(place)
    wire.is_lost = lambda source, target, frame: {source, target} == {1, 3}
    wire.join("1-2 1-3", ordered=False)
    wire.run(0.1)
    assert [node.status().sizes["unacknowledged"] for node in wire.nodes.values()] == [1, 0, 1]


def test_brief_status_and_its_parts_are_the_whole_status():
    wire = Wire()
    for place in (1, 2):
        wire.start(place)
    wire.join("1-2")
    wire.subscribe(2, "a/b", "c/#")
    wire.run(2)
    node = wire.nodes[1]
    whole, brief = node.status(), node.status(is_brief=True)
    groups = dict(sorted(node.groups()))
    interest = {
        other: dataclasses.replace(seen, filters=tuple(node.membership.filters_of(other)))
        for other, seen in brief.interest.items()
    }
    assert whole.groups and brief.groups == {}
    assert interest[NodeId(2)].filters == ("a/b", "c/#")
    assert dataclasses.replace(brief, groups=groups, interest=interest) == whole


# ---------------------------------------------------------------- refusals


def test_another_federation_is_refused():
    wire = Wire()
    wire.start(1)
    wire.start(2, settings=ProtocolSettings(federation="guild"))
    wire.join("1-2")
    wire.run(0.015)
    guild, hansa = f"'guild' of {2:016x}", f"'hansa' of {1:016x}"
    assert wire.effects(1, LinkRefused)[0].reason == f"federation {guild} meets {hansa}"
    assert wire.effects(2, LinkRefused)[0].reason == f"federation {hansa} meets {guild}"
    assert wire.effects(1, NeighbourUp) == wire.effects(2, NeighbourUp) == []


def test_other_settings_are_refused():
    wire = Wire()
    wire.start(1)
    other = wire.start(2, settings=ProtocolSettings(redundancy=3))
    wire.join("1-2")
    wire.run(0.015)
    reason = f"settings differ: redundancy=3 of {2:016x} meets redundancy=2 of {1:016x}"
    assert wire.effects(1, LinkRefused)[0].reason == reason
    assert other.status().neighbours == {}


def test_another_version_is_refused():
    wire = Wire()
    wire.start(1)
    wire.start(2)
    (hello,) = [e.frame for e in wire.give(2, LinkOpened(LinkId(7), True)) if isinstance(e, Send)]
    assert isinstance(hello, Hello)
    wire.give(1, LinkOpened(LinkId(8), False))
    effects = wire.give(1, FrameReceived(LinkId(8), change(hello, version=PROTOCOL_VERSION + 1)))
    newer, ours = f"{PROTOCOL_VERSION + 1} of {2:016x}", f"{PROTOCOL_VERSION} of {1:016x}"
    reason = f"protocol version {newer} meets {ours}"
    assert effects == [LinkRefused(LinkId(8), reason), Send(LinkId(8), Goodbye(reason))]


def test_frames_after_a_goodbye_are_ignored():
    wire = Wire()
    wire.start(1)
    wire.give(1, LinkOpened(LinkId(7), dialled=True, ordered=False))
    hello = Hello(
        PROTOCOL_VERSION, "hansa", NodeId(2), key(2), 1, "", wire.settings.shared_settings_text(), 0
    )
    wire.give(1, FrameReceived(LinkId(7), SequencedFrame(1, hello)))
    wire.give(
        1, FrameReceived(LinkId(7), SequencedFrame(3, AnnouncementRequest(NodeId(1), 1, 1, 0)))
    )
    assert wire.give(1, FrameReceived(LinkId(7), SequencedFrame(2, Goodbye("enough")))) == [
        Send(LinkId(7), FrameAck(4)),
        NeighbourDown(NodeId(2), "enough"),
        CloseLink(LinkId(7), "enough"),
    ]


# ---------------------------------------------------------------- restarts and ids


def restarted(wire: Wire, place: int, incarnation: int = 2) -> None:
    wire.start(place, Identity(NodeId(place), key(place), incarnation))


def test_messages_of_a_new_incarnation_are_not_duplicates():
    wire = subscribed(LINE, (4, "g"))
    assert publish(wire, 1, payload=b"old") == {4: [b"old"]}
    wire.stop(1)
    wire.run(0.2)
    restarted(wire, 1)
    wire.join("1-2")
    wire.run(0.5)
    assert publish(wire, 1, payload=b"new") == {4: [b"new"]}


def test_restarted_core_without_clients_has_no_groups():
    wire = subscribed(LINE, (4, "g"), (1, "g"))
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 4)
    wire.stop(4)
    restarted(wire, 4)
    wire.join("4-3")
    wire.give(4, InterestChanged())
    wire.run(1.0)
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 1)
    assert publish(wire, 2) == {1: [b"x"]}


def test_interest_stays_until_the_restarted_node_announces_its_own():
    wire = subscribed("1-2", (2, "g"))
    wire.stop(2)
    restarted(wire, 2)
    wire.join("2-1")
    wire.run(1.0)
    assert wire.nodes[1].status().interest[NodeId(2)].filters == ("g",)
    wire.give(2, InterestChanged())
    wire.run(0.2)
    assert wire.nodes[1].status().interest[NodeId(2)].filters == ()
    assert wire.effects(1, UnsubscribeAtBroker) == [UnsubscribeAtBroker(("g",))]


def test_claims_that_overtake_the_record_of_a_restart_count():
    wire = subscribed("1-2 2-3", (3, "g"), relay_delay=0.05)
    wire.stop(3)
    wire.run(0.5)
    restarted(wire, 3)
    wire.join("3-2")
    wire.run(DELAY)
    wire.subscribe(3, "h")
    wire.run(0.5)
    assert cores(wire, "h") == {1: 3, 2: 3, 3: 3}


def test_interest_is_installed_again_after_a_copy_was_stopped():
    wire = subscribed("1-2 2-3", (1, "g"))
    wire.start(9, Identity(NodeId(1), key(1), incarnation=2))
    wire.join("9-3")
    wire.run(0.5)
    wire.stop(9)
    wire.run(1.0)
    assert wire.nodes[1].status().installed
    assert publish(wire, 3) == {1: [b"x"]}


def test_copy_that_started_later_acknowledges_nothing_while_the_first_has_the_id():
    wire = subscribed("1-2 2-3", (1, "g"))
    wire.start(9, Identity(NodeId(1), key(1), incarnation=2))
    wire.subscribe(9, "g")
    wire.join("9-3")
    wire.run(0.5)
    wire.log.clear()
    wire.publish(3, "g", b"x", qos=1)
    copy = Publication(NodeId(3), 1, 1, 1, "g", b"x", receivers=((NodeId(1), 0),))
    wire.give(9, FrameReceived(link_of(wire, 9, 3), copy))
    wire.run(5.0)
    assert wire.deliveries() == {1: [b"x"], 9: [b"x"]}
    assert {source for source, _ in sent(wire, Receipt)} == {1, 2}
    assert wire.nodes[3].delivery.acknowledged == {NodeId(1): 1}


def test_announcement_of_this_node_that_it_did_not_make_is_outranked():
    wire = subscribed("1-2", (1, "g"))
    link = link_of(wire, 1, 2)
    before = wire.nodes[1].status().cores[NodeId(1)]
    forged = CoreAnnouncement(NodeId(1), before.incarnation, before.sequence + 100, 0)
    wire.give(1, FrameReceived(link, forged))
    wire.run(1.0)
    assert wire.nodes[2].status().cores[NodeId(1)].sequence == before.sequence + 101
    newer = CoreAnnouncement(NodeId(1), before.incarnation + 7, 1, 0)
    wire.give(1, FrameReceived(link, newer))
    wire.run(2.0)
    assert wire.effects(1, IncarnationRaised) == [IncarnationRaised(before.incarnation + 8)]
    assert wire.nodes[2].status().cores[NodeId(1)].incarnation == before.incarnation + 8


@pytest.mark.parametrize(
    ("incarnation", "sequence", "reason"),
    [(1 << 62, 1, AHEAD), (1, 1 << 62, "announcement number out of bounds")],
)
def test_impossible_announcement_is_refused(incarnation, sequence, reason):
    wire = subscribed("1-2")
    forged = CoreAnnouncement(NodeId(2), incarnation, sequence, 0)
    assert wire.give(1, FrameReceived(link_of(wire, 1, 2), forged)) == [Ignored(reason)]


# ---------------------------------------------------------------- leases


def test_interest_of_an_unreachable_node_counts_until_its_lease_ends():
    wire = subscribed("1-2 2-3", (3, "g"), interest_lease=5.0)
    wire.stop(3)
    wire.run(4.9)
    assert wire.effects(1, UnsubscribeAtBroker) == []
    assert 3 in wire.nodes[1].status().interest
    wire.run(0.2)
    assert (
        wire.effects(1, UnsubscribeAtBroker)
        == wire.effects(2, UnsubscribeAtBroker)
        == [UnsubscribeAtBroker(("g",))]
    )
    view = wire.nodes[1].status()
    assert (view.interest, view.in_force, view.sizes["nodes"], list(view.cores)) == ({}, {}, 2, [1])


def test_node_that_returns_within_its_lease_keeps_its_interest():
    wire = subscribed("1-2 2-3", (3, "g"), interest_lease=5.0)
    wire.cut("2-3")
    wire.run(4.0)
    wire.join("2-3")
    wire.run(6.0)
    assert wire.effects(1, UnsubscribeAtBroker) == []
    assert publish(wire, 1) == {3: [b"x"]}


# ---------------------------------------------------------------- time


def test_node_without_links_or_clients_has_no_deadline():
    wire = Wire()
    assert wire.start(1).next_deadline() is None


def test_timer_that_fires_early_changes_nothing():
    wire = subscribed(SIX_BROKERS, (1, "g"), (5, "g"))
    before = {place: node.status() for place, node in wire.nodes.items()}
    assert [wire.give(place, TimerFired()) for place in wire.nodes] == [[]] * 6
    assert {place: node.status() for place, node in wire.nodes.items()} == before


def test_only_heartbeats_are_sent_in_steady_state():
    wire = subscribed(SIX_BROKERS, (1, "g"), (5, "g"))
    wire.run(2.0)
    wire.log.clear()
    wire.run(10.0)
    effects = [effect for step in wire.log for effect in step.effects]
    assert all(isinstance(e, Send) and isinstance(e.frame, Heartbeat) for e in effects)
    assert len(effects) == 2 * 8 * 10


def test_filter_out_of_bounds_is_refused_and_counted():
    node = Node(Identity(NodeId(1), bytes(32), incarnation=1), ProtocolSettings())
    effects = node.handle(InterestChanged(("a/#/b", "x" * 2000, "a/b")), 0.0)
    assert [e for e in effects if isinstance(e, Ignored)] == [Ignored("filter out of bounds")] * 2
    assert node.status().interest[NodeId(1)].filters == ("a/b",)


# ---------------------------------------------------------------- unknown origins


def test_publication_of_a_new_node_may_overtake_its_record():
    """A publication is forwarded at once, a record waits 2 ms at every hop to share a frame."""
    wire = Wire("1-2 2-3 3-4 4-5")
    wire.subscribe(5, "g")
    wire.run(0.2)
    wire.delay = lambda *_: 0.0001
    wire.start(9)
    wire.join("9-1")
    while NodeId(5) not in wire.nodes[9].status().reachable:
        wire.run(0.0001)
    wire.publish(9, "g", b"at once")
    wire.run(0.001)
    assert NodeId(9) not in wire.nodes[5].status().reachable
    assert wire.deliveries() == {5: [b"at once"]}


def test_interest_acks_and_receivers_in_force():
    """Which nodes have acknowledged its interest, and whose interest it has in force."""
    wire = Wire("1-2 2-3")
    wire.subscribe(1, "g/#")
    assert list(wire.nodes[1].interest_acks()) == []
    assert not wire.nodes[1].is_interest_installed()
    wire.run(0.5)
    assert sorted(wire.nodes[1].interest_acks()) == [2, 3]
    assert wire.nodes[1].is_interest_installed()
    assert wire.nodes[3].receivers_in_force("g/h") == [1]
    assert wire.nodes[3].receivers_in_force("h") == []
    wire.subscribe(1, "h")
    assert list(wire.nodes[1].interest_acks()) == []
