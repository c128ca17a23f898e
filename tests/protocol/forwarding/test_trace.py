"""A dry run decides like the forwarding engine, and says why."""

from collections import deque

import pytest
from tests.protocol.federation import LINE, RING, SIX_BROKERS, SQUARE, grid, publish, settled
from tests.protocol.wire_of_nodes import Wire

from hansa.protocol.forwarding.trace import CopyTrace, FilterTrace, GroupTrace, TracedCopy
from hansa.protocol.model import HOPS_MAX, GroupId, NodeId, group_id
from hansa.protocol.settings import NonMemberForwarding


def follow(wire: Wire, origin: int, topic: str) -> tuple[list[tuple[int, int]], list[int]]:
    """Trace a topic over all nodes; return the links that copies cross and where it is delivered.

    Copies arrive in the order in which they were sent, as on a wire with equal delays.
    """
    links: list[tuple[int, int]] = []
    delivered: list[int] = []
    sent_towards: dict[int, set[GroupId]] = {}
    queue = deque([(origin, TracedCopy(topic, NodeId(origin)))])
    while queue:
        place, copy = queue.popleft()
        seen = sent_towards.get(place)
        targets = tuple(each for each in copy.target_groups if each not in (seen or ()))
        if seen is not None and not targets:
            continue
        found = wire.nodes[place].trace(
            TracedCopy(copy.topic, copy.origin, copy.sender, copy.hops, targets, seen is None)
        )
        if seen is None and found.local_filters and copy.sender is not None:
            delivered.append(place)
        towards = {group for _, groups in found.copies for group in groups}
        sent_towards.setdefault(place, set()).update(towards)
        for neighbour, groups in found.copies:
            links.append((place, neighbour))
            queue.append(
                (neighbour, TracedCopy(topic, copy.origin, NodeId(place), copy.hops + 1, groups))
            )
    return links, sorted(delivered)


@pytest.mark.parametrize(
    ("links", "subscriptions"),
    [
        (LINE, [(4, "g")]),
        (RING, [(2, "g"), (4, "g")]),
        (SQUARE, [(1, "g"), (2, "+"), (3, "#")]),
        (SIX_BROKERS, [(5, "g"), (2, "g"), (4, "+")]),
        (grid(3), [(8, "g"), (2, "g"), (6, "+"), (4, "#")]),
    ],
)
@pytest.mark.parametrize("strategy", ["mesh", "tree-flood", "paths"])
def test_trace_follows_the_links_that_a_publication_takes(links, subscriptions, strategy):
    wire = settled(links, *subscriptions, strategy=strategy)
    for origin in wire.nodes:
        deliveries = publish(wire, origin)
        crossed = wire.copies()
        traced, delivered = follow(wire, origin, "g")
        assert sorted(traced) == sorted(crossed), origin
        assert delivered == sorted(deliveries), origin


def test_all_parents_are_traced_where_publications_take_all():
    wire = settled(SQUARE, (3, "g"), non_member_forwarding=NonMemberForwarding.ALL)
    assert sorted(follow(wire, 1, "g")[0]) == [(1, 2), (1, 4), (2, 3), (4, 3)]


def test_trace_changes_nothing():
    wire = settled(LINE, (4, "g"))
    for _ in range(2):
        follow(wire, 1, "g")
    assert publish(wire, 1) == {4: [b"x"]}


def test_reasons_at_the_origin():
    wire = settled("1-2", (2, "g/#"), (1, "g/+"))
    three = wire.nodes[1].trace(TracedCopy("g/a", NodeId(1)))
    assert three == CopyTrace(
        groups=(
            GroupTrace("g/+", group_id("g/+"), NodeId(1), True),
            GroupTrace("g/#", group_id("g/#"), NodeId(2), False),
        ),
        local_filters=("g/+",),
        remote_filters=(FilterTrace("g/#", (NodeId(2),), True),),
        copies=((NodeId(2), (group_id("g/#"),)),),
        unroutable=(),
    )


def test_topic_without_interest_has_no_groups():
    wire = settled("1-2", (2, "g"))
    assert wire.nodes[1].trace(TracedCopy("other", NodeId(1))) == CopyTrace((), (), (), (), ())


def test_copy_past_the_hop_limit_stops():
    wire = settled(LINE, (4, "g"))
    group = group_id("g")
    late = TracedCopy("g", NodeId(1), NodeId(1), HOPS_MAX, (group,))
    found = wire.nodes[2].trace(late)
    assert (found.copies, found.unroutable) == ((), (group,))


def test_sender_that_is_no_neighbour_is_reported():
    wire = settled(LINE, (4, "g"))
    found = wire.nodes[1].trace(TracedCopy("g", NodeId(4), NodeId(4)))
    assert found == CopyTrace((), (), (), (), (), is_known_sender=False)
