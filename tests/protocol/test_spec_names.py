"""Section 1 of docs/protocol.md, rule by rule: names and bounds."""

from dataclasses import replace

import pytest
from tests.protocol.federation import SQUARE, link_of, publish, restart, settled, views
from tests.protocol.wire_of_nodes import Wire, key

from hansa.errors import InvalidFrame, InvalidTopic
from hansa.protocol.effects import Ignored, Send
from hansa.protocol.events import ClientPublished, ClockRead, FrameReceived, PeersRestored
from hansa.protocol.forwarding.dedup import UNKNOWN_ORIGINS_MAX
from hansa.protocol.membership.records import InterestRecord, NodeRecord
from hansa.protocol.model import Identity, NodeId, Publication, node_id
from hansa.protocol.node import Node
from hansa.protocol.routing.mesh.strategy import EARLY_GROUPS_MAX
from hansa.protocol.settings import NonMemberForwarding
from hansa.protocol.topics import check_filter, matches
from hansa.protocol.wire.codec import FORMAT_VERSION, decode, encode, ordering_key
from hansa.protocol.wire.frames import (
    UNREACHABLE,
    CoreAnnouncement,
    Hello,
    MeshMembership,
    PendingNotice,
    QueryResponse,
    RepairResponse,
    RetainedValuesFrame,
    Update,
)


def test_1_1_later_of_two_starts_wins():
    """1.1 A 64-bit id from the public key; an incarnation that grows at every start."""
    assert len({node_id(key(number)) for number in range(100)}) == 100
    assert 0 <= node_id(key(1)) < 1 << 64
    wire = settled("1-2 2-3", (1, "old"), (1, "older"))
    wire.stop(1)
    restart(wire, 1, "1-2", incarnation=2)
    wire.subscribe(1, "new")
    wire.run(0.5)
    known = wire.nodes[3].status().interest[NodeId(1)]
    assert (known.stamp[0], known.filters) == (2, ("new",))


def test_1_1_id_that_does_not_match_its_key_is_refused():
    """1.1 In hellos, in records and on this node's own disk."""
    wire = Wire()
    derived = {place: node_id(key(place)) for place in (1, 2)}
    for place, node in derived.items():
        wire.start(place, Identity(node, key(place), 1))
    wire.start(3)  # its id is its place
    wire.join("1-2 1-3")
    wire.run(0.5)
    assert sorted(wire.nodes[1].status().neighbours) == [derived[2]]
    forged = NodeRecord(NodeId(7), 1, 1, 1, key(7), "", (), 1.0, ())
    refused = Ignored("node id does not match its key")
    assert wire.give(1, FrameReceived(link_of(wire, 1, derived[2]), Update((forged,)))) == [refused]
    assert wire.give(1, PeersRestored((forged,))) == [refused]
    assert wire.nodes[1].status().counters[refused.reason] == 3


def test_1_2_topics_follow_mqtt_and_dollar_topics_are_not_federated():
    """1.2 Topics follow MQTT; `$` is never federated; `$share/g/f` counts as `f`."""
    assert matches("+/b", "a/b")
    assert not matches("#", "$SYS/uptime")
    check_filter("a" * 1_024)
    check_filter("/".join("a" * 32))
    for wrong in ("a" * 1_025, "/".join("a" * 33), "a#", "a/#/b", ""):
        with pytest.raises(InvalidTopic):
            check_filter(wrong)
    wire = settled("1-2", (2, "$SYS/#"), (2, "$share/workers/a/+"))
    assert wire.nodes[1].status().interest[NodeId(2)].filters == ("$share/workers/a/+",)
    assert publish(wire, 1, "a/b") == {2: [b"x"]}
    assert publish(wire, 1, "$SYS/uptime") == {}


@pytest.mark.parametrize("name", ["$SYS/#", "$share/g/$SYS/#"])
def test_1_2_record_with_a_dollar_filter_is_refused(name):
    """1.2 Otherwise every agent would forward the status topics of its broker."""
    wire = settled("1-2")
    wish = InterestRecord(NodeId(2), 1, 1, 0, (name,))
    refused = wire.give(1, FrameReceived(link_of(wire, 1, 2), Update((wish,))))
    assert refused == [Ignored("interest in topics of one broker")]


def test_1_3_frame_is_valid_or_refused_with_one_named_error():
    """1.3 A frame is valid and within its bounds, or refused with `InvalidFrame`."""
    hello = encode(Hello(1, "hansa", NodeId(1), key(1), 1, "one", "settings", 7))
    publication = encode(Publication(NodeId(1), 1, 1, 0, "a", b""))
    assert encode(decode(hello)) == hello
    cut_short = [hello[:size] for size in range(len(hello))]
    cut_short += [publication[:size] for size in range(len(publication))]
    for bytes_of_nobody in (*cut_short, bytes([FORMAT_VERSION + 1 << 4]), b"\xff" * 100):
        with pytest.raises(InvalidFrame):
            decode(bytes_of_nobody)
    too_far = CoreAnnouncement(NodeId(1), 1, 1, distance=UNREACHABLE + 1)
    with pytest.raises(ValueError, match="the limit is"):
        encode(too_far)


