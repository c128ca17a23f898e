"""The fast path of a publication, from bytes to bytes, agrees with the slow path."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as change
from tests.protocol.contexts import context, records

from hansa.protocol.clock import AHEAD, EPOCH_AHEAD
from hansa.protocol.delivery.state import DeliveryState, RestoredState
from hansa.protocol.effects import Deliver, Dropped, Duplicate, Effect, Ignored, Send
from hansa.protocol.events import ClientPublished
from hansa.protocol.forwarding import engine as engine_module
from hansa.protocol.forwarding.dedup import UNKNOWN_ORIGINS_MAX
from hansa.protocol.forwarding.engine import SMALL_BYTES_MAX, Deliveries, ForwardingEngine, Outgoing
from hansa.protocol.forwarding.table import ForwardingTable, GroupEntry
from hansa.protocol.interest.shared_subscriptions import ShareSelector, TopicInterest
from hansa.protocol.links.neighbours import NeighbourLink
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.origins import WRONG_SIDE, Origins
from hansa.protocol.model import HOPS_MAX, LinkId, NodeId, PlainMessage, Publication, group_id
from hansa.protocol.settings import Metric, NonMemberForwarding, ProtocolSettings
from hansa.protocol.topics import FilterTrie
from hansa.protocol.wire.codec import decode_publication, encode
from hansa.protocol.wire.frames import Goodbye, Hello

HERE, ELSEWHERE, THIRD = NodeId(1), NodeId(9), NodeId(8)
L1, L2, L3 = LinkId(1), LinkId(2), LinkId(3)
G, H = group_id("a/+"), group_id("+/b")

MEMBER = GroupEntry("a/+", True, mesh_links=(L1, L2))
NON_MEMBER = GroupEntry("a/+", False, core_links=(L1, L2))


def engine(
    *entries: GroupEntry,
    local_filters: tuple[str, ...] = (),
    non_member_forwarding: NonMemberForwarding = NonMemberForwarding.ONE,
    shares: dict[str, tuple[NodeId, ...]] | None = None,
) -> ForwardingEngine:
    trie: FilterTrie[int] = FilterTrie()
    for topic_filter in local_filters:
        trie.put(topic_filter, 1)
    settings = ProtocolSettings(non_member_forwarding=non_member_forwarding)
    table = ForwardingTable(trie, settings.plans_max, list)
    ids = (HERE, ELSEWHERE, THIRD)
    known = records(*ids)
    delivery = DeliveryState(
        HERE,
        settings,
        RestoredState(),
        context(known, lambda topic: table.plan(topic).deliver_locally),
    )
    graph = Graph(HERE, Metric.HOPS)
    for node in ids:  # a triangle: every node is behind every neighbour
        graph.set_links(node, dict.fromkeys((other for other in ids if other != node), 1))
    peers = {link: neighbour(link, node) for link, node in ((L1, ELSEWHERE), (L2, THIRD))}
    made = ForwardingEngine(
        *(HERE, settings, table, delivery),
        ShareSelector(
            lambda topic: TopicInterest((), shares or {}), lambda share: False, lambda: known
        ),
        Origins(graph, peers, known),
    )
    for entry in entries:
        made.table.put(entry)
    return made


def neighbour(link: LinkId, node: NodeId) -> NeighbourLink:
    return NeighbourLink(link, True, None, 0.0, Hello(1, "", node, b"", 1, "", "", 0))


def published(payload: bytes = b"x", topic: str = "a/b", **fields: object) -> ClientPublished:
    return ClientPublished(topic, payload, **fields)  # type: ignore[arg-type]


def copy(number: int = 1, **fields: object) -> Publication:
    return Publication(ELSEWHERE, 1, number, 0, "a/b", b"x", **fields)  # type: ignore[arg-type]


def publish_all(
    node_engine: ForwardingEngine, *events: ClientPublished, incarnation: int = 1
) -> tuple[Outgoing, list[object]]:
    outgoing: Outgoing = defaultdict(list)
    return outgoing, list(node_engine.publish_batch(events, incarnation, outgoing, 0.0))


def forward(
    node_engine: ForwardingEngine, *copies: Publication
) -> tuple[Outgoing, list[PlainMessage], list[Effect]]:
    """Outgoing frames, deliveries and effects of copies from the first link."""
    outgoing: Outgoing = defaultdict(list)
    deliveries: Deliveries = []
    effects: list[Effect] = []
    assert (
        node_engine.forward_batch(L1, map(encode, copies), outgoing, deliveries, effects, 0.0)
        is None
    )
    return outgoing, [plain(each) for each in deliveries], effects


def plain(delivery: PlainMessage | Publication) -> PlainMessage:
    return delivery if isinstance(delivery, tuple) else (delivery.topic, delivery.payload)


def stopped_at(node_engine: ForwardingEngine, *frames: bytes) -> bytes | None:
    return node_engine.forward_batch(L1, iter(frames), defaultdict(list), [], [], 0.0)


# ---------------------------------------------------------------- local publications


def test_local_publication_goes_to_all_mesh_neighbours_in_the_same_bytes():
    outgoing, effects = publish_all(engine(MEMBER), published(b"1"), published(b"2"))
    assert not effects
    assert outgoing[L1] == outgoing[L2]
    assert [decode_publication(frame).payload for frame in outgoing[L1]] == [b"1", b"2"]
    assert [decode_publication(frame).sequence for frame in outgoing[L1]] == [1, 2]


def test_new_incarnation_is_in_every_frame_from_then_on():
    node_engine = engine(MEMBER)
    publish_all(node_engine, published(), published())
    outgoing, _ = publish_all(node_engine, published(), published(), incarnation=7)
    assert [decode_publication(frame).epoch for frame in outgoing[L1]] == [7, 7]


def test_changed_table_counts_at_once():
    node_engine = engine(MEMBER)
    publish_all(node_engine, published(), published())
    node_engine.table.put(GroupEntry("a/+", True, mesh_links=(L3,)))
    outgoing, _ = publish_all(node_engine, published(), published())
    assert {link: len(frames) for link, frames in outgoing.items()} == {L3: 2}


def test_random_parent_is_picked_anew_for_each():
    node_engine = engine(NON_MEMBER, non_member_forwarding=NonMemberForwarding.RANDOM)
    outgoing, _ = publish_all(node_engine, *[published()] * 40)
    assert {len(outgoing[L1]), len(outgoing[L2])} != {0, 40}
    assert len(outgoing[L1]) + len(outgoing[L2]) == 40


def test_local_publication_without_a_route_is_reported_each_time():
    outgoing, effects = publish_all(engine(GroupEntry("a/+", False)), published(), published())
    assert not outgoing
    assert effects == [Dropped(HERE, n, "no route to the core") for n in (1, 2)]


def test_topics_of_one_broker_are_not_forwarded():
    outgoing, effects = publish_all(
        engine(GroupEntry("$x", True, (L1,))), *[published(topic="$x")] * 2
    )
    assert not outgoing
    assert effects == [Ignored("topic for this broker only")] * 2


def test_publication_without_interest_takes_no_sequence_number():
    node_engine = engine(MEMBER)
    publish_all(node_engine, published(topic="c"), published(topic="c"))
    outgoing, _ = publish_all(node_engine, published())
    assert decode_publication(outgoing[L1][0]).sequence == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_publication_larger_than_the_limit_is_reported(qos):
    limit = ProtocolSettings().packet_bytes_max
    outgoing, effects = publish_all(engine(MEMBER), published(bytes(limit), qos=qos), published())
    assert effects == [Ignored("larger than packet_bytes_max")]
    assert len(outgoing[L1]) == len(outgoing[L2]) == 1


def test_publication_larger_than_a_frame_is_reported():
    outgoing, effects = publish_all(
        engine(GroupEntry("#", True, (L1,))), published(topic="/" * 200), published()
    )
    assert effects == [Ignored("larger than a frame")]
    assert len(outgoing[L1]) == 1


payloads = st.sampled_from([b"", b"x", bytes(SMALL_BYTES_MAX), bytes(SMALL_BYTES_MAX + 1)])
events = st.lists(
    st.builds(
        ClientPublished,
        st.sampled_from(["a/b", "a/c", "c/b", "c", "$a"]),
        payloads,
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from([b"", b"\x01\x01"]),
    ),
    max_size=10,
)
links = st.lists(st.sampled_from([L1, L2, L3]), unique=True, max_size=3).map(tuple)


def routes(origin: NodeId) -> tuple[LinkId, ...]:
    return (L2,) if origin == ELSEWHERE else (L2, L3)


entries = st.tuples(
    *(
        st.builds(
            GroupEntry,
            st.just(g),
            st.booleans(),
            links,
            links,
            origin_routes=st.sampled_from([None, routes]),
        )
        for g in ("a/+", "+/b")
    )
)
outsides = st.sampled_from(list(NonMemberForwarding))


@given(entries, events, outsides)
def test_fast_and_slow_path_agree_on_local_publications(table, given_events, non_member_forwarding):
    fast, slow = (
        engine(*table, non_member_forwarding=non_member_forwarding),
        engine(*table, non_member_forwarding=non_member_forwarding),
    )
    assert publish_all(slow) == ({}, [])  # which sets the time
    slow_effects = [effect for event in given_events for effect in slow.publish(event, 1)]
    expected: Outgoing = defaultdict(list)
    for effect in slow_effects:
        if isinstance(effect, Send):
            expected[effect.link].append(encode(effect.frame))
    outgoing, effects = publish_all(fast, *given_events)
    assert outgoing == expected
    assert effects == [effect for effect in slow_effects if not isinstance(effect, Send)]


# ---------------------------------------------------------------- received copies


def test_copy_is_delivered_and_forwarded_to_all_but_its_sender():
    outgoing, deliveries, effects = forward(
        engine(MEMBER, local_filters=("a/b",)), copy(1), copy(2)
    )
    assert list(outgoing) == [L2]
    assert [decode_publication(frame).hops for frame in outgoing[L2]] == [1, 1]
    assert deliveries == [("a/b", b"x")] * 2
    assert not effects


def test_copy_to_a_dollar_topic_is_not_delivered_to_a_wildcard():
    node_engine = engine(GroupEntry("#", True, mesh_links=(L1,)), local_filters=("#", "+/broker"))
    for number in (1, 2):
        sent = change(copy(number), topic="$SYS/broker")
        assert forward(node_engine, sent, change(sent, sequence=number + 2, retain=True))[1] == []


def test_copy_without_interest_is_dropped_and_recognised_as_duplicate():
    node_engine = engine(GroupEntry("a/+", True, mesh_links=(L1,)))
    assert forward(node_engine, copy(1), copy(2)) == ({}, [], [])
    assert forward(node_engine, copy(2)) == ({}, [], [Duplicate(ELSEWHERE, 2)])


def test_copy_with_two_target_groups_on_one_link_is_forwarded_unchanged():
    node_engine = engine(NON_MEMBER, GroupEntry("+/b", False, core_links=(L1, L2)))
    outgoing, _, effects = forward(node_engine, *(copy(n, target_groups=(G, H)) for n in (1, 2, 2)))
    assert list(map(decode_publication, outgoing[L2])) == [
        copy(n, hops=1, target_groups=(G, H)) for n in (1, 2)
    ]
    assert effects == [Duplicate(ELSEWHERE, 2)]


def test_duplicate_is_reported():
    _, deliveries, effects = forward(
        engine(MEMBER, local_filters=("a/b",)), copy(1), copy(2), copy(2)
    )
    assert len(deliveries) == 2
    assert effects == [Duplicate(ELSEWHERE, 2)]


def test_copy_of_an_old_epoch_is_a_duplicate():
    node_engine = engine(MEMBER)
    copies = [Publication(ELSEWHERE, incarnation, 1, 0, "a/b", b"") for incarnation in (5, 4, 3)]
    assert forward(node_engine, *copies)[2] == [Duplicate(ELSEWHERE, 1)]


@pytest.mark.parametrize("length", range(31))
def test_truncated_publication_is_returned(length):
    data = encode(copy())[:length]
    assert stopped_at(engine(MEMBER), data) == data


def test_control_frame_is_returned_and_the_rest_stays_in_the_iterator():
    control = encode(Goodbye("x" * 40))
    frames = iter([encode(copy(1)), control, encode(copy(2))])
    node_engine = engine(MEMBER)
    outgoing: Outgoing = defaultdict(list)
    assert node_engine.forward_batch(L1, frames, outgoing, [], [], 0.0) == control
    assert len(outgoing[L2]) == 1
    assert node_engine.forward_batch(L1, frames, outgoing, [], [], 0.0) is None
    assert len(outgoing[L2]) == 2


def test_truncated_topic_is_returned_although_its_flow_is_cached():
    node_engine = engine(MEMBER)
    forward(node_engine, copy(1))
    longer = encode(Publication(ELSEWHERE, 1, 2, 0, "a/bc", b""))
    assert stopped_at(node_engine, longer[:-1]) == longer[:-1]


def test_missing_target_groups_are_returned_although_the_flow_is_cached():
    node_engine = engine(MEMBER)
    forward(node_engine, copy(1))
    promising = bytearray(encode(Publication(ELSEWHERE, 1, 2, 0, "a/b", b"")))
    promising[4] = 1  # the number of target groups
    assert stopped_at(node_engine, bytes(promising)) == bytes(promising)


def test_header_with_empty_fields_caches_no_wrong_flow():
    node_engine = engine(MEMBER, local_filters=("#",))
    unusual = bytearray(encode(Publication(ELSEWHERE, 1, 1, 0, "a/longer", b"")))
    unusual[1] |= 8  # the flag `more`, followed by no entries and no properties
    unusual[31:31] = bytes(6)
    assert stopped_at(node_engine, bytes(unusual)) is None
    false = bytearray(encode(Publication(ELSEWHERE, 1, 2, 0, "a/longer", b"")))
    false[31:39] = bytes(6) + b"a/"  # an invalid topic
    assert stopped_at(node_engine, bytes(false)) == bytes(false)


def test_flow_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(engine_module, "FLOW_CACHE_MAX", 1)
    node_engine = engine(MEMBER, local_filters=("#",))
    topics = ["a/b", "a/c", "a/b", "a/" + "c" * 200]
    copies = [Publication(ELSEWHERE, 1, n, 0, t, b"") for n, t in enumerate(topics * 2, 1)]
    assert forward(node_engine, *copies)[1] == [(topic, b"") for topic in topics * 2]
    assert sum(map(len, node_engine.table.flow_cache.values())) == 1


def test_flow_is_dropped_with_its_entry():
    node_engine = engine(MEMBER)
    forward(node_engine, copy(1), copy(2))
    node_engine.table.put(GroupEntry("a/+", True, mesh_links=(L1, L3)))
    outgoing, _, _ = forward(node_engine, copy(3), copy(4))
    assert {link: len(frames) for link, frames in outgoing.items()} == {L3: 2}


def test_flow_is_per_origin_where_routes_depend_on_it():
    node_engine = engine(GroupEntry("a/+", True, origin_routes=routes))
    copies = [
        change(copy(number), origin=origin) for number in (1, 2) for origin in (ELSEWHERE, THIRD)
    ]
    outgoing, _, effects = forward(node_engine, *copies)
    assert {link: len(frames) for link, frames in outgoing.items()} == {L2: 4, L3: 2}
    assert len(node_engine.table.flow_cache[L1]) == 2
    assert not effects


def test_copy_keeps_its_target_group_until_it_reaches_the_mesh():
    outgoing, _, effects = forward(
        engine(NON_MEMBER), copy(1, target_groups=(G,)), copy(2, target_groups=(G,))
    )
    assert [decode_publication(frame) for frame in outgoing[L2]] == [
        copy(number, hops=1, target_groups=(G,)) for number in (1, 2)
    ]
    assert not effects
    outgoing, _, _ = forward(
        engine(MEMBER), copy(1, target_groups=(G,)), copy(2, target_groups=(G,))
    )
    assert [decode_publication(frame) for frame in outgoing[L2]] == [
        copy(number, hops=1) for number in (1, 2)
    ]


def test_copy_in_one_mesh_and_outside_another_goes_both_ways():
    node_engine = engine(
        GroupEntry("a/+", True, mesh_links=(L2,)),
        GroupEntry("+/b", False, core_links=(L3,)),
        local_filters=("a/b",),
    )
    copies = [copy(number, target_groups=(G, H)) for number in (1, 2, 2)]
    outgoing, deliveries, effects = forward(node_engine, *copies)
    assert [decode_publication(frame).target_groups for frame in outgoing[L2]] == [(), ()]
    assert [decode_publication(frame).target_groups for frame in outgoing[L3]] == [(H,), (H,)]
    assert len(deliveries) == 2
    assert effects == [Duplicate(ELSEWHERE, 2)]


def test_copy_without_a_route_is_reported_each_time():
    node_engine = engine(GroupEntry("a/+", False, core_links=(L1,)))
    effects = forward(node_engine, copy(1, target_groups=(G,)), copy(2, target_groups=(G,)))[2]
    assert effects == [Dropped(ELSEWHERE, n, "no route to the core") for n in (1, 2)]


@pytest.mark.parametrize("qos", [1, 2])
def test_copy_of_qos_1_or_2_is_forwarded_and_delivered_as_an_effect(qos):
    node_engine = engine(MEMBER, local_filters=("a/b",))
    pending = [
        Publication(ELSEWHERE, 1, number, qos, "a/b", b"x", receivers=((HERE, number - 1),))
        for number in (1, 2)
    ]
    outgoing, deliveries, effects = forward(node_engine, copy(1), *pending, copy(2))
    assert len(outgoing[L2]) == 4
    assert deliveries == [("a/b", b"x")] * 2
    assert effects == [Deliver(each) for each in pending]


arrivals = st.lists(
    st.tuples(
        st.sampled_from([L1, L1, L2]),
        st.builds(
            Publication,
            st.sampled_from([ELSEWHERE, THIRD, HERE]),
            st.integers(1, 4),
            st.integers(1, 3),
            st.just(0),
            st.sampled_from(["a/b", "a/c"]),
            payloads,
            st.booleans(),
            st.sampled_from([0, 0, 0, HOPS_MAX]),
            st.sampled_from([(), (G,), (H,), (G, H)]),
        ),
    ),
    max_size=12,
)


@given(entries, arrivals, outsides, st.booleans())
def test_fast_and_slow_path_agree_on_received_copies(
    table, copies, non_member_forwarding, local_filters
):
    local_filters = ("a/b",) if local_filters else ()
    fast, slow = (
        engine(*table, local_filters=local_filters, non_member_forwarding=non_member_forwarding)
        for _ in range(2)
    )
    slow_effects = [
        effect for link, each in copies for effect in slow.receive_copy(link, each, 0.0)
    ]
    expected: Outgoing = defaultdict(list)
    for effect in slow_effects:
        if isinstance(effect, Send):
            expected[effect.link].append(encode(effect.frame))
    outgoing: Outgoing = defaultdict(list)
    deliveries: Deliveries = []
    effects: list[Effect] = []
    for link, each in copies:
        fast.forward_batch(link, iter([encode(each)]), outgoing, deliveries, effects, 0.0)
    assert outgoing == expected
    rest = [effect for effect in slow_effects if not isinstance(effect, Send)]
    delivered = [each for each in rest if isinstance(each, Deliver) and not each.publication.qos]
    assert [plain(each) for each in deliveries] == [plain(each.publication) for each in delivered]
    assert effects == [effect for effect in rest if effect not in delivered]


# ---------------------------------------------------------------- origins


def test_copy_of_an_origin_that_is_not_behind_the_link_is_refused_on_both_paths():
    fast, slow = engine(MEMBER, local_filters=("a/b",)), engine(MEMBER, local_filters=("a/b",))
    for node_engine in (fast, slow):
        node_engine.origins.graph.set_links(
            THIRD, {HERE: 1}
        )  # it is reachable over the second link only
    copies = [copy(1), change(copy(2), origin=THIRD), copy(3)]
    _, deliveries, effects = forward(fast, *copies)
    assert effects == [Ignored(WRONG_SIDE)]
    assert len(deliveries) == 2
    assert [slow.receive_copy(L1, each, 0.0) for each in copies][1] == effects


def test_accepted_origins_follow_the_map():
    node_engine = engine(MEMBER)
    third = [change(copy(number), origin=THIRD) for number in (1, 2, 3)]
    assert forward(node_engine, copy(1), *third[:2])[2] == []
    node_engine.origins.graph.set_links(THIRD, {HERE: 1})
    assert forward(node_engine, third[2])[2] == [Ignored(WRONG_SIDE)]


def test_impossible_sequence_number_is_refused_on_both_paths():
    fast, slow = engine(MEMBER), engine(MEMBER)
    copies = [copy(1), copy(1 << 60), copy(2)]
    outgoing, _, effects = forward(fast, *copies)
    assert effects == [Ignored("publication number out of bounds")]
    assert len(outgoing[L2]) == 2
    assert [slow.receive_copy(L1, each, 0.0) for each in copies][1] == effects


@pytest.mark.parametrize(("qos", "reason"), [(0, AHEAD), (1, EPOCH_AHEAD)])
def test_epoch_ahead_of_the_clock_is_refused_on_both_paths(qos, reason):
    fast, slow = engine(MEMBER), engine(MEMBER)
    copies = [copy(1), change(copy(2), epoch=1 << 40, qos=qos), copy(3)]
    outgoing, _, effects = forward(fast, *copies)
    assert effects == [Ignored(reason)]
    assert len(outgoing[L2]) == 2
    assert [slow.receive_copy(L1, each, 0.0) for each in copies][1] == effects


def test_guaranteed_publication_of_an_unreachable_node_is_not_accepted():
    node_engine = engine(MEMBER, local_filters=("a/b",))
    graph = node_engine.origins.graph
    graph.set_links(ELSEWHERE, {})
    pending = Publication(ELSEWHERE, 1, 1, 1, "a/b", b"x", receivers=((HERE, 0),))
    passing = Publication(ELSEWHERE, 1, 2, 1, "a/b", b"x", receivers=((THIRD, 0),))
    outgoing, _, effects = forward(node_engine, pending, passing)
    assert effects == [Ignored("publication of an unreachable node")]
    assert len(outgoing[L2]) == 2


# ---------------------------------------------------------------- unknown origins


def test_publication_of_one_unknown_origin_too_many_is_ignored_on_both_paths():
    fast, slow = engine(MEMBER), engine(MEMBER)
    strangers = [replace_origin(copy(), NodeId(100 + n)) for n in range(UNKNOWN_ORIGINS_MAX + 1)]
    outgoing, _, effects = forward(fast, copy(), *strangers, copy(2))
    taken = [slow.receive_copy(L1, each, 0.0) for each in (copy(), *strangers, copy(2))]
    assert effects == [Ignored("publication of an unknown node")]
    assert [each for each in taken if not isinstance(each[0], Send)] == [effects]
    assert len(outgoing[L2]) == UNKNOWN_ORIGINS_MAX + 2


def test_one_unknown_origin_too_many_is_ignored_towards_a_core_as_well():
    node_engine = engine(NON_MEMBER)
    forward(node_engine, copy(target_groups=(G,)))  # the flow is cached from now on
    for number in range(UNKNOWN_ORIGINS_MAX):
        node_engine.duplicate_filter.admit_origin(NodeId(100 + number))
    _, _, effects = forward(node_engine, replace_origin(copy(target_groups=(G,)), NodeId(99)))
    assert effects == [Ignored("publication of an unknown node")]


def replace_origin(publication: Publication, origin: NodeId) -> Publication:
    return change(publication, origin=origin)
