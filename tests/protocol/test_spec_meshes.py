"""Section 5 of docs/protocol.md, rule by rule: meshes and forwarding."""

from collections import Counter
from itertools import groupby

from tests.protocol.federation import (
    LINE,
    SIX_BROKERS,
    SQUARE,
    cores,
    grid,
    link_of,
    members,
    publish,
    restart,
    sent,
    settled,
)
from tests.protocol.wire_of_nodes import DELAY, Wire

from hansa.protocol.effects import Deliver, Dropped, Duplicate, Effect, Send
from hansa.protocol.events import ClientPublished, FrameReceived
from hansa.protocol.model import HOPS_MAX, NodeId, Publication, group_id
from hansa.protocol.settings import NonMemberForwarding
from hansa.protocol.wire.frames import CoreAnnouncement, MeshMembership

G = group_id("g")


def copy(
    number: int, *target_groups: str, epoch: int = 1, qos: int = 0, hops: int = 0
) -> Publication:
    """A copy of a publication of the distant node 9."""
    groups = tuple(group_id(name) for name in target_groups)
    return Publication(NodeId(9), epoch, number, qos, "g", b"x", hops=hops, target_groups=groups)


def receive(wire: Wire, place: int, neighbour: int, publication: Publication) -> list[Effect]:
    return wire.give(place, FrameReceived(link_of(wire, place, neighbour), publication))


def test_5_1_members_notify_their_parents_once_up_to_the_core():
    """5.1 An interested node, the core, and a node with a child: each notifies its parents once."""
    wire = settled(SIX_BROKERS, (1, "g"))
    assert members(wire) == [1]
    wire.subscribe(5, "g")
    wire.run(1.0)
    assert members(wire) == [1, 3, 4, 5]
    reported = [
        (source, target, frame.joined) for source, target, frame in sent(wire, MeshMembership)
    ]
    assert reported == [(5, 3, ("g",)), (5, 4, ("g",)), (3, 1, ("g",)), (4, 1, ("g",))]


def test_5_1_relay_is_in_more_meshes_than_one_node_may_have_filters():
    """5.1 It notifies its parent of all groups of its children."""
    subscriptions = [(6, "a"), (6, "b"), (7, "c"), (7, "d"), (8, "e"), (8, "f")]
    subscriptions += [(place - 3, topic) for place, topic in subscriptions]
    wire = settled("6-1 7-1 8-1 1-2 2-3 2-4 2-5", *subscriptions, filters_per_node_max=2)
    for topic, place in zip("abcdef", (3, 3, 4, 4, 5, 5), strict=True):
        assert publish(wire, place + 3, topic) == {place: [b"x"]}


def test_5_2_membership_without_reason_is_withdrawn_after_the_linger():
    """5.2 Withdrawn explicitly, after the linger; until then both sides use the link."""
    wire = settled(LINE, (1, "g"), (4, "g"), redundancy=1)
    wire.join("1-4")
    wire.run(0.2)
    assert publish(wire, 1) == {4: [b"x"]}
    assert {(3, 4), (4, 3)} <= set(wire.copies())
    wire.run(1.5)
    left = [
        (source, target)
        for source, target, frame in sent(wire, MeshMembership)
        if "g" in frame.left
    ]
    assert left == [(4, 3), (3, 2), (2, 1)]
    assert publish(wire, 1) == {4: [b"x"]}
    assert wire.copies() == [(1, 4)]


def test_5_3_member_sends_to_all_mesh_neighbours_but_the_source():
    """5.3 A publication belongs to every group whose filter matches its topic."""
    wire = settled(SIX_BROKERS, (1, "g"), (5, "g"))
    assert publish(wire, 4) == {1: [b"x"], 5: [b"x"]}
    assert wire.copies() == [(4, 1), (4, 5), (1, 3), (5, 3), (3, 5)]

    wire = settled(grid(3), (0, "a/+"), (8, "+/b"), (2, "a/b"), (6, "#"), (4, "c"))
    for publisher in (1, 3, 4, 5, 7):
        assert publish(wire, publisher, "a/b") == {place: [b"x"] for place in (0, 2, 6, 8)}


def test_5_4_non_member_sends_towards_the_core_with_target_groups():
    """5.4 To one parent, all or a random one; a member first; one copy for several groups."""
    crossed = {}
    for outside in NonMemberForwarding:
        wire = settled(grid(3), (8, "g"), non_member_forwarding=outside)
        for _ in range(20):
            wire.publish(0, "g")
        crossed[outside] = Counter(wire.copies())  # no time has passed: the first links only
    assert list(crossed[NonMemberForwarding.ONE].values()) == [20]
    assert crossed[NonMemberForwarding.ALL] == {(0, 1): 20, (0, 3): 20}
    assert crossed[NonMemberForwarding.RANDOM].keys() == {(0, 1), (0, 3)}
    assert crossed[NonMemberForwarding.RANDOM].total() == 20

    wire = settled(grid(3), (2, "g"), (7, "g"))  # Spohn 2021: 6 is beside the member 7
    publish(wire, 6)
    assert wire.copies()[0] == (6, 7)

    wire = settled("1-2 2-3", (3, "a/+"), (3, "+/b"))
    publish(wire, 1, "a/b")
    target_groups = [
        e.frame.target_groups for e in wire.effects(1, Send) if isinstance(e.frame, Publication)
    ]
    assert [set(groups) for groups in target_groups] == [{group_id("a/+"), group_id("+/b")}]


