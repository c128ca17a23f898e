"""Section 4 of docs/protocol.md, rule by rule: cores and routes to them."""

from itertools import count, pairwise

import pytest
from msgspec.structs import replace
from tests.protocol.federation import (
    LINE,
    RING,
    SQUARE,
    cores,
    grid,
    link_of,
    managers,
    publish,
    restart,
    sent,
    settled,
    timed,
    views,
)
from tests.protocol.wire_of_nodes import DELAY, Wire, key, pairs

from hansa.protocol.effects import CoreLost, NodeReachable, ParentsChanged
from hansa.protocol.events import FrameReceived
from hansa.protocol.membership.records import ClaimsRecord, NodeRecord
from hansa.protocol.model import Identity, NodeId
from hansa.protocol.routing.base import TOO_SHORT
from hansa.protocol.routing.mesh.routes import CoreRoutes
from hansa.protocol.settings import ManagementBy, Metric
from hansa.protocol.wire.frames import UNREACHABLE, AnnouncementRequest, CoreAnnouncement, Update

CORE = NodeId(1)


def announcements(wire: Wire, core: int) -> list[tuple[int, int, CoreAnnouncement]]:
    """The announcements of one core in the log."""
    return [(source, target, frame) for source, target, frame in sent(wire, CoreAnnouncement)
            if frame.core == core]  # fmt: skip


def received(sequence: int, distance: int) -> CoreAnnouncement:
    return CoreAnnouncement(CORE, 1, sequence, distance)


def routes(redundancy: int = 2) -> CoreRoutes:
    return CoreRoutes(redundancy, cost=lambda node: 1)


def test_4_1_first_interested_node_claims_and_announces_the_group():
    """4.1 One announcement serves all groups of a core; two are at least 20 ms apart."""
    wire = settled("1-2 2-3")
    wire.subscribe(2, "a")
    wire.subscribe(2, "b")
    wire.run(0.01)
    wire.subscribe(2, "c")
    wire.run(0.2)
    wire.subscribe(3, "a")
    wire.run(0.2)
    claims = [
        ClaimsRecord(NodeId(2), 1, 1, 0, ("a",)),
        ClaimsRecord(NodeId(2), 1, 2, 1, ("b", "c")),
    ]
    reported = [
        (at, frame) for at, source, target, frame in timed(wire, CoreAnnouncement) if target == 1
    ]
    assert [(f.core, f.sequence, f.distance, f.claims) for _, f in reported] == [
        (2, 1, 0, claims[0]),
        (2, 2, 0, claims[1]),
    ]
    assert reported[1][0] - reported[0][0] == pytest.approx(0.02)
    assert announcements(wire, 3) == []


def two_interested_nodes() -> Wire:
    """3 becomes interested in a group without a core; 1 is interested as well, but has just
    restarted and does not know that yet."""
    wire = settled("1-2 2-3", (1, "g"))
    wire.stop(1)
    wire.run(0.2)
    restart(wire, 1, "1-2")
    wire.run(0.2)
    wire.log.clear()
    wire.subscribe(3, "g")
    return wire


def test_4_1_smallest_id_of_several_interested_nodes_claims_the_group():
    """4.1 The others wait a second for it."""
    wire = two_interested_nodes()
    wire.run(0.5)
    wire.subscribe(1, "g")
    wire.run(0.1)
    assert cores(wire) == dict.fromkeys((1, 2, 3), 1)
    wire.run(2.0)
    assert announcements(wire, 3) == []

    wire = two_interested_nodes()
    wire.run(0.9)
    assert cores(wire)[3] is None
    wire.run(0.2)
    assert cores(wire)[3] == 3


def test_4_2_of_several_claimants_the_smallest_id_is_the_core():
    """4.2 The smallest id is the core; the others withdraw their claims."""
    wire = settled(LINE)
    wire.subscribe(4, "g")
    wire.subscribe(1, "g")
    wire.run(0.2)
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 1)
    claims = [frame.claims for source, _, frame in announcements(wire, 4) if source == 4]
    assert claims == [
        ClaimsRecord(NodeId(4), 1, 1, 0, ("g",)),
        ClaimsRecord(NodeId(4), 1, 2, 1, (), ("g",)),
    ]


