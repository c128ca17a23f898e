"""Builds OpenTelemetry spans from telemetry records: one span per node and sampled publication.

Every node derives the trace id from the publication (origin, epoch, sequence number), and its span
id from the publication and its node id. The parent is the span of the neighbour that sent the first
copy. So the spans of all nodes form one trace, although publications carry no trace context and
nodes exchange nothing about traces.

Spans have the JSON form of OTLP, the protocol of OpenTelemetry. A span is finished when there was
no record of its publication for IDLE_NS. A record that arrives later, such as a delivery to a
broker that was away, becomes a span of its own below the first. At most PENDING_MAX spans are
unfinished; then the oldest is finished early.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from hansa.telemetry import schema

IDLE_NS = 2_000_000_000
"""Nanoseconds without a record after which a span is finished."""

PENDING_MAX = 4_096
"""Unfinished spans that are kept."""

EVENTS_MAX = 64
"""Events of one span; a publication to more neighbours has more copies, which are not listed."""

INTERNAL, PRODUCER, CONSUMER = 1, 4, 5
"""Kinds of spans in OTLP."""

STATUS_ERROR = 2

Publication = tuple[int, int, int]
"""Origin, epoch and sequence number."""

SpanRecord = (
    schema.Captured
    | schema.CopySent
    | schema.CopyReceived
    | schema.Duplicate
    | schema.Delivered
    | schema.Dropped
)
"""Records that spans are built from."""


@dataclass(slots=True)
class PendingSpan:
    publication: Publication
    span_id: str
    parent_span_id: str
    started_ns: int
    last_ns: int
    name: str = "receive"
    kind: int = INTERNAL
    error: str = ""
    attributes: dict[str, str | int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the span in the JSON form of OTLP."""
        status = {"code": STATUS_ERROR, "message": self.error} if self.error else {}
        return {
            "traceId": trace_id(self.publication),
            "spanId": self.span_id,
            "parentSpanId": self.parent_span_id,
            "name": self.name,
            "kind": self.kind,
            "startTimeUnixNano": str(self.started_ns),
            "endTimeUnixNano": str(self.last_ns),
            "attributes": to_attributes(self.attributes),
            "events": self.events,
            "status": status,
        }


def trace_id(publication: Publication) -> str:
    """Return the trace id of a publication: 16 bytes in hexadecimal."""
    return blake2b(repr(publication).encode(), digest_size=16, person=b"hansa trace").hexdigest()


def span_id(publication: Publication, node: int, late_ns: int = 0) -> str:
    """Return the span id of a node: 8 bytes in hexadecimal. `late_ns` distinguishes spans that
    begin after the first was finished."""
    key = repr((publication, node, late_ns)).encode()
    return blake2b(key, digest_size=8, person=b"hansa span").hexdigest()


def to_attributes(values: dict[str, str | int]) -> list[dict[str, Any]]:
    """Return attributes in the JSON form of OTLP, which writes integers as strings."""
    return [
        {
            "key": key,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in values.items()
    ]


class SpanBuilder:
    """Builds the spans of one node."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._pending: OrderedDict[Publication, PendingSpan] = OrderedDict()
        """In the order of the last record."""
        self._finished: list[dict[str, Any]] = []

    def add(self, record: schema.AnyRecord) -> None:
        """Add a record; those that are not about publications are ignored."""
        if not isinstance(record, SpanRecord):
            return
        key = (record.origin_id, record.epoch, record.sequence)
        span = self._pending.get(key)
        if span is None:
            if len(self._pending) >= PENDING_MAX:
                self._finish_oldest()
            span = self._pending[key] = self._start_span(key, record)
        self._pending.move_to_end(key)
        span.last_ns = max(span.last_ns, record.time_ns)
        _describe(span, record)

    def take_finished(self, now_ns: int) -> list[dict[str, Any]]:
        """Return spans that were finished, also those that are idle at `now_ns`."""
        while self._pending:
            oldest = next(iter(self._pending.values()))
            if now_ns - oldest.last_ns < IDLE_NS:
                break
            self._finish_oldest()
        finished, self._finished = self._finished, []
        return finished

    def take_all(self) -> list[dict[str, Any]]:
        """Finish and return all spans."""
        while self._pending:
            self._finish_oldest()
        return self.take_finished(0)

    def _finish_oldest(self) -> None:
        _, span = self._pending.popitem(last=False)
        self._finished.append(span.to_json())

    def _start_span(self, key: Publication, record: SpanRecord) -> PendingSpan:
        now, own = record.time_ns, span_id(key, self._node)
        match record:
            case schema.Captured():
                return PendingSpan(key, own, "", now, now)
            case schema.CopyReceived(peer_id=peer):
                parent = "" if peer is None else span_id(key, peer)
                return PendingSpan(key, own, parent, now, now)
        is_from_journal = isinstance(record, schema.Delivered) and record.hops is None
        parent = span_id(key, record.origin_id) if is_from_journal else own
        return PendingSpan(key, span_id(key, self._node, now), parent, now, now)


def _describe(span: PendingSpan, record: SpanRecord) -> None:
    """Add to the span what a record says."""
    span.attributes["hansa.qos"] = record.qos
    span.attributes["hansa.sequence"] = record.sequence
    if not isinstance(record, (schema.Duplicate, schema.Dropped)):
        span.attributes |= {
            "messaging.system": "mqtt",
            "messaging.destination.name": record.topic,
            "messaging.message.body.size": record.payload_bytes,
        }
    match record:
        case schema.Captured():
            span.name, span.kind = "publish", PRODUCER
        case schema.CopyReceived(peer_id=peer):
            _add_event(span, record.time_ns, "copy received", peer)
        case schema.CopySent(peer_id=peer):
            if span.name == "receive":
                span.name = "relay"
            _add_event(span, record.time_ns, "copy sent", peer)
        case schema.Duplicate(peer_id=peer):
            _add_event(span, record.time_ns, "duplicate dropped", peer)
        case schema.Delivered():
            span.name, span.kind = "deliver", CONSUMER
            _add_event(span, record.time_ns, "delivered", None)
        case schema.Dropped(reason=reason):
            span.error = reason
            _add_event(span, record.time_ns, f"dropped: {reason}", None)


def _add_event(span: PendingSpan, time_ns: int, name: str, peer: int | None) -> None:
    if len(span.events) < EVENTS_MAX:
        attributes = {} if peer is None else {"hansa.peer_id": f"{peer:016x}"}
        span.events.append(
            {
                "timeUnixNano": str(time_ns),
                "name": name,
                "attributes": to_attributes(dict(attributes)),
            }
        )
