"""Digests of retained values, and of sets of them."""

from hansa.protocol.model import NodeId
from hansa.protocol.retained.digest import RetainedEntry, bucket_digests, bucket_of, payload_digest
from hansa.protocol.wire.frames import RETAINED_BUCKETS

OWNER = NodeId(1)


def test_an_empty_payload_has_an_empty_digest():
    assert payload_digest(b"") == b""
    assert len({payload_digest(b"x"), payload_digest(b"y"), payload_digest(b"")}) == 3


def test_the_order_of_values_does_not_matter():
    values = {f"{n}": RetainedEntry(n, OWNER, b"x") for n in range(200)}
    assert bucket_digests(values) == bucket_digests(dict(reversed(values.items())))


def test_one_changed_version_changes_the_bucket_of_its_topic():
    values = {f"{n}": RetainedEntry(n, OWNER, b"x") for n in range(200)}
    before = bucket_digests(values)
    after = bucket_digests(values | {"7": RetainedEntry(1_000, OWNER, b"x")})
    assert [n for n in range(RETAINED_BUCKETS) if before[n] != after[n]] == [bucket_of("7")]
