"""Encoding and decoding of frames: they are inverse, and invalid bytes are refused."""

import tracemalloc
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.protocol.arbitrary import any_frame, every_frame, publications, u64

from hansa.errors import InvalidFrame
from hansa.protocol.membership.records import ClaimsRecord, InterestRecord, NodeRecord, RecordKind
from hansa.protocol.model import HOPS_MAX, TARGET_GROUPS_MAX, GroupId, NodeId, Publication
from hansa.protocol.settings import NEIGHBOURS_MAX, NODES_MAX, PACKET_BYTES_MAX
from hansa.protocol.topics import TOPIC_LEVELS_MAX
from hansa.protocol.wire import frames
from hansa.protocol.wire.bounds import (
    FLAGS_MAX,
    NAMES_BYTES_MAX,
    ROWS_MAX,
)
from hansa.protocol.wire.codec import (
    BULK_RESPONSE,
    CONTROL,
    CONTROL_BYTES_MAX,
    FORMAT_VERSION,
    FRAME_BYTES_MAX,
    HOPS_AT,
    TOPIC_BYTES_AT,
    decode,
    decode_publication,
    encode,
    encode_publication,
    make_frame_template,
    ordering_key,
    remove_target_groups,
)
from hansa.protocol.wire.frames import (
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
    RepairResponse,
    RetainedValuesFrame,
    SealedBulk,
    SealedUnicast,
    SequencedFrame,
    Summary,
    Update,
)

ONE, TWO = NodeId(1), NodeId(2)
U64_MAX = (1 << 64) - 1
KEY = bytes(range(32))
HELLO = Hello(
    1, "hansa", NodeId(0x0102030405060708), KEY, 7, "one", "strategy=mesh", U64_MAX, ("zip",)
)
PUBLICATION = Publication(ONE, 2, 3, 0, "a/b", b"hi")
FULL_PUBLICATION = Publication(
    origin=NodeId(0x0102030405060708),
    epoch=7,
    sequence=258,
    qos=2,
    topic="é",
    payload=b"hi",
    retain=True,
    hops=64,
    target_groups=(GroupId(4), GroupId(5)),
    receivers=((NodeId(4), 256),),
    properties=b"\1\2",
)

# ---------------------------------------------------------------- round trip


@pytest.mark.parametrize("kind", every_frame, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=50)
def test_frame_survives_encoding_and_decoding(kind, data):
    frame = data.draw(every_frame[kind])
    encoded = encode(frame)
    assert decode(encoded) == frame
    assert decode(memoryview(encoded)) == frame


def test_every_frame_is_tested():
    assert set(every_frame) == {*get_args(frames.AnyFrame), Publication}


@given(publications)
@settings(max_examples=50)
def test_fast_path_equals_the_slow_path(publication):
    assert encode_publication(publication) == encode(publication)
    assert decode_publication(encode(publication)) == publication


