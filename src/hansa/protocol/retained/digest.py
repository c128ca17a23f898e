"""Retained values as nodes compare them: versions, digests, and sets of them in buckets."""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import RETAINED_BUCKETS


class RetainedEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a topic holds; an empty digest if it was deleted."""

    version: int
    owner: NodeId
    digest: bytes = b""


def payload_digest(payload: bytes) -> bytes:
    """Return 8 bytes that tell payloads apart, none for no payload: that deletes."""
    return blake2b(payload, digest_size=8).digest() if payload else b""


def bucket_of(topic: str) -> int:
    """Return the part of all topics that one belongs to."""
    return blake2b(topic.encode(), digest_size=1).digest()[0] % RETAINED_BUCKETS


def bucket_term(topic: str, value: RetainedEntry) -> int:
    """Return what a value adds, by exclusive or, to the digest of its bucket."""
    text = b"%d %b" % (value.version, topic.encode())
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def bucket_digests(values: Mapping[str, RetainedEntry]) -> tuple[int, ...]:
    """Return one number per bucket that tells sets of values apart, whatever their order."""
    digests = [0] * RETAINED_BUCKETS
    for topic, value in values.items():
        digests[bucket_of(topic)] ^= bucket_term(topic, value)
    return tuple(digests)
