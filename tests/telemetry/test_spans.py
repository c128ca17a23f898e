"""Spans of the nodes form one trace per publication."""

from typing import Any

import pytest

from hansa.telemetry import schema
from hansa.telemetry.spans import (
    EVENTS_MAX,
    IDLE_NS,
    PENDING_MAX,
    SpanBuilder,
    span_id,
    trace_id,
)

A, B, C = 1, 2, (1 << 64) - 2
NAME = (A, 7, 5)
FIELDS = (*NAME, 1, "plant/a", 20)
COPY = (90, 1)


def spans_of(node: int, *records: schema.AnyRecord) -> list[dict[str, Any]]:
    builder = SpanBuilder(node)
    for record in records:
        builder.add(record)
    return builder.take_all()


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def test_nodes_of_a_path_make_one_trace():
    (first,) = spans_of(A, schema.Captured(10, *FIELDS), schema.CopySent(12, *FIELDS, *COPY, B))
    (relay,) = spans_of(
        B, schema.CopyReceived(20, *FIELDS, *COPY, A), schema.CopySent(21, *FIELDS, *COPY, C)
    )
    (last,) = spans_of(
        C, schema.CopyReceived(30, *FIELDS, *COPY, B), schema.Delivered(35, *FIELDS, 2)
    )
    assert [each["name"] for each in (first, relay, last)] == ["publish", "relay", "deliver"]
    assert {each["traceId"] for each in (first, relay, last)} == {trace_id(NAME)}
    assert (first["parentSpanId"], relay["parentSpanId"]) == ("", first["spanId"])
    assert last["parentSpanId"] == relay["spanId"]
    assert (last["startTimeUnixNano"], last["endTimeUnixNano"]) == ("30", "35")
    assert len(trace_id(NAME)) == 32
    assert len(first["spanId"]) == 16


def test_span_names_topic_and_peers():
    (span,) = spans_of(B, schema.CopyReceived(20, *FIELDS, *COPY, C))
    assert span["name"] == "receive"
    assert attributes(span) == {
        "hansa.qos": "1",
        "hansa.sequence": "5",
        "messaging.system": "mqtt",
        "messaging.destination.name": "plant/a",
        "messaging.message.body.size": "20",
    }
    (event,) = span["events"]
    assert event["name"] == "copy received"
    assert attributes(event) == {"hansa.peer_id": f"{C:016x}"}


def test_dropped_copy_is_an_error():
    (span,) = spans_of(A, schema.Captured(10, *FIELDS), schema.Dropped(11, *NAME, 1, "queue full"))
    assert span["status"] == {"code": 2, "message": "queue full"}
    (span,) = spans_of(A, schema.Captured(10, *FIELDS))
    assert span["status"] == {}


def test_duplicate_is_an_event_of_the_first_copy():
    (span,) = spans_of(
        B,
        schema.CopyReceived(20, *FIELDS, *COPY, A),
        schema.CopyReceived(21, *FIELDS, *COPY, C),
        schema.Duplicate(21, *NAME, 1, C),
    )
    assert [each["name"] for each in span["events"]] == [
        "copy received",
        "copy received",
        "duplicate dropped",
    ]
    assert span["parentSpanId"] == span_id(NAME, A)


def test_copy_before_the_handshake_has_no_parent():
    (span,) = spans_of(B, schema.CopyReceived(20, *FIELDS, *COPY, None))
    assert span["parentSpanId"] == ""


@pytest.mark.parametrize(("hops", "parent"), [(None, A), (2, B)])
def test_late_delivery_is_a_span_of_its_own(hops, parent):
    (span,) = spans_of(B, schema.Delivered(50, *FIELDS, hops))
    assert span["spanId"] == span_id(NAME, B, 50)
    assert span["parentSpanId"] == span_id(NAME, parent)


def test_span_is_finished_when_it_is_idle():
    builder = SpanBuilder(A)
    builder.add(schema.Captured(0, *FIELDS))
    builder.add(schema.Captured(1, A, 7, 6, *FIELDS[3:]))
    builder.add(schema.CopySent(2, *FIELDS, *COPY, B))
    assert builder.take_finished(IDLE_NS) == []
    assert len(builder.take_finished(IDLE_NS + 1)) == 1
    assert len(builder.take_finished(IDLE_NS + 2)) == 1
    assert builder.take_all() == []


def test_spans_and_events_are_bounded():
    builder = SpanBuilder(A)
    for sequence in range(PENDING_MAX + 3):
        builder.add(schema.Captured(0, A, 7, sequence, *FIELDS[3:]))
    assert len(builder.take_finished(0)) == 3
    (span,) = spans_of(A, *(schema.CopySent(1, *FIELDS, *COPY, n) for n in range(EVENTS_MAX + 5)))
    assert len(span["events"]) == EVENTS_MAX


def test_other_records_are_ignored():
    assert spans_of(A, schema.NodeReachable(1, B)) == []
