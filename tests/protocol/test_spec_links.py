"""Section 2 of docs/protocol.md, rule by rule: links and neighbours."""

from itertools import count, cycle

import pytest
from msgspec.structs import replace
from tests.protocol.federation import link_of, publish, restart, sent, settled, timed, views
from tests.protocol.wire_of_nodes import DELAY, Wire, key

from hansa.protocol.effects import (
    CloseLink,
    Ignored,
    IncarnationRaised,
    NeighbourDown,
    Send,
    SubscribeAtBroker,
)
from hansa.protocol.events import FrameReceived, LinkOpened, TimerFired
from hansa.protocol.model import Identity, LinkId, NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import Frame, FrameAck, Goodbye, Heartbeat, Hello, Update


def kept(wire: Wire) -> set[int]:
    """The ends of the link that 1 and 2 keep, the same on both sides."""
    ours, theirs = link_of(wire, 1, 2), link_of(wire, 2, 1)
    assert wire.ends[1, ours] == (2, theirs)
    return {ours, theirs}


def dialled(wire: Wire, place: int) -> list[int]:
    """The links that a node dialled, in order."""
    steps = [step.event for step in wire.log if step.place == place]
    return [e.link for e in steps if isinstance(e, LinkOpened) and e.dialled]


def test_2_1_disagreeing_nodes_close_the_link_with_the_reason_on_both_sides():
    """2.1 Both send `Hello` first; if they disagree, `Goodbye` with the reason."""
    wire = Wire()
    wire.start(1)
    wire.start(2, settings=ProtocolSettings(redundancy=3))
    wire.join("1-2")
    wire.run(0.1)
    ours, theirs = f"redundancy=2 of {1:016x}", f"redundancy=3 of {2:016x}"
    reasons = {
        1: f"settings differ: {theirs} meets {ours}",
        2: f"settings differ: {ours} meets {theirs}",
    }
    assert [type(frame) for _, _, frame in sent(wire, Frame)] == [Hello, Hello, Goodbye, Goodbye]
    for place, reason in reasons.items():
        assert wire.effects(place, Send)[-1].frame == Goodbye(reason)
        assert [effect.reason for effect in wire.effects(place, CloseLink)] == [reason]
    assert [view.neighbours for view in views(wire).values()] == [{}, {}]


def test_2_1_nothing_counts_before_hello():
    """2.1 Neither a goodbye nor a record."""
    wire = settled("1-2")
    wire.give(1, LinkOpened(LinkId(99), dialled=False))
    record = wire.nodes[1].membership.known[NodeId(2)]
    for frame in (Goodbye("no"), Update((replace(record, incarnation=9),))):
        reason = f"{type(frame).__name__} before hello"
        assert wire.give(1, FrameReceived(LinkId(99), frame)) == [Ignored(reason)]


def test_2_2_of_two_links_both_sides_keep_the_same():
    """2.2 One link per neighbour: of the newer incarnation, the same dialler's newer, the smaller
    id's."""
    same_dialler = Wire("1-2")
    same_dialler.join("1-2")
    same_dialler.run(0.1)
    assert dialled(same_dialler, 1)[1] in kept(same_dialler)

    for crossing in ("1-2 2-1", "2-1 1-2"):
        two_diallers = Wire(crossing)
        assert dialled(two_diallers, 1)[0] in kept(two_diallers)

    newer_incarnation = Wire("1-2")
    restart(newer_incarnation, 1, "2-1")  # unnoticed: 2 still has the link that 1 dialled
    newer_incarnation.run(0.1)
    assert dialled(newer_incarnation, 2)[0] in kept(newer_incarnation)


def test_2_3_heartbeats_measure_the_round_trip():
    """2.3 A `Heartbeat` every interval echoes the newest; the shortest of eight trips counts."""
    wire = settled("1-2")
    wire.run(0.5)
    newest = 0
    for step in (step for step in wire.log if step.place == 1):
        if isinstance(step.event, FrameReceived) and isinstance(step.event.frame, Heartbeat):
            newest = step.event.frame.number
        beats = [e.frame for e in step.effects if isinstance(e, Send)]
        assert all(isinstance(beat, Heartbeat) and beat.echo == newest for beat in beats)
    wire.delay = lambda *_: 0.1
    wire.log.clear()
    wire.run(7.0)
    assert views(wire)[1].neighbours[NodeId(2)].rtt_ms == pytest.approx(2_000 * DELAY)
    wire.run(3.0)
    assert views(wire)[1].neighbours[NodeId(2)].rtt_ms == pytest.approx(200.0)
    times = [at for at, source, _, _ in timed(wire, Heartbeat) if source == 1]
    assert times == pytest.approx([times[0] + second for second in range(10)])


