"""Every bound: values at the bound pass, values beyond it are refused with the reason."""

from typing import Any, get_args

import pytest
from hypothesis import given
from msgspec.structs import replace
from tests.protocol.arbitrary import any_frame

from hansa.errors import InvalidFrame
from hansa.protocol.links.ordering import MISSING_SPAN
from hansa.protocol.membership.records import (
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    Record,
    RecordKind,
)
from hansa.protocol.model import HOPS_MAX, MAC_BYTES, NodeId
from hansa.protocol.settings import (
    LABEL_BYTES_MAX,
    NEIGHBOURS_MAX,
    NODES_MAX,
    ProtocolSettings,
)
from hansa.protocol.wire import bounds, frames
from hansa.protocol.wire.frames import (
    RETAINED_BUCKETS,
    UNREACHABLE,
    AnnouncementRequest,
    CoreAnnouncement,
    Fetch,
    FrameAck,
    Goodbye,
    Heartbeat,
    Hello,
    InterestAck,
    InterestAckRequest,
    InterestAcks,
    MeshMembership,
    PendingNotice,
    Query,
    QueryResponse,
    Receipt,
    RepairResponse,
    RetainedDigests,
    RetainedRequest,
    RetainedValuesFrame,
    RetainedVersions,
    SealedBulk,
    SealedUnicast,
    SequencedFrame,
    Summary,
    Update,
)

KEY = b"k" * 32
HELLO = Hello(1, "hansa", NodeId(1), KEY, 7, "one", "strategy=mesh", 0)
NODE = NodeRecord(NodeId(2), 7, 3, 7, KEY, "two", ("10.0.0.2:10500",), 1.0, ((NodeId(1), 250),))
CHANGE = InterestRecord(NodeId(2), 7, 4, 3, ("a/#",), ("b",))
WHOLE = InterestRecord(NodeId(2), 7, 4, 4, ("a/#",), (), part=0, parts=2)
CLAIMS = ClaimsRecord(NodeId(3), 7, 4, 3, ("a/#", ""))
ANNOUNCE = CoreAnnouncement(NodeId(3), 7, 9, 2)
MEMBERSHIP = MeshMembership(NodeId(3), 9, ("a/#", ""), ("b",))
PATH = tuple(NodeId(10 + number) for number in range(HOPS_MAX))
SOLICIT = AnnouncementRequest(NodeId(3), 7, 9, 1)
CONFIRMATION = InterestAck(NodeId(1), 7, 4, NodeId(4), 7, 9, 1)
RESEND = RepairResponse(NodeId(1), NodeId(4), 1, 5, 9, 0, ())
ROW = (RecordKind.NODE, NodeId(1), 7, 3)


def numbers(count: int) -> tuple[Any, ...]:
    return tuple(range(count))


def links(count: int) -> tuple[Any, ...]:
    return tuple((node, 0) for node in range(count))


def filters_of(count: int, size: int = 6) -> tuple[str, ...]:
    return tuple(f"{number:0{size}}" for number in range(count))


@given(any_frame)
def test_frames_of_a_correct_node_are_within_bounds(frame):
    bounds.check_bounds(frame)


def test_every_frame_and_record_is_tested():
    only_numbers = {Heartbeat}
    in_bounds = {
        Hello,
        Goodbye,
        Summary,
        Update,
        Fetch,
        CoreAnnouncement,
        MeshMembership,
        AnnouncementRequest,
    }
    in_bounds |= {
        InterestAcks,
        InterestAckRequest,
        PendingNotice,
        Receipt,
        RepairResponse,
        FrameAck,
        SequencedFrame,
    }
    in_bounds |= {SealedUnicast, SealedBulk}
    in_bounds |= {RetainedDigests, RetainedRequest, RetainedVersions, RetainedValuesFrame}
    in_bounds |= {Query, QueryResponse}
    assert set(get_args(frames.AnyFrame)) == in_bounds | only_numbers
    assert set(get_args(Record)) == {NodeRecord, InterestRecord, ClaimsRecord}