def test_1_4_refusals_for_a_bound_are_counted():
    """1.4 Everything that can grow has a bound; refusals are counted with the reason."""
    wire = settled(SQUARE, nodes_max=3, filters_per_node_max=2, plans_max=8)
    wire.subscribe(2, "a", "b", "c", "d")
    wire.run(0.2)
    for number in range(12):
        wire.publish(1, f"a/{number}")
    view = views(wire)[1]
    assert view.interest[NodeId(2)].filters == ("a", "b")
    assert (view.sizes["nodes"], view.sizes["topic_plans"]) == (3, 12 % 8)
    assert view.counters.keys() == {"nodes_max"}
    assert views(wire)[2].counters["filters_per_node_max"] == 2


def test_1_4_nodes_and_filters_of_one_neighbour_leave_room_for_others():
    """1.4 Nodes first learned from one neighbour have a separate bound."""
    bounds = {"nodes_max": 20, "nodes_per_neighbour_max": 5, "filters_per_neighbour_max": 6}
    wire = settled("1-3 2-1", **bounds)
    made_up = [NodeRecord(NodeId(n), 1, 1, 1, key(n), "", (), 1.0, ()) for n in range(10, 20)]
    wishes = [InterestRecord(NodeId(n), 1, 1, 0, (f"{n}/a", f"{n}/b")) for n in range(10, 20)]
    wire.give(1, FrameReceived(link_of(wire, 1, 2), Update((*made_up, *wishes))))
    counters = views(wire)[1].counters
    assert counters["nodes_per_neighbour_max"] == 6
    assert counters["filters_per_neighbour_max"] == 1
    wire.start(4)
    wire.join("4-3")
    wire.subscribe(4, "real/#")
    wire.run(1.0)
    assert publish(wire, 1, "real/1") == {4: [b"x"]}


def test_1_4_node_at_the_edge_gets_all_filters_from_one_neighbour():
    """1.4 The longest-linked neighbour and dialled ones may bring all filters that fit."""
    wire = settled("1-2 2-3 4-3", filters_per_neighbour_max=3)
    for place in (1, 2, 3, 4):
        wire.subscribe(place, f"{place}/a", f"{place}/b")
        wire.run(1.0)
    for place, last in ((1, 4), (4, 1)):
        assert not views(wire)[place].counters
        assert publish(wire, place, f"{last}/b", qos=1) == {last: [b"x"]}
    assert all(view.installed for view in views(wire).values())


def test_1_4_routes_to_unknown_cores_are_not_kept():
    """1.4 Everything that can grow has a bound; refusals are counted with the reason."""
    wire = settled("1-2", nodes_max=10)
    cores = views(wire)[1].cores
    for core in range(100, 200):
        wire.give(
            1, FrameReceived(link_of(wire, 1, 2), CoreAnnouncement(NodeId(core), 1, 1, distance=1))
        )
    view = views(wire)[1]
    assert view.cores == cores
    assert view.counters == {"announcement of an unknown core": 90}


def test_1_4_memberships_of_groups_without_interest_are_bounded():
    """1.4 Everything that can grow has a bound; refusals are counted with the reason."""
    wire = settled("1-2", filters_per_node_max=10)
    for number in range(10 + EARLY_GROUPS_MAX + 10):
        frame = MeshMembership(NodeId(1), 1, joined=(f"x{number}",))
        wire.give(1, FrameReceived(link_of(wire, 1, 2), frame))
    view = views(wire)[1]
    # The management group, of which the neighbour is a child as well, counts too.
    assert view.counters == {"filters_per_node_max": 11}


def test_1_4_relay_may_join_a_group_before_the_interest_in_it_is_known():
    """1.4 … as the only member of other groups, and with the smallest bound."""
    wire = settled("1-2", filters_per_node_max=1)
    link = link_of(wire, 1, 2)
    wire.give(1, FrameReceived(link, MeshMembership(NodeId(1), 1, joined=("a", "b"))))
    assert views(wire)[1].counters == {}


def test_1_4_publications_of_invented_origins_are_bounded():
    """1.4 Everything that can grow has a bound; refusals are counted with the reason."""
    wire = settled("1-2", (1, "g"))
    for origin in range(100, 200):
        invented = Publication(NodeId(origin), 1, 1, 0, "g", b"")
        wire.give(1, FrameReceived(link_of(wire, 1, 2), invented))
    view = views(wire)[1]
    assert view.sizes["dedup_windows"] == UNKNOWN_ORIGINS_MAX
    assert view.counters == {"publication of an unknown node": 100 - UNKNOWN_ORIGINS_MAX}


