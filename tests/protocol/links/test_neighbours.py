"""Links and neighbours: hello, heartbeat, round trip, silence."""

from dataclasses import replace

import msgspec
import pytest

from hansa.protocol.effects import (
    CloseLink,
    LinkRefused,
    NeighbourDown,
    NeighbourUp,
    PeerMisbehaved,
    Send,
)
from hansa.protocol.events import LinkOpened
from hansa.protocol.links.neighbours import (
    DIALLED_RESERVE,
    HEARTBEATS_REMEMBERED,
    RTT_NOISE,
    RTT_SAMPLES,
    RTT_UNKNOWN,
    NeighbourLink,
    Neighbours,
    find_disagreement,
)
from hansa.protocol.links.ordering import RETRY_MIN
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.settings import NEIGHBOURS_MAX, Metric, ProtocolSettings
from hansa.protocol.wire.frames import (
    PROTOCOL_VERSION,
    Fetch,
    FrameAck,
    Goodbye,
    Heartbeat,
    Hello,
    SequencedFrame,
)

SETTINGS = ProtocolSettings(heartbeat_interval=1.0, heartbeat_limit=3.0, unacknowledged_max=2)
ME, PEER = NodeId(5), NodeId(7)
ONE, TWO = LinkId(1), LinkId(2)


def hello(node: NodeId = PEER, incarnation: int = 1) -> Hello:
    return Hello(PROTOCOL_VERSION, "hansa", node, b"k", incarnation, "", "agreed", 0)


OURS = hello(ME)


def opened(
    neighbours: Neighbours,
    link: LinkId = ONE,
    dialled: bool = True,
    ordered: bool = True,
    now: float = 0.0,
) -> NeighbourLink:
    neighbours.open_link(LinkOpened(link, dialled, ordered), OURS, now)
    return neighbours.links[link]


def linked(
    neighbours: Neighbours,
    link: LinkId = ONE,
    dialled: bool = True,
    ordered: bool = True,
    theirs: Hello | None = None,
    now: float = 0.0,
) -> NeighbourLink:
    """A link to a neighbour whose hello was received."""
    new = opened(neighbours, link, dialled, ordered, now)
    neighbours.receive_hello(new, theirs or hello(), OURS, now)
    return new


def alone(settings: ProtocolSettings = SETTINGS) -> Neighbours:
    return Neighbours(settings)


# ---------------------------------------------------------------- opening


def test_new_link_starts_with_our_hello():
    assert alone().open_link(LinkOpened(ONE, dialled=True), OURS, 0.0) == [Send(ONE, OURS)]


def test_on_a_datagram_link_the_hello_is_numbered():
    event = LinkOpened(ONE, dialled=True, ordered=False)
    assert alone().open_link(event, OURS, 0.0) == [Send(ONE, SequencedFrame(1, OURS))]


def test_hello_that_agrees_makes_a_neighbour():
    neighbours = alone()
    link = opened(neighbours)
    assert neighbours.receive_hello(link, hello(), OURS, 0.0) == [NeighbourUp(PEER, ONE)]
    assert (neighbours.by_node, link.peer) == ({PEER: link}, hello())


def test_disagreeing_hello_is_refused_with_the_reason():
    neighbours = alone()
    theirs = msgspec.structs.replace(hello(), federation="other")
    reason = f"federation 'other' of {PEER:016x} meets 'hansa' of {ME:016x}"
    assert neighbours.receive_hello(opened(neighbours), theirs, OURS, 0.0) == [
        LinkRefused(ONE, reason),
        Send(ONE, Goodbye(reason)),
    ]
    assert neighbours.by_node == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"capabilities": ("later",), "digest": 9, "name": "n"}, None),
        ({"version": 9}, f"protocol version 9 of n meets {PROTOCOL_VERSION} of m"),
        ({"federation": "b"}, "federation 'b' of n meets 'hansa' of m"),
        (
            {"shared_settings": "redundancy=3"},
            "settings differ: redundancy=3 of n meets agreed of m",
        ),
        ({"shared_settings": "agreed on=x"}, "settings differ: on=x of n meets agreed of m"),
    ],
)
def test_two_nodes_disagree_about_version_federation_or_settings(change, reason):
    ours, theirs = (
        msgspec.structs.replace(hello(node), name=name) for node, name in ((ME, "m"), (PEER, "n"))
    )
    assert find_disagreement(ours, msgspec.structs.replace(theirs, **change)) == reason