GOLDEN = {
    HELLO: (
        "10 9a 01 01 a568616e7361 cf0102030405060708"
        "c420 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        "07 a36f6e65 ad73747261746567793d6d657368 cfffffffffffffffff 91a37a6970"
    ),
    Goodbye("bye"): "10 92 02 a3627965",
    Heartbeat(1, 2, 300, 70_000): "10 95 03 01 02 cd012c ce00011170",
    Summary(((RecordKind.NODE, ONE, 7, 3), (RecordKind.CLAIMS, TWO, 7, 4))): (
        "10 92 04 92 9400010703 9402020704"
    ),
    Update(
        (
            NodeRecord(ONE, 7, 3, 6, KEY, "one", ("h:10500",), 1.5, ((TWO, 250),)),
            InterestRecord(ONE, 7, 4, 3, ("a/+",), ("b",)),
            ClaimsRecord(ONE, 7, 6, 6, ("a/+", ""), (), part=1, parts=2),
        )
    ): (
        "10 92 05 93"
        "9d 00 01 07 03 06 c420 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        "a36f6e65 91a7683a3130353030 cb3ff8000000000000 919202ccfa c400 90 c400"
        "9a 01 01 07 04 03 91a3612f2b 91a162 00 01 c400"
        "9a 02 01 07 06 06 92a3612f2ba0 90 01 02 c400"
    ),
    Fetch(((RecordKind.INTEREST, TWO),)): "10 92 06 91 920102",
    CoreAnnouncement(
        ONE, 7, 9, UNREACHABLE, (TWO,), ClaimsRecord(ONE, 7, 6, 5, ("a",)), (GroupId(4),)
    ): "10 99 07 01 07 09 ceffffffff 9102 9a 02 01 07 06 05 91a161 90 00 01 c400 9104 c400",
    MeshMembership(ONE, 9, ("a",), ("",)): "10 95 08 01 09 91a161 91a0",
    AnnouncementRequest(ONE, 7, 9, 64): "10 95 09 01 07 09 40",
    FrameAck(17, (18, 300)): "10 93 0a 11 9212cd012c",
    InterestAcks(
        (InterestAck(ONE, 7, 4, TWO, 6, 300, 2),)
    ): "10 92 0c 91 99 01 07 04 02 06 cd012c 02 90 c400",
    InterestAckRequest(ONE, TWO, 2, 7, 3): "10 97 0d 01 02 02 07 03 90",
    SequencedFrame(16, Goodbye("bye")): "10 93 0b 10 9202a3627965",
    PUBLICATION: (
        "11 00 00 0000 0000000000000001 0000000000000002 0000000000000003 0003 612f62 6869"
    ),
    FULL_PUBLICATION: (
        "11 0e 40 0002 0102030405060708 0000000000000007 0000000000000102 0002"
        "0000000000000004 0000000000000005"
        "0001 00000002 0000000000000004 0000000000000100"
        "c3a9 0102 6869"
    ),
    replace(FULL_PUBLICATION, macs=bytes(range(12))): (
        "11 2e 40 0002 0102030405060708 0000000000000007 0000000000000102 0002"
        "0000000000000004 0000000000000005"
        "0001 00000002 0000000000000004 0000000000000100 000102030405060708090a0b"
        "c3a9 0102 6869"
    ),
    SealedUnicast(ONE, TWO, 258, 300, b"box", 2, (TWO, ONE)): (
        "10 98 17 01 02 cd0102 cd012c c403 626f78 02 920201"
    ),
    SealedBulk(ONE, TWO, 258, 300, b"box", 2, ()): (
        "12 98 18 01 02 cd0102 cd012c c403 626f78 02 90"
    ),
}


@pytest.mark.parametrize("frame", GOLDEN, ids=lambda frame: type(frame).__name__)
def test_bytes_of_a_frame_never_change(frame):
    assert encode(frame).hex() == GOLDEN[frame].replace(" ", "")
    assert decode(bytes.fromhex(GOLDEN[frame])) == frame


def test_later_version_may_add_fields_at_the_end():
    assert decode(bytes.fromhex("10 94 02 a3627965 c0 93010203")) == Goodbye("bye")


def test_earlier_version_may_omit_fields_with_defaults():
    assert decode(bytes.fromhex("10 92 02 a3627965")) == Goodbye("bye")
    assert decode(bytes.fromhex("10 94 0d 01 02 02")) == InterestAckRequest(ONE, TWO, 2)


@pytest.mark.parametrize(
    ("publication", "message"),
    [
        (replace(FULL_PUBLICATION, macs=bytes(11)), "11 bytes of MACs for 1 receivers"),
        (replace(FULL_PUBLICATION, macs=bytes(24)), "24 bytes of MACs for 1 receivers"),
        (replace(PUBLICATION, qos=1, macs=bytes(12)), "12 bytes of MACs for 0 receivers"),
        (replace(FULL_PUBLICATION, qos=0, macs=bytes(12)), "12 bytes of MACs for 1 receivers"),
    ],
)
def test_macs_that_do_not_belong_to_receivers_are_not_encoded(publication, message):
    with pytest.raises(ValueError, match=message):
        encode(publication)


