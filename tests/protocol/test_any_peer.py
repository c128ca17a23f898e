"""With any well-formed frames of a peer, a node never raises, never has a deadline in the past, and
never sends an invalid frame.

Ids, numbers and names come from small sets, so that senseless frames still affect one another, and
include the largest values.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol import arbitrary
from tests.protocol.wire_of_nodes import key

from hansa.protocol.effects import Effect, Send, SubscribeAtBroker
from hansa.protocol.events import (
    ClientPublished,
    Event,
    FrameReceived,
    InterestChanged,
    LinkClosed,
    LinkOpened,
    SubscriptionsGranted,
    TimerFired,
)
from hansa.protocol.membership import records
from hansa.protocol.membership.records import RecordKind
from hansa.protocol.model import (
    HOPS_MAX,
    MANAGEMENT_GROUP,
    Identity,
    LinkId,
    NodeId,
    Publication,
    group_id,
)
from hansa.protocol.node import Node
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.wire import frames
from hansa.protocol.wire.codec import decode, encode
from hansa.protocol.wire.frames import UNREACHABLE

ME, PEER = NodeId(2), NodeId(1)
LARGEST = (1 << 64) - 1

nodes = st.sampled_from([0, PEER, ME, 3, LARGEST])
numbers = st.sampled_from([0, 1, 2, 3, LARGEST])
names = st.sampled_from(["g", "a/#", "a/b", "#", "$share/s/g", "$SYS/#"])
group_names = names | st.just(MANAGEMENT_GROUP)
group_ids = st.sampled_from([group_id("g"), group_id("a/#"), 0])
hops = st.sampled_from([0, 1, HOPS_MAX])


def some(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=3, unique=True).map(tuple)


@st.composite
def sets(draw: st.DrawFn, make: Any, each: st.SearchStrategy[str]) -> Any:
    base, version = sorted((draw(numbers), draw(numbers)))
    whole = base == version
    removed = () if whole else draw(some(each))
    part, parts = draw(st.sampled_from([(0, 1), (0, 2), (1, 2)] if whole else [(0, 1)]))
    return make(draw(nodes), draw(numbers), version, base, draw(some(each)), removed, part, parts)


claims = sets(records.ClaimsRecord, group_names)
node_records = st.builds(
    records.NodeRecord,
    node=nodes,
    incarnation=numbers,
    version=numbers,
    first_incarnation=numbers,
    key=nodes.map(lambda node: key(node)),
    name=st.just(""),
    addresses=st.just(()),
    capacity=st.sampled_from([0.0, 1.0, 9.0]),
    links=st.dictionaries(nodes, numbers, max_size=4).map(lambda row: tuple(sorted(row.items()))),
)
any_record = node_records | sets(records.InterestRecord, names) | claims

ordered = st.one_of(
    st.builds(frames.Goodbye, st.just("enough")),
    st.builds(
        frames.Summary, some(st.tuples(st.sampled_from(RecordKind), nodes, numbers, numbers))
    ),
    st.builds(frames.Update, some(any_record)),
    st.builds(frames.Fetch, some(st.tuples(st.sampled_from(RecordKind), nodes))),
    st.builds(
        frames.CoreAnnouncement,
        *(nodes, numbers, numbers),
        st.sampled_from([0, 1, 2, UNREACHABLE - 1, UNREACHABLE]),
        some(nodes),
        st.none() | claims,
        some(group_ids),
    ),
    st.builds(frames.MeshMembership, nodes, numbers, some(group_names), some(group_names)),
    st.builds(frames.AnnouncementRequest, nodes, numbers, numbers, hops),
    st.builds(
        frames.InterestAcks,
        some(st.builds(frames.InterestAck, nodes, numbers, numbers, nodes, numbers, numbers, hops)),
    ),
    st.builds(frames.InterestAckRequest, nodes, nodes, hops),
)
any_frame = st.one_of(
    ordered,
    st.builds(frames.Heartbeat, numbers, numbers, numbers, numbers),
    st.builds(frames.FrameAck, numbers, some(numbers)),
    st.builds(frames.SequencedFrame, st.integers(1, 6), ordered),
    st.builds(
        Publication,
        nodes,
        numbers,
        numbers,
        st.integers(0, 2),
        st.sampled_from(["g", "a/b", "$SYS/x"]),
        st.just(b""),
        hops=hops,
        target_groups=some(group_ids),
    ),
)
own_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(InterestChanged, some(names), some(names)),
    st.builds(
        ClientPublished, st.sampled_from(["g", "a/b", "$SYS/x"]), st.just(b""), st.integers(0, 2)
    ),
    st.just(TimerFired()),
    st.just(LinkClosed(LinkId(1))),
    st.just(LinkOpened(LinkId(1), dialled=True)),
)


def check(effects: Iterable[Effect]) -> list[str]:
    """Sent frames can be decoded; return the filters to subscribe."""
    filters: list[str] = []
    for effect in effects:
        if isinstance(effect, Send):
            assert decode(encode(effect.frame)) == effect.frame
        elif isinstance(effect, SubscribeAtBroker):
            filters += effect.filters
    return filters


any_settings = st.builds(
    ProtocolSettings,
    metric=st.sampled_from(Metric),
    group_depth=st.sampled_from([0, 1]),
    nodes_max=st.just(4),
    filters_per_node_max=st.just(4),
)


@given(st.lists(any_frame | own_events, max_size=40), st.booleans(), any_settings)
@settings(max_examples=150)
def test_no_peer_can_make_a_node_raise_or_spin_or_send_nonsense(steps, ordered_link, chosen):
    play(steps, ordered_link, chosen)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@given(
    st.lists(any_frame | own_events | arbitrary.any_frame, max_size=80), st.booleans(), any_settings
)
@settings(max_examples=5_000)
def test_no_peer_can_do_it_in_long_runs(steps, ordered_link, chosen):
    play(steps, ordered_link, chosen)


def play(steps: Iterable[Any], ordered_link: bool, chosen: ProtocolSettings) -> None:
    node = Node(Identity(ME, key(ME), 1), chosen)
    now = 0.0
    hello = frames.Hello(1, "hansa", PEER, key(PEER), 1, "", chosen.shared_settings_text(), 0)
    first_frame = frames.SequencedFrame(1, hello) if not ordered_link else hello
    check(node.handle(LinkOpened(LinkId(1), dialled=True, ordered=ordered_link), now))
    check(node.handle(FrameReceived(LinkId(1), first_frame), now))
    for step in steps:
        now += 0.25
        event = step if isinstance(step, Event) else FrameReceived(LinkId(1), step)
        filters = check(node.handle(event, now))
        if filters:
            check(node.handle(SubscriptionsGranted(tuple(filters)), now))
        for _ in range(20):
            due = node.next_deadline()
            if due is None or due > now:
                break
            check(node.handle(TimerFired(), now))
        else:
            raise AssertionError(f"the deadline stays at {due}, now is {now}")
        node.status()
