"""Section 8 of docs/protocol.md, rule by rule: strategies."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
from tests.protocol.federation import (
    LINE,
    RING,
    SIX_BROKERS,
    SQUARE,
    cores,
    grid,
    managers,
    publish,
    sent,
    settled,
    views,
)
from tests.protocol.wire_of_nodes import DELAY, Wire, key, pairs

from hansa.protocol.effects import Duplicate, LinkRefused, NeighbourUp, Send
from hansa.protocol.model import Identity, NodeId, Publication
from hansa.protocol.routing import STRATEGIES
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.wire.frames import (
    AnnouncementRequest,
    CoreAnnouncement,
    Goodbye,
    MeshMembership,
)

OTHERS = [name for name in STRATEGIES if name != "mesh"]


def with_capacities(links: str, capacities: dict[int, float], **settings: Any) -> Wire:
    """Return converged nodes, some of which report more than the usual capacity."""
    wire = Wire("", **settings)
    for place in sorted({place for pair in pairs(links) for place in pair}):
        capacity = capacities.get(place, 1.0)
        wire.start(place, Identity(NodeId(place), key(place), 1, capacity=capacity))
    wire.join(links)
    wire.run(1.0)
    return wire


def test_8_1_nodes_with_different_strategies_refuse_each_other_and_say_why():
    """8.1 The strategy is part of what both ends of a link must share."""
    wire = Wire()
    for place, name in ((1, "mesh"), (2, "paths")):
        wire.start(place, settings=ProtocolSettings(strategy=name))
    wire.join("1-2")
    wire.run(1.0)
    reasons = [frame.reason for _, _, frame in sent(wire, Goodbye)]
    assert len(reasons) == 2
    assert all("strategy=mesh" in why and "strategy=paths" in why for why in reasons)
    for place in (1, 2):
        assert wire.effects(place, LinkRefused)
        assert not wire.effects(place, NeighbourUp)


@pytest.mark.parametrize("name", STRATEGIES)
def test_8_1_every_strategy_delivers_once_to_all_interested_nodes(name):
    """8.1 It only decides where copies go."""
    wire = settled(SIX_BROKERS, (5, "g"), (2, "#"), (0, "+"), strategy=name)
    for place in range(6):
        expected = {wanter: [b"x"] for wanter in (0, 2, 5) if wanter != place}
        assert publish(wire, place) == expected


@pytest.mark.parametrize("name", STRATEGIES)
def test_8_1_every_strategy_repairs_a_lost_guaranteed_publication(name):
    """8.1 How QoS 1 and 2 are repaired is the same with all."""
    wire = settled(LINE, (4, "g"), strategy=name)
    wire.is_lost = lambda source, target, frame: wire.now < 3.0 and (source, target) == (2, 3)
    wire.publish(1, "g", b"x", qos=1)
    wire.run(0.5)
    assert wire.deliveries() == {}
    wire.run(10.0)
    assert wire.deliveries() == {4: [b"x"]}


@pytest.mark.parametrize("name", OTHERS)
def test_8_2_paths_follow_from_the_database_without_frames(name):
    """8.2 Strategies that follow the map send no frames."""
    wire = Wire(SQUARE, strategy=name)
    wire.subscribe(3, "g")
    wire.run(1.0)
    assert (
        not sent(wire, CoreAnnouncement)
        + sent(wire, MeshMembership)
        + sent(wire, AnnouncementRequest)
    )
    assert publish(wire, 1) == {3: [b"x"]}


@pytest.mark.parametrize("name", OTHERS)
def test_8_2_copy_never_loops_while_nodes_disagree(name):
    """8.2 A publication that meets nodes with other maps is lost at worst."""
    wire = settled(RING, *((place, "g") for place in range(1, 6)), strategy=name)
    wire.cut("1-2")
    for number in range(6):  # before, during and after the change spreads
        wire.publish(4, "g", bytes([number]))
        wire.run(DELAY / 2)
    wire.run(0.2)
    crossings = Counter(
        (step.place, effect.link, effect.frame.sequence)
        for step in wire.log
        for effect in step.effects
        if isinstance(effect, Send) and isinstance(effect.frame, Publication)
    )
    assert len(crossings) > 6
    assert max(crossings.values()) == 1
    assert all(len(got) == len(set(got)) for got in wire.deliveries().values())


@pytest.mark.parametrize("name", ["tree-flood", "tree-subscriptions"])
def test_8_3_root_is_the_node_with_the_highest_capacity(name):
    """8.3 Ties fall to the smaller id; a lost root is replaced."""
    wire = with_capacities(RING, {3: 4.0, 5: 4.0}, strategy=name)
    assert set(managers(wire).values()) == {3}
    wire.stop(3)
    wire.run(1.0)
    assert set(managers(wire).values()) == {5}
    wire.stop(5)
    wire.run(1.0)
    assert managers(wire) == {1: 1, 2: 1, 4: 4}


def test_8_3_every_node_is_attached_to_the_root_by_its_shortest_path():
    """8.3 By hops; of equally short paths by the smaller neighbour."""
    wire = with_capacities(SIX_BROKERS, {4: 2.0}, strategy="tree-flood")
    parents = {place: view.cores[NodeId(4)].parents for place, view in views(wire).items()}
    assert parents == {0: (1,), 1: (4,), 2: (3,), 3: (4,), 4: (), 5: (4,)}
    assert [view.cores[NodeId(4)].distance for view in views(wire).values()] == [2, 1, 2, 1, 0, 1]


def test_8_3_detour_may_be_the_shortest_path_by_round_trip_time():
    """8.3 Antonielli's brokers keep the link with the lowest round-trip time to the root."""
    wire = Wire(strategy="tree-flood", metric=Metric.RTT)
    wire.delay = lambda a, b: 0.2 if {a, b} == {1, 3} else DELAY
    for place in (1, 2, 3):
        wire.start(place)
    wire.join("1-2 2-3 1-3")
    wire.run(12.0)
    assert views(wire)[3].cores[NodeId(1)].parents == (2,)