# ---------------------------------------------------------------- relaying


@given(publications, st.integers(0, HOPS_MAX))
@example(FULL_PUBLICATION, 0)
@example(PUBLICATION, HOPS_MAX)
def test_hops_are_one_byte_and_nothing_else(publication, hops):
    data = bytearray(encode(publication))
    data[HOPS_AT] = hops
    assert data == encode(replace(publication, hops=hops))


@given(publications)
def test_target_groups_and_topic_follow_the_length_of_the_topic(publication):
    plain = replace(publication, receivers=(), properties=b"", version=0, macs=b"")
    topic = plain.topic.encode()
    names = b"".join(group.to_bytes(8, "big") for group in plain.target_groups)
    key = len(topic).to_bytes(2, "big") + names + topic
    assert encode(plain)[TOPIC_BYTES_AT:].startswith(key)


@given(publications)
def test_removing_target_groups_changes_nothing_else(publication):
    data = bytearray(encode(publication))
    remove_target_groups(data, len(publication.target_groups))
    assert data == encode(replace(publication, target_groups=()))


@given(publications, st.integers(1, 2**64 - 1), st.binary(max_size=8))
def test_frame_template_makes_the_next_publication(publication, number, payload):
    before, after = make_frame_template(encode(publication), len(publication.payload))
    made = b"".join((before, number.to_bytes(8, "big"), after, payload))
    assert made == encode(replace(publication, sequence=number, payload=payload))


def test_frame_fits_also_with_more_target_groups():
    largest = replace(FULL_PUBLICATION, payload=bytes(PACKET_BYTES_MAX - 4))
    arrived = decode(encode(largest))
    assert isinstance(arrived, Publication)
    groups = tuple(GroupId(number) for number in range(TARGET_GROUPS_MAX))
    onward = replace(arrived, target_groups=groups, receivers=tuple((group, 0) for group in groups))
    encoded = encode(onward)
    assert len(encoded) <= FRAME_BYTES_MAX
    assert decode(encoded) == onward


# ---------------------------------------------------------------- bytes that are no frame


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "frame: no bytes"),
        ("00", f"frame: format version 0, this node reads {FORMAT_VERSION}"),
        ("21 00", f"frame: format version 2, this node reads {FORMAT_VERSION}"),
        ("f0 00", f"frame: format version 15, this node reads {FORMAT_VERSION}"),
        ("13 00", "frame: type 3, the types are 0, 1 and 2"),
        ("12", "control frame: Input data was truncated"),
        ("10", "control frame: Input data was truncated"),
        ("10 92 02", "control frame: Input data was truncated"),
        ("10 92 63 a0", "control frame: Invalid value 99 - at `$[0]`"),
        ("10 92 02 a1ff", "control frame: 'utf-8' codec can't decode byte 0xff in position 0"),
        ("10 95 09 01 07 ff 40", "control frame: Expected `int` >= 0 - at `$[3]`"),
        ("10 95 09 ff 07 09 40", "control frame: Expected `int` >= 0 - at `$[1]`"),
        ("10 92 06 91 920902", "control frame: Invalid enum value 9 - at `$[1][0][0]`"),
        ("10 92 0a 11 00", "control frame: MessagePack data is malformed: trailing characters"),
        (
            "10 95 09 01 07 09 41",
            "announcement request of 0000000000000001: hops: 65, the limit is 64",
        ),
        ("10 93 0b 10 920a11", "control frame: Invalid value 10 - at `$[2][0]`"),
        ("11", "publication: 1 bytes, its header needs more"),
    ],
)
def test_invalid_bytes_are_refused_with_the_reason(data, message):
    with pytest.raises(InvalidFrame) as refused:
        decode(bytes.fromhex(data))
    assert str(refused.value).startswith(message)


