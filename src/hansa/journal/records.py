"""The record types of a journal, and their encoding.

A body is MessagePack: an array of the fields in the order below. Fields and kinds are only added,
fields at the end with a default: an old reader skips what it does not know, a new reader reads old
journals. A changed meaning is a new kind. `segment` frames the bodies.

`origin`, `node`: 64-bit node ids. `group`: always 0, kept for the format. `time_ns`: nanoseconds
since 1970 by the clock of the writing agent. `epoch`: journal epoch; the segment header has this
journal's own.
"""

from typing import ClassVar

import msgspec

BODY_BYTES_MAX = 66 << 20
"""Largest body: a packet of 65 MiB and its receivers. A reader treats a greater length as
corruption, so that it never allocates more than this."""


class CapturedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A QoS 1 or 2 publication of a local client. Durable before it is acknowledged to the broker.
    After a restart, redeliveries are recognised by the last of these records."""

    KIND: ClassVar[int] = 1
    sequence: int
    """Consecutive, from 1 in every epoch."""
    qos: int
    topic: str
    payload: bytes
    retain: bool
    properties: bytes
    """Encoded MQTT 5 properties."""
    receivers: tuple[tuple[int, int], ...]
    """Each with the sequence number of the previous publication for it, 0 for none."""
    packet_id: int
    time_ns: int
    recorded: bool = False
    """Whether its topic is recorded."""
    version: int = 0
    """Version of a retained value (docs/protocol.md, section 9)."""
    subscription: int = 0
    """Identifier of the agent's subscription that matched; 0 if the broker sent none."""
    newest_subscription: int = 0
    """Newest identifier at that time: later subscriptions cannot have matched."""


class CaptureCompletedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The broker will not redeliver this publication: its QoS 2 handshake has ended, or a new
    segment or epoch carries it as finished."""

    KIND: ClassVar[int] = 2
    sequence: int


class RedeliverableRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Carried: a captured publication that the broker may redeliver."""

    KIND: ClassVar[int] = 3
    sequence: int
    """Negated packet id if the publication belongs to an ended epoch."""
    packet_id: int
    qos: int = 2
    digest: bytes = b""
    """Digest of the content: the broker may reuse the packet id for another publication."""
    subscription: int = 0
    newest_subscription: int = 0


class LastAssignedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """By receiver, the sequence number of the last publication for it. Nodes that are not listed
    have expired. Carried, and written when a receiver expires."""

    KIND: ClassVar[int] = 4
    last_assigned: tuple[tuple[int, int], ...]


class InboxRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The publication `(origin, epoch, sequence)` is to be injected at `index`, from which its
    packet id follows. Durable before PUBLISH is sent and before the origin is acknowledged."""

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
    """The broker sent PUBREC for `index`. Durable before PUBREL is sent; after it, PUBLISH must not
    be sent again in this broker session."""

    KIND: ClassVar[int] = 6
    index: int


class InjectionCompletedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The broker has the publication at `index` (PUBACK, PUBCOMP), or it was dropped. If this
    record is lost, the publication is sent again: at QoS 1 a duplicate; at QoS 2 only if the broker
    has also lost the session."""

    KIND: ClassVar[int] = 7
    index: int


class OriginProgressRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All publications of an origin up to `sequence` were accepted here. `beyond` is always empty,
    kept for the format."""

    KIND: ClassVar[int] = 8
    origin: int
    epoch: int
    group: int
    sequence: int
    beyond: tuple[tuple[int, int], ...] = ()


class ReceiverAckRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`node` has all publications for it up to `sequence`. May be late: an epoch rollover then
    copies more than necessary."""

    KIND: ClassVar[int] = 9
    node: int
    group: int
    sequence: int


class GapRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The publications `first` to `last` of `origin` are lost here."""

    KIND: ClassVar[int] = 10
    origin: int
    epoch: int
    first: int
    last: int
    reason: str
    time_ns: int


class TrimmedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Retention deleted a segment with the captured publications `first` to `last` (`last` is below
    `first` if it held none). Written by the writer itself."""

    KIND: ClassVar[int] = 11
    epoch: int
    first: int
    last: int
    segment_bytes: int
    time_ns: int


class RecordedPublication(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A QoS 0 publication to a recorded topic. Durable with the next commit."""

    KIND: ClassVar[int] = 12
    incarnation: int
    sequence: int
    topic: str
    payload: bytes
    retain: bool
    properties: bytes
    time_ns: int


class TelemetryBlock(msgspec.Struct, frozen=True, array_like=True):
    """Telemetry rows of one incarnation of a node, numbered from `first` on; `hansa.telemetry`
    defines them. Only in telemetry journals."""

    KIND: ClassVar[int] = 13
    node: int
    incarnation: int
    first: int
    rows: msgspec.Raw


class UnreportedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Nothing from `sequence` on was sent to `node`: an incarnation started there, and the node has
    not reported its progress since. 0 when it has; durable before anything is sent to the node."""

    KIND: ClassVar[int] = 14
    node: int
    sequence: int


class SessionStartedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The broker started a new session: it redelivers no earlier publication, and packet ids and
    subscription identifiers start again."""

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
    | UnreportedRecord
    | SessionStartedRecord
)

RECORD_TYPES: dict[int, type[JournalRecord]] = {kind.KIND: kind for kind in JournalRecord.__args__}
"""All record types by kind."""


def seconds_since(since_ns: int, now_ns: int) -> int:
    """Return the whole seconds since the time of a record; 0 if it has none."""
    return max(0, now_ns - since_ns) // 1_000_000_000 if since_ns else 0


_encode = msgspec.msgpack.Encoder().encode
_decoders = {number: msgspec.msgpack.Decoder(kind) for number, kind in RECORD_TYPES.items()}


def encode_record(record: JournalRecord) -> bytes:
    """Return the body of a record; raise ValueError if it is too large or out of range."""
    try:
        body = _encode(record)
    except OverflowError as error:
        raise ValueError(f"{type(record).__name__}: {error}") from None
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"{type(record).__name__}: {len(body)} bytes, limit {BODY_BYTES_MAX}")
    return body


def decode_record(kind: int, body: bytes) -> JournalRecord | None:
    """Decode a body; None for an unknown kind. Raises ValueError for an invalid body."""
    decoder = _decoders.get(kind)
    return None if decoder is None else decoder.decode(body)