def test_4_3_hop_is_counted_once_and_by_the_receiver():
    """4.3 The receiver adds the cost of the link, in hops or round-trip time."""
    wire = settled(LINE)
    wire.subscribe(1, "g")
    wire.run(0.2)
    said = [(source, frame.distance) for source, _, frame in announcements(wire, 1)]
    assert said == [(1, 0), (2, 1), (3, 2)]
    assert [view.cores[CORE].distance for view in views(wire).values()] == [0, 1, 2, 3]

    by_time = settled(LINE, metric=Metric.RTT)
    by_time.run(2.0)
    tenths_of_ms = round(2 * DELAY * 10_000)
    distances = [view.cores[CORE].distance for view in views(by_time).values()]
    assert distances == [hops * tenths_of_ms for hops in range(4)]


def test_4_4_newer_or_feasible_announcements_are_accepted_and_changes_forwarded():
    """4.4 Accepted if newer, or equal and feasible; without a change it is not forwarded."""
    here = routes()
    story = [
        (received(sequence=1, distance=2), True, 3, (2,)),  # the first of all
        (
            received(sequence=1, distance=3),
            False,
            3,
            (2,),
        ),  # not nearer: not feasible
        # as near: one more parent, nothing to announce
        (received(sequence=1, distance=2), False, 3, (2, 4)),
        (received(sequence=1, distance=1), True, 2, (5,)),  # nearer
        (received(sequence=2, distance=9), True, 10, (6,)),  # newer, however far
        (received(sequence=1, distance=0), False, 10, (6,)),  # older, however near
    ]
    for neighbour, (frame, passed_on, distance, parents) in enumerate(story, start=2):
        assert here.receive_announcement(NodeId(neighbour), frame) == passed_on
        assert (here.routes[CORE].distance, here.parents(CORE)) == (distance, parents)


def test_4_4_announcement_on_a_grid_costs_little_and_forms_redundancy():
    """4.4 With equal delays at most 2·l frames on l links (Spohn 2020, theorem 1)."""
    links = pairs(grid(5))
    wire = settled(grid(5))
    for core in (0, 12, 23):
        wire.subscribe(core, f"g/{core}")
        wire.run(0.2)
        assert len(announcements(wire, core)) == 2 * len(links) - (25 - 1)
        routes = {place: view.cores[NodeId(core)] for place, view in views(wire).items()}
        for place, route in routes.items():
            around = [a if b == place else b for a, b in links if place in (a, b)]
            nearer = {node for node in around if routes[node].distance < route.distance}
            assert set(route.parents) <= nearer
            assert len(route.parents) == min(2, len(nearer))


def test_4_5_parents_are_the_nearest_feasible_neighbours():
    """4.5 The shortest routes, up to the redundancy; of equal ones present parents, then by id."""
    here = routes()
    for neighbour in (9, 5, 7, 3):
        here.receive_announcement(NodeId(neighbour), received(sequence=1, distance=2))
    assert here.parents(CORE) == (9, 5)
    here.remove_neighbour(NodeId(9))
    assert here.parents(CORE) == (5, 3)
    here.receive_announcement(NodeId(8), received(sequence=1, distance=1))
    assert here.parents(CORE) == (8,)


def test_4_5_parents_never_form_a_loop():
    """4.5 A parent's feasible distance is smaller than the node's, whatever is lost or late."""
    wire = settled(grid(3), (4, "g"))
    frames, changes = count(), count()
    wire.is_lost = lambda *_: next(frames) % 7 == 0
    wire.delay = lambda *_: DELAY * (1 + next(changes) % 5)
    for links in ("4-5", "0-1", "4-7", "1-4", "3-6"):
        wire.cut(links)
        for _ in range(30):
            wire.run(0.005)
            seen = views(wire)
            for core, route in (item for view in seen.values() for item in view.cores.items()):
                for parent in (seen[parent].cores[core] for parent in route.parents):
                    assert (-parent.sequence, parent.feasible_distance) < (
                        -route.sequence,
                        route.feasible_distance,
                    )
        wire.join(links)


def test_4_6_new_neighbour_gets_every_route():
    """4.6 A new neighbour is sent every known route."""
    wire = settled(LINE, (3, "g"), (4, "h"))
    wire.start(9)
    wire.join("2-9")
    wire.run(DELAY)
    reported = [
        frame
        for source, target, frame in sent(wire, CoreAnnouncement)
        if (source, target) == (2, 9)
    ]
    assert [(f.core, f.distance) for f in reported] == [(1, 1), (3, 1), (4, 2)]


def test_4_7_other_parents_continue_and_a_feasible_neighbour_replaces_the_lost_one():
    """4.7 When a parent is lost, the others continue; a feasible neighbour replaces it."""
    wire = settled("1-2 1-3 1-4 2-5 3-5 4-5", (1, "g"))
    assert set(wire.nodes[5].status().cores[CORE].parents) == {2, 3}
    wire.cut("2-5")
    wire.run(0.2)
    assert wire.effects(5, ParentsChanged) == [
        ParentsChanged(CORE, 1, 2, 2, (NodeId(3), NodeId(4)))
    ]
    assert sent(wire, AnnouncementRequest) == []