def test_5_4_random_parent_is_picked_anew_for_each_publication():
    """5.4 Each of them leads to the mesh: all arrive once, whatever the path."""
    wire = settled(grid(3), (8, "g"), non_member_forwarding=NonMemberForwarding.RANDOM)
    for number in range(64):
        wire.publish(0, "g", bytes([number]))
    first = wire.copies()
    assert min(first.count((0, 1)), first.count((0, 3))) > 64 / 4
    runs = [len(list(run)) for _, run in groupby(first)]
    assert 1 in runs  # not in turns …
    assert max(runs) > 1  # … nor in blocks
    wire.run(0.2)
    assert wire.deliveries() == {8: [bytes([number]) for number in range(64)]}


def test_5_5_duplicate_is_forwarded_only_for_new_target_groups():
    """5.5 A directed link is crossed at most once within meshes and once per target group."""
    wire = settled(LINE, (4, "g"))
    onward = Send(link_of(wire, 2, 3), copy(1, "g", hops=1))
    assert receive(wire, 2, 1, copy(1)) == []
    assert receive(wire, 2, 1, copy(1, "g")) == [Duplicate(NodeId(9), 1), onward]
    assert receive(wire, 2, 1, copy(1, "g")) == [Duplicate(NodeId(9), 1)]

    subscriptions = ((0, "a/+"), (8, "+/b"), (2, "a/b"), (6, "#"))
    wire = settled(grid(3), *subscriptions, non_member_forwarding=NonMemberForwarding.ALL)
    for publisher in range(9):
        publish(wire, publisher, "a/b")
        crossed = Counter(
            (step.place, effect.link, group)
            for step in wire.log
            for effect in step.effects
            if isinstance(effect, Send) and isinstance(effect.frame, Publication)
            for group in effect.frame.target_groups or ("spread",)
        )
        assert set(crossed.values()) == {1}


def test_5_6_duplicates_are_detected_in_a_window_per_origin_and_epoch():
    """5.6 Exact for 4,096 numbers of the last two epochs; an older copy counts as a duplicate."""
    wire = settled("1-2", (2, "g"))
    new = [Deliver(copy(number)) for number in (5_000, 5_000 - 4_095)]
    assert receive(wire, 2, 1, copy(5_000)) == [new[0]]
    assert receive(wire, 2, 1, copy(5_000)) == [Duplicate(NodeId(9), 5_000)]
    assert receive(wire, 2, 1, copy(5_000 - 4_095)) == [new[1]]
    assert receive(wire, 2, 1, copy(5_000 - 4_096)) == [Duplicate(NodeId(9), 5_000 - 4_096)]
    assert receive(wire, 2, 1, copy(5_000, qos=1)) == []  # not a duplicate: it has separate windows
    for epoch in (2, 3):
        assert receive(wire, 2, 1, copy(5_000, epoch=epoch)) == [Deliver(copy(5_000, epoch=epoch))]
    assert receive(wire, 2, 1, copy(5_001, epoch=1)) == [Duplicate(NodeId(9), 5_001)]


def test_5_6_publications_of_a_restarted_node_are_not_duplicates():
    """5.6 Duplicates are detected by (origin, epoch, sequence)."""
    wire = settled(LINE, (4, "g"))
    for epoch in (2, 3, 4):
        assert publish(wire, 1) == {4: [b"x"]}
        numbers = [effect.publication.sequence for effect in wire.effects(4, Deliver)]
        assert numbers == [1]
        wire.stop(1)
        wire.run(0.2)
        restart(wire, 1, "1-2", incarnation=epoch)
        wire.run(0.5)


def test_5_7_every_interested_node_delivers_once_and_never_the_origin():
    """5.7 Delivered where a filter of local clients matches: once, and never at its origin."""
    wire = settled(grid(3), *((place, "g") for place in range(9)))
    for origin in range(9):
        assert publish(wire, origin) == {place: [b"x"] for place in range(9) if place != origin}


def test_5_7_copy_has_a_hop_limit():
    """5.7 A copy has at most 64 hops."""
    wire = settled(LINE, (4, "g"), (2, "g"))
    last, too_far = copy(1, hops=HOPS_MAX - 1), copy(2, hops=HOPS_MAX)
    assert receive(wire, 2, 1, last) == [
        Deliver(last),
        Send(link_of(wire, 2, 3), copy(1, hops=HOPS_MAX)),
    ]
    assert receive(wire, 2, 1, too_far) == [Deliver(too_far), Dropped(NodeId(9), 2, "hop limit")]


def test_5_8_publication_without_a_route_is_dropped_and_counted():
    """5.8 A publication without a route is dropped and counted."""
    wire = settled("1-2")
    wire.is_lost = lambda source, target, frame: isinstance(frame, CoreAnnouncement)
    wire.subscribe(2, "g")
    wire.run(0.1)
    assert wire.give(1, ClientPublished("g", b"x")) == [
        Dropped(NodeId(1), 1, "no route to the core")
    ]
    assert wire.nodes[1].status().counters == {"dropped: no route to the core": 1}


def test_5_8_member_without_a_route_drops_and_counts_as_well():
    """5.8 A publication without a route is dropped and counted."""
    wire = settled(SQUARE, (1, "g"), (2, "g"))
    wire.cut("1-2")
    wire.run(DELAY)
    assert wire.nodes[2].status().groups["g"].parents == ()
    assert wire.give(2, ClientPublished("g", b"x")) == [
        Dropped(NodeId(2), 1, "no route to the core")
    ]


def test_5_9_filters_that_agree_in_their_first_levels_can_share_a_group():
    """5.9 Filters share a group; the filters themselves still decide about delivery."""
    wire = settled(LINE, (3, "a/b"), (4, "a/c"), group_depth=1)
    assert cores(wire, "a/#") == dict.fromkeys((1, 2, 3, 4), 3)
    assert publish(wire, 1, "a/b") == {3: [b"x"]}
    assert wire.copies() == [(1, 2), (2, 3), (3, 4)]
