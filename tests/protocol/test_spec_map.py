"""Section 3 of docs/protocol.md, rule by rule: the database and the map."""

from dataclasses import replace

import pytest
from msgspec import structs
from tests.protocol.federation import (
    LINE,
    RING,
    SQUARE,
    cores,
    link_of,
    publish,
    restart,
    sent,
    settled,
    timed,
    views,
)
from tests.protocol.wire_of_nodes import DELAY, Wire, key

from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    CoreElected,
    Ignored,
    IncarnationRaised,
    NodeUnreachable,
    QueryReceived,
    QueryResponseReceived,
    Send,
    UnsubscribeAtBroker,
)
from hansa.protocol.events import (
    FrameReceived,
    InterestChanged,
    PeersRestored,
    QueryAnswered,
    QueryRequested,
)
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.origins import WRONG_SIDE
from hansa.protocol.membership.records import InterestRecord, NodeRecord, RecordKind
from hansa.protocol.model import HOPS_MAX, MANAGEMENT_GROUP, Identity, NodeId, Publication
from hansa.protocol.settings import Metric
from hansa.protocol.status import InterestStatus
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    UNICASTS,
    AnyFrame,
    Fetch,
    Frame,
    Heartbeat,
    InterestAck,
    InterestAckRequest,
    InterestAcks,
    PendingNotice,
    Query,
    QueryResponse,
    Receipt,
    RepairResponse,
    RetainedValuesFrame,
    Summary,
    Update,
)


def test_3_1_every_node_holds_every_record_and_the_higher_stamp_replaces():
    """3.1 Every node holds every node's records. The higher stamp replaces."""
    wire = settled(SQUARE, (1, "a"), (3, "b"), (1, "c"))
    everything = {1: InterestStatus((1, 2), ("a", "c")), 3: InterestStatus((1, 1), ("b",))}
    assert [view.interest for view in views(wire).values()] == [everything] * 4
    assert len({view.digest for view in views(wire).values()}) == 1
    before = wire.nodes[2].status()
    late = Update((InterestRecord(NodeId(1), 1, 1, 1, ("late",)),))
    wire.give(2, FrameReceived(link_of(wire, 2, 3), late))
    assert wire.nodes[2].status() == before


def test_3_2_change_floods_once_together_with_others():
    """3.2 To every neighbour that is not known to have it, with all of the last 2 ms."""
    wire = settled("1-2 3-2 2-4")
    start = wire.now
    wire.subscribe(1, "a")
    wire.subscribe(3, "b")
    wire.run(0.1)
    a, b = (InterestRecord(NodeId(node), 1, 1, 0, (name,)) for node, name in ((1, "a"), (3, "b")))
    assert sent(wire, Update) == [
        (1, 2, Update((a,))),
        (3, 2, Update((b,))),
        (2, 1, Update((b,))),
        (2, 3, Update((a,))),
        (2, 4, Update((a, b))),
    ]
    (relayed,) = {at for at, source, _, _ in timed(wire, Update) if source == 2}
    assert relayed == pytest.approx(start + DELAY + 0.002)


def test_3_3_new_link_exchanges_missing_records():
    """3.3 Summaries, then missing records; a change that does not fit is fetched whole."""
    wire = settled("1-2 3-4", (1, "a"), (4, "b"))
    wire.join("2-3")
    wire.run(0.2)
    assert {(source, target) for source, target, _ in sent(wire, Summary)} == {(2, 3), (3, 2)}
    assert len({view.digest for view in views(wire).values()}) == 1

    wire.is_lost = lambda source, target, frame: source == 1 and isinstance(frame, Update)
    wire.subscribe(1, "missed")
    wire.run(0.1)
    wire.is_lost = lambda *_: False
    wire.log.clear()
    wire.subscribe(1, "c")
    wire.run(0.2)
    assert sent(wire, Fetch) == [(2, 1, Fetch(((RecordKind.INTEREST, NodeId(1)),)))]
    assert wire.nodes[4].status().interest[NodeId(1)].filters == ("a", "missed", "c")