def test_frames_on_a_refused_link_do_not_keep_it_open():
    neighbours = alone()
    link = opened(neighbours)
    neighbours.refuse_link(link, "taken", 1.0)
    for now in (1.0, 2.0, 3.0):
        neighbours.unwrap_frame(link, Heartbeat(1, 0, 0, 0), now)
        assert neighbours.handle_timer(0, now) == ([], [])
    assert neighbours.next_deadline() == 4.0
    assert neighbours.handle_timer(0, 4.0) == ([], [link])


# ---------------------------------------------------------------- two links to one neighbour


def test_newer_link_of_the_same_dialler_replaces_the_old_one():
    neighbours = alone()
    linked(neighbours, ONE)
    newer = opened(neighbours, TWO)
    assert neighbours.receive_hello(newer, hello(), OURS, 0.0) == [
        NeighbourDown(PEER, "replaced by a newer link"),
        CloseLink(ONE, "replaced by a newer link"),
        NeighbourUp(PEER, TWO),
    ]
    assert (neighbours.by_node, list(neighbours.links)) == ({PEER: newer}, [TWO])


@pytest.mark.parametrize(("incarnation", "kept"), [(2, ONE), (4, TWO)])
def test_link_of_the_newer_incarnation_is_kept(incarnation, kept):
    neighbours = alone()
    linked(neighbours, ONE, dialled=True, theirs=hello(incarnation=3))
    linked(neighbours, TWO, dialled=True, theirs=hello(incarnation=incarnation))
    assert neighbours.by_node[PEER].id == kept


def test_link_that_is_not_kept_is_refused_with_the_reason():
    neighbours = alone()
    linked(neighbours, ONE, dialled=True)
    reason = "another link to this node is in use"
    assert neighbours.receive_hello(opened(neighbours, TWO, dialled=False), hello(), OURS, 0.0) == [
        LinkRefused(TWO, reason),
        Send(TWO, Goodbye(reason)),
    ]


@pytest.mark.parametrize("mine_first", [True, False])
@pytest.mark.parametrize("theirs_first", [True, False])
def test_when_both_sides_dial_both_keep_the_link_that_the_smaller_id_dialled(
    mine_first, theirs_first
):
    kept = []
    for me, peer, first in ((ME, PEER, mine_first), (PEER, ME, theirs_first)):
        neighbours = alone()
        dialler = {ONE: ME, TWO: PEER}
        for link in (ONE, TWO) if first else (TWO, ONE):
            new = opened(neighbours, link, dialled=dialler[link] == me)
            neighbours.receive_hello(new, hello(peer), hello(me), 0.0)
        kept.append(neighbours.by_node[peer].id)
    assert kept == [ONE, ONE]


def test_any_link_replaces_one_that_is_closed():
    neighbours = alone(replace(SETTINGS, trust_close=False))
    old = linked(neighbours, ONE, dialled=True)
    neighbours.on_link_closed(old, "reset")
    new = linked(neighbours, TWO, dialled=False)
    assert neighbours.by_node == {PEER: new}


# ---------------------------------------------------------------- closing


def test_closed_link_loses_its_neighbour_at_once():
    neighbours = alone()
    assert neighbours.on_link_closed(linked(neighbours), "reset") == [NeighbourDown(PEER, "reset")]
    assert (neighbours.links, neighbours.by_node) == ({}, {})


def test_link_closed_during_the_handshake_loses_no_neighbour():
    neighbours = alone(replace(SETTINGS, trust_close=False))
    assert neighbours.on_link_closed(opened(neighbours), "reset") == []
    assert neighbours.links == {}


def test_without_trust_close_silence_decides():
    neighbours = alone(replace(SETTINGS, trust_close=False))
    link = linked(neighbours)
    assert neighbours.on_link_closed(link, "reset") == []
    assert (neighbours.by_node, link.is_closed) == ({PEER: link}, True)


def test_dropping_a_replaced_link_does_not_lose_the_neighbour():
    neighbours = alone()
    old = linked(neighbours, ONE)
    new = linked(neighbours, TWO)
    assert neighbours.remove_link(old, "late") == []
    assert neighbours.by_node == {PEER: new}


# ---------------------------------------------------------------- frames


def test_frames_on_a_stream_are_unchanged():
    neighbours = alone()
    link = opened(neighbours)
    assert neighbours.send(link, Fetch(()), 0.0) == [Send(ONE, Fetch(()))]
    assert neighbours.unwrap_frame(link, Fetch(()), 2.0) == ([Fetch(())], [])
    assert link.last_received_at == 2.0