def patched(publication: Publication, at: int, new: str) -> bytes:
    """Return a publication's bytes with some of them overwritten."""
    data = bytearray(encode(publication))
    patch = bytes.fromhex(new)
    data[at : at + len(patch)] = patch
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (patched(PUBLICATION, 0, "10 00"), "unknown first bytes 1000"),
        (patched(PUBLICATION, 1, "03"), "unknown first bytes 1103"),
        (patched(PUBLICATION, 1, "20"), "unknown first bytes 1120"),
        (patched(PUBLICATION, 1, "10")[:33], "33 bytes, its header needs more"),
        (patched(PUBLICATION, 2, "41"), "65 hops, the limit is 64"),
        (patched(PUBLICATION, 3, "ffff"), "36 bytes, its header needs more"),
        (patched(PUBLICATION, 29, "0000"), "topic name '': must not be empty"),
        (patched(PUBLICATION, 29, "0006"), "36 bytes, its header says 37"),
        (patched(PUBLICATION, 31, "ff"), "topic: 'utf-8' codec can't decode byte 0xff"),
        (patched(PUBLICATION, 31, "c0"), "topic: 'utf-8' codec can't decode byte 0xc0"),
        (patched(PUBLICATION, 31, "23"), "topic name '#/b': '+' and '#' are for filters only"),
        (patched(PUBLICATION, 31, "2b"), "topic name '+/b': '+' and '#' are for filters only"),
        (patched(PUBLICATION, 31, "00"), r"topic name '\x00/b': must not contain U+0000"),
        (patched(FULL_PUBLICATION, 47, "ffff"), "75 bytes, its header needs more"),
        (patched(FULL_PUBLICATION, 49, "ffffffff"), "75 bytes, its header says 4294967366"),
        (encode(FULL_PUBLICATION)[:50], "50 bytes, its header needs more"),
        (encode(FULL_PUBLICATION)[:60], "60 bytes, its header needs more"),
        (encode(FULL_PUBLICATION)[:53], "53 bytes, its header says 73"),
        (encode(FULL_PUBLICATION)[:69], "69 bytes, its header says 73"),
        (patched(PUBLICATION, 1, "21"), "unknown first bytes 1121"),
        (patched(FULL_PUBLICATION, 1, "2c"), "unknown first bytes 112c"),
        (encode(replace(FULL_PUBLICATION, macs=bytes(12)))[:80], "80 bytes, its header says 85"),
    ],
)
def test_invalid_publications_are_refused_with_the_reason(data, message):
    with pytest.raises(InvalidFrame) as refused:
        decode_publication(data)
    assert str(refused.value).startswith(f"publication: {message}")


def test_publication_out_of_bounds_is_refused():
    groups = bytes(8 * (TARGET_GROUPS_MAX + 1))
    head, tail = encode(PUBLICATION)[:31], encode(PUBLICATION)[31:]
    named = head[:3] + (TARGET_GROUPS_MAX + 1).to_bytes(2, "big") + head[5:] + groups + tail
    with pytest.raises(InvalidFrame, match="publication: 1025 groups, the limit is 1024"):
        decode(named)
    large = encode(PUBLICATION) + bytes(PACKET_BYTES_MAX - 4)
    with pytest.raises(InvalidFrame, match="68157441 bytes of topic, .* the limit is 68157440"):
        decode(large)
    deep = head[:29] + b"\0\xc8" + b"/" * TOPIC_LEVELS_MAX
    with pytest.raises(InvalidFrame, match="201 levels, the limit is 200"):
        decode(deep)


def test_control_frame_that_is_too_large_is_refused():
    unknown = CONTROL_BYTES_MAX - 10  # bytes of a field that a later version may add
    goodbye = b"\x10\x94\x02\xa0\xc0\xc6" + unknown.to_bytes(4, "big") + bytes(unknown)
    assert decode(goodbye) == Goodbye("")
    with pytest.raises(InvalidFrame, match="frame: 1114113 bytes, the limit is 1114112"):
        decode(goodbye + b"\0")


