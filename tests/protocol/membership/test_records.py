"""Kinds of records, and their tags on the wire."""

from typing import get_args

from hypothesis import given
from tests.protocol.arbitrary import any_record

from hansa.protocol.membership.records import KIND_OF, Record, RecordKind
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import Update


def test_every_record_has_its_kind():
    assert set(get_args(Record)) == set(KIND_OF)
    assert sorted(KIND_OF.values()) == list(RecordKind)


@given(any_record)
def test_record_is_tagged_with_its_kind(record):
    data = encode(Update((record,)))
    frame, tag, records, fields, kind = data[1:6]
    assert (frame, tag, records, fields & 0xF0) == (0x92, 5, 0x91, 0x90)
    assert kind == KIND_OF[type(record)]