@pytest.mark.parametrize(
    "frame",
    [
        replace(HELLO, name="é" * 127, capabilities=("x",) * bounds.CAPABILITIES_MAX),
        replace(HELLO, federation="x" * LABEL_BYTES_MAX),
        replace(HELLO, shared_settings="x" * bounds.SHARED_SETTINGS_BYTES_MAX),
        Goodbye("x" * bounds.REASON_BYTES_MAX),
        Summary((ROW,) * bounds.ROWS_MAX),
        Fetch((ROW[:2],) * bounds.ROWS_MAX),
        Update((CLAIMS,) * bounds.ROWS_MAX),
        replace(ANNOUNCE, distance=UNREACHABLE, parents=numbers(bounds.PARENTS_MAX)),
        replace(ANNOUNCE, members=numbers(bounds.FLAGS_MAX)),
        replace(SOLICIT, hops=HOPS_MAX),
        replace(NODE, addresses=("x" * LABEL_BYTES_MAX,) * bounds.ADDRESSES_MAX),
        replace(NODE, links=links(NEIGHBOURS_MAX), capacity=0.0),
        replace(NODE, exchange_key=b"x" * 32),
        replace(NODE, certificates=(b"x" * 4_096,) * 4, signature=b"x" * 64),
        replace(CHANGE, signature=b"x" * 64),
        InterestAcks((replace(CONFIRMATION, hops=HOPS_MAX),) * NODES_MAX),
        InterestAckRequest(NodeId(1), NodeId(4), HOPS_MAX),
        replace(CHANGE, added=filters_of(256, 1_020), removed=filters_of(1, 1_024)),
        replace(WHOLE, part=bounds.PARTS_MAX - 1, parts=bounds.PARTS_MAX),
        PendingNotice(NodeId(1), NodeId(4), 1, 9, HOPS_MAX),
        Receipt(NodeId(1), NodeId(4), 1, 9, 9, 0, HOPS_MAX),
        replace(
            RESEND, upto=5, publications=(b"",) * bounds.PUBLICATIONS_PER_FRAME_MAX, hops=HOPS_MAX
        ),
        RetainedDigests(NodeId(1), NodeId(4), (0,) * RETAINED_BUCKETS, HOPS_MAX),
        RetainedRequest(
            NodeId(1),
            NodeId(4),
            numbers(RETAINED_BUCKETS),
            (("a", 1),) * bounds.TOPICS_MAX,
            HOPS_MAX,
        ),
        RetainedVersions(NodeId(1), NodeId(4), (("a", 1),) * bounds.TOPICS_MAX, HOPS_MAX),
        RetainedValuesFrame(
            NodeId(1), NodeId(4), (b"",) * bounds.PUBLICATIONS_PER_FRAME_MAX, HOPS_MAX
        ),
        Query(NodeId(1), NodeId(4), 1, b"x" * bounds.QUERY_BYTES_MAX, HOPS_MAX),
        QueryResponse(NodeId(1), NodeId(4), 1, b"x" * bounds.QUERY_RESPONSE_BYTES_MAX, HOPS_MAX),
        Heartbeat(0, 0, 0, 0),
        FrameAck(0, numbers(bounds.MISSING_MAX)),
        SealedUnicast(NodeId(1), NodeId(4), bounds.KEY_ID_MAX, 1, b"", HOPS_MAX, PATH),
        SealedBulk(NodeId(1), NodeId(4), bounds.KEY_ID_MAX, 1, b"", HOPS_MAX),
        InterestAcks((replace(CONFIRMATION, mac=bytes(MAC_BYTES)),)),
    ],
)
def test_frames_at_their_bounds_pass(frame):
    bounds.check_bounds(frame)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        # Texts are counted in bytes, as encoded.
        (
            replace(HELLO, name="é" * 128),
            "hello of 0000000000000001: name: 256 bytes, the limit is 255",
        ),
        (
            replace(HELLO, federation="x" * 256),
            "hello of 0000000000000001: federation: 256 bytes, the limit is 255",
        ),
        (
            replace(HELLO, shared_settings="x" * 1_025),
            "hello of 0000000000000001: shared_settings: 1025 bytes, the limit is 1024",
        ),
        (
            SealedUnicast(NodeId(1), NodeId(4), 1 << 16, 1, b""),
            "sealed unicast of 0000000000000004: key_id: 65536, the limit is 65535",
        ),
        (
            SealedBulk(NodeId(1), NodeId(4), 1, 1, b"", HOPS_MAX + 1),
            "sealed bulk response of 0000000000000004: hops: 65, the limit is 64",
        ),
        (
            SealedUnicast(NodeId(1), NodeId(4), 1, 1, b"", 0, (*PATH, NodeId(99))),
            "sealed unicast of 0000000000000004: via: 65 items, the limit is 64",
        ),
        (
            InterestAckRequest(NodeId(1), NodeId(4), 0, via=(NodeId(2), NodeId(3), NodeId(2))),
            "interest ack request of 0000000000000004: via: a node occurs twice",
        ),
        (
            InterestAcks((replace(CONFIRMATION, mac=bytes(MAC_BYTES + 1)),)),
            "interest acks: entries: interest ack of 0000000000000004: mac: 13 bytes, the limit"
            " is 12",
        ),
        (
            replace(HELLO, key=b"short"),
            "hello of 0000000000000001: key: 5 bytes, a key has 32",
        ),
        (
            replace(HELLO, capabilities=("x",) * 65),
            "hello of 0000000000000001: capabilities: 65 items, the limit is 64",
        ),
        (
            replace(HELLO, capabilities=("ok", "x" * 256)),
            "hello of 0000000000000001: capabilities: 256 bytes, the limit is 255",
        ),
        (Goodbye("x" * 4_097), "goodbye: reason: 4097 bytes, the limit is 4096"),
        (
            PendingNotice(NodeId(1), NodeId(4), 1, 9, 65),
            "pending notice of 0000000000000004: hops: 65, the limit is 64",
        ),
        (
            Receipt(NodeId(1), NodeId(4), 1, 9, 9, 0, 65),
            "receipt of 0000000000000004: hops: 65, the limit is 64",
        ),
        (
            replace(RESEND, hops=65),
            "repair response of 0000000000000004: hops: 65, the limit is 64",
        ),
        (
            replace(RESEND, publications=(b"",) * 16_385),
            "repair response of 0000000000000004: publications: 16385 items, the limit is 16384",
        ),
        (
            RetainedDigests(NodeId(1), NodeId(4), (0,) * 63),
            "retained digests of 0000000000000004: digests: 63 items, there must be 64",
        ),
        (
            RetainedRequest(NodeId(1), NodeId(4), (64,)),
            "retained request of 0000000000000004: buckets: 64, the limit is 63",
        ),
        (
            RetainedRequest(NodeId(1), NodeId(4), (), (("a/+", 1),)),
            "retained request of 0000000000000004: topics: "
            "topic name 'a/+': '+' and '#' are for filters only",
        ),
        (
            RetainedVersions(NodeId(1), NodeId(4), (("a", 1),) * 16_385),
            "retained versions of 0000000000000004: entries: 16385 items, the limit is 16384",
        ),
        (
            RetainedValuesFrame(NodeId(1), NodeId(4), (b"",) * 16_385),
            "retained values of 0000000000000004: publications: 16385 items, the limit is 16384",
        ),
        (
            Query(NodeId(1), NodeId(4), 1, b"x" * 4_097),
            "query of 0000000000000004: data: 4097 bytes, the limit is 4096",
        ),
        (
            QueryResponse(NodeId(1), NodeId(4), 1, b"x" * 60_001),
            "query response of 0000000000000004: data: 60001 bytes, the limit is 60000",
        ),
        (replace(RESEND, upto=4), "repair response of 0000000000000004: goes from 5 to 4"),
        (Summary((ROW,) * 24_577), "summary: rows: 24577 items, the limit is 24576"),
        (Fetch((ROW[:2],) * 24_577), "fetch: rows: 24577 items, the limit is 24576"),
        (Update((NODE,) * 24_577), "update: records: 24577 items, the limit is 24576"),
        (
            replace(ANNOUNCE, distance=UNREACHABLE + 1),
            "core announcement of 0000000000000003: distance: 4294967296, the limit is 4294967295",
        ),
        (
            replace(ANNOUNCE, parents=numbers(65)),
            "core announcement of 0000000000000003: parents: 65 items, the limit is 64",
        ),
        (
            replace(ANNOUNCE, members=numbers(65)),
            "core announcement of 0000000000000003: members: 65 items, the limit is 64",
        ),
        (
            replace(ANNOUNCE, claims=replace(CLAIMS, base=5)),
            "core announcement of 0000000000000003: claims: "
            "claims record of 0000000000000003: base 5 is above version 4",
        ),
        (
            replace(MEMBERSHIP, joined=("a+",)),
            "mesh membership of 0000000000000003: joined: "
            "topic filter 'a+': '+' must be alone in its level",
        ),
        (
            replace(MEMBERSHIP, left=("#/a",)),
            "mesh membership of 0000000000000003: left: "
            "topic filter '#/a': '#' must be the last level",
        ),
        (
            replace(MEMBERSHIP, left=filters_of(131_073)),
            "mesh membership of 0000000000000003: left: 131073 items, the limit is 131072",
        ),
        (
            replace(SOLICIT, hops=65),
            "announcement request of 0000000000000003: hops: 65, the limit is 64",
        ),
        (FrameAck(0, numbers(65)), "frame ack: missing: 65 items, the limit is 64"),
        (
            InterestAcks((CONFIRMATION,) * 8_193),
            "interest acks: entries: 8193 items, the limit is 8192",
        ),
        (
            InterestAcks((CONFIRMATION, replace(CONFIRMATION, hops=65))),
            "interest acks: entries: interest ack of 0000000000000004: hops: 65, the limit is 64",
        ),
        (
            InterestAckRequest(NodeId(1), NodeId(4), 65),
            "interest ack request of 0000000000000004: hops: 65, the limit is 64",
        ),
        (
            SequencedFrame(1, replace(SOLICIT, hops=900)),
            "sequenced frame: frame: announcement request of 0000000000000003: "
            "hops: 900, the limit is 64",
        ),
    ],
)
def test_frame_out_of_bounds_is_refused(frame, message):
    with pytest.raises(InvalidFrame) as refused:
        bounds.check_bounds(frame)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (replace(NODE, key=b""), "key: 0 bytes, a key has 32"),
        (replace(NODE, exchange_key=b"x" * 31), "exchange_key: 31 bytes, a key has 32"),
        (replace(NODE, certificates=(b"",) * 5), "certificates: 5 items, the limit is 4"),
        (
            replace(NODE, certificates=(b"x" * 4_097,)),
            "certificates: 4097 bytes, the limit is 4096",
        ),
        (replace(NODE, signature=b"x"), "signature: 1 bytes, a signature has 64"),
        (replace(NODE, name="x" * 256), "name: 256 bytes, the limit is 255"),
        (replace(NODE, addresses=("x",) * 17), "addresses: 17 items, the limit is 16"),
        (replace(NODE, addresses=("x" * 256,)), "addresses: 256 bytes, the limit is 255"),
        (replace(NODE, capacity=-0.5), "capacity: -0.5, it must be finite and not below 0"),
        (replace(NODE, capacity=float("inf")), "capacity: inf, it must be finite and not below 0"),
        (replace(NODE, capacity=float("nan")), "capacity: nan, it must be finite and not below 0"),
        (replace(NODE, links=links(1_025)), "links: 1025 items, the limit is 1024"),
        (
            replace(NODE, links=((NodeId(5), 0), (NodeId(4), 0))),
            "links: not in order, 0000000000000004 follows 0000000000000005",
        ),
        (
            replace(NODE, links=((NodeId(5), 0), (NodeId(5), 1))),
            "links: not in order, 0000000000000005 follows 0000000000000005",
        ),
        (replace(CHANGE, added=("",)), "added: topic filter '': must not be empty"),
        (
            replace(CHANGE, removed=("a\0",)),
            r"removed: topic filter 'a\x00': must not contain U+0000",
        ),
        (replace(CHANGE, added=("a", "b", "a")), "added: a name occurs twice"),
        (replace(CHANGE, removed=("a", "a")), "removed: a name occurs twice"),
        (replace(CHANGE, added=filters_of(131_073)), "added: 131073 items, the limit is 131072"),
        (
            replace(CHANGE, added=filters_of(256, 1_024), removed=("x",)),
            "262145 bytes of names, the limit is 262144",
        ),
        (replace(CHANGE, base=5), "base 5 is above version 4"),
        (replace(CHANGE, parts=2), "a change has one part, not 2"),
        (replace(WHOLE, removed=("b",)), "a whole set removes nothing, not 1 names"),
        (replace(WHOLE, parts=16_385), "parts: 16385, the limit is 16384"),
        (replace(WHOLE, added=(), part=1, parts=2), "part 1 of 2 is empty"),
        (replace(WHOLE, part=2), "part 2 of 2, counted from 0"),
        (replace(WHOLE, parts=0), "part 0 of 0, counted from 0"),
    ],
)
def test_record_out_of_bounds_is_refused(record, message):
    word = "node" if isinstance(record, NodeRecord) else "interest"
    with pytest.raises(InvalidFrame) as refused:
        bounds.check_bounds(Update((CLAIMS, record)))
    place = f"update: records: {word} record of 0000000000000002"
    assert str(refused.value) == f"{place}: {message}"


def test_only_groups_may_be_the_management_group():
    bounds.check_bounds(CLAIMS)
    bounds.check_bounds(MEMBERSHIP)
    with pytest.raises(InvalidFrame, match="interest record .* must not be empty"):
        bounds.check_bounds(replace(CHANGE, added=("",)))


def test_defaults_stay_within_the_bounds():
    settings = ProtocolSettings()
    assert settings.nodes_max <= NODES_MAX
    assert settings.filters_per_node_max <= bounds.NAMES_MAX
    assert settings.redundancy <= bounds.PARENTS_MAX
    assert MISSING_SPAN <= bounds.MISSING_MAX
    bounds.check_bounds(
        replace(
            HELLO, federation=settings.federation, shared_settings=settings.shared_settings_text()
        )
    )


def test_refusal_can_quote_both_hellos():
    quoted = repr("\x01" * LABEL_BYTES_MAX)
    assert 2 * len(quoted) + 100 < bounds.REASON_BYTES_MAX
    assert 2 * bounds.SHARED_SETTINGS_BYTES_MAX + 100 < bounds.REASON_BYTES_MAX