def test_8_3_lost_link_makes_another_tree():
    """8.3 Nodes attached by it are attached elsewhere, as soon as the change arrives."""
    wire = settled(SQUARE, (3, "g"), strategy="tree-subscriptions")
    assert views(wire)[3].cores[NodeId(1)].parents == (2,)
    wire.cut("2-3")
    wire.run(1.0)
    assert views(wire)[3].cores[NodeId(1)].parents == (4,)
    assert publish(wire, 2) == {3: [b"x"]}
    assert wire.copies() == [(2, 1), (1, 4), (4, 3)]


def test_8_4_flooding_crosses_every_link_of_the_tree_once():
    """8.4 With or without interest there, unless no other node is interested."""
    wire = settled(SIX_BROKERS, (5, "g"), strategy="tree-flood")
    assert publish(wire, 2) == {5: [b"x"]}
    assert len(wire.copies()) == 5
    assert not any(wire.effects(place, Duplicate) for place in range(6))
    assert publish(wire, 2, topic="h") == {}
    assert not wire.copies()


def test_8_5_with_subscription_tables_only_branches_with_interest_are_taken():
    """8.5 By whatever filter, wildcards included."""
    subscriptions = (4, "plant/+/temp"), (5, "plant/#"), (3, "city")
    wire = settled("1-2 1-3 2-4 2-5", *subscriptions, strategy="tree-subscriptions")
    assert publish(wire, 3, topic="plant/a/temp") == {4: [b"x"], 5: [b"x"]}
    assert sorted(wire.copies()) == [(1, 2), (2, 4), (2, 5), (3, 1)]
    assert publish(wire, 4, topic="plant/b") == {5: [b"x"]}
    assert wire.copies() == [(4, 2), (2, 5)]
    assert cores(wire, "city") == dict.fromkeys(range(1, 6), 1)


def test_8_6_bridge_flood_crosses_links_up_to_twice():
    """8.6 To all neighbours but the sender; duplicates are dropped."""
    wire = settled(SQUARE, (3, "g"), strategy="bridge-flood")
    assert publish(wire, 1) == {3: [b"x"]}
    assert sorted(wire.copies()) == [(1, 2), (1, 4), (2, 3), (3, 4), (4, 3)]


def test_8_7_copies_take_only_the_shortest_paths_from_the_origin():
    """8.7 The same topic takes other links from another origin."""
    wire = settled(grid(3), (0, "g"), (8, "g"), strategy="paths", redundancy=1)
    assert publish(wire, 2) == {0: [b"x"], 8: [b"x"]}
    assert sorted(wire.copies()) == [(1, 0), (2, 1), (2, 5), (5, 8)]
    assert publish(wire, 4) == {0: [b"x"], 8: [b"x"]}
    assert len(wire.copies()) == 4
    assert publish(wire, 0) == {8: [b"x"]}
    assert len(wire.copies()) == 4


def is_cut(a: int, b: int, source: int, target: int, frame: object) -> bool:
    return {source, target} == {a, b}


def test_8_8_with_a_redundancy_of_two_any_one_link_may_be_lost():
    """8.8 Two paths to every receiver share no link: one copy arrives."""
    wire = settled(grid(3), (0, "g"), (5, "g"), (8, "g"), strategy="paths", redundancy=2)
    for a, b in pairs(grid(3)):
        wire.is_lost = partial(is_cut, a, b)
        for origin in (6, 4, 8):
            expected = {wanter: [b"x"] for wanter in (0, 5, 8) if wanter != origin}
            assert publish(wire, origin) == expected


@pytest.mark.parametrize("link", ["3-4", "6-7", "3-6"])  # with one path each would lose some
def test_8_8_nothing_is_lost_while_the_map_changes_either(link):
    """8.8 Nodes that know of the loss and those that do not agree on one path at least."""
    wire = settled(grid(3), (0, "g"), (5, "g"), (8, "g"), strategy="paths", redundancy=2)
    wire.cut(link)
    payloads = [bytes([number]) for number in range(20)]
    for payload in payloads:
        wire.publish(6, "g", payload)
        wire.run(DELAY / 4)
    wire.run(0.2)
    assert {node: sorted(got) for node, got in wire.deliveries().items()} == dict.fromkeys(
        (0, 5, 8), payloads
    )


def test_8_8_links_that_every_path_must_use_are_used():
    """8.8 Behind a bridge the paths separate again."""
    wire = settled("1-2 2-3 3-4 4-5 5-6 6-3", (5, "g"), strategy="paths", redundancy=2)
    assert publish(wire, 1) == {5: [b"x"]}
    assert sorted(wire.copies()) == [(1, 2), (2, 3), (3, 4), (3, 6), (4, 5), (6, 5)]
