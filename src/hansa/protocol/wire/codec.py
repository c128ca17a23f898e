"""Encoding of frames: the only place where bytes from a peer become values.

`decode` returns a frame within all bounds (here and in `bounds`) or raises InvalidFrame, for any
input, in memory that is a small multiple of the input. `encode` raises ValueError for a frame that
`decode` would refuse. Links add and remove the length of a frame.

The first byte holds the version of this format in its upper four bits and the type of frame in its
lower four. It is not the version of the protocol, which is in the hello: frames of a later protocol
can still be decoded and refused with a reason.

Control frames (type 0) are MessagePack: an array of the frame's tag and its fields. Fields that a
later version adds at the end are skipped. Bulk responses (type 2) are control frames that hold
publications, repair responses and retained values, and responses to queries. They may be as large
as publications and need no order relative to others, so a link lets other control frames overtake
them.

Publications (type 1) are frequent, so their header is fixed. Integers are unsigned and big-endian:

    offset     bytes    field
    0              1    version and type
    1              1    flags: QoS in bits 0 and 1, retain in bit 2, `more` in bit 3, `versioned`
                        in bit 4, `proven` in bit 5 (at QoS 1 and 2, with `more`), others 0
    2              1    hops
    3              2    n, the number of target groups
    5              8    origin
    13             8    epoch
    21             8    sequence
    29             2    t, the length of the topic
    31            8n    target groups
                   8    version, only with the flag `versioned`, else it is 0
                   2    m, the number of receivers            } these two only with the flag `more`,
                   4    p, the length of the properties       } else m and p are 0
                 16m    receivers: node, and sequence of the previous publication for it
                 12m    their message authentication codes, only with the flag `proven`
                   t    topic, UTF-8
                   p    properties
                rest    payload
"""

import struct
from functools import lru_cache
from itertools import product
from typing import Final

import msgspec

from hansa.errors import InvalidFrame, InvalidTopic
from hansa.protocol.model import (
    HOPS_MAX,
    MAC_BYTES,
    TARGET_GROUPS_MAX,
    GroupId,
    NodeId,
    Publication,
)
from hansa.protocol.settings import PACKET_BYTES_MAX
from hansa.protocol.topics import TOPIC_LEVELS_MAX, check_name
from hansa.protocol.wire import frames
from hansa.protocol.wire.bounds import at_most, check_bounds

FORMAT_VERSION: Final = 1
"""Of the bytes, not of the protocol. Four bits, so at most 15."""

HEADER_BYTES_MAX: Final = 1 << 16
"""Bytes in a frame besides a packet: more than any header takes."""

FRAME_BYTES_MAX = PACKET_BYTES_MAX + HEADER_BYTES_MAX
"""Bytes of a publication or bulk response, in any federation."""

CONTROL_BYTES_MAX: Final = (1 << 20) + HEADER_BYTES_MAX
"""Bytes of any other control frame."""


CONTROL: Final = FORMAT_VERSION << 4
PUBLICATION: Final = FORMAT_VERSION << 4 | 1
BULK_RESPONSE: Final = FORMAT_VERSION << 4 | 2
"""The first byte of every frame, by its type."""

_QOS_MAX, _RETAIN, _MORE, _VERSIONED, _PROVEN = 2, 4, 8, 16, 32

_OPENING: Final = PUBLICATION << 8
# The first two bytes of a publication and their meaning: QoS, retain, more, versioned, proven.
_OPENINGS = {
    _OPENING | qos | _RETAIN * retain | _MORE * more | _VERSIONED * has | _PROVEN * proven: (
        *(qos, retain, more, has),
        proven,
    )
    for qos in range(_QOS_MAX + 1)
    for retain, more, has, proven in product((False, True), repeat=4)
    if not proven or (qos and more)
}

PUBLICATION_HEADER: Final = struct.Struct(">HBHQQQH")
"""The fixed header: first two bytes as one number, hops, n, origin, epoch, sequence, t."""

PUBLICATION_HEAD_BYTES: Final = 31
"""Bytes of the fixed header."""

GROUP_ID_STRUCT: Final = struct.Struct(">Q")
"""A target group."""

PLAIN_FIRST_BYTES: Final = _OPENING
"""First bytes of a publication of QoS 0, not retained, without properties."""

HOPS_AT: Final = 2
TOPIC_BYTES_AT: Final = 29
"""Offsets of the hops and of the topic's length; target groups and topic follow the latter."""

ORIGIN_AT: Final = 5
ORIGIN_END: Final = 13
"""Where the origin is."""

