"""Section 6 of docs/protocol.md, rule by rule: interest and publications."""

from msgspec.structs import replace
from tests.protocol.federation import LINE, link_of, sent, settled
from tests.protocol.wire_of_nodes import Wire, key

from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    Deliver,
    IncarnationRaised,
    InterestInstalled,
    SubscribeAtBroker,
    UnsubscribeAtBroker,
)
from hansa.protocol.events import FrameReceived
from hansa.protocol.model import Identity, NodeId
from hansa.protocol.wire.frames import InterestAck, InterestAckRequest, InterestAcks, Update


def test_6_1_covered_filters_are_not_announced():
    """6.1 A node announces the filters of its clients without covered ones."""
    wire = settled("1-2", (2, "a/b"), (2, "a/#"), (2, "a/c"), (2, "$share/workers/a/b"), (2, "d"))
    wire.run(2.0)
    announced = wire.nodes[1].status().interest[NodeId(2)].filters
    assert announced == ("a/#", "$share/workers/a/b", "d")


def test_6_2_node_subscribes_only_to_filters_of_other_nodes():
    """6.2 It subscribes at its own broker to filters of *other* nodes."""
    wire = settled(LINE)
    wire.subscribe(1, "a")
    wire.subscribe(2, "a", "b")
    wire.run(0.5)
    subscribed = {
        place: sorted(name for e in wire.effects(place, SubscribeAtBroker) for name in e.filters)
        for place in wire.nodes
    }
    assert subscribed == {1: ["a", "b"], 2: ["a"], 3: ["a", "b"], 4: ["a", "b"]}


def test_6_3_interest_is_installed_when_all_reachable_nodes_have_acknowledged():
    """6.3 `InterestAck` with the journal position; `InterestAckRequest` where it is missing."""
    wire = Wire("1-2")
    wire.start(3, restored=RestoredState(epoch=4, next_sequence=100))
    wire.join("2-3")
    wire.run(0.5)
    wire.is_lost = lambda source, target, frame: source == 3 and isinstance(frame, InterestAcks)
    wire.log.clear()
    wire.subscribe(1, "g")
    wire.run(0.5)
    (lost,) = [frame for source, _, frame in sent(wire, InterestAcks) if source == 3]
    assert lost.entries == (InterestAck(NodeId(1), 1, 1, NodeId(3), epoch=4, sequence=100, hops=0),)
    assert wire.effects(1, InterestInstalled) == []
    wire.is_lost = lambda *_: False
    wire.run(1.0)
    assert [
        frame.destination for source, _, frame in sent(wire, InterestAckRequest) if source == 1
    ] == [3]
    assert wire.effects(1, InterestInstalled) == [InterestInstalled(1)]


def test_6_3_node_with_a_new_incarnation_acknowledges_again():
    """6.3 Its acknowledgements are void for other nodes; nobody has to ask for them."""
    wire = settled("1-2 2-3", (1, "g"), (3, "g"))
    wire.log.clear()
    claimed = replace(wire.nodes[2].membership.known[NodeId(2)], incarnation=5)
    wire.give(2, FrameReceived(link_of(wire, 2, 1), Update((claimed,))))
    wire.run(0.1)
    assert wire.effects(2, IncarnationRaised) == [IncarnationRaised(6)]
    acknowledged = [
        entry.destination
        for source, _, frame in sent(wire, InterestAcks)
        for entry in frame.entries
        if source == 2
    ]
    assert sorted(acknowledged) == [1, 3]
    assert [wire.nodes[place].is_interest_installed() for place in (1, 2, 3)] == [True] * 3
    assert sent(wire, InterestAckRequest) == []