def test_3_3_rows_are_sent_once_and_within_the_allowance():
    """3.3 16 MiB at once, 1 MiB a second in the long run."""
    wire = settled("1-2")
    wire.subscribe(1, *(f"{number}/" + "x" * 1_000 for number in range(9_000)))
    wire.run(30.0)
    link, row = link_of(wire, 1, 2), (RecordKind.INTEREST, NodeId(1))
    sizes = [
        sum(len(encode(send.frame)) for send in effects if isinstance(send, Send))
        for effects in (wire.give(1, FrameReceived(link, Fetch((row,) * 200))) for _ in range(20))
    ]
    assert 9_000_000 < sizes[0] < 9_500_000
    assert sum(sizes) < 16 << 20
    assert views(wire)[1].counters["records requested beyond the allowance of a link"] == 19


def test_3_4_heartbeats_detect_missing_rows_and_are_the_only_steady_traffic():
    """3.4 A digest that differs twice in a row is compared; else only heartbeats are sent."""
    wire = settled("1-2")
    wire.run(0.5)  # half-way between two heartbeats
    wire.is_lost = lambda source, target, frame: isinstance(frame, Update)
    wire.subscribe(1, *(f"a/{number}" for number in range(100)))
    wire.run(0.1)
    wire.is_lost = lambda *_: False
    wire.run(0.9)
    assert (sent(wire, Summary), wire.nodes[2].status().interest) == ([], {})
    wire.run(1.0)
    assert len(sent(wire, Summary)) == 2
    assert len(wire.nodes[2].status().interest[NodeId(1)].filters) == 100

    wire.run(2.0)
    wire.log.clear()
    wire.run(10.0)
    assert len(sent(wire, Frame)) == len(sent(wire, Heartbeat)) == 2 * 10


def test_3_5_failure_is_known_everywhere_without_a_timer():
    """3.5 A link counts if both ends report it; a node is reachable over such links."""
    graph = Graph(NodeId(1), Metric.HOPS)
    graph.set_links(NodeId(1), {NodeId(2): 0})
    graph.set_links(NodeId(3), {NodeId(2): 0})
    assert list(graph.reachable) == [1]
    graph.set_links(NodeId(2), {NodeId(1): 0})
    assert list(graph.reachable) == [1, 2]
    graph.set_links(NodeId(2), {NodeId(1): 0, NodeId(3): 0})
    assert list(graph.reachable) == [1, 2, 3]

    wire = settled(LINE)
    wire.stop(4)
    wire.run(3 * DELAY + wire.settings.relay_delay)
    assert [wire.effects(place, NodeUnreachable) for place in (1, 2, 3)] == [
        [NodeUnreachable(NodeId(4))]
    ] * 3


def test_3_6_rows_stay_for_the_lease_and_then_nothing_remains():
    """3.6 Rows of unreachable nodes stay for a lease; then only a tombstone remains."""
    wire = settled(LINE, (4, "g"), interest_lease=20.0)
    wire.stop(4)
    wire.run(19.9)
    assert all(NodeId(4) in view.interest for view in views(wire).values())
    wire.run(0.2)
    for place, view in views(wire).items():
        assert (view.interest, view.in_force, view.sizes["nodes"]) == ({}, {}, 3)
        assert wire.effects(place, UnsubscribeAtBroker) == [UnsubscribeAtBroker(("g",))]


@pytest.mark.parametrize(
    ("links", "cut"),
    [
        ("1-2 2-3", "1-2"),
        ("1-2 2-3", "2-3"),
        ("1-2 2-3 3-4 4-5 5-6", "3-4"),
        ("1-2 2-3 3-4 4-5 5-6", "2-3 4-5"),
        ("1-2 2-3 3-1 3-4 2-4 4-5 5-6 6-4", "3-4 2-4"),
    ],
)
def test_3_6_node_that_returns_after_its_lease_is_known_again(links, cut):
    """3.6 Living nodes are asked for a newer record, not only those at the cut."""
    last = max(NodeId(int(digit)) for digit in links if digit.isdecimal())
    wire = settled(links, (1, "g"), (last, "g"), interest_lease=20.0)
    wire.cut(cut)
    wire.run(30.0)
    assert last not in wire.nodes[1].status().interest
    wire.join(cut)
    wire.run(5.0)
    assert {tuple(sorted(view.reachable)) for view in views(wire).values()} == {
        tuple(sorted(wire.nodes))
    }
    assert len({view.digest for view in views(wire).values()}) == 1
    assert publish(wire, 1) == {last: [b"x"]}
    assert publish(wire, last) == {1: [b"x"]}


