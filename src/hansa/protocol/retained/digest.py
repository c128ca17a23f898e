"""Retained values as nodes compare them: versions, digests, and sets of values in buckets."""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import RETAINED_BUCKETS


class RetainedEntry(msgspec.Struct, frozen=True, array_like=True):
    """The value of a topic; an empty digest if it was deleted."""

    version: int
    owner: NodeId
    digest: bytes = b""


def payload_digest(payload: bytes) -> bytes:
    """Return an 8-byte digest of a payload, empty for an empty payload, which deletes."""
    return blake2b(payload, digest_size=8).digest() if payload else b""


def bucket_of(topic: str) -> int:
    return blake2b(topic.encode(), digest_size=1).digest()[0] % RETAINED_BUCKETS


def bucket_term(topic: str, value: RetainedEntry) -> int:
    """Return what a value contributes, by exclusive or, to the digest of its bucket."""
    text = b"%d %b" % (value.version, topic.encode())
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def bucket_digests(values: Mapping[str, RetainedEntry]) -> tuple[int, ...]:
    """Return one digest per bucket, independent of the order of the values."""
    digests = [0] * RETAINED_BUCKETS
    for topic, value in values.items():
        digests[bucket_of(topic)] ^= bucket_term(topic, value)
    return tuple(digests)