@pytest.mark.parametrize("frame", [SequencedFrame(1, Fetch(())), FrameAck(1)])
def test_sequenced_frame_on_a_stream_is_misbehaviour(frame):
    neighbours = alone()
    refused = [PeerMisbehaved(ONE, "sequenced frame on a stream link")]
    assert neighbours.unwrap_frame(opened(neighbours), frame, 0.0) == ([], refused)


def test_on_datagrams_frames_are_numbered_acknowledged_and_put_in_order():
    neighbours = alone()
    link = opened(neighbours, ordered=False)
    assert neighbours.send(link, Fetch(()), 0.0) == [Send(ONE, SequencedFrame(2, Fetch(())))]
    early = neighbours.unwrap_frame(link, SequencedFrame(2, Goodbye("b")), 0.0)
    assert early == ([], [Send(ONE, FrameAck(1, missing=(1,)))])
    both = neighbours.unwrap_frame(link, SequencedFrame(1, Goodbye("a")), 0.0)
    assert both == ([Goodbye("a"), Goodbye("b")], [Send(ONE, FrameAck(3))])


def test_acknowledgement_on_datagrams_ends_retransmission():
    neighbours = alone()
    link = opened(neighbours, ordered=False)
    assert neighbours.unwrap_frame(link, FrameAck(2), 0.1) == ([], [])
    assert link.channel is not None
    assert link.channel.pending_count == 0


def test_missing_frames_on_datagrams_are_retransmitted():
    neighbours = alone()
    link = opened(neighbours, ordered=False)
    again = neighbours.unwrap_frame(link, FrameAck(1, missing=(1,)), RETRY_MIN)
    assert again == ([], [Send(ONE, SequencedFrame(1, OURS))])


def test_on_datagrams_heartbeats_are_not_numbered():
    neighbours = alone()
    link = linked(neighbours, ordered=False)
    heartbeat = Heartbeat(1, 0, 0, 0)
    assert neighbours.make_heartbeat(link, 0, 0.0) == Send(ONE, heartbeat)
    assert neighbours.unwrap_frame(link, heartbeat, 0.0) == ([heartbeat], [])


# ---------------------------------------------------------------- heartbeats


def heartbeat(number: int, echo: int = 0, held_us: int = 0, digest: int = 9) -> Heartbeat:
    return Heartbeat(number, echo, held_us, digest)


def test_heartbeat_says_how_long_the_last_one_was_held():
    neighbours = alone()
    link = linked(neighbours)
    first = neighbours.make_heartbeat(link, 9, 1.0)
    neighbours.receive_heartbeat(link, heartbeat(4), 9, now=1.5)
    second = neighbours.make_heartbeat(link, 8, 2.0)
    assert first.frame == Heartbeat(number=1, echo=0, held_us=0, digest=9)
    assert second.frame == Heartbeat(number=3, echo=4, held_us=500_000, digest=8)


def test_only_the_very_first_heartbeat_is_answered_at_once():
    neighbours = alone()
    link = linked(neighbours)
    assert neighbours.receive_heartbeat(link, heartbeat(1), 9, now=0.0) == [
        Send(ONE, Heartbeat(1, 1, 0, 9))
    ]
    assert neighbours.receive_heartbeat(link, heartbeat(2), 9, now=1.0) == []


@pytest.mark.parametrize("number", [4, 5])
def test_heartbeat_that_comes_late_or_twice_is_not_echoed(number):
    neighbours = alone()
    link = linked(neighbours)
    neighbours.receive_heartbeat(link, heartbeat(5), 9, now=1.0)
    neighbours.receive_heartbeat(link, heartbeat(number), 9, now=2.0)
    assert (link.last_received_heartbeat, link.heartbeat_received_at) == (5, 1.0)


def measure(neighbours: Neighbours, link: NeighbourLink, *rtts: float) -> None:
    for rtt in rtts:
        number = link.last_sent_heartbeat + 1
        neighbours.make_heartbeat(link, 9, now=float(number))
        neighbours.receive_heartbeat(link, heartbeat(number, echo=number), 9, now=number + rtt)


def test_round_trip_is_the_time_until_the_echo_less_the_time_it_was_held():
    neighbours = alone()
    link = linked(neighbours)
    neighbours.make_heartbeat(link, 9, now=1.0)
    neighbours.receive_heartbeat(link, heartbeat(1, echo=1, held_us=250_000), 9, now=1.75)
    assert link.rtt == 0.5