@pytest.mark.parametrize("patient", [1, 3])
def test_3_6_returning_node_may_still_know_the_others(patient):
    """3.6 Leases end at different times, here even in different years."""
    wire = Wire(interest_lease=20.0)
    for place in (1, 2, 3):
        long = replace(wire.settings, interest_lease=1e9)
        wire.start(place, settings=long if place == patient else None)
        wire.subscribe(place, "g")
    wire.join("1-2 2-3")
    wire.run(1.0)
    wire.cut("1-2")
    wire.run(30.0)
    wire.join("1-2")
    wire.run(5.0)
    assert [sorted(view.reachable) for view in views(wire).values()] == [[1, 2, 3]] * 3
    assert publish(wire, 1) == {2: [b"x"], 3: [b"x"]}
    assert publish(wire, 3) == {1: [b"x"], 2: [b"x"]}


def test_3_6_lease_continues_over_restarts():
    """3.6 Only the running time of a node counts; a start leaves each a tenth of a lease."""
    wire = Wire(interest_lease=20.0)
    for place in (1, 2, 3):
        wire.start(place, restored=RestoredState())
    wire.join("1-2 2-3")
    wire.subscribe(3, "g")
    wire.run(1.0)
    wire.stop(3)
    for incarnation in range(2, 4):
        wire.run(9.0)
        for place in (1, 2):
            restart_from_disk(wire, place, incarnation)
        wire.join("1-2")
    wire.run(1.9)
    assert [NodeId(3) in view.interest for view in views(wire).values()] == [True, True]
    wire.run(0.2)
    assert [NodeId(3) in view.interest for view in views(wire).values()] == [False, False]


def test_3_6_tombstones_survive_a_restart():
    """3.6 A node that still knows a dead one does not bring it back."""
    wire = Wire(interest_lease=20.0)
    for place in (1, 2, 3):
        patient = replace(wire.settings, interest_lease=1e9)
        wire.start(place, settings=patient if place == 2 else None)
    wire.join("1-2 2-3")
    wire.run(1.0)
    wire.stop(3)
    wire.run(21.0)
    restart_from_disk(wire, 1, 2)
    wire.join("1-2")
    wire.run(5.0)
    assert [NodeId(3) in wire.nodes[place].membership.known for place in (1, 2)] == [False, True]


def restart_from_disk(wire: Wire, place: int, incarnation: int) -> None:
    """Restart a node with the records of others from its disk."""
    membership = wire.nodes[place].membership
    others = [node for node in membership.known if node != place]
    records = tuple(
        each for node in others for each in wire.nodes[place].membership.records_of(node)
    )
    restored = PeersRestored(
        records, membership.absent_seconds(wire.now), dict(membership.tombstones)
    )
    wire.stop(place)
    identity = Identity(NodeId(place), key(place), incarnation)
    wire.start(place, identity, restored=RestoredState())
    wire.give(place, restored)


def test_3_6_asked_node_writes_one_record_however_many_ask():
    """3.6 A request names the outdated record; a newer one answers all requests."""
    wire = settled("1-2 2-3 3-4 4-5 5-1", interest_lease=20.0)
    wire.cut("1-2 5-1")
    wire.run(30.0)
    wire.log.clear()
    wire.join("1-2 5-1")
    wire.run(1.0)
    asked = [
        frame.destination
        for source, _, frame in sent(wire, InterestAckRequest)
        if source == 1 and frame.version
    ]
    assert sorted(asked) == [3, 3, 4, 4]
    written = [
        record.version
        for source, _, frame in sent(wire, Update)
        for record in frame.records
        if source == record.node == 3
    ]
    assert len(set(written)) == 1


def ask_for_newer(wire, incarnation, version):
    frame = InterestAckRequest(NodeId(2), NodeId(1), 0, incarnation, version)
    return wire.give(2, FrameReceived(link_of(wire, 2, 1), frame))


