"""Records that are decoded all at once: the same columns as one by one, or none."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.recordings import captured as captured_message
from tests.pipeline.recordings import journal
from tests.pipeline.recordings import recorded as recorded_message

from hansa.journal.records import CapturedRecord, RecordedPublication, encode_record
from hansa.mqtt.properties import Property, encode_properties
from hansa.pipeline import rows
from hansa.pipeline.feeds import Feed
from hansa.pipeline.packed_records import PackedRecords, UnexpectedLayout

FEED = Feed(5, 7, "journals/5")

integers = st.integers(0, 127) | st.integers(0, (1 << 63) - 1)
node_ids = st.integers(0, (1 << 64) - 1)
texts = st.text(max_size=40) | st.just("t" * 255) | st.just("t" * 70_000)
payloads = st.binary(max_size=300) | st.just(b"p" * 70_000)
properties = st.just(b"") | st.sampled_from(
    [encode_properties(((Property.CONTENT_TYPE, "text/plain"),)), b"\xff"]
)
pairs = st.tuples(node_ids, integers)
receivers = st.lists(pairs, max_size=4).map(tuple) | st.just(((1 << 63, 300),) * 20)
captured = st.builds(
    CapturedRecord,
    integers,
    st.integers(1, 2),
    texts,
    payloads,
    st.booleans(),
    properties,
    receivers,
    integers,
    integers,
    st.booleans(),
)
recorded = st.builds(
    RecordedPublication, integers, integers, texts, payloads, st.booleans(), properties, integers
)
records = st.lists(captured, min_size=1, max_size=30) | st.lists(recorded, min_size=1, max_size=30)


def values(columns: dict[str, Any]) -> dict[str, list[Any]]:
    return {
        name: column.to_pylist() if isinstance(column, pa.Array) else column
        for name, column in columns.items()
    }


@given(records)
def test_records_decoded_at_once_give_the_same_columns(records):
    kind, offsets = records[0].KIND, [*range(10, 10 + len(records))]
    bodies = [encode_record(record) for record in records]
    at_once = rows.packed_columns(kind, offsets, bodies)
    one_by_one = rows.decoded_columns(FEED, kind, offsets, bodies)
    assert values(at_once) == values(one_by_one)


@given(st.lists(captured, min_size=1, max_size=3), st.data())
def test_damaged_records_are_refused_or_give_the_same_columns(records, data):
    bodies = [encode_record(record) for record in records]
    body = bytearray(bodies[0])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    bodies[0] = bytes(body[:cut])
    offsets = [*range(len(bodies))]
    try:
        at_once = rows.packed_columns(CapturedRecord.KIND, offsets, bodies)
    except UnexpectedLayout:
        return
    one_by_one = rows.decoded_columns(FEED, CapturedRecord.KIND, offsets, bodies)
    assert values(at_once) == values(one_by_one)


@pytest.mark.parametrize("head, tail", [(b"\x9a", b""), (b"\x9e", b"\x00\x00\x00\x05")])
def test_a_record_with_fewer_or_more_fields_is_decoded_on_its_own(head, tail):
    body = encode_record(CapturedRecord(1, 1, "a", b"x", False, b"", (), 1, 5, True))
    other = head + body[1:-3] + tail  # as an older agent, or a newer one, writes it
    columns = rows.message_columns(FEED, CapturedRecord.KIND, [1, 2], [other, body])
    assert columns["offset"] == [1, 2]


def test_a_batch_of_large_messages_ends_early(tmp_path, monkeypatch):
    messages = [captured_message(n, payload=b"p" * 1_000) for n in range(1, 41)]
    journal(tmp_path, 5, [*messages, recorded_message(1)])
    monkeypatch.setattr(rows, "BATCH_BYTES", 10_000)
    feed = Feed(5, 7, str(tmp_path))
    bounds = feed.bounds()
    found = [
        batch.column("sequence").to_pylist()
        for batch in rows.read_batches(
            feed, bounds.start, bounds.end, rows.MESSAGES, rows.arrow_schema(rows.MESSAGES)
        )
    ]
    assert max(map(len, found)) <= 10
    assert sum(found, []) == [*range(1, 41), 1]


def test_an_integer_behind_the_last_record_is_refused():
    packed = PackedRecords([b"\x91\xcf"])
    packed.begin(1)
    packed.integers()
    with pytest.raises(UnexpectedLayout):
        packed.end()