def test_6_4_filter_is_withdrawn_after_its_replacement_is_in_force():
    """6.4 Withdrawn after the linger, and not before every later filter is installed."""
    kinds = (SubscribeAtBroker, InterestInstalled, UnsubscribeAtBroker)
    wire = settled("1-2", (2, "a/#"))
    start = wire.now
    wire.subscribe(2, "a/b")
    wire.unsubscribe(2, "a/#")
    wire.run(2.0)
    reported = [
        (step.at - start, e) for step in wire.log for e in step.effects if isinstance(e, kinds)
    ]
    assert [effect for _, effect in reported] == [
        SubscribeAtBroker(("a/b",)),
        InterestInstalled(2),
        UnsubscribeAtBroker(("a/#",)),
        InterestInstalled(3),
    ]
    assert [at > wire.settings.linger for at, _ in reported] == [False, False, True, True]

    wire = settled("1-2", (2, "a/#"))
    wire.is_lost = lambda source, target, frame: isinstance(frame, InterestAcks)
    wire.subscribe(2, "a/b")
    wire.unsubscribe(2, "a/#")
    wire.run(9.9)
    assert wire.effects(1, UnsubscribeAtBroker) == []
    wire.run(0.2)
    assert wire.effects(1, UnsubscribeAtBroker) == [UnsubscribeAtBroker(("a/#",))]


def test_6_4_share_is_withdrawn_at_once():
    """6.4 A node without a consumer is not selected any more; other consumers get everything."""
    wire = settled("1-2 2-3", (2, "$share/g/a"), (3, "$share/g/a"))
    wire.unsubscribe(3, "$share/g/a")
    wire.run(wire.settings.linger / 2)
    for number in range(4):
        wire.publish(1, "a", b"%d" % number)
    wire.run(1.0)
    assert wire.deliveries() == {2: [b"0", b"1", b"2", b"3"]}


def test_6_4_filter_that_overlaps_a_share_does_not_linger():
    """6.4 A client on `#` has just left: its broker serves the share of the publisher no more."""
    wire = settled("1-2", (1, "$share/g/a"), (2, "$share/g/a"), (2, "#"))
    wire.unsubscribe(2, "#")
    wire.run(wire.settings.linger / 2)
    wire.publish(1, "a", b"job")  # a consumer at the publisher's own broker gets it
    wire.run(1.0)
    assert wire.deliveries() == {}


def test_6_4_filter_that_overlaps_a_share_only_in_part_does_not_linger():
    """6.4 Neither `+/temp` nor `plant/#` covers the other."""
    wire = settled("1-2", (1, "$share/g/plant/#"), (2, "$share/g/plant/#"), (2, "+/temp"))
    wire.unsubscribe(2, "+/temp")
    wire.run(wire.settings.linger / 2)
    wire.publish(1, "plant/temp", b"job")
    wire.run(1.0)
    assert wire.deliveries() == {}


def test_6_5_publications_are_identified_by_incarnation_or_by_journal():
    """6.5 (origin, incarnation, sequence); at QoS 1 and 2 (origin, epoch, position), `previous`."""
    wire = settled("1-2", (2, "a"), (2, "b"))
    wire.start(
        3, Identity(NodeId(3), key(3), 7), restored=RestoredState(epoch=4, next_sequence=100)
    )
    wire.join("3-2")
    wire.run(0.5)
    wire.publish(3, "a", qos=1)  # the first one of an incarnation is requested (7.12)
    wire.run(0.5)
    wire.log.clear()
    for topic, qos in (("a", 0), ("a", 1), ("b", 2), ("a", 0), ("a", 1)):
        wire.publish(3, topic, qos=qos)
    wire.run(0.1)
    delivered = [effect.publication for effect in wire.effects(2, Deliver)]
    node = NodeId(2)
    assert sorted((p.origin, p.epoch, p.sequence, p.receivers) for p in delivered) == [
        (3, 4, 101, ((node, 100),)),
        (3, 4, 102, ((node, 101),)),
        (3, 4, 103, ((node, 102),)),
        (3, 7, 1, ()),
        (3, 7, 2, ()),
    ]