def test_bulk_response_may_be_as_large_as_its_contents():
    held = encode(replace(PUBLICATION, payload=bytes(CONTROL_BYTES_MAX)))
    answer = RepairResponse(NodeId(1), NodeId(2), 1, 0, 1, 0, (held,))
    data = encode(answer)
    assert data[0] == BULK_RESPONSE
    assert decode(data) == answer
    with pytest.raises(InvalidFrame, match="frame: .* bytes, the limit is 1114112"):
        decode(bytes((CONTROL,)) + data[1:])


@given(publications, publications)
def test_frames_that_must_not_overtake_have_one_ordering_key(one, two):
    def shared(publication: Publication) -> tuple[object, ...]:
        return publication.origin, publication.qos > 0, "" if publication.qos else publication.topic

    assert (ordering_key(encode(one)) == ordering_key(encode(two))) == (shared(one) == shared(two))


def test_bulk_responses_have_one_ordering_key():
    answers = (
        RepairResponse(NodeId(1), NodeId(2), 1, 0, 1, 0, ()),
        RetainedValuesFrame(NodeId(3), NodeId(4), ()),
    )
    assert {ordering_key(encode(answer)) for answer in answers} == {b""}


# ---------------------------------------------------------------- arbitrary bytes


def survive(data: bytes) -> None:
    """Decode or refuse, nothing else; decoded frames can be encoded."""
    try:
        frame = decode(data)
    except InvalidFrame as refused:
        assert 0 < len(str(refused)) < 500
    else:
        assert decode(encode(frame)) == frame


@given(st.binary(max_size=200))
@example(b"\x10\xc1")
@example(b"\x10\x93\x02\xa0" + b"\x91" * 100_000)
@example(b"\x10\x93\x02\xa0" + b"\x81\x01" * 100_000)
def test_random_bytes_are_refused_or_decoded(data):
    survive(data)
    survive(b"\x10" + data)
    survive(b"\x11" + data)


@st.composite
def damaged(draw):
    """A frame's bytes after some of them were lost, doubled or changed."""
    data = bytearray(encode(draw(any_frame)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(start + 9, len(data))))
        data[start:end] = draw(st.binary(max_size=9) | st.just(bytes(data[start:end] * 2)))
    return bytes(data)


@given(damaged())
@settings(max_examples=150)
def test_damaged_frames_are_refused_or_decoded(data):
    survive(data)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@given(damaged() | st.binary(max_size=2_000))
@settings(max_examples=20_000)
def test_damaged_frames_and_noise_in_long_runs(data):
    survive(data)
    survive(b"\x10" + data)
    survive(b"\x11" + data)


# ---------------------------------------------------------------- memory

AMPLIFICATION_MAX = 48
"""Bytes of memory per byte of input: a text of one letter has 3 in MessagePack, 76 in Python."""

OVERHEAD_BYTES = 16_384
"""Memory for an error and its message."""


def allocated(data: bytes) -> int:
    """Return the most memory that was in use while decoding.

    tracemalloc also counts what other threads of the test runner allocate meanwhile. The smallest
    of three measurements is that of the decoder, because its own use is the same every time.
    """
    return min(measured_peak(data) for _ in range(3))


def measured_peak(data: bytes) -> int:
    tracemalloc.start()
    try:
        decode(data)
    except InvalidFrame:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


MANY = 20_000
COUNT = MANY.to_bytes(4, "big")


