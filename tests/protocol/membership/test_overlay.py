"""The overlay by example, and several of them connected: reachable nodes converge."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.contexts import plain

from hansa.protocol.clock import AHEAD, AHEAD_MAX_MS
from hansa.protocol.effects import (
    CloseLink,
    Ignored,
    IncarnationRaised,
    LinkRefused,
    NeighbourDown,
    NeighbourUp,
    NodeReachable,
    NodeUnreachable,
    Send,
)
from hansa.protocol.events import LinkOpened
from hansa.protocol.links.neighbours import RTT_UNKNOWN, NeighbourLink
from hansa.protocol.membership.changes import (
    CapacityChanged,
    ControlFrameReceived,
    LinkCostsChanged,
    MapChanged,
    NodeRestarted,
    OverlayOutput,
    SetChange,
)
from hansa.protocol.membership.id_conflict import LATER_AGAIN_S, LATER_S, PAUSE_S
from hansa.protocol.membership.overlay import CONTESTED, Overlay
from hansa.protocol.membership.record_checks import WRONG_KEY
from hansa.protocol.membership.records import (
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    Record,
    RecordKind,
)
from hansa.protocol.model import Identity, LinkId, NodeId, Publication, node_id
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.wire.frames import (
    PROTOCOL_VERSION,
    AnnouncementRequest,
    AnyFrame,
    Fetch,
    Goodbye,
    Heartbeat,
    Hello,
    SequencedFrame,
    Summary,
    Update,
)

SETTINGS = ProtocolSettings(heartbeat_interval=1.0, heartbeat_limit=3.0, relay_delay=0.25)
ME, PEER, FAR, OTHER = NodeId(5), NodeId(7), NodeId(8), NodeId(9)
OTHER_FEDERATION = f"federation 'other' of {PEER:016x} meets 'hansa' of {ME:016x}"
ONE, TWO = LinkId(1), LinkId(2)
KEYS = {node: bytes([node]) * 32 for node in (ME, PEER, FAR, OTHER)}
CONTESTED_RECORD = Ignored(CONTESTED)


def overlay(settings: ProtocolSettings = SETTINGS, incarnation: int = 4) -> Overlay:
    return Overlay(Identity(ME, KEYS[ME], incarnation), settings, plain())


def hello(
    node: NodeId = PEER, incarnation: int = 1, key: bytes | None = None, digest: int = 0
) -> Hello:
    shared_settings = SETTINGS.shared_settings_text()
    key = key or KEYS[node]
    return Hello(PROTOCOL_VERSION, "hansa", node, key, incarnation, "", shared_settings, digest)


def record(
    node: NodeId = PEER,
    *links: NodeId,
    version: int = 1,
    incarnation: int = 1,
    born: int | None = None,
    key: bytes | None = None,
    capacity: float = 1.0,
) -> NodeRecord:
    born = incarnation if born is None else born
    ends = tuple((link, 0) for link in links)
    key = key or KEYS[node]
    return NodeRecord(node, incarnation, version, born, key, "", (), capacity, ends)


def own(version: int, *links: NodeId, incarnation: int = 4) -> NodeRecord:
    return record(ME, *links, version=version, incarnation=incarnation, born=4)


def opened(
    it: Overlay, link: LinkId = ONE, ordered: bool = True, now: float = 0.0
) -> NeighbourLink:
    it.open_link(LinkOpened(link, dialled=True, ordered=ordered), now)
    return it.neighbours.links[link]


def joined(
    it: Overlay, peer: Hello | None = None, link: LinkId = ONE, now: float = 0.0
) -> NeighbourLink:
    """A neighbour after the handshake, with everything flushed."""
    new = opened(it, link, now=now)
    it.receive_frame(new, peer or hello(), now)
    it.flush(now)
    return new


def known(it: Overlay, node: NodeId = PEER, link: LinkId = ONE) -> NeighbourLink:
    """A neighbour whose record is known, with everything flushed."""
    new = joined(it, hello(node), link)
    taken(it, new, record(node))
    it.flush(SETTINGS.relay_delay)
    return new


def taken(it: Overlay, link: NeighbourLink, *records: Record, now: float = 0.0) -> OverlayOutput:
    """Give records of a neighbour to a node; return its output without changes of the map, which
    have a test of their own."""
    output = it.receive_frame(link, Update(records), now)
    return [item for item in output if not isinstance(item, MapChanged)]


# ---------------------------------------------------------------- greeting


def test_new_link_starts_with_a_hello_with_the_digest():
    it = overlay()
    expected = hello(ME, incarnation=4, digest=it.database.digest)
    assert it.open_link(LinkOpened(ONE, dialled=True), 0.0) == [Send(ONE, expected)]
    assert it.database.digest != 0


def test_new_neighbour_with_another_database_gets_our_summary():
    it = overlay()
    link = opened(it)
    assert it.receive_frame(link, hello(digest=1), 0.0) == [
        NeighbourUp(PEER, ONE),
        Send(ONE, Summary(((RecordKind.NODE, ME, 4, 1),))),
        Send(ONE, Heartbeat(1, 0, 0, it.database.digest)),
    ]


def test_new_neighbour_with_the_same_database_gets_none():
    it = overlay()
    link = opened(it)
    digest = it.database.digest
    assert it.receive_frame(link, hello(digest=digest), 0.0) == [
        NeighbourUp(PEER, ONE),
        Send(ONE, Heartbeat(1, 0, 0, digest)),
    ]


def test_second_hello_is_ignored_and_not_answered():
    it = overlay()
    link = joined(it)
    assert it.receive_frame(link, hello(), 0.0) == [Ignored("second hello on a link")]


def test_disagreeing_peer_is_refused():
    it = overlay()
    theirs = msgspec.structs.replace(hello(), federation="other")
    reason = OTHER_FEDERATION
    expected = [LinkRefused(ONE, reason), Send(ONE, Goodbye(reason))]
    assert it.receive_frame(opened(it), theirs, 0.0) == expected


def refused(it: Overlay) -> NeighbourLink:
    link = opened(it)
    it.receive_frame(link, msgspec.structs.replace(hello(), federation="other"), 0.0)
    return link


def test_refused_link_accepts_only_goodbye():
    it = overlay()
    link = refused(it)
    for frame in (hello(), Heartbeat(1, 0, 0, 0), Update((record(FAR),))):
        assert it.receive_frame(link, frame, 0.0) == [Ignored("frame on a refused link")]
    assert it.receive_frame(link, Goodbye("their reason"), 0.0) == [
        CloseLink(ONE, OTHER_FEDERATION)
    ]
    assert it.neighbours.links == {}


def test_refused_link_ends_with_the_other_side_or_after_the_limit():
    it = overlay()
    refused(it)
    assert it.on_link_closed(ONE, "reset", 0.0) == []
    assert it.neighbours.links == {}
    refused(it)
    closed = [effect for now in (1.0, 2.0, 3.0) for effect in it.handle_timer(now)]
    assert closed == [CloseLink(ONE, OTHER_FEDERATION)]


def test_second_hello_is_ignored():
    it = overlay()
    link = joined(it)
    assert it.receive_frame(link, hello(NodeId(8)), 0.0) == [Ignored("second hello on a link")]
    assert it.neighbours.by_node == {PEER: link}


@pytest.mark.parametrize(
    "frame",
    [Heartbeat(1, 0, 0, 0), Update(()), Summary(()), Fetch(()), AnnouncementRequest(ME, 1, 1, 0)],
)
def test_nothing_counts_before_the_hello(frame):
    it = overlay()
    assert it.receive_frame(opened(it), frame, 0.0) == [
        Ignored(f"{type(frame).__name__} before hello")
    ]


def test_neighbour_with_a_replaced_link_is_down_and_up_again():
    it = overlay()
    joined(it, link=ONE)
    outcome = it.receive_frame(opened(it, TWO), hello(digest=it.database.digest), 0.0)
    assert outcome[:-1] == [
        NeighbourDown(PEER, "replaced by a newer link"),
        CloseLink(ONE, "replaced by a newer link"),
        NeighbourUp(PEER, TWO),
    ]


# ---------------------------------------------------------------- closing


def test_goodbye_closes_the_link():
    it = overlay()
    link = joined(it)
    outcome = it.receive_frame(link, Goodbye("maintenance"), 0.0)
    assert outcome == [NeighbourDown(PEER, "maintenance"), CloseLink(ONE, "maintenance")]


def test_closed_connection_loses_the_neighbour_and_all_behind_it():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME, FAR), record(FAR, PEER))
    assert it.on_link_closed(ONE, "reset", 1.0) == [
        NeighbourDown(PEER, "reset"),
        NodeUnreachable(PEER),
        NodeUnreachable(FAR),
        MapChanged(),
    ]


def test_unknown_connection_can_close():
    assert overlay().on_link_closed(ONE, "reset", 0.0) == []


# ---------------------------------------------------------------- frames of others


def test_frame_for_other_parts_is_reported():
    it = overlay()
    frame = AnnouncementRequest(PEER, 1, 1, 0)
    assert it.receive_frame(joined(it), frame, 0.0) == [ControlFrameReceived(PEER, frame)]


def test_frame_is_sent_to_a_neighbour():
    it = overlay()
    joined(it)
    assert it.send_to(PEER, Fetch(()), 0.0) == [Send(ONE, Fetch(()))]


def test_nothing_is_sent_to_a_node_that_is_not_a_neighbour():
    assert overlay().send_to(PEER, Fetch(()), 0.0) == []


@pytest.mark.parametrize(("metric", "cost"), [(Metric.HOPS, 1), (Metric.RTT, RTT_UNKNOWN)])
def test_cost_of_a_neighbour_is_that_of_its_link(metric, cost):
    it = overlay(replace(SETTINGS, metric=metric))
    peer = msgspec.structs.replace(
        hello(), shared_settings=replace(SETTINGS, metric=metric).shared_settings_text()
    )
    joined(it, peer)
    assert (it.link_cost(PEER), it.link_cost(FAR)) == (cost, None)


def test_capacity_of_a_node_is_what_it_reported():
    it = overlay()
    taken(it, joined(it), record(capacity=2.5))
    assert [it.capacity(node) for node in (ME, PEER, FAR)] == [1.0, 2.5, 0.0]


# ---------------------------------------------------------------- records


def test_node_that_reports_a_link_to_us_becomes_reachable():
    it = overlay()
    link = joined(it)
    assert taken(it, link, record(FAR, PEER)) == []
    assert taken(it, link, record(PEER, ME, FAR)) == [NodeReachable(PEER), NodeReachable(FAR)]


def test_changed_links_change_the_map():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME))
    changed, equal = (Update((record(PEER, ME, FAR, version=each),)) for each in (2, 3))
    assert it.receive_frame(link, changed, 0.0) == [MapChanged()]
    assert it.receive_frame(link, equal, 0.0) == []


def test_node_becomes_unreachable_when_its_neighbour_reports_it():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME, FAR), record(FAR, PEER))
    assert taken(it, link, record(PEER, ME, version=2)) == [NodeUnreachable(FAR)]


def test_old_record_changes_nothing():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME, version=2))
    assert taken(it, link, record(PEER, version=1)) == []


def test_restart_of_a_node_is_reported():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME))
    assert taken(it, link, record(PEER, ME, incarnation=2)) == [NodeRestarted(PEER)]


def test_new_capacity_is_reported():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME))
    outcome = taken(it, link, record(PEER, ME, version=2, capacity=9.0))
    assert outcome == [CapacityChanged(PEER)]


def test_changed_set_is_reported():
    it = overlay()
    link = joined(it)
    interest = InterestRecord(PEER, 1, 1, 0, ("a",))
    change = SetChange(RecordKind.INTEREST, PEER, (1, 1), ("a",), ())
    assert taken(it, link, record(PEER, ME), interest) == [NodeReachable(PEER), change]


def test_change_that_does_not_fit_is_fetched_whole():
    it = overlay()
    link = joined(it)
    outcome = taken(it, link, record(PEER), InterestRecord(PEER, 1, 3, 2, ("a",)))
    assert outcome == [Send(ONE, Fetch(((RecordKind.INTEREST, PEER),)))]


def test_fetched_rows_are_sent_whole():
    it = overlay()
    link = joined(it)
    it.change_own_set(RecordKind.INTEREST, ["a"], [], 0.0)
    rows = ((RecordKind.INTEREST, ME), (RecordKind.CLAIMS, ME))
    sent = Update((InterestRecord(ME, 4, 1, 1, ("a",)),))
    assert it.receive_frame(link, Fetch(rows), 0.0) == [Send(ONE, sent)]


def test_summary_is_answered_with_missing_rows():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME))
    it.flush(0.0)
    outcome = it.receive_frame(link, Summary(((RecordKind.NODE, PEER, 1, 1),)), 0.0)
    assert outcome == [Send(ONE, Update((own(2, PEER),)))]


def test_comparison_started_by_one_side_works_both_ways():
    it = overlay()
    link = joined(it, hello(digest=it.database.digest))
    theirs = Summary(((RecordKind.NODE, ME, 4, 1), (RecordKind.NODE, PEER, 1, 1)))
    ours = Summary(((RecordKind.NODE, ME, 4, 1),))
    assert it.receive_frame(link, theirs, 0.0) == [Send(ONE, ours)]


def test_comparison_started_by_both_sides_is_not_repeated():
    it = overlay()
    link = joined(it, hello(digest=1))
    theirs = Summary(((RecordKind.NODE, ME, 4, 2), (RecordKind.NODE, PEER, 1, 1)))
    assert it.receive_frame(link, theirs, 0.0) == []


def test_every_comparison_works_both_ways():
    it = overlay()
    link = joined(it, hello(digest=1))
    theirs = Summary(((RecordKind.NODE, ME, 4, 2), (RecordKind.NODE, PEER, 1, 1)))
    answers = [it.receive_frame(link, theirs, now) for now in (0.0, 1.0, 2.0)]
    assert answers == [[], [Send(ONE, it.database.summary())], [Send(ONE, it.database.summary())]]


def test_summary_that_lacks_nothing_is_not_answered():
    it = overlay()
    assert it.receive_frame(joined(it), it.database.summary(), 0.0) == []


# ---------------------------------------------------------------- bounds


def test_set_of_an_unknown_node_is_ignored():
    it = overlay()
    outcome = taken(it, joined(it), InterestRecord(PEER, 1, 1, 0, ("a",)))
    assert outcome == [Ignored("record of an unknown node")]


def test_more_nodes_than_the_bound_are_ignored():
    it = overlay(replace(SETTINGS, nodes_max=2))
    link = joined(it)
    outcome = taken(it, link, record(PEER), record(FAR), record(PEER, ME, version=2))
    assert outcome == [Ignored("nodes_max"), NodeReachable(PEER)]


def test_more_filters_than_the_bound_are_ignored():
    it = overlay(replace(SETTINGS, filters_per_node_max=2))
    link = joined(it)
    taken(it, link, record(PEER), InterestRecord(PEER, 1, 1, 0, ("a", "b")))
    more, other = (
        InterestRecord(PEER, 1, 2, 1, added, removed)
        for added, removed in ((("c",), ()), (("c",), ("a",)))
    )
    change = SetChange(RecordKind.INTEREST, PEER, (1, 2), ("c",), ("a",))
    assert taken(it, link, more, other) == [Ignored("filters_per_node_max"), change]


def test_more_filters_than_the_bound_are_ignored_in_parts_too():
    it = overlay(replace(SETTINGS, filters_per_node_max=2))
    link = joined(it)
    pieces = [InterestRecord(PEER, 1, 1, 1, (name,), (), n, 3) for n, name in enumerate("abc")]
    assert taken(it, link, record(PEER), *pieces) == [Ignored("filters_per_node_max")]


# ---------------------------------------------------------------- own rows


def test_our_own_record_follows_our_links():
    it = overlay()
    link = joined(it)
    taken(it, link, record())
    assert it.flush(0.0) == [Send(ONE, Update((own(2, PEER),)))]
    assert it.flush(0.0) == []
    it.on_link_closed(ONE, "reset", 0.0)
    it.flush(0.0)
    assert it.database.nodes[ME] == own(3)


def test_our_own_record_can_wait_to_share_a_frame():
    it = overlay(replace(SETTINGS, change_delay=0.5, relay_delay=0.5))
    taken(it, joined(it), record(PEER, ME))
    taken(it, joined(it, hello(FAR), TWO), record(FAR, ME), now=0.1)
    assert (it.next_deadline(), it.flush(0.4)) == (0.5, [])
    ours = own(2, PEER, FAR)
    assert it.flush(0.5) == [
        Send(ONE, Update((ours, record(FAR, ME)))),
        Send(TWO, Update((ours, record(PEER, ME)))),
    ]


def test_link_is_reported_once_the_present_record_of_the_neighbour_has_arrived():
    it = overlay()
    link = known(it)
    it.on_link_closed(link.id, "reset", 1.0)
    it.flush(1.0)
    link = joined(it, hello(incarnation=2), TWO, now=2.0)
    assert it.database.nodes[ME] == own(3)
    assert taken(it, link, record(incarnation=2), now=2.0) == [NodeRestarted(PEER)]
    it.flush(2.0)
    assert it.database.nodes[ME] == own(4, PEER)


def test_restart_is_applied_before_links_lead_to_the_node():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME), record(FAR, PEER))
    newer = record(PEER, ME, FAR, version=2), record(FAR, PEER, incarnation=2)
    assert taken(it, link, *newer) == [NodeRestarted(FAR), NodeReachable(FAR)]


def test_change_of_own_interest_is_sent_at_once():
    it = overlay()
    known(it)
    made = it.change_own_set(RecordKind.INTEREST, ["a"], [], 1.0)
    assert made == [InterestRecord(ME, 4, 1, 0, ("a",))]
    assert it.next_deadline() == 1.0
    assert it.flush(1.0) == [Send(ONE, Update(tuple(made)))]


def test_change_of_own_claims_is_left_to_the_announcement():
    it = overlay()
    known(it)
    assert it.change_own_set(RecordKind.CLAIMS, ["g"], [], 1.0) == [
        ClaimsRecord(ME, 4, 1, 0, ("g",))
    ]
    assert it.flush(1.0) == []


def test_claims_of_an_earlier_incarnation_are_replaced_by_an_empty_row():
    it = overlay()
    link = known(it)
    assert taken(it, link, ClaimsRecord(ME, 3, 9, 9, ("g",)), now=1.0) == []
    assert it.flush(1.0) == [Send(ONE, Update((ClaimsRecord(ME, 4, 1, 1, ()),)))]


def test_interest_of_an_earlier_incarnation_stays_until_the_present_is_known():
    it = overlay()
    link = known(it)
    taken(it, link, InterestRecord(ME, 3, 9, 9, ("a",)))
    assert it.flush(1.0) == []
    it.mark_interest_known(2.0)
    assert it.flush(2.0) == [Send(ONE, Update((InterestRecord(ME, 4, 1, 1, ()),)))]


def test_row_of_this_incarnation_is_not_replaced_again():
    it = overlay()
    link = joined(it)
    it.mark_interest_known(0.0)
    it.change_own_set(RecordKind.INTEREST, ["a"], [], 0.0)
    it.flush(0.0)
    taken(it, link, InterestRecord(ME, 3, 9, 9, ("b",)))
    assert it.flush(0.0) == []


def test_copy_of_our_own_row_changes_nothing():
    it = overlay()
    link = joined(it)
    (ours,) = it.change_own_set(RecordKind.INTEREST, ["a"], [], 0.0)
    it.flush(0.0)
    assert (taken(it, link, ours), it.flush(0.0)) == ([], [])


# ---------------------------------------------------------------- flooding


def test_changes_of_others_wait_and_go_to_all_but_their_sender():
    it = overlay()
    link = known(it)
    known(it, FAR, TWO)
    taken(it, link, record(PEER, ME, version=2), now=1.0)
    taken(it, link, record(OTHER, PEER), now=1.1)
    assert (it.flush(1.2), it.next_deadline()) == ([], 1.0)  # the heartbeat is due first
    it.handle_timer(1.2)
    assert it.next_deadline() == 1.25
    newer = Update((record(PEER, ME, version=2), record(OTHER, PEER)))
    assert it.flush(1.25) == [Send(TWO, newer)]


def test_own_change_flushes_waiting_changes():
    it = overlay()
    link = known(it)
    known(it, FAR, TWO)
    newer = record(PEER, version=2)
    taken(it, link, newer, now=1.0)
    (ours,) = it.change_own_set(RecordKind.INTEREST, ["a"], [], 1.1)
    assert it.flush(1.1) == [Send(ONE, Update((ours,))), Send(TWO, Update((newer, ours)))]


def test_later_change_does_not_delay_waiting_ones():
    it = overlay()
    link = known(it)
    known(it, FAR, TWO)
    taken(it, link, record(PEER, version=2), now=0.5)
    taken(it, link, record(PEER, version=3), now=0.6)
    assert it.next_deadline() == 0.75


def test_claims_in_an_announcement_are_not_flooded():
    it = overlay()
    link = joined(it)
    joined(it, hello(FAR), TWO)
    taken(it, link, record(PEER))
    it.flush(0.25)
    claims = ClaimsRecord(PEER, 1, 1, 0, ("g",))
    change = SetChange(RecordKind.CLAIMS, PEER, (1, 1), ("g",), ())
    assert it.merge_record(link, claims, 0.5, flood=False) == [change]
    assert it.flush(9.0) == []


# ---------------------------------------------------------------- heartbeats


def heartbeat(number: int, digest: int, echo: int = 0) -> Heartbeat:
    return Heartbeat(number, echo, 0, digest)


def test_measured_link_changes_costs_and_our_record():
    it = overlay()
    link = known(it)
    digest = it.database.digest
    outcome = it.receive_frame(link, heartbeat(1, digest, echo=1), 0.5)
    assert outcome == [Send(ONE, Heartbeat(2, 1, 0, digest)), LinkCostsChanged()]
    expected = msgspec.structs.replace(own(3), links=((PEER, 500_000),))
    assert it.flush(0.5) == [Send(ONE, Update((expected,)))]


def test_different_databases_are_compared_at_growing_intervals():
    it = overlay()
    link = joined(it)
    summary = Send(ONE, it.database.summary())
    beats = {
        number: it.receive_frame(link, heartbeat(number, digest=1), 0.0) for number in range(1, 20)
    }
    assert [number for number, outcome in beats.items() if summary in outcome] == [4, 8, 16]


def test_heartbeat_can_measure_and_compare_at_once():
    it = overlay()
    link = joined(it)
    it.receive_frame(link, heartbeat(3, digest=1), 0.0)
    outcome = it.receive_frame(link, heartbeat(4, digest=1, echo=1), 0.5)
    assert outcome == [LinkCostsChanged(), Send(ONE, it.database.summary())]


def test_equal_databases_are_not_compared():
    it = overlay()
    link = joined(it)
    beats = [it.receive_frame(link, heartbeat(n, it.database.digest), 0.0) for n in range(2, 9)]
    assert beats[1:] == [[]] * 6


# ---------------------------------------------------------------- time


def test_alone_nothing_is_due():
    it = overlay()
    assert (
        it.next_deadline(),
        it.handle_timer(9.0),
        it.flush(9.0),
        it.leases.pop_expired(9.0),
    ) == (
        None,
        [],
        [],
        [],
    )


def test_heartbeat_is_sent_when_due():
    it = overlay()
    joined(it)
    assert it.next_deadline() == 1.0
    assert it.handle_timer(1.0) == [Send(ONE, Heartbeat(2, 0, 0, it.database.digest))]


def test_silent_neighbour_is_lost():
    it = overlay()
    link = joined(it)
    taken(it, link, record(PEER, ME))
    it.flush(0.0)
    it.handle_timer(1.0)
    it.handle_timer(2.0)
    assert it.handle_timer(3.0)[1:] == [
        NeighbourDown(PEER, "silent"),
        NodeUnreachable(PEER),
        MapChanged(),
        CloseLink(ONE, "silent"),
    ]
    assert it.flush(3.0) == []
    assert it.database.nodes[ME] == own(3)


def test_neighbour_that_acknowledges_nothing_is_lost():
    it = overlay(replace(SETTINGS, unacknowledged_max=1))
    link = opened(it, ordered=False)
    outcome = it.receive_frame(link, hello(), 0.0)
    assert isinstance(outcome[1], Send)
    assert isinstance(outcome[1].frame, SequencedFrame)
    assert it.handle_timer(0.1) == [NeighbourDown(PEER, "stuck"), CloseLink(ONE, "stuck")]


def test_unreachable_node_expires_after_its_lease():
    it = overlay(replace(SETTINGS, interest_lease=60.0))
    link = joined(it)
    taken(it, link, record(PEER, ME, FAR), record(FAR, PEER), now=0.0)
    it.on_link_closed(ONE, "reset", 1.0)
    it.flush(1.0)
    assert it.next_deadline() == 61.0
    assert it.leases.pop_expired(60.9) == []
    assert it.leases.pop_expired(61.0) == [PEER, FAR]
    for node in (PEER, FAR):
        it.expire_node(node)
    assert (list(it.database.nodes), it.next_deadline()) == ([ME], None)


def test_node_that_was_never_reachable_has_a_lease_from_its_first_record():
    it = overlay(replace(SETTINGS, interest_lease=60.0))
    link = joined(it)
    taken(it, link, record(FAR), now=1.0)
    taken(it, link, record(FAR, version=2), now=5.0)
    assert (it.leases.pop_expired(60.9), it.leases.pop_expired(61.0)) == ([], [FAR])


def test_node_that_returns_keeps_its_rows():
    it = overlay(replace(SETTINGS, interest_lease=60.0))
    link = joined(it)
    taken(it, link, record(FAR, PEER), now=1.0)
    taken(it, link, record(PEER, ME, FAR), now=2.0)
    assert it.leases.pop_expired(1_000.0) == []


def test_first_lease_to_end_is_the_next_deadline():
    it = overlay(replace(SETTINGS, interest_lease=60.0))
    link = joined(it)
    taken(it, link, record(FAR), now=1.0)
    taken(it, link, record(OTHER), now=2.0)
    it.on_link_closed(ONE, "reset", 3.0)
    it.flush(3.0)
    assert it.next_deadline() == 61.0


@pytest.mark.parametrize("since", [0.1, 0.7, 1.3, 12.345])
def test_lease_has_ended_at_the_deadline_that_was_named(since):
    it = overlay(replace(SETTINGS, interest_lease=86_400.0))
    link = joined(it)
    taken(it, link, record(FAR), now=since)
    it.on_link_closed(ONE, "reset", since)
    it.flush(since + SETTINGS.relay_delay)
    due = it.next_deadline()
    assert due is not None
    assert it.leases.pop_expired(due) == [FAR]


# ---------------------------------------------------------------- two nodes with one id


def test_neighbour_with_our_own_id_is_refused_and_changes_nothing():
    it = overlay()
    link = opened(it)
    reason = "same node id on both sides: a link to itself, or a copy of this node"
    assert it.receive_frame(link, hello(ME, incarnation=9), 0.0) == [
        LinkRefused(ONE, reason),
        Send(ONE, Goodbye(reason)),
    ]
    assert it.incarnation == 4


def test_goodbye_before_hello_is_ignored():
    it = overlay()
    assert it.receive_frame(opened(it), Goodbye("no"), 0.0) == [Ignored("Goodbye before hello")]


def test_foreign_record_of_this_node_is_outranked_with_all_rows():
    it = overlay()
    link = known(it)
    it.mark_interest_known(0.0)
    it.change_own_set(RecordKind.INTEREST, ["a"], [], 0.0)
    it.change_own_set(RecordKind.CLAIMS, ["g"], [], 0.0)
    it.flush(0.0)
    foreign = record(ME, incarnation=6, version=8)
    assert taken(it, link, foreign) == [CONTESTED_RECORD, IncarnationRaised(7)]
    raised = (
        own(3, PEER, incarnation=7),
        InterestRecord(ME, 7, 2, 2, ("a",)),
        ClaimsRecord(ME, 7, 2, 2, ("g",)),
    )
    assert it.flush(0.0) == [Send(ONE, Update(raised))]


@pytest.mark.parametrize(
    "foreign",
    [
        own(99),
        record(ME, FAR, version=2, incarnation=4),
        InterestRecord(ME, 4, 9, 9, ("x",)),
        ClaimsRecord(ME, 5, 1, 1, ("x",)),
    ],
)
def test_row_that_this_node_did_not_write_is_outranked(foreign):
    it = overlay()
    link = known(it)
    raised = foreign.incarnation + 1
    outcome = [*taken(it, link, foreign), *it.handle_timer(PAUSE_S)]
    assert outcome[0] == CONTESTED_RECORD
    assert IncarnationRaised(raised) in outcome
    assert it.incarnation == raised


@pytest.mark.parametrize(
    "known_record",
    [own(1), own(2, PEER), record(ME, incarnation=3), InterestRecord(ME, 4, 1, 1, ("a",))],
)
def test_record_that_this_node_wrote_is_no_conflict(known_record):
    it = overlay()
    link = known(it)
    it.change_own_set(RecordKind.INTEREST, ["a"], [], 0.0)
    assert taken(it, link, known_record) == []
    assert it.incarnation == 4


def test_record_of_a_copy_that_started_earlier_is_outranked_later():
    it = overlay()
    link = known(it)
    foreign = record(ME, incarnation=6, born=3)
    assert taken(it, link, foreign) == [CONTESTED_RECORD]
    assert it.conflict.due == LATER_S
    assert IncarnationRaised(7) in it.handle_timer(LATER_S)
    assert it.conflict.due is None


def test_only_one_conflict_in_an_hour_is_outranked_late():
    it = overlay()
    link = known(it)
    for now, wait in ((0.0, LATER_S), (20.0, PAUSE_S), (LATER_AGAIN_S, LATER_S)):
        for _ in range(2):
            taken(it, link, record(ME, incarnation=it.incarnation + 1, born=3), now=now)
            assert it.conflict.due == now + wait
        it.handle_timer(now + wait)
        assert it.conflict.due is None


def test_two_raises_are_a_pause_apart():
    it = overlay()
    link = known(it)
    taken(it, link, record(ME, incarnation=6))
    assert taken(it, link, record(ME, incarnation=8), now=0.5) == [CONTESTED_RECORD]
    assert it.conflict.due == PAUSE_S
    assert taken(it, link, record(ME, incarnation=9), now=0.6) == [CONTESTED_RECORD]
    assert IncarnationRaised(10) in it.handle_timer(PAUSE_S)


def test_older_incarnation_may_link_and_gets_the_newer_record():
    it = overlay()
    taken(it, joined(it, hello(incarnation=3)), record(PEER, ME, incarnation=3))
    it.on_link_closed(ONE, "cut", 0.0)
    newer = Send(TWO, Update((record(PEER, ME, incarnation=3),)))
    outcome = it.receive_frame(opened(it, TWO), hello(incarnation=2), 0.0)
    assert outcome[:2] == [newer, NeighbourUp(PEER, TWO)]


def test_older_incarnation_gets_the_newer_record_even_if_refused():
    it = overlay()
    taken(it, joined(it, hello(incarnation=3)), record(PEER, ME, incarnation=3))
    reason = "another link to this node is in use"
    assert it.receive_frame(opened(it, TWO), hello(incarnation=2), 0.0) == [
        Send(TWO, Update((record(PEER, ME, incarnation=3),))),
        LinkRefused(TWO, reason),
        Send(TWO, Goodbye(reason)),
    ]


# ---------------------------------------------------------------- impossible values


def derived(number: int) -> tuple[NodeId, bytes]:
    key = bytes([number]) * 32
    return node_id(key), key


def test_node_with_a_derived_id_requires_derived_ids():
    me, key = derived(1)
    it = Overlay(Identity(me, key, 4), SETTINGS, plain())
    other, its_key = derived(2)
    false_hello = hello(PEER, key=its_key)
    assert it.receive_frame(opened(it), false_hello, 0.0) == [
        Ignored(WRONG_KEY),
        LinkRefused(ONE, WRONG_KEY),
        Send(ONE, Goodbye(WRONG_KEY)),
    ]
    link = opened(it, TWO)
    it.receive_frame(link, hello(other, key=its_key), 0.0)
    assert taken(it, link, record(FAR)) == [Ignored(WRONG_KEY)]
    assert taken(it, link, record(other, key=its_key)) == []
    assert taken(it, link, record(other, key=key, version=2)) == [Ignored(WRONG_KEY)]
    assert it.merge_record(None, record(FAR), 0.0) == [Ignored(WRONG_KEY)]
    assert it.database.nodes.keys() == {me, other}


def test_incarnation_ahead_of_the_clock_is_refused_in_hellos_and_records():
    it = overlay()
    far = AHEAD_MAX_MS + 1
    reason = f"{AHEAD}: the clock of {PEER:016x} is far ahead, or that of {ME:016x} far behind"
    assert it.receive_frame(opened(it), hello(incarnation=far), 0.0)[:2] == [
        Ignored(reason),
        LinkRefused(ONE, reason),
    ]
    link = known(it, link=TWO)
    ahead: list[Record] = [
        record(FAR, incarnation=far),
        record(ME, incarnation=far),
        InterestRecord(PEER, far, 1, 1, ("a",)),
    ]
    assert taken(it, link, *ahead) == [Ignored(AHEAD)] * 3
    assert it.incarnation == 4
    it.clock.read(wall_ms=2, now=0.0)
    assert taken(it, link, record(FAR, incarnation=far)) == []


def test_impossible_version_is_refused():
    it = overlay()
    link = known(it)
    assert taken(it, link, record(version=1 << 60)) == [Ignored("version out of bounds")]
    assert taken(it, link, record(ME, version=1 << 60)) == [Ignored("version out of bounds")]


@pytest.mark.parametrize("name", ["$SYS/#", "$share/g/$SYS/#", "$CONTROL/x"])
def test_interest_in_topics_of_one_broker_is_refused(name):
    it = overlay()
    link = known(it)
    wish = InterestRecord(PEER, 1, 1, 0, ("a", name))
    assert taken(it, link, wish) == [Ignored("interest in topics of one broker")]
    assert it.database.names(RecordKind.INTEREST, PEER) == {}


# ---------------------------------------------------------------- answers


def test_row_asked_for_many_times_is_sent_once():
    it = overlay()
    link = known(it)
    row = (RecordKind.NODE, PEER)
    assert it.receive_frame(link, Fetch((row,) * 200), 0.0) == [Send(ONE, Update((record(),)))]


def test_requested_records_are_bounded_in_bytes_and_continue_later():
    it = overlay()
    link = known(it)
    names = [f"{number}/" + "x" * 1_000 for number in range(9_000)]
    it.change_own_set(RecordKind.INTEREST, names, [], 0.0)
    it.flush(0.0)
    fetch = Fetch(((RecordKind.INTEREST, ME), (RecordKind.NODE, ME)))
    over = Ignored("records requested beyond the allowance of a link")
    first = it.receive_frame(link, fetch, 0.0)
    assert over not in first
    assert it.receive_frame(link, fetch, 0.0) == [over]
    (_, *rest) = it.receive_frame(link, Summary(()), 0.0)
    assert rest == [over]
    assert it.receive_frame(link, fetch, 10.0) == first


# ---------------------------------------------------------------- quotas


def test_nodes_of_one_neighbour_are_bounded_and_leave_room_for_others():
    it = overlay(replace(SETTINGS, nodes_max=9, nodes_per_neighbour_max=2))
    other, link = known(it, OTHER, TWO), known(it)
    assert taken(it, link, record(FAR)) == []
    made_up = [record(NodeId(20 + number), key=b"k" * 32) for number in range(3)]
    assert taken(it, link, *made_up) == [Ignored("nodes_per_neighbour_max")] * 3
    assert taken(it, other, made_up[0]) == []
    it.expire_node(FAR)
    assert taken(it, link, made_up[1]) == []


def test_filters_of_one_neighbour_and_of_all_are_bounded():
    it = overlay(replace(SETTINGS, filters_max=3, filters_per_neighbour_max=2))
    other, link = known(it, OTHER, TWO), known(it)
    link.dialled = False

    def wish(node: NodeId, version: int, *names: str) -> InterestRecord:
        return InterestRecord(node, 1, version, version, names)

    def reasons(of: NeighbourLink, *records: Record) -> list[str]:
        return [item.reason for item in taken(it, of, *records) if isinstance(item, Ignored)]

    assert reasons(link, wish(PEER, 1, "a", "b", "c")) == ["filters_per_neighbour_max"]
    assert reasons(link, wish(PEER, 2, "a", "b")) == []
    assert reasons(other, wish(OTHER, 1, "a", "b")) == ["filters_max"]
    assert reasons(link, wish(PEER, 3, "c")) == []
    assert reasons(other, wish(OTHER, 2, "a", "b")) == []
    it.expire_node(OTHER)
    assert it.quotas.names[RecordKind.INTEREST] == 1


def test_parts_of_incomplete_sets_count():
    it = overlay(replace(SETTINGS, filters_per_neighbour_max=3))
    known(it, OTHER, TWO)
    link = known(it)
    link.dialled = False
    parts = [InterestRecord(PEER, 1, 1, 1, (f"{n}a", f"{n}b"), (), n, 3) for n in range(2)]
    assert taken(it, link, *parts) == [Ignored("filters_per_neighbour_max")]
    assert it.quotas.names[RecordKind.INTEREST] == 2


# ---------------------------------------------------------------- several overlays


@dataclass
class World:
    """Overlays at numbered places, connected by links without delay that are redialled when
    lost."""

    nodes: dict[int, Overlay] = field(default_factory=dict)
    intended: set[tuple[int, int]] = field(default_factory=set)
    ends: dict[tuple[int, LinkId], tuple[int, LinkId]] = field(default_factory=dict)
    mail: deque[tuple[int, LinkId, AnyFrame | None]] = field(default_factory=deque)
    now: float = 0.0
    dial_due: float = 0.0
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def start(self, place: int, identity: Identity) -> None:
        self.stop(place)
        self.nodes[place] = Overlay(identity, SETTINGS, plain())
        self.nodes[place].mark_interest_known(self.now)

    def stop(self, place: int) -> None:
        self.nodes.pop(place, None)
        for end in [end for end in self.ends if end[0] == place]:
            self.hang_up(end)

    def restart(self, place: int) -> None:
        before = self.nodes[place]
        self.start(place, replace(before.identity, incarnation=before.incarnation + 1))

    def subscribe(self, place: int, name: str) -> None:
        node = self.nodes[place]
        if name not in node.database.names(RecordKind.INTEREST, node.identity.node):
            node.change_own_set(RecordKind.INTEREST, [name], [], self.now)

    def join(self, one: int, other: int) -> None:
        self.intended.add((one, other))

    def cut(self, one: int, other: int) -> None:
        self.intended.discard((one, other))
        for end, far in list(self.ends.items()):
            if (end[0], far[0]) == (one, other):
                self.hang_up(end)
                self.mail.append((*end, None))

    def hang_up(self, end: tuple[int, LinkId]) -> None:
        if far := self.ends.pop(end, None):
            del self.ends[far]
            self.mail.append((*far, None))

    def dial(self) -> None:
        self.dial_due = self.now + 0.5
        standing = {(end[0], far[0]) for end, far in self.ends.items()}
        for pair in sorted(self.intended - standing):
            if self.nodes.keys() >= set(pair):
                one, other = ((place, LinkId(next(self.numbers))) for place in pair)
                self.ends |= {one: other, other: one}
                for place, link in (one, other):
                    event = LinkOpened(link, dialled=place == pair[0])
                    self.perform(place, self.nodes[place].open_link(event, self.now))

    def perform(self, place: int, outcome: OverlayOutput) -> None:
        for item in outcome:
            match item:
                case Send(link, frame) if (place, link) in self.ends:
                    assert not isinstance(frame, Publication)
                    self.mail.append((*self.ends[place, link], frame))
                case CloseLink(link):
                    self.hang_up((place, link))

    def deliver(self) -> None:
        place, link_id, frame = self.mail.popleft()
        node = self.nodes.get(place)
        link = node.neighbours.links.get(link_id) if node else None
        if node is None or link is None:
            return
        if frame is None:
            self.perform(place, node.on_link_closed(link_id, "cut", self.now))
        else:
            ((item,), _) = node.neighbours.unwrap_frame(link, frame, self.now)
            self.perform(place, node.receive_frame(link, item, self.now))
        self.perform(place, [*node.flush(self.now)])

    def tick(self) -> None:
        for place, node in list(self.nodes.items()):
            self.perform(place, node.handle_timer(self.now))
            self.perform(place, [*node.flush(self.now)])
        if self.now >= self.dial_due:
            self.dial()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            while self.mail:
                self.deliver()
            dues = [
                due for node in self.nodes.values() if (due := node.next_deadline()) is not None
            ]
            if min([self.dial_due, *dues]) > end:
                break
            self.now = max(self.now, min([self.dial_due, *dues]))
            self.tick()
        self.now = end

    def component(self, place: int) -> set[int]:
        found, front = {place}, {place}
        while front:
            front = {q for p, q in self.intended | {(q, p) for p, q in self.intended} if p in front}
            front = {place for place in front - found if place in self.nodes}
            found |= front
        return found


PLACES = range(4)
places = st.sampled_from(PLACES)
pairs = st.sampled_from(list(combinations(PLACES, 2)))
steps = st.one_of(
    pairs.map(lambda pair: ("join", *pair)),
    pairs.map(lambda pair: ("cut", *pair)),
    st.tuples(st.just("restart"), places),
    st.tuples(st.just("subscribe"), places, st.sampled_from("ab")),
    st.tuples(st.just("run"), st.sampled_from([0.0, 0.3, 4.0])),
)


@settings(max_examples=40)
@given(st.lists(steps, max_size=15))
def test_reachable_nodes_converge(steps):
    world = World()
    for place in PLACES:
        world.start(place, Identity(NodeId(place + 1), bytes([place]) * 32, 1))
        world.subscribe(place, f"of {place}")
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
    world.run(12.0)
    for place, node in world.nodes.items():
        component = world.component(place)
        assert set(node.graph.reachable) == {other + 1 for other in component}
        for other in component:
            truth = world.nodes[other]
            assert node.database.digest == truth.database.digest
            wish = truth.database.names(RecordKind.INTEREST, truth.identity.node)
            assert node.database.names(RecordKind.INTEREST, truth.identity.node) == wish


@pytest.mark.parametrize("links", ["02 12", "02 23 13"])
@pytest.mark.parametrize("earlier", [0, 1])
def test_copies_of_a_node_both_run_and_the_first_keeps_the_id(links, earlier):
    world = World()
    for place, born in ((earlier, 1), (1 - earlier, 2)):
        world.start(place, Identity(OTHER, KEYS[OTHER], born))
    for place in (2, 3):
        world.start(place, Identity(NodeId(place), bytes([place]) * 32, 1))
    for one, other in links.split():
        world.join(int(one), int(other))
    world.run(9.0)
    assert world.nodes.keys() == {0, 1, 2, 3}
    assert world.nodes[2].database.nodes[OTHER].first_incarnation == 1
    assert world.nodes[1 - earlier].conflict.due is not None
    world.stop(1 - earlier)
    world.run(5.0)
    assert world.nodes[2].database.nodes[OTHER] == world.nodes[earlier].database.nodes[OTHER]
    assert OTHER in world.nodes[2].graph.reachable
