"""Section 10 of docs/protocol.md: shared subscriptions."""

import pytest
from tests.protocol.wire_of_nodes import Wire

from hansa.protocol.effects import Ignored, PublishRetained

SHARE, OTHER = "$share/g/a", "$share/h/a"
COUNT = 12


def settled(links: str, *subscriptions: tuple[int, str]) -> Wire:
    """Converged nodes with interest and an empty log."""
    wire = Wire(links)
    for place, name in subscriptions:
        wire.subscribe(place, name)
    wire.run(2.0)
    wire.log.clear()
    return wire


def served(wire: Wire, place: int, qos: int) -> dict[int, int]:
    """Publish some at a place; return how many each place delivered."""
    for number in range(COUNT):
        wire.publish(place, "a", b"%d" % number, qos)
    wire.run(2.0)
    return {where: len(payloads) for where, payloads in wire.deliveries().items()}


def overlaps(wire: Wire, place: int) -> int:
    return wire.effects(place, Ignored).count(Ignored("share_overlap"))


@pytest.mark.parametrize("qos", [0, 1])
def test_10_1_local_consumer_comes_first(qos):
    """10.1 A publication that the local broker serves is not sent for the share."""
    wire = settled("1-2 2-3", (1, SHARE), (2, SHARE), (3, SHARE))
    assert served(wire, 1, qos) == {}
    assert wire.copies() == []


@pytest.mark.parametrize("qos", [0, 1])
def test_10_2_nodes_are_selected_round_robin(qos):
    """10.2 Each publication is for one node with consumers, equally often for each."""
    wire = settled("1-2 2-3 3-4", (2, SHARE), (3, SHARE), (4, SHARE))
    assert served(wire, 1, qos) == {2: COUNT // 3, 3: COUNT // 3, 4: COUNT // 3}
    payloads = [payload for each in wire.deliveries().values() for payload in each]
    assert len(set(payloads)) == COUNT


@pytest.mark.parametrize("qos", [0, 1])
def test_10_2_node_with_a_plain_subscription_serves_the_share(qos):
    """10.2 A plain subscription at a broker with consumers needs no second broker."""
    wire = settled("1-2 2-3", (2, SHARE), (3, SHARE), (3, "a"))
    assert served(wire, 1, qos) == {3: COUNT}
    assert overlaps(wire, 1) == 0


def test_10_2_reachable_node_comes_first():
    """10.2 An unreachable node is selected only if no other is reachable."""
    wire = settled("1-2 1-3", (2, SHARE), (3, SHARE))
    wire.cut("1-3")
    wire.run(1.0)
    assert served(wire, 1, 1) == {2: COUNT}


@pytest.mark.parametrize(("qos", "places"), [(0, {2: COUNT}), (1, {})])
def test_10_2_unreachable_node_serves_no_qos_0(qos, places):
    """10.2 An unreachable node serves its consumers later, or never at QoS 0."""
    wire = settled("1-2 1-3", (2, SHARE), (3, SHARE), (3, "a"))
    wire.cut("1-3")
    wire.run(1.0)
    assert served(wire, 1, qos) == places


@pytest.mark.parametrize("qos", [0, 1])
def test_10_2_several_shares_of_one_topic_are_each_served_once(qos):
    """10.2 At one node that has consumers of both, or at two that have one of each."""
    wire = settled("1-2 2-3 3-4", (2, SHARE), (3, OTHER), (4, SHARE), (4, OTHER))
    found = served(wire, 1, qos)
    assert found == {2: COUNT // 2, 3: COUNT // 2, 4: COUNT // 2}
    assert overlaps(wire, 1) == 0


def test_10_3_publication_for_a_share_names_its_receivers():
    """10.3 Other nodes forward it, at QoS 0 as well."""
    wire = settled("1-2 2-3", (2, SHARE), (3, SHARE), (2, "b"))
    assert served(wire, 1, 0) == {2: COUNT // 2, 3: COUNT // 2}
    assert len(wire.copies()) > COUNT  # it crosses 2 on its way to 3


def test_10_4_unavoidable_extra_deliveries_are_counted():
    """10.4 Two brokers with a plain subscriber and a consumer each both serve the share."""
    wire = settled("1-2 2-3", (2, SHARE), (2, "a"), (3, SHARE), (3, "a"))
    assert served(wire, 1, 1) == {2: COUNT, 3: COUNT}
    assert overlaps(wire, 1) == COUNT
    wire = settled("1-2", (1, SHARE), (2, SHARE), (2, "a"))
    assert served(wire, 1, 0) == {2: COUNT}
    assert overlaps(wire, 1) == COUNT


def test_10_5_stored_values_are_not_for_shares():
    """10.5 A node with only a share of a topic gets no stored value."""
    wire = settled("1-2 2-3", (2, "a"), (3, SHARE))
    wire.stored = {place: {} for place in wire.nodes}
    wire.publish(1, "a", b"x", retain=True)
    wire.run(1.0)
    wire.unsubscribe(3, SHARE)
    wire.run(1.0)
    wire.subscribe(3, SHARE)
    wire.run(3.0)
    assert wire.effects(3, PublishRetained) == []
    assert wire.retained_at(2) == {"a": b"x"}