def test_3_6_forgotten_copy_that_started_later_does_not_exclude_the_node():
    """3.6 The node raises its incarnation above that of the tombstone."""
    wire = settled("1-2 2-3", interest_lease=20.0)
    ask_for_newer(wire, 7, 2)
    assert wire.effects(2, IncarnationRaised) == [IncarnationRaised(8)]
    wire.run(0.5)
    known = [node.membership.known[NodeId(2)].incarnation for node in wire.nodes.values()]
    assert known == [8, 8, 8]


def test_3_6_requests_raise_the_incarnation_at_most_once_per_second():
    """3.6 At most once per second and within 1.7."""
    wire = settled("1-2", interest_lease=20.0)
    for incarnation in (7, 8, 9):
        ask_for_newer(wire, incarnation, 2)
    assert wire.effects(2, IncarnationRaised) == [IncarnationRaised(8)]
    wire.run(1.1)
    ask_for_newer(wire, 8, 9)
    assert wire.effects(2, IncarnationRaised) == [IncarnationRaised(8), IncarnationRaised(9)]
    wire.run(1.1)
    ask_for_newer(wire, 10**15, 1)
    ask_for_newer(wire, 1, 1)
    assert len(wire.effects(2, IncarnationRaised)) == 2


def test_3_6_expired_node_does_not_come_back_from_nodes_that_still_know_it():
    """3.6 No node answers for them, so their records do not circulate."""
    wire = Wire(interest_lease=20.0)
    for place in (1, 2, 3):
        short = replace(wire.settings, interest_lease=5.0)
        wire.start(place, settings=short if place == 1 else None)
    wire.join("1-2 2-3")
    wire.run(1.0)
    wire.stop(3)
    wire.run(15.0)
    known = [NodeId(3) in wire.nodes[place].membership.known for place in (1, 2)]
    assert known == [False, True]
    wire.run(10.0)
    assert [view.sizes["nodes"] for view in views(wire).values()] == [2, 2]
    assert views(wire)[1].counters["record of a node whose lease has ended"] > 0


def test_3_7_restart_voids_claims_but_interest_stays_until_it_is_known():
    """3.7 Claims are void; interest stays until the node announces its own, even an empty one."""
    wire = settled("1-2 2-3", (1, "g"))
    changes = NodeRecord(NodeId(1), 2, 1, 2, key(1), "", (), 1.0, links=((NodeId(2), 0),))
    wire.give(3, FrameReceived(link_of(wire, 3, 2), Update((changes,))))
    known = wire.nodes[3].status().groups["g"]
    assert (known.core, known.interested_nodes) == (None, (1,))

    wire.stop(1)
    restart(wire, 1, "1-2")
    wire.run(0.5)
    assert [
        view.groups["g"].interested_nodes for view in views(wire).values() if view.node > 1
    ] == [(1,)] * 2
    wire.give(1, InterestChanged())
    wire.run(0.2)
    assert all("g" not in view.groups for view in views(wire).values())


def test_3_7_interest_stays_until_the_new_one_is_announced():
    """3.7 Not only until it is known: the announcement may be delayed."""
    wire = Wire("1-2", change_delay=5.0)
    wire.subscribe(1, "g")
    wire.run(10.0)
    wire.stop(1)
    restart(wire, 1, "1-2")
    wire.subscribe(1, "g", "h")
    for filters in (("g",), ("g", "h")):
        wire.run(3.0)
        assert wire.nodes[2].status().interest[NodeId(1)].filters == filters


def test_3_7_interest_stays_if_the_incarnation_is_raised_before_it_is_known():
    """3.7 A node with a restored older state meets records of its lost incarnation."""
    wire = settled("1-2 2-3", (1, "g"))
    wire.stop(1)
    restart(wire, 1, "1-2")
    wire.run(0.5)
    lost = structs.replace(wire.nodes[1].membership.known[NodeId(1)], incarnation=50)
    wire.give(1, FrameReceived(link_of(wire, 1, 2), Update((lost,))))
    wire.run(0.5)
    assert wire.effects(1, IncarnationRaised) == [IncarnationRaised(51)]
    for place in (2, 3):
        assert wire.nodes[place].status().groups["g"].interested_nodes == (1,)
    wire.give(1, InterestChanged())
    wire.run(0.2)
    assert all("g" not in view.groups for view in views(wire).values())


