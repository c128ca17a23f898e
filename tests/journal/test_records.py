"""Encoding of records, and compatibility with other versions."""

import msgspec
import pytest
from hypothesis import given
from tests.journal.journals import any_record, captured

from hansa.journal import records


@given(any_record)
def test_records_round_trip(record):
    assert records.decode_record(record.KIND, records.encode_record(record)) == record


def test_kind_numbers_are_stable():
    assert {number: kind.__name__ for number, kind in records.RECORD_TYPES.items()} == {
        1: "CapturedRecord",
        2: "CaptureCompletedRecord",
        3: "RedeliverableRecord",
        4: "LastAssignedRecord",
        5: "InboxRecord",
        6: "InjectionAcceptedRecord",
        7: "InjectionCompletedRecord",
        8: "OriginProgressRecord",
        9: "ReceiverAckRecord",
        10: "GapRecord",
        11: "TrimmedRecord",
        12: "RecordedPublication",
        13: "TelemetryBlock",
        14: "UnreportedRecord",
        15: "SessionStartedRecord",
    }


def test_unknown_kind_is_none():
    assert records.decode_record(200, b"whatever") is None


def test_additional_fields_are_ignored():
    body = msgspec.msgpack.encode([9, "new"])
    assert records.decode_record(
        records.CaptureCompletedRecord.KIND, body
    ) == records.CaptureCompletedRecord(9)


def test_missing_fields_get_their_default():
    body = msgspec.msgpack.encode([1, 2, 3, 4])
    assert records.decode_record(
        records.OriginProgressRecord.KIND, body
    ) == records.OriginProgressRecord(1, 2, 3, 4, ())


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode(["x"])])
def test_invalid_body_is_an_error(body):
    with pytest.raises(ValueError):
        records.decode_record(records.CaptureCompletedRecord.KIND, body)


def test_largest_packet_fits_and_larger_bodies_are_refused():
    assert records.encode_record(
        captured(1, bytes(65 << 20), receivers=((2**64 - 1, 2**64 - 1),) * 1024)
    )
    with pytest.raises(ValueError, match="CapturedRecord: 6920.* bytes, limit 69206016"):
        records.encode_record(captured(1, bytes(records.BODY_BYTES_MAX)))


def test_integer_above_64_bits_is_refused():
    with pytest.raises(ValueError, match="CaptureCompletedRecord"):
        records.encode_record(records.CaptureCompletedRecord(1 << 64))