_COUNT_AT = 3
_NUMBER_AT = 21
_VERSION = struct.Struct(">Q")
_EXTRA = struct.Struct(">HI")
_ENTRY = struct.Struct(">QQ")
_SMALL_BYTES = (
    8 * TARGET_GROUPS_MAX
)  # a frame of up to this size cannot exceed a bound on size or count

_BULK_RESPONSES = (
    frames.RepairResponse,
    frames.RetainedValuesFrame,
    frames.QueryResponse,
    frames.SealedBulk,
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[frames.AnyFrame] = msgspec.msgpack.Decoder(frames.AnyFrame)


def encode(frame: frames.AnyFrame | Publication) -> bytes:
    """Return the bytes of a frame; raise ValueError if peers would refuse them."""
    if isinstance(frame, Publication):
        return encode_publication(frame)
    try:
        kind = BULK_RESPONSE if isinstance(frame, _BULK_RESPONSES) else CONTROL
        data = b"%c%b" % (kind, _encoder.encode(frame))
    except OverflowError as error:
        raise ValueError(f"control frame: {error}") from None
    _require_decodable(data)
    return data


def decode(data: bytes | bytearray | memoryview) -> frames.AnyFrame | Publication:
    """Return the frame in these bytes; raise InvalidFrame if there is none."""
    first = data[0] if len(data) else None
    if first == PUBLICATION:
        return decode_publication(data)
    if first == CONTROL:
        return _decode_control(data, CONTROL_BYTES_MAX)
    if first == BULK_RESPONSE:
        return _decode_control(data, FRAME_BYTES_MAX)
    if first is None:
        raise InvalidFrame("frame: no bytes")
    version, kind = divmod(first, 16)
    if version != FORMAT_VERSION:
        raise InvalidFrame(f"frame: format version {version}, this node reads {FORMAT_VERSION}")
    raise InvalidFrame(f"frame: type {kind}, the types are 0, 1 and 2")


def _decode_control(data: bytes | bytearray | memoryview, bytes_max: int) -> frames.AnyFrame:
    if len(data) > bytes_max:
        raise InvalidFrame(f"frame: {len(data)} bytes, the limit is {bytes_max}")
    try:
        frame = _decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFrame(f"control frame: {error}") from None
    check_bounds(frame)
    return frame


def _require_decodable(data: bytes) -> None:
    """Raise ValueError for a frame that peers would refuse: it is a misuse by the caller."""
    try:
        decode(data)
    except InvalidFrame as error:
        raise ValueError(str(error)) from None


# ---------------------------------------------------------------- publications: the fast path


def encode_publication(publication: Publication) -> bytes:
    """Return the bytes of a publication; raise ValueError if peers would refuse them."""
    qos, hops, topic = publication.qos, publication.hops, publication.topic
    target_groups = publication.target_groups
    rest = encoded = topic.encode()
    topic_bytes = len(encoded)
    opening = _OPENING | qos
    if publication.retain:
        opening |= _RETAIN
    try:
        if publication.receivers or publication.properties or publication.macs:
            opening |= _MORE | _PROVEN * bool(publication.macs)
            rest = _pack_extension(publication, encoded)
        if publication.version:
            opening |= _VERSIONED
            rest = _VERSION.pack(publication.version) + rest
        if target_groups:
            rest = _integers(len(target_groups)).pack(*target_groups) + rest
        origin, epoch, sequence = publication.origin, publication.epoch, publication.sequence
        head = PUBLICATION_HEADER.pack(
            opening, hops, len(target_groups), origin, epoch, sequence, topic_bytes
        )
    except struct.error as error:
        raise ValueError(f"publication: {error}") from None
    if qos > _QOS_MAX:
        raise ValueError(f"publication: QoS {qos}, the limit is {_QOS_MAX}")
    data = b"".join((head, rest, publication.payload))
    # Publications that these few comparisons do not clear are decoded as a peer would.
    if (
        hops > HOPS_MAX
        or len(data) > _SMALL_BYTES
        or not 0 < topic_bytes < TOPIC_LEVELS_MAX
        or "+" in topic
        or "#" in topic
        or "\0" in topic
    ):
        _require_decodable(data)
    return data


def decode_publication(data: bytes | bytearray | memoryview) -> Publication:
    """Return the publication in these bytes; raise InvalidFrame if there is none."""
    if type(data) is not bytes:
        data = bytes(data)  # slices of bytes are much faster than slices of a view
    at, version, entry_count, properties_bytes = PUBLICATION_HEAD_BYTES, 0, 0, 0
    target_groups: tuple[GroupId, ...] = ()
    receivers: tuple[tuple[NodeId, int], ...] = ()
    macs = b""
    try:
        opening, hops, count, origin, epoch, sequence, topic_bytes = PUBLICATION_HEADER.unpack_from(
            data
        )
        qos, retain, more, versioned, proven = _OPENINGS[opening]
        if count:
            target_groups = _integers(count).unpack_from(data, at)
            at += 8 * count
        if versioned:
            (version,) = _VERSION.unpack_from(data, at)
            at += _VERSION.size
        if more:
            entry_count, properties_bytes = _EXTRA.unpack_from(data, at)
            at += _EXTRA.size + 16 * entry_count
            receivers = tuple(_ENTRY.iter_unpack(data[at - 16 * entry_count : at]))
            if proven:
                macs = data[at : at + MAC_BYTES * entry_count]
                at += MAC_BYTES * entry_count
        topic_end = at + topic_bytes
        topic = data[at:topic_end].decode()
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise _invalid_publication(data, error) from None
    end = topic_end + properties_bytes
    if end > len(data):
        raise InvalidFrame(f"publication: {len(data)} bytes, its header says {end}")
    if (
        hops > HOPS_MAX
        or len(data) > _SMALL_BYTES
        or not 0 < topic_bytes < TOPIC_LEVELS_MAX
        or "+" in topic
        or "#" in topic
        or "\0" in topic
    ):
        _check_publication(topic, hops, max(count, entry_count), len(data) - at)
    properties = data[topic_end:end] if properties_bytes else b""
    return Publication(
        origin,
        epoch,
        sequence,
        qos,
        topic,
        data[end:],
        retain,
        hops,
        target_groups,
        receivers,
        properties,
        version,
        macs,
    )


def remove_target_groups(frame: bytearray, count: int) -> None:
    """Remove the `count` target groups from a plain publication."""
    frame[_COUNT_AT : _COUNT_AT + 2] = b"\0\0"
    del frame[PUBLICATION_HEAD_BYTES : PUBLICATION_HEAD_BYTES + GROUP_ID_STRUCT.size * count]


def make_frame_template(data: bytes, payload_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the sequence number of a publication, without its payload.
    With another sequence number and payload they are the next publication."""
    return data[:_NUMBER_AT], data[_NUMBER_AT + 8 : len(data) - payload_bytes]


def ordering_key(frame: bytes | bytearray) -> bytes:
    """Return a key; frames with equal keys must not overtake each other: the origin of a
    publication, at QoS 0 also the topic; empty for bulk responses. The frame must be a whole one of
    either type."""
    if frame[0] == BULK_RESPONSE:
        return b""
    origin = bytes(frame[ORIGIN_AT:ORIGIN_END])
    opening, _, count, *_, topic_bytes = PUBLICATION_HEADER.unpack_from(frame)
    qos, _, more, versioned, _ = _OPENINGS[opening]
    if qos:
        return origin
    at = PUBLICATION_HEAD_BYTES + GROUP_ID_STRUCT.size * count + _VERSION.size * versioned
    if more:
        entry_count, _ = _EXTRA.unpack_from(frame, at)
        at += _EXTRA.size + _ENTRY.size * entry_count
    return origin + frame[at : at + topic_bytes]


def _pack_extension(publication: Publication, topic: bytes) -> bytes:
    receivers, properties = publication.receivers, publication.properties
    macs = publication.macs
    if macs and (not publication.qos or len(macs) != MAC_BYTES * len(receivers)):
        raise ValueError(f"publication: {len(macs)} bytes of MACs for {len(receivers)} receivers")
    entries = [_ENTRY.pack(*entry) for entry in receivers]
    counts = _EXTRA.pack(len(receivers), len(properties))
    return b"".join((counts, *entries, macs, topic, properties))


@lru_cache(maxsize=64)
def _integers(count: int) -> struct.Struct:
    return struct.Struct(f">{count}Q")


def _invalid_publication(data: bytes, error: Exception) -> InvalidFrame:
    match error:
        case UnicodeDecodeError():
            return InvalidFrame(f"publication: topic: {error}")
        case KeyError():
            return InvalidFrame(f"publication: unknown first bytes {data[:2].hex()}")
        case _:
            return InvalidFrame(f"publication: {len(data)} bytes, its header needs more")


def _check_publication(topic: str, hops: int, group_count: int, packet_bytes: int) -> None:
    try:
        at_most(hops, HOPS_MAX, " hops")
        at_most(group_count, TARGET_GROUPS_MAX, " groups")
        at_most(packet_bytes, PACKET_BYTES_MAX, " bytes of topic, properties and payload")
        check_name(topic)
    except (InvalidFrame, InvalidTopic) as error:
        raise InvalidFrame(f"publication: {error}") from None
