"""Retained values as nodes compare them: versions, digests, and sets of them in buckets."""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import BUCKETS


class Value(msgspec.Struct, frozen=True, array_like=True):
    """What a topic holds; an empty digest if it was deleted."""

    version: int
    owner: NodeId
    digest: bytes = b""


def digest(payload: bytes) -> bytes:
    """Return 8 bytes that tell payloads apart, none for no payload: that deletes."""
    return blake2b(payload, digest_size=8).digest() if payload else b""


def bucket(topic: str) -> int:
    """Return the part of all topics that one belongs to."""
    return blake2b(topic.encode(), digest_size=1).digest()[0] % BUCKETS


def term(topic: str, value: Value) -> int:
    """Return what a value adds, by exclusive or, to the digest of its bucket."""
    text = b"%d %b" % (value.version, topic.encode())
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def buckets_of(values: Mapping[str, Value]) -> tuple[int, ...]:
    """Return one number per bucket that tells sets of values apart, whatever their order."""
    digests = [0] * BUCKETS
    for topic, value in values.items():
        digests[bucket(topic)] ^= term(topic, value)
    return tuple(digests)
