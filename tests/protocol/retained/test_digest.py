"""Digests of retained values, and of sets of them."""

from hansa.protocol.model import NodeId
from hansa.protocol.retained.digest import Value, bucket, buckets_of, digest
from hansa.protocol.wire.frames import BUCKETS

OWNER = NodeId(1)


def test_an_empty_payload_has_an_empty_digest():
    assert digest(b"") == b""
    assert len({digest(b"x"), digest(b"y"), digest(b"")}) == 3


def test_the_order_of_values_does_not_matter():
    values = {f"{n}": Value(n, OWNER, b"x") for n in range(200)}
    assert buckets_of(values) == buckets_of(dict(reversed(values.items())))


def test_one_changed_version_changes_the_bucket_of_its_topic():
    values = {f"{n}": Value(n, OWNER, b"x") for n in range(200)}
    before = buckets_of(values)
    after = buckets_of(values | {"7": Value(1_000, OWNER, b"x")})
    assert [n for n in range(BUCKETS) if before[n] != after[n]] == [bucket("7")]
