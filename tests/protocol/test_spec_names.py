"""Section 1 of docs/protocol.md, rule by rule: names and bounds."""

from dataclasses import replace

import pytest
from tests.protocol.federation import SQUARE, link_of, publish, restart, settled, views
from tests.protocol.wire_of_nodes import Wire, key

from hansa.errors import InvalidFrame, InvalidTopic
from hansa.protocol.effects import Ignored, Send
from hansa.protocol.events import Published, Received
from hansa.protocol.frames import UNREACHABLE, Announce, Hello, Membership, Resend, Values
from hansa.protocol.node import Node
from hansa.protocol.settings import Outside
from hansa.protocol.topics import check_filter, matches
from hansa.protocol.vocabulary import Identity, NodeId, Publication, node_id
from hansa.protocol.windows import STRANGERS_MAX
from hansa.protocol.wire import FORMAT_VERSION, decode, encode, strand


def test_1_1_the_later_of_two_starts_is_believed():
    """1.1 A 64-bit id from the public key; an incarnation that grows at every start."""
    assert len({node_id(key(number)) for number in range(100)}) == 100
    assert 0 <= node_id(key(1)) < 1 << 64
    wire = settled("1-2 2-3", (1, "old"), (1, "older"))
    wire.stop(1)
    restart(wire, 1, "1-2", incarnation=2)
    wire.want(1, "new")
    wire.run(0.5)
    known = wire.nodes[3].view().interest[NodeId(1)]
    assert (known.stamp[0], known.filters) == (2, ("new",))


def test_1_2_topics_follow_mqtt_and_what_belongs_to_one_broker_stays_there():
    """1.2 Topics follow MQTT; `$` never crosses; `$share/g/f` counts as `f`."""
    assert matches("+/b", "a/b")
    assert not matches("#", "$SYS/uptime")
    check_filter("a" * 1_024)
    check_filter("/".join("a" * 32))
    for wrong in ("a" * 1_025, "/".join("a" * 33), "a#", "a/#/b", ""):
        with pytest.raises(InvalidTopic):
            check_filter(wrong)
    wire = settled("1-2", (2, "$SYS/#"), (2, "$share/workers/a/+"))
    assert wire.nodes[1].view().interest[NodeId(2)].filters == ("$share/workers/a/+",)
    assert publish(wire, 1, "a/b") == {2: [b"x"]}
    assert publish(wire, 1, "$SYS/uptime") == {}


def test_1_3_a_frame_is_valid_or_refused_with_one_named_error():
    """1.3 A frame is valid and within its bounds, or refused with `InvalidFrame`."""
    hello = encode(Hello(1, "hansa", NodeId(1), key(1), 1, "one", "settings", 7))
    publication = encode(Publication(NodeId(1), 1, 1, 0, "a", b""))
    assert encode(decode(hello)) == hello
    cut_short = [hello[:size] for size in range(len(hello))]
    cut_short += [publication[:size] for size in range(len(publication))]
    for bytes_of_nobody in (*cut_short, bytes([FORMAT_VERSION + 1 << 4]), b"\xff" * 100):
        with pytest.raises(InvalidFrame):
            decode(bytes_of_nobody)
    too_far = Announce(NodeId(1), 1, 1, distance=UNREACHABLE + 1)
    with pytest.raises(ValueError, match="the limit is"):
        encode(too_far)


def test_1_4_what_is_refused_for_a_bound_is_counted():
    """1.4 Whatever can grow has a bound; what is refused for it is counted with the reason."""
    wire = settled(SQUARE, nodes_max=3, filters_per_node_max=2, plans_max=8)
    wire.want(2, "a", "b", "c", "d")
    wire.run(0.2)
    for number in range(12):
        wire.publish(1, f"a/{number}")
    view = views(wire)[1]
    assert view.interest[NodeId(2)].filters == ("a", "b")
    assert (view.sizes["nodes"], view.sizes["plans"]) == (3, 12 % 8)
    assert view.counters.keys() == {"nodes_max"}
    assert views(wire)[2].counters["filters_per_node_max"] == 2