@pytest.mark.parametrize(
    "data",
    [
        # Lengths beyond the data.
        bytes.fromhex("10 92 05 ddffffffff"),
        bytes.fromhex("10 92 05 ddffffffff 99 01 01 07 04 03 ddffffffff"),
        bytes.fromhex("10 92 04 ddffffffff 94"),
        bytes.fromhex("10 92 02 dbffffffff"),
        bytes.fromhex("10 9a 01 01 a0 01 c6ffffffff"),
        bytes.fromhex("10 93 02 a0 dfffffffff"),
        bytes.fromhex("10 93 02 a0 c9ffffffff"),
        bytes.fromhex("10 ddffffffff"),
        patched(PUBLICATION, 3, "ffff"),
        patched(FULL_PUBLICATION, 47, "ffff ffffffff"),
        # Lengths that are correct.
        b"\x10\x95\x08\x01\x09\xdd" + COUNT + b"\xa2\xc4\x80" * MANY + b"\x90",
        b"\x10\x92\x05\x91\x9a\0\0\0\0\0\xc4\0\xa0\x90\0\xdd" + COUNT + b"\x92\0\0" * MANY,
        b"\x10\x92\x05\xdd" + COUNT + b"\x96\x01\x01\x01\x01\x01\x90" * MANY,
        b"\x10\x92\x0c\xdd" + COUNT + b"\x97\x01\x01\x01\x01\x01\x01\x01" * MANY,
        b"\x10\x92\x04\xdd" + COUNT + b"\x94\x01\x01\x01\x01" * MANY,
        b"\x10\x92\x06\xdd" + COUNT + b"\x92\x01\x01" * MANY,
        b"\x10\x98\x07\x01\x01\x01\x01\xdd" + COUNT + b"\xcd\x01\x01" * MANY + b"\xc0\x90",
        b"\x10\x93\x02\xa0" + b"\x91" * MANY,
        encode(replace(PUBLICATION, payload=bytes(1 << 20))),
        encode(replace(PUBLICATION, target_groups=(GroupId(U64_MAX),) * TARGET_GROUPS_MAX)),
        encode(replace(PUBLICATION, receivers=((GroupId(U64_MAX), U64_MAX),) * TARGET_GROUPS_MAX)),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_decoding_takes_a_small_multiple_of_the_input(data):
    assert allocated(data) <= AMPLIFICATION_MAX * len(data) + OVERHEAD_BYTES


@given(damaged())
def test_decoding_damaged_frames_takes_a_small_multiple_too(data):
    assert allocated(data) <= AMPLIFICATION_MAX * len(data) + OVERHEAD_BYTES


# ---------------------------------------------------------------- refusals of encode


@pytest.mark.parametrize(
    ("publication", "message"),
    [
        (replace(PUBLICATION, qos=3), "publication: QoS 3, the limit is 2"),
        (replace(PUBLICATION, qos=4), "publication: QoS 4, the limit is 2"),
        (replace(PUBLICATION, hops=65), "publication: 65 hops, the limit is 64"),
        (replace(PUBLICATION, hops=256), "publication: "),
        (replace(PUBLICATION, sequence=-1), "publication: "),
        (replace(PUBLICATION, epoch=U64_MAX + 1), "publication: "),
        (replace(PUBLICATION, topic=""), "publication: topic name '': must not be empty"),
        (replace(PUBLICATION, topic="a/#"), "publication: topic name 'a/#': '+' and '#'"),
        (replace(PUBLICATION, topic="+"), "publication: topic name '+': '+' and '#'"),
        (replace(PUBLICATION, topic="a\0"), "publication: topic name 'a\\x00': must not contain"),
        (replace(PUBLICATION, topic="\ud800"), "'utf-8' codec can't encode"),
        (replace(PUBLICATION, topic="/" * 200), "publication: topic name '//////"),
        (replace(PUBLICATION, topic="a" * 65_536), "publication: "),
        (replace(PUBLICATION, target_groups=(GroupId(-1),)), "publication: "),
        (
            replace(PUBLICATION, target_groups=(GroupId(1),) * 1_025),
            "publication: 1025 groups, the limit is 1024",
        ),
        (
            replace(PUBLICATION, receivers=((GroupId(1), 1),) * 1_025),
            "publication: 1025 groups, the limit is 1024",
        ),
        (replace(PUBLICATION, receivers=((GroupId(1), -1),)), "publication: "),
        (replace(PUBLICATION, target_groups=(GroupId(1),) * 65_536), "publication: "),
    ],
)
def test_invalid_publication_cannot_be_encoded(publication, message):
    with pytest.raises(ValueError) as refused:
        encode(publication)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("field", "size", "total"),
    [
        ("payload", PACKET_BYTES_MAX - 2, PACKET_BYTES_MAX + 1),
        ("properties", PACKET_BYTES_MAX, PACKET_BYTES_MAX + 5),
    ],
)
def test_publication_that_is_too_large_cannot_be_encoded(field, size, total):
    problem = f"publication: {total} bytes of topic, properties and payload, the limit is 68157440"
    with pytest.raises(ValueError, match=problem):
        encode(replace(PUBLICATION, **{field: bytes(size)}))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FrameAck(-1), "control frame: Expected `int` >= 0 - at `$[1]`"),
        (FrameAck(U64_MAX + 1), "control frame: "),
        (Goodbye("\ud800"), "'utf-8' codec can't encode"),
        (
            AnnouncementRequest(ONE, 7, 9, 65),
            "announcement request of 0000000000000001: hops: 65, the limit is 64",
        ),
        (
            Update((InterestRecord(ONE, 7, 5, 5, ("a" * 1_000,)),) * 1_100),
            "frame: 1116506 bytes, the limit is 1114112",
        ),
    ],
)
def test_invalid_control_frame_cannot_be_encoded(frame, message):
    with pytest.raises(ValueError) as refused:
        encode(frame)
    assert str(refused.value).startswith(message)