def test_3_7_large_interest_is_never_withdrawn_during_a_restart():
    """3.7 It replaces the earlier one when all of it has arrived."""
    filters = [f"{number}/{'x' * 1_000}" for number in range(100)]
    wire = settled("1-2 2-3")
    wire.subscribe(1, *filters)
    wire.run(1.0)
    wire.stop(1)
    restart(wire, 1, "1-2")
    wire.run(1.0)
    wire.log.clear()
    wire.subscribe(1, *filters)
    wire.run(1.0)
    assert [wire.effects(place, UnsubscribeAtBroker) for place in (2, 3)] == [[], []]
    interest = wire.nodes[3].status().interest[NodeId(1)]
    assert sorted(interest.filters) == sorted(filters)


def test_3_7_restarted_former_core_replaces_no_core():
    """3.7 A new incarnation voids earlier claims."""
    wire = settled("1-2 2-3", (1, "g"), (3, "g"))
    wire.stop(1)
    wire.run(0.2)
    assert cores(wire) == {2: 3, 3: 3}
    wire.log.clear()
    restart(wire, 1, "1-2")
    wire.run(0.5)
    assert {effect for place in (2, 3) for effect in wire.effects(place, CoreElected)} == {
        CoreElected(MANAGEMENT_GROUP, NodeId(1))
    }


def test_3_8_frames_to_a_distant_node_take_the_shortest_path():
    """3.8 Hop by hop over the shortest path, by hops or by round-trip time, at most 64 hops."""
    wire = settled(RING)
    wire.subscribe(3, "g")
    wire.run(0.2)
    passed = [(source, target) for source, target, _ in sent(wire, InterestAcks)]
    assert sorted(passed) == [(1, 2), (2, 3), (2, 3), (4, 3), (4, 3), (5, 4)]

    by_time = Wire(metric=Metric.RTT)
    by_time.delay = lambda source, target: 0.1 if {source, target} == {1, 3} else DELAY
    for place in (1, 2, 3):
        by_time.start(place)
    by_time.join("1-2 2-3 1-3")
    by_time.run(3.0)
    by_time.log.clear()
    by_time.subscribe(3, "g")
    by_time.run(0.2)
    passed = [(source, target) for source, target, _ in sent(by_time, InterestAcks)]
    assert passed == [(2, 3), (1, 2), (2, 3)]

    wire.log.clear()
    for hops in range(HOPS_MAX + 1):
        wire.give(
            2, FrameReceived(link_of(wire, 2, 1), InterestAckRequest(NodeId(3), NodeId(1), hops))
        )
        wire.run(0.1)
    assert max(frame.hops for _, _, frame in sent(wire, InterestAckRequest)) == HOPS_MAX - 1
    assert views(wire)[2].counters == {"unicast past the hop limit": 2}


def test_3_9_neighbour_brings_only_frames_of_nodes_behind_it():
    """3.9 A node with a single link cannot forge publications, receipts or acknowledgements of
    others."""
    wire = settled("1-2 2-3 2-4", (2, "g"), (3, "g"))
    one, two, three = NodeId(1), NodeId(2), NodeId(3)
    link = link_of(wire, 2, 4)
    forged: list[AnyFrame | Publication] = [
        Publication(one, 1, 1, 0, "g", b"forged"),
        Publication(one, 1, 1, 1, "g", b"forged", receivers=((two, 0), (three, 0))),
        Receipt(one, three, 1, 1, 1),
        PendingNotice(three, one, 1, 1),
        RepairResponse(two, one, 1, 0, 1, 0, ()),
        RetainedValuesFrame(
            two, one, (encode(Publication(one, 0, 0, 0, "g", b"f", True, version=1)),)
        ),
        InterestAcks((InterestAck(one, 1, 1, three, 1, 1, 0),)),
    ]
    for frame in forged:
        assert wire.give(2, FrameReceived(link, frame)) == [
            Ignored("origin not behind this neighbour")
        ], frame
    assert wire.deliveries() == {}
    assert sent(wire, Receipt) + sent(wire, PendingNotice) + sent(wire, InterestAcks) == []
    assert publish(wire, 1) == {2: [b"x"], 3: [b"x"]}