def test_4_7_node_without_a_route_announces_that_and_asks():
    """4.7 With none left it announces that and asks the core, at growing intervals."""
    wire = settled(SQUARE, (1, "g"))
    wire.is_lost = lambda source, target, frame: source == 1 and isinstance(frame, CoreAnnouncement)
    wire.cut("1-2")
    wire.run(2.0)
    assert (2, 3, UNREACHABLE) in [(a, b, frame.distance) for a, b, frame in announcements(wire, 1)]
    asked = [
        at
        for at, source, target, frame in timed(wire, AnnouncementRequest)
        if (source, target) == (2, 3)
    ]
    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert gaps[:6] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.25, 0.25])
    wire.is_lost = lambda *_: False
    wire.run(0.5)
    assert wire.nodes[2].status().cores[CORE].parents == (3,)


def test_4_8_nearest_node_takes_over_at_once_and_another_after_a_second():
    """4.8 The interested node nearest to a lost core claims the group; any other after a second."""
    wire = settled(RING, (3, "g"), (5, "g"), (4, "g"), (2, "g"))
    wire.stop(3)
    wire.run(0.2)
    assert cores(wire) == dict.fromkeys((1, 2, 4, 5), 2)

    wire = settled("1-2 2-3 2-4 3-4 4-5", (3, "g"), (1, "g"), (5, "g"))
    wire.freeze(1)  # as near as 5 and with the smaller id
    wire.stop(3)
    wire.run(0.9)
    assert (cores(wire)[2], cores(wire)[5]) == (None, None)
    wire.run(0.2)
    assert (cores(wire)[2], cores(wire)[5]) == (5, 5)


def test_4_8_each_side_of_a_partition_has_a_core_until_they_merge():
    """4.8 Each side of a partition does so; when they merge, rule 4.2 decides."""
    wire = settled(LINE, (1, "g"), (4, "g"))
    wire.cut("2-3")
    wire.run(0.2)
    assert cores(wire) == {1: 1, 2: 1, 3: 4, 4: 4}
    wire.join("2-3")
    wire.run(0.2)
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 1)


def test_4_9_core_releases_a_group_without_interest():
    """4.9 A core releases a group without reachable interest after the linger."""
    wire = settled("1-2", (1, "g"), (2, "g"))
    wire.unsubscribe(1, "g")
    wire.run(2.0)
    assert wire.effects(1, CoreLost) == []
    start = wire.now
    wire.unsubscribe(2, "g")
    wire.run(2.0)
    lost = min(step.at for step in wire.log if CoreLost("g", CORE) in step.effects)
    assert lost == pytest.approx(start + 0.5 + DELAY + 0.5)  # first the interest, then the claim


def test_4_9_core_keeps_groups_of_others_beyond_its_own_bound():
    """4.9 … so it may claim more groups than it may have filters."""
    wire = settled("1-2 1-3", (1, "a"), (2, "a"), filters_per_node_max=1)
    wire.unsubscribe(1, "a")
    wire.run(2.0)
    wire.subscribe(1, "b")
    wire.run(2.0)
    assert cores(wire, "a") == cores(wire, "b") == dict.fromkeys((1, 2, 3), 1)
    assert publish(wire, 3, "b") == {1: [b"x"]}
    wire.start(4)
    wire.join("4-3")
    wire.run(0.5)
    assert publish(wire, 4, "b") == {1: [b"x"]}


def test_4_10_best_reachable_node_is_management_core():
    """4.10 By smallest id or highest capacity; announced after 0.1 s without a change."""
    wire = Wire(LINE)
    assert managers(wire) == dict.fromkeys((1, 2, 3, 4), 1)
    known = max(
        step.at
        for step in wire.log
        if any(isinstance(e, NodeReachable) for e in step.effects)
        if step.place == 1
    )
    first = min(at for at, source, _, frame in timed(wire, CoreAnnouncement) if source == 1)
    assert first == pytest.approx(known + 0.1)
    assert {source for source, _, frame in sent(wire, CoreAnnouncement) if frame.distance == 0} == {
        1
    }

    strong = Wire(management_by=ManagementBy.CAPACITY)
    for place, capacity in ((1, 1.0), (2, 8.0), (3, 8.0)):
        strong.start(place, Identity(NodeId(place), key(place), 1, capacity=capacity))
    strong.join("1-2 2-3")
    strong.run(1.0)
    assert managers(strong) == dict.fromkeys((1, 2, 3), 2)