def test_1_5_same_inputs_at_the_same_times_give_the_same_outputs():
    """1.5 A node uses no randomness and no clock."""
    wire = Wire(SQUARE, non_member_forwarding=NonMemberForwarding.RANDOM)
    wire.subscribe(3, "g")
    wire.subscribe(4, "g")
    wire.run(0.2)
    for _ in range(10):
        wire.publish(1, "g")
    wire.cut("3-4")
    wire.run(2.0)
    for place in wire.nodes:
        twin = Node(Identity(NodeId(place), key(place), incarnation=1), wire.settings)
        steps = [step for step in wire.log if step.place == place]
        assert [twin.handle(step.event, step.at) for step in steps] == [s.effects for s in steps]
        assert twin.status() == wire.nodes[place].status()


def test_1_6_publication_larger_than_the_limit_is_not_forwarded():
    """1.6 All nodes agree on the largest publication; a larger one stays and is counted."""
    wire = settled("1-2", (2, "a"), packet_bytes_max=10_000)
    other = replace(wire.settings, packet_bytes_max=20_000).shared_settings_text()
    assert other != wire.settings.shared_settings_text()
    assert isinstance(wire.give(1, ClientPublished("a", bytes(9_999)))[0], Send)
    for qos in (0, 1):
        large = ClientPublished("a", bytes(10_000), qos)
        assert wire.give(1, large) == [Ignored("larger than packet_bytes_max")]


def test_1_6_frames_with_one_ordering_key_keep_their_order():
    """1.6 QoS 1 and 2 of one origin, QoS 0 of one origin and topic, bulk responses."""

    def of(origin: int, qos: int, topic: str) -> bytes:
        return ordering_key(encode(Publication(NodeId(origin), 1, 1, qos, topic, b"")))

    assert of(1, 1, "a") == of(1, 2, "b") != of(2, 1, "a")
    assert of(1, 0, "a") != of(1, 0, "b")
    assert len({of(1, 0, "a"), of(2, 0, "a"), of(1, 1, "a")}) == 3
    one, two = NodeId(1), NodeId(2)
    answers = (
        RepairResponse(one, two, 1, 0, 1, 0, ()),
        RetainedValuesFrame(two, one, ()),
        QueryResponse(two, one, 1, b""),
    )
    assert {ordering_key(encode(answer)) for answer in answers} == {b""}


DAY_MS = 86_400_000


def test_1_7_values_ahead_of_the_clock_are_refused():
    """1.7 Incarnations in hellos, records and announcements by 24 hours at most."""
    wire = settled("1-2")
    link, two = link_of(wire, 1, 2), NodeId(2)
    wire.give(1, ClockRead(5 * DAY_MS))
    refused = Ignored("incarnation ahead of the clock")
    later = NodeRecord(two, 6 * DAY_MS + 1, 1, 1, key(2), "", (), 1.0, ())
    assert wire.give(1, FrameReceived(link, Update((later,)))) == [refused]
    assert wire.give(1, FrameReceived(link, CoreAnnouncement(two, 6 * DAY_MS + 1, 1, 0))) == [
        refused
    ]
    wire.run(0.001)
    assert refused not in wire.give(1, FrameReceived(link, Update((later,))))


def test_1_7_own_incarnation_is_the_time_until_it_is_known():
    """1.7 Incarnations are times in milliseconds."""
    wire = Wire()
    wire.start(1, Identity(NodeId(1), key(1), DAY_MS))
    wire.start(2, Identity(NodeId(2), key(2), 2 * DAY_MS))
    wire.start(3, Identity(NodeId(3), key(3), 2 * DAY_MS + 1_000))
    wire.join("1-2 1-3")
    wire.run(0.5)
    assert sorted(wire.nodes[1].status().neighbours) == [2]
    wire.run(1.0)
    wire.join("1-3")
    wire.run(0.5)
    assert sorted(wire.nodes[1].status().neighbours) == [2, 3]


def test_1_7_no_node_makes_more_than_a_million_changes_a_second():
    """1.7 Versions and numbers are bounded by the time since the incarnation began."""
    wire = settled("1-2", (1, "g"))
    link, two, most = link_of(wire, 1, 2), NodeId(2), 2 * (DAY_MS + 10_000) * 1_000
    record = NodeRecord(two, 1, most, 1, key(2), "", (), 1.0, ())
    assert wire.give(1, FrameReceived(link, Update((record,)))) == [
        Ignored("version out of bounds")
    ]
    announce = CoreAnnouncement(two, 1, most, 0)
    reason = "announcement number out of bounds"
    assert wire.give(1, FrameReceived(link, announce)) == [Ignored(reason)]
    for qos in (0, 1):
        copy = Publication(two, 1, most, qos, "g", b"", receivers=((NodeId(1), 0),))
        reason = "publication number out of bounds"
        assert wire.give(1, FrameReceived(link, copy)) == [Ignored(reason)]
    reason = "pending notice with a position out of bounds"
    notice = PendingNotice(NodeId(1), two, 1, most)
    assert wire.give(1, FrameReceived(link, notice)) == [Ignored(reason)]
    assert publish(wire, 2) == {1: [b"x"]}
