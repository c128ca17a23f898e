"""What a journal says: one type per kind of record, and their bytes.

A body is MessagePack, an array of the fields in the order below. Fields and kinds are only ever
added, fields at the end and with a default: an old reader skips what it does not know, a new one
reads old journals. A changed meaning is a new kind. Where a record stands in a file, and whether
it is whole, is the business of `segment`.

`origin`, `node`: 64-bit node ids. `group`: a 64-bit group id. `time_ns`: nanoseconds since 1970, by
the clock of the agent that writes. `epoch`: of a journal; this journal's own is in its segments.
"""

from typing import ClassVar

import msgspec

BODY_BYTES_MAX = 66 << 20
"""Bytes of one record's body: a packet of 65 MiB and its `previous` entries, with room to spare. A
reader takes a greater length for damage, so that it never allocates more than this."""


class CapturedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publication of QoS 1 or 2 by a client of this agent's broker. Durable before it is
    acknowledged. After a restart, the last ones show which of the broker's are redeliveries."""

    KIND: ClassVar[int] = 1
    sequence: int
    """Dense: each is one more than the last, from 1 in every epoch."""
    qos: int
    topic: str
    payload: bytes
    retain: bool
    properties: bytes
    """MQTT 5 properties as they arrived."""
    previous: tuple[tuple[int, int], ...]
    """Per receiver, the number of what it was owed before, 0 for none."""
    packet_id: int
    """What the broker called it."""
    time_ns: int
    recorded: bool = False
    """Whether it was selected for recording, wanted elsewhere or not."""
    version: int = 0
    """Of a retained value; see the protocol."""
    subscription: int = 0
    """The identifier of the agent's subscription that brought it; 0 if the broker named none."""
    newest_subscription: int = 0
    """The identifier that the agent had given last: younger ones cannot have brought a copy."""


class CaptureCompletedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The handshake with the broker about a captured publication of QoS 2 is over: its packet id
    may come again with another publication."""

    KIND: ClassVar[int] = 2
    sequence: int


class RedeliverableRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Carried: a captured publication that the broker may send again, with its packet id."""

    KIND: ClassVar[int] = 3
    sequence: int
    """Of one that an epoch before this one holds: its packet id, negative."""
    packet_id: int
    qos: int = 2
    digest: bytes = b""
    """Of what was published: another publication may come with the same packet id."""
    subscription: int = 0
    newest_subscription: int = 0


class LastAssignedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Per receiver, the number of the last publication that it is owed; others are owed nothing.
    Carried, and written when a receiver is forgotten."""

    KIND: ClassVar[int] = 4
    last_assigned: tuple[tuple[int, int], ...]


class InboxRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The publication `(origin, epoch, number)` is to be injected at `index`, which decides its
    packet id. Durable before PUBLISH leaves, and before its origin gets a receipt."""

    KIND: ClassVar[int] = 5
    index: int
    origin: int
    epoch: int
    sequence: int
    qos: int
    topic: str = ""
    payload: bytes = b""
    retain: bool = False
    properties: bytes = b""
    time_ns: int = 0


class InjectionAcceptedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The broker has answered PUBREC to the injection at `index`. Durable before PUBREL leaves:
    from here on PUBLISH must not be sent again."""

    KIND: ClassVar[int] = 6
    index: int


class InjectionCompletedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The injection at `index` is over, by PUBACK or PUBCOMP. May be lost without harm."""

    KIND: ClassVar[int] = 7
    index: int


class OriginProgressRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All of an origin's publications up to `number` were injected here, and those in the ranges
    `beyond`, both ends included. `group` is 0 and `beyond` empty: the format has them."""

    KIND: ClassVar[int] = 8
    origin: int
    epoch: int
    group: int
    sequence: int
    beyond: tuple[tuple[int, int], ...] = ()


class ReceiverAckRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`node` has what this agent captured for it, up to `number`. May be late: then a new epoch
    begins with more than it has to. `group` is 0: the format has it."""

    KIND: ClassVar[int] = 9
    node: int
    group: int
    sequence: int


class GapRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of what `origin` published, the numbers `first` to `last` will never come here."""

    KIND: ClassVar[int] = 10
    origin: int
    epoch: int
    first: int
    last: int
    reason: str
    time_ns: int


class TrimmedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Retention dropped a segment of this journal with the captured numbers `first` to `last`
    (`last` is below `first` if it held none). Written by the journal itself."""

    KIND: ClassVar[int] = 11
    epoch: int
    first: int
    last: int
    segment_bytes: int
    time_ns: int


class RecordedPublication(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publication of QoS 0 that was selected for recording. Nobody waits for it: it becomes
    durable with the next commit."""

    KIND: ClassVar[int] = 12
    incarnation: int
    sequence: int
    topic: str
    payload: bytes
    retain: bool
    properties: bytes
    time_ns: int


class TelemetryBlock(msgspec.Struct, frozen=True, array_like=True):
    """Records of telemetry, of one life of one node, numbered from `first` on. What they mean is
    unknown here: see `hansa.telemetry`. They are in a journal of their own."""

    KIND: ClassVar[int] = 13
    node: int
    incarnation: int
    first: int
    rows: msgspec.Raw


class UnheardRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Nothing from `number` on was sent to `node`: a life of this agent began there, and has not
    heard yet what the node has. 0 when it has; durable before anything is sent to it then."""

    KIND: ClassVar[int] = 14
    node: int
    sequence: int


class SessionStartedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The broker has begun another session with the agent: nothing of before comes again, and
    packet ids and subscriptions are numbered anew."""

    KIND: ClassVar[int] = 15
    time_ns: int


JournalRecord = (
    CapturedRecord
    | CaptureCompletedRecord
    | RedeliverableRecord
    | LastAssignedRecord
    | InboxRecord
    | InjectionAcceptedRecord
    | InjectionCompletedRecord
    | OriginProgressRecord
    | ReceiverAckRecord
    | GapRecord
    | TrimmedRecord
    | RecordedPublication
    | TelemetryBlock
    | UnheardRecord
    | SessionStartedRecord
)

RECORD_TYPES: dict[int, type[JournalRecord]] = {kind.KIND: kind for kind in JournalRecord.__args__}
"""Every type of record by its number."""


def seconds_since(since_ns: int, now_ns: int) -> int:
    """Return how many whole seconds passed since a record's time; none if it does not say."""
    return max(0, now_ns - since_ns) // 1_000_000_000 if since_ns else 0


_encode = msgspec.msgpack.Encoder().encode
_decoders = {number: msgspec.msgpack.Decoder(kind) for number, kind in RECORD_TYPES.items()}


def encode_record(record: JournalRecord) -> bytes:
    """Return a record's body; raise ValueError if no reader would take it."""
    try:
        body = _encode(record)
    except OverflowError as error:
        raise ValueError(f"{type(record).__name__}: {error}") from None
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"{type(record).__name__}: {len(body)} bytes, limit {BODY_BYTES_MAX}")
    return body


def decode_record(kind: int, body: bytes) -> JournalRecord | None:
    """Return what a body says, None if this version does not know the kind.

    Raises ValueError for a body that is none of its kind's.
    """
    decoder = _decoders.get(kind)
    return None if decoder is None else decoder.decode(body)