def test_4_11_feasible_distances_outlive_the_core():
    """4.11 Feasible distances are kept until the lease of the core ends."""
    wire = settled(LINE, (4, "g"), interest_lease=10.0)
    wire.stop(4)
    wire.run(9.0)
    before = wire.nodes[2].status().cores[NodeId(4)]
    assert (before.distance, before.feasible_distance, before.parents) == (UNREACHABLE, 2, ())
    echo = CoreAnnouncement(NodeId(4), before.incarnation, before.sequence, distance=2)
    wire.give(2, FrameReceived(link_of(wire, 2, 1), echo))
    assert wire.nodes[2].status().cores[NodeId(4)] == before
    wire.run(1.5)
    assert all(NodeId(4) not in view.cores for view in views(wire).values())


SHORTCUT = "1-2 2-3 3-4 4-5 5-1"


def test_4_12_distance_shorter_than_the_map_allows_counts_as_that_of_the_map():
    """4.12 A neighbour that lies attracts nothing, and the lie is counted."""
    wire = settled(SHORTCUT, (1, "g"))
    before = wire.nodes[3].status().cores[NodeId(1)]
    assert (before.distance, before.parents) == (2, (NodeId(2),))
    lie = CoreAnnouncement(NodeId(1), before.incarnation, before.sequence, distance=0)
    wire.give(3, FrameReceived(link_of(wire, 3, 4), lie))
    assert wire.nodes[3].status().cores[NodeId(1)] == before
    assert wire.nodes[3].counters[TOO_SHORT] == 1


def test_4_12_distances_by_round_trip_time_are_not_compared():
    """4.12 Both ends of a link measure different ones."""
    wire = settled(SHORTCUT, (1, "g"), metric=Metric.RTT)
    before = wire.nodes[3].status().cores[NodeId(1)]
    near = CoreAnnouncement(NodeId(1), before.incarnation, before.sequence, distance=1)
    wire.give(3, FrameReceived(link_of(wire, 3, 4), near))
    assert wire.nodes[3].counters[TOO_SHORT] == 0


def test_4_12_announcement_that_overtook_the_map_counts_when_the_map_has_arrived():
    """4.12 When the map changes, the node selects its parents again."""
    wire = settled("1-2 2-3 3-4", (1, "g"))
    before = wire.nodes[4].status().cores[NodeId(1)]
    link = link_of(wire, 4, 3)
    early = CoreAnnouncement(NodeId(1), before.incarnation, before.sequence + 1, distance=1)
    wire.give(4, FrameReceived(link, early))
    assert wire.nodes[4].status().cores[NodeId(1)].distance == 3
    ends = {node: wire.nodes[node].membership.records_of(NodeId(node))[0] for node in (1, 3)}
    for node, other in ((1, 3), (3, 1)):
        record = ends[node]
        assert isinstance(record, NodeRecord)
        links = tuple(sorted((*record.links, (NodeId(other), 1_000))))
        newer = replace(record, version=record.version + 1, links=links)
        wire.give(4, FrameReceived(link, Update((newer,))))
    assert wire.nodes[4].status().cores[NodeId(1)].distance == 2


def test_4_6_announcement_waits_for_the_record_of_its_core():
    """4.6 An announcement of an unknown node has no effect until its record arrives."""
    wire = settled("1-2")
    link, before = link_of(wire, 1, 2), views(wire)[1].cores
    wire.give(1, FrameReceived(link, CoreAnnouncement(NodeId(9), 1, 1, 1)))
    assert views(wire)[1].cores == before
    wire.give(
        1, FrameReceived(link, Update((NodeRecord(NodeId(9), 1, 1, 1, key(9), "", (), 1.0, ()),)))
    )
    assert views(wire)[1].cores.keys() == {*before, NodeId(9)}


def test_4_6_core_of_an_ignored_announcement_is_asked_for_a_newer_one():
    """4.6 When the core of an ignored announcement becomes reachable, the node asks it once for a
    newer announcement."""
    places = range(1, 7)
    links = " ".join(f"{a}-{b}" for a in places for b in places if a < b)
    wire = settled(links, *((place, f"{place}/a") for place in places), nodes_max=7)
    wire.start(7)
    wire.join(" ".join(f"7-{place}" for place in places))
    wire.run(2.0)
    view = views(wire)[7]
    assert view.counters["announcement of an unknown core"] > 0
    assert {core: route.distance for core, route in view.cores.items()} == dict.fromkeys(places, 1)