def test_1_4_ways_to_cores_that_nobody_knows_are_bounded():
    """1.4 Whatever can grow has a bound; what is refused for it is counted with the reason."""
    wire = settled("1-2", nodes_max=10)
    for core in range(100, 200):
        wire.give(1, Received(link_of(wire, 1, 2), Announce(NodeId(core), 1, 1, distance=1)))
    view = views(wire)[1]
    assert len(view.cores) <= 10
    assert sum(view.counters.values()) >= 90


def test_1_4_memberships_of_groups_that_nobody_wants_are_bounded():
    """1.4 Whatever can grow has a bound; what is refused for it is counted with the reason."""
    wire = settled("1-2", filters_per_node_max=10)
    for number in range(20):
        frame = Membership(NodeId(1), 1, joined=(f"x{number}",))
        wire.give(1, Received(link_of(wire, 1, 2), frame))
    view = views(wire)[1]
    # The management group, of which the neighbour is a child as well, counts too.
    assert view.counters == {"filters_per_node_max": 11}


def test_1_4_publications_of_invented_origins_are_bounded():
    """1.4 Whatever can grow has a bound; what is refused for it is counted with the reason."""
    wire = settled("1-2", (1, "g"))
    for origin in range(100, 200):
        invented = Publication(NodeId(origin), 1, 1, 0, "g", b"")
        wire.give(1, Received(link_of(wire, 1, 2), invented))
    view = views(wire)[1]
    assert view.sizes["windows"] == STRANGERS_MAX
    assert view.counters == {"publication of an unknown node": 100 - STRANGERS_MAX}


def test_1_5_the_same_inputs_at_the_same_times_give_the_same_outputs():
    """1.5 A node never acts on chance or a clock of its own."""
    wire = Wire(SQUARE, outside=Outside.RANDOM)
    wire.want(3, "g")
    wire.want(4, "g")
    wire.run(0.2)
    for _ in range(10):
        wire.publish(1, "g")
    wire.cut("3-4")
    wire.run(2.0)
    for place in wire.nodes:
        twin = Node(Identity(NodeId(place), key(place), incarnation=1), wire.settings)
        steps = [step for step in wire.log if step.place == place]
        assert [twin.handle(step.event, step.at) for step in steps] == [s.effects for s in steps]
        assert twin.view() == wire.nodes[place].view()


def test_1_6_what_is_larger_than_all_agreed_on_stays():
    """1.6 All nodes agree on the largest publication; a larger one stays and is counted."""
    wire = settled("1-2", (2, "a"), packet_bytes_max=10_000)
    other = replace(wire.settings, packet_bytes_max=20_000).agreement()
    assert other != wire.settings.agreement()
    assert isinstance(wire.give(1, Published("a", bytes(9_999)))[0], Send)
    for qos in (0, 1):
        large = Published("a", bytes(10_000), qos)
        assert wire.give(1, large) == [Ignored("larger than a packet may be")]


def test_1_6_frames_of_one_strand_keep_their_order():
    """1.6 QoS 1 and 2 of one origin, QoS 0 of one origin and topic, answers."""

    def of(origin: int, qos: int, topic: str) -> bytes:
        return strand(encode(Publication(NodeId(origin), 1, 1, qos, topic, b"")))

    assert of(1, 1, "a") == of(1, 2, "b") != of(2, 1, "a")
    assert of(1, 0, "a") != of(1, 0, "b")
    assert len({of(1, 0, "a"), of(2, 0, "a"), of(1, 1, "a")}) == 3
    one, two = NodeId(1), NodeId(2)
    answers = (Resend(one, two, 1, 0, 1, 0, ()), Values(two, one, ()))
    assert {strand(encode(answer)) for answer in answers} == {b""}