def test_round_trip_is_never_negative():
    neighbours = alone()
    link = linked(neighbours)
    neighbours.make_heartbeat(link, 9, now=1.0)
    neighbours.receive_heartbeat(link, heartbeat(1, echo=1, held_us=9_000_000), 9, now=1.75)
    assert link.rtt == 0.0


@pytest.mark.parametrize("echo", [0, 1, 99])
def test_unknown_or_repeated_echo_measures_nothing(echo):
    neighbours = alone()
    link = linked(neighbours)
    measure(neighbours, link, 0.5)
    neighbours.receive_heartbeat(link, heartbeat(2, echo=echo), 9, now=8.0)
    assert link.rtt == 0.5


def test_shortest_of_the_newest_round_trips_counts():
    neighbours = alone()
    link = linked(neighbours)
    measure(neighbours, link, 0.5, 0.25, *[0.5] * (RTT_SAMPLES - 1))
    assert link.rtt == 0.25
    measure(neighbours, link, 0.5)
    assert link.rtt == 0.5


def test_old_heartbeats_are_forgotten():
    neighbours = alone()
    link = linked(neighbours)
    for number in range(HEARTBEATS_REMEMBERED + 3):
        neighbours.make_heartbeat(link, 9, now=float(number))
    assert list(link.heartbeat_sent_at) == list(range(4, HEARTBEATS_REMEMBERED + 4))


def test_consecutive_different_digests_are_counted():
    neighbours = alone()
    link = linked(neighbours)
    counts = []
    # the first two belong to the handshake
    for number, digest in enumerate([8, 8, 8, 8, 9, 8], start=1):
        neighbours.receive_heartbeat(link, heartbeat(number, digest=digest), 9, now=0.0)
        counts.append(link.mismatches)
    assert counts == [0, 0, 1, 2, 0, 1]


# ---------------------------------------------------------------- the length of a link


def test_round_trip_is_reported_when_it_is_first_known():
    neighbours = alone()
    link = linked(neighbours)
    assert not neighbours.update_reported_rtt(link)
    link.rtt = 0.04
    assert neighbours.update_reported_rtt(link)
    assert link.reported_rtt == 0.04


@pytest.mark.parametrize(
    ("rtt", "follows"),
    [
        (0.04, False),
        (0.02 - RTT_NOISE, False),
        (0.018, True),
        (0.08 + RTT_NOISE, False),
        (0.082, True),
    ],
)
def test_reported_round_trip_follows_large_changes(rtt, follows):
    neighbours = alone()
    link = linked(neighbours)
    link.reported_rtt, link.rtt = 0.04, rtt
    assert neighbours.update_reported_rtt(link) == follows
    assert link.reported_rtt == (rtt if follows else 0.04)


@pytest.mark.parametrize(
    ("metric", "reported", "cost"),
    [
        (Metric.HOPS, None, 1),
        (Metric.HOPS, 0.5, 1),
        (Metric.RTT, None, RTT_UNKNOWN),
        (Metric.RTT, 0.5, 5_000),
        (Metric.RTT, 0.0, 1),
    ],
)
def test_link_is_one_hop_long_or_as_long_as_its_round_trip(metric, reported, cost):
    neighbours = alone(replace(SETTINGS, metric=metric))
    link = linked(neighbours)
    link.reported_rtt = reported
    assert neighbours.link_cost(link) == cost


# ---------------------------------------------------------------- time


def test_without_links_nothing_is_due():
    neighbours = alone()
    assert (neighbours.next_deadline(), neighbours.handle_timer(9, 5.0)) == (None, ([], []))


def test_neighbours_get_a_heartbeat_every_interval():
    neighbours = alone()
    linked(neighbours, ONE)
    linked(neighbours, TWO, theirs=hello(NodeId(8)))
    opened(neighbours, LinkId(3))
    assert neighbours.next_deadline() == 1.0
    assert neighbours.handle_timer(9, 0.9) == ([], [])
    beats = [Send(ONE, heartbeat(1)), Send(TWO, heartbeat(1))]
    assert neighbours.handle_timer(9, 1.25) == (beats, [])
    assert neighbours.next_deadline() == 2.25


def test_heartbeats_stop_with_the_last_link_and_start_with_the_next():
    neighbours = alone()
    neighbours.remove_link(linked(neighbours), "done")
    assert neighbours.next_deadline() is None
    opened(neighbours, TWO, now=7.0)
    assert neighbours.next_deadline() == 8.0