def test_2_4_neighbour_is_lost_at_once_when_closed_and_after_the_limit_when_silent():
    """2.4 A closed connection or 3 s of silence."""
    wire = settled("1-2 2-3")
    wire.stop(1)
    wire.run(DELAY)
    assert wire.effects(2, NeighbourDown) == [NeighbourDown(NodeId(1), "connection closed")]
    wire.log.clear()
    wire.is_lost = lambda *_: True
    wire.run(2.5)
    assert wire.effects(2, NeighbourDown) == []
    wire.run(1.0)
    assert wire.effects(2, NeighbourDown) == [NeighbourDown(NodeId(3), "silent")]


def test_2_5_suspended_node_keeps_its_neighbours():
    """2.5 A node that was itself suspended does not count the silence."""
    wire = settled("1-2 2-3")
    wire.freeze(2)
    wire.run(60.0)
    woken = wire.nodes[2].handle(TimerFired(), wire.now)
    assert [type(effect.frame) for effect in woken if isinstance(effect, Send)] == [Heartbeat] * 2
    assert [effect for effect in woken if isinstance(effect, NeighbourDown)] == []


def test_2_6_datagram_links_keep_control_frames_whole_and_in_order():
    """2.6 Control frames are numbered, acknowledged and retransmitted; too many reset the link."""
    wire = Wire(unacknowledged_max=4)
    wire.start(1)
    wire.start(2)
    frames, delays = count(), cycle((DELAY, 5 * DELAY, 2 * DELAY))
    wire.is_lost = lambda *_: next(frames) % 4 == 1
    wire.delay = lambda *_: next(delays)
    wire.join("1-2", ordered=False)
    wire.run(3.0)
    filters = [f"a/{number}" for number in range(10)]
    for topic_filter in filters:
        wire.subscribe(2, topic_filter)
        wire.run(0.2)
    wire.run(1.0)
    granted = [name for effect in wire.effects(1, SubscribeAtBroker) for name in effect.filters]
    assert granted == filters

    wire.is_lost = lambda source, target, frame: isinstance(frame, FrameAck)
    stuck = CloseLink(link_of(wire, 2, 1), "stuck")
    for topic_filter in "bcdef":
        wire.subscribe(2, topic_filter)
        wire.run(0.1)
    wire.run(1.0)
    assert wire.effects(2, CloseLink) == [stuck]


def test_2_7_no_node_stops_because_of_another_record_with_its_id():
    """2.7 The first of two copies raises its incarnation at once, the later one after 10 s, and
    then after 1 s."""
    wire = settled("1-2 2-3")
    wire.start(9, Identity(NodeId(1), key(1), incarnation=5))
    wire.join("9-3")
    wire.run(5.0)
    assert wire.effects(1, IncarnationRaised) == [IncarnationRaised(6)]
    assert wire.effects(9, IncarnationRaised) == []
    assert wire.nodes[2].membership.known[NodeId(1)].incarnation == 6
    assert wire.nodes[1].status().counters["record of this node that it did not write"] > 0
    wire.run(5.5)
    assert wire.effects(9, IncarnationRaised) == [IncarnationRaised(7)]
    assert wire.effects(1, IncarnationRaised) == [IncarnationRaised(6), IncarnationRaised(8)]
    wire.run(1.0)
    assert wire.effects(9, IncarnationRaised)[1:] == [IncarnationRaised(9)]
    assert wire.nodes.keys() == {1, 2, 3, 9}


@pytest.mark.parametrize("strategy", ["mesh", "paths"])
def test_2_7_forged_record_deletes_nothing(strategy):
    """2.7 Whatever was forged, the node is soon known again and gets its publications."""
    wire = settled("1-2 2-3", (1, "g"), strategy=strategy)
    victim = wire.nodes[2].membership.known[NodeId(1)]
    for forged in (
        replace(victim, incarnation=50_000, links=()),
        replace(victim, version=1_000, links=(), first_incarnation=0),
    ):
        wire.give(2, FrameReceived(link_of(wire, 2, 3), Update((forged,))))
        wire.run(12.0)
        assert NodeId(1) in wire.nodes[3].membership.reachable
        assert publish(wire, 3) == {1: [b"x"]}
        victim = wire.nodes[2].membership.known[NodeId(1)]
    idle = replace(wire.nodes[2].membership.known[NodeId(3)], version=1_000, links=())
    wire.give(2, FrameReceived(link_of(wire, 2, 1), Update((idle,))))
    wire.run(12.0)
    assert publish(wire, 3) == {1: [b"x"]}
    assert wire.nodes.keys() == {1, 2, 3}