integers = st.integers(-2, 5) | u64 | st.integers(0, 1 << 65)
topics = st.text(st.characters() | st.sampled_from("+#/\0"), max_size=3)
careless_publications = st.builds(
    Publication,
    origin=integers,
    epoch=integers,
    sequence=integers,
    qos=st.integers(-1, 9),
    topic=topics | topics.map(lambda text: text * 100),
    payload=st.binary(max_size=3),
    retain=st.booleans(),
    hops=st.integers(-1, 300),
    target_groups=st.lists(integers, max_size=2).map(tuple),
    receivers=st.lists(st.tuples(integers, integers), max_size=2).map(tuple),
    properties=st.binary(max_size=3),
)


@given(careless_publications)
def test_whatever_is_encoded_is_decoded(publication):
    try:
        data = encode(publication)
    except ValueError:
        return
    assert decode(data) == publication


# ---------------------------------------------------------------- the largest that must fit


def test_largest_lists_fit_a_frame():
    ids = [NodeId(U64_MAX - number) for number in range(NODES_MAX)][::-1]
    summary = Summary(
        tuple((RecordKind.CLAIMS, node, U64_MAX, U64_MAX) for node in ids for _ in RecordKind)
    )
    assert len(summary.rows) == ROWS_MAX
    node = NodeRecord(
        *(ids[0], U64_MAX, U64_MAX, U64_MAX, KEY, "x" * 255, ("x" * 255,) * 16, 1.5),
        links=tuple((node, U64_MAX) for node in ids[:NEIGHBOURS_MAX]),
    )
    confirmation = InterestAck(ids[0], U64_MAX, U64_MAX, ids[0], U64_MAX, U64_MAX, HOPS_MAX)
    names = tuple(f"{number:06}" for number in range(NAMES_BYTES_MAX // 6))
    claims = ClaimsRecord(ids[0], 1, 1, 1, names)
    for frame in (
        summary,
        Update((node, claims)),
        InterestAcks((confirmation,) * NODES_MAX),
        CoreAnnouncement(
            ids[0], 1, 1, 1, (), claims, tuple(GroupId(node) for node in ids[:FLAGS_MAX])
        ),
    ):
        assert len(encode(frame)) <= CONTROL_BYTES_MAX