def test_3_9_nodes_behind_a_neighbour_follow_the_map():
    """3.9 In a ring every node is behind both neighbours, until it is cut."""
    wire = settled("1-2 2-3 3-1", (1, "g"))
    copy = Publication(NodeId(3), 1, 1, 0, "g", b"round")
    assert len(wire.give(1, FrameReceived(link_of(wire, 1, 2), copy))) > 0
    assert wire.deliveries() == {1: [b"round"]}
    wire.cut("2-3")
    wire.run(0.5)
    late = Publication(NodeId(3), 1, 2, 0, "g", b"late")
    refused = [Ignored("origin not behind this neighbour")]
    assert wire.give(1, FrameReceived(link_of(wire, 1, 2), late)) == refused


def test_3_9_unicast_frames_do_not_overtake_records():
    """3.9 Records that wait to share a frame leave before a unicast frame does."""
    wire = settled("1-2 3-4", (1, "g"), relay_delay=0.5)
    wire.join("2-3")
    wire.run(5.0)
    assert wire.nodes[1].status().installed
    assert all(view.counters == {} for view in views(wire).values())


@pytest.mark.parametrize("sinkhole", [2, 3])
def test_3_10_frames_that_are_sent_again_avoid_a_relay(sinkhole):
    """3.10 A relay that drops all forwarded frames does not stop guaranteed delivery."""
    wire = settled("1-2 2-3 3-4 4-5 5-6 6-1", (4, "g"))
    unicasts = (*UNICASTS, InterestAcks, InterestAckRequest, Publication)
    wire.is_lost = lambda source, target, frame: source == sinkhole and isinstance(frame, unicasts)
    wire.publish(1, "g", b"x", qos=1)
    wire.run(10.0)
    assert wire.deliveries() == {4: [b"x"]}
    assert wire.nodes[1].delivery.acknowledged_by_all == 1


def test_3_10_frame_takes_the_path_that_it_names():
    """3.10 Each named relay sends it to the next one; the best path passes 2."""
    wire = settled("1-2 2-3 3-4 4-5 5-6 6-1")
    path = tuple(map(NodeId, (6, 5, 4, 3)))
    frame = Query(NodeId(3), NodeId(1), 7, b"who?", via=path)
    wire.give(6, FrameReceived(link_of(wire, 6, 1), frame))
    wire.run(0.2)
    assert [hop[:2] for hop in sent(wire, Query)] == [(6, 5), (5, 4), (4, 3)]
    assert wire.effects(3, QueryReceived) == [QueryReceived(NodeId(1), 7, b"who?")]


def test_3_10_frame_takes_the_best_path_where_the_named_one_ends():
    """3.10 Node 6 is not linked to node 3, and removes the names."""
    wire = settled("1-2 2-3 3-4 4-5 5-6 6-1")
    frame = Query(NodeId(4), NodeId(1), 7, b"who?", via=(NodeId(6), NodeId(3), NodeId(4)))
    wire.give(6, FrameReceived(link_of(wire, 6, 1), frame))
    wire.run(0.2)
    hops = [(source, target, query.via) for source, target, query in sent(wire, Query)]
    assert hops == [(6, 5, ()), (5, 4, ())]


def test_3_11_agents_of_distant_nodes_exchange_queries():
    """3.11 Carried as unicast frames, not read and not repeated by nodes."""
    wire = settled(LINE)
    assert wire.effects(4, QueryReceived) == []
    wire.give(1, QueryRequested(NodeId(4), 7, b"who?"))
    wire.run(0.2)
    assert wire.effects(4, QueryReceived) == [QueryReceived(NodeId(1), 7, b"who?")]
    wire.give(4, QueryAnswered(NodeId(1), 7, b"four"))
    wire.run(0.2)
    assert wire.effects(1, QueryResponseReceived) == [QueryResponseReceived(NodeId(4), 7, b"four")]
    assert [hop[:2] for hop in sent(wire, Query)] == [(1, 2), (2, 3), (3, 4)]
    assert [hop[:2] for hop in sent(wire, QueryResponse)] == [(4, 3), (3, 2), (2, 1)]