def test_second_link_does_not_delay_the_heartbeat():
    neighbours = alone()
    linked(neighbours, ONE, now=0.0)
    opened(neighbours, TWO, now=0.5)
    assert neighbours.next_deadline() == 1.0


@pytest.mark.parametrize("start", [0.0, 0.1, 0.7])
def test_link_is_lost_after_the_limit_of_silence(start):
    neighbours = alone(replace(SETTINGS, heartbeat_interval=1.0, heartbeat_limit=2.1))
    silent = linked(neighbours, ONE, now=start)
    alive = linked(neighbours, TWO, theirs=hello(NodeId(8)), now=start)
    neighbours.handle_timer(9, start + 1.0)
    neighbours.unwrap_frame(alive, heartbeat(1), start + 1.5)
    neighbours.handle_timer(9, start + 2.0)
    assert neighbours.next_deadline() == start + 2.1
    assert neighbours.handle_timer(9, start + 2.1) == ([], [silent])
    neighbours.remove_link(silent, "silent")
    assert neighbours.next_deadline() == start + 3.0


def test_link_that_never_says_hello_is_lost_too():
    neighbours = alone()
    link = opened(neighbours)
    for now in (1.0, 2.0):
        neighbours.handle_timer(9, now)
    assert neighbours.handle_timer(9, 3.0) == ([], [link])


def test_suspended_node_keeps_its_neighbours():
    neighbours = alone()
    link = linked(neighbours)
    assert neighbours.handle_timer(9, 60.0) == ([Send(ONE, heartbeat(1))], [])
    assert (link.last_received_at, neighbours.next_deadline()) == (60.0, 61.0)


def test_slightly_late_node_still_detects_silence():
    neighbours = alone()
    link = linked(neighbours)
    neighbours.handle_timer(9, 1.0)
    assert neighbours.handle_timer(9, 3.0)[1] == [link]


def test_unacknowledged_frames_on_datagrams_are_retransmitted():
    neighbours = alone()
    opened(neighbours, ordered=False)
    assert neighbours.next_deadline() == 4 * RETRY_MIN
    assert neighbours.handle_timer(9, 4 * RETRY_MIN) == ([Send(ONE, SequencedFrame(1, OURS))], [])


def test_on_datagrams_heartbeats_and_repairs_can_be_due_together():
    neighbours = alone()
    linked(neighbours, ordered=False)
    expected = [Send(ONE, heartbeat(1)), Send(ONE, SequencedFrame(1, OURS))]
    assert neighbours.handle_timer(9, 1.0) == (expected, [])


def test_nothing_is_due_on_datagrams_without_unacknowledged_frames():
    neighbours = alone()
    link = opened(neighbours, ordered=False)
    neighbours.unwrap_frame(link, FrameAck(2), 0.1)
    assert neighbours.next_deadline() == 1.0


def test_datagram_link_that_is_stuck_is_lost():
    neighbours = alone()
    link = opened(neighbours, ordered=False)
    neighbours.send(link, Fetch(()), 0.0)
    assert neighbours.handle_timer(9, 0.1) == ([], [])
    neighbours.send(link, Fetch(()), 0.1)
    assert neighbours.handle_timer(9, 0.2) == ([], [link])


# ---------------------------------------------------------------- number of neighbours


def test_incoming_links_leave_places_for_dialled_ones():
    neighbours = alone()
    inbound = NEIGHBOURS_MAX - DIALLED_RESERVE
    for number in range(NEIGHBOURS_MAX):
        theirs = hello(NodeId(100 + number))
        linked(neighbours, LinkId(10 + number), number >= inbound, theirs=theirs)
    assert len(neighbours.by_node) == NEIGHBOURS_MAX
    reason = "0000000000000005 has as many neighbours as it can have"
    for link, dialled in ((ONE, False), (TWO, True)):
        assert linked(neighbours, link, dialled).refusal_reason == reason
    again = linked(neighbours, LinkId(5), dialled=True, theirs=hello(NodeId(100)))
    assert again.refusal_reason is None
    assert len(neighbours.by_node) == NEIGHBOURS_MAX


def test_dialled_neighbours_and_the_oldest_are_trusted():
    neighbours = alone()
    assert neighbours.oldest is None
    for number, dialled in ((1, False), (2, False), (3, True)):
        linked(neighbours, LinkId(number), dialled, theirs=hello(NodeId(100 + number)))
    trusted = [neighbours.is_trusted(NodeId(100 + number)) for number in (1, 2, 3, 4)]
    assert trusted == [True, False, True, False]