def test_3_11_query_without_a_path_is_lost():
    """3.11 Nodes do not repeat queries."""
    wire = settled(LINE)
    assert wire.give(1, QueryRequested(NodeId(9), 7, b"who?")) == []


def test_3_11_query_in_the_name_of_a_node_on_the_other_side_is_refused():
    """3.11 As unicast frames (3.9): a neighbour asks only in the name of nodes behind it."""
    wire = settled(LINE)
    forged = Query(NodeId(2), NodeId(1), 7, b"who?")
    link = link_of(wire, 2, 3)
    assert wire.give(2, FrameReceived(link, forged)) == [Ignored(WRONG_SIDE)]


GRID = "1-2 2-3 4-5 5-6 7-8 8-9 1-4 4-7 2-5 5-8 3-6 6-9"


def test_3_12_several_relays_that_drop_frames_are_avoided():
    """3.12 Only the path 1-4-7-8-9-6-3 passes neither of the two relays that drop all frames."""
    wire = settled(GRID, (3, "g"))
    unicasts = (*UNICASTS, InterestAcks, InterestAckRequest, Publication)
    wire.is_lost = lambda source, target, frame: source in (2, 5) and isinstance(frame, unicasts)
    wire.publish(1, "g", b"x", qos=1)
    wire.run(10.0)
    assert wire.deliveries() == {3: [b"x"]}
    assert wire.nodes[1].delivery.acknowledged_by_all == 1
    named = dict.fromkeys(
        frame.via for source, _, frame in sent(wire, PendingNotice) if source == 1
    )
    assert list(named) == [(), (4, 5, 6, 3), (4, 7, 8, 9, 6, 3)]


def test_3_12_frames_name_no_path_while_answers_come():
    """3.12 A federation without faults takes no detours."""
    wire = settled(GRID, (3, "g"), (7, "g"))
    for _ in range(20):
        wire.publish(1, "g", b"x", qos=1)
        wire.run(0.5)
    assert {frame.via for _, _, frame in sent(wire, Receipt)} == {()}
    assert sent(wire, PendingNotice) == []


def test_3_13_answers_take_the_path_of_the_request_in_reverse():
    """3.13 The best path of the answer passes a relay that drops frames, and that of the request
    does not: the answer fails, so the request names another path."""
    wire = settled("1-2 2-5 5-6 1-4 4-3 3-6", (6, "g"))
    unicasts = (*UNICASTS, Publication)
    wire.is_lost = lambda source, target, frame: source == 3 and isinstance(frame, unicasts)
    wire.publish(1, "g", b"x", qos=1)
    wire.run(10.0)
    assert wire.nodes[1].delivery.acknowledged_by_all == 1
    answers = {frame.via for source, _, frame in sent(wire, Receipt) if source == 6}
    assert answers == {(), (5, 2, 1)}


def test_3_13_missed_frames_are_sent_again_when_a_path_works():
    """3.13 Both nodes have publications for each other, and wait for up to 8 s to send again. When
    a notice of one arrives over a named path, the other sends its own at once."""
    wire = settled("1-2 2-3 3-4 4-5 5-6 6-1", (1, "g"), (4, "g"))
    unicasts = (*UNICASTS, Publication)
    lost = {2, 3, 5, 6}
    wire.is_lost = lambda source, target, frame: source in lost and isinstance(frame, unicasts)
    wire.publish(1, "g", b"from 1", qos=1)
    wire.run(3.0)
    wire.publish(4, "g", b"from 4", qos=1)
    wire.run(17.0)
    assert wire.deliveries() == {}
    lost -= {5, 6}
    wire.log.clear()
    wire.run(20.0)
    assert wire.deliveries() == {1: [b"from 4"], 4: [b"from 1"]}
    notices = timed(wire, PendingNotice)
    arrived, receiver = next((at, target) for at, _, target, _ in notices if target in (1, 4))
    answered = next(at for at, source, *_ in notices if source == receiver and at >= arrived)
    assert answered < arrived + 3 * DELAY
