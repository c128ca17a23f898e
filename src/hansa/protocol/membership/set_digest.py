"""Digest of a set of names that changes: what the owner of a set signs.

A plain sum of hashes can be forged: with enough names to choose from, an attacker finds other names
with the same sum. So the digest is a hash of hashes: names fall into buckets, each bucket is the
SHA-256 of its sorted names, and the digest is the SHA-256 of all buckets. A change hashes only the
buckets that it touches: one of 256.
"""

import hashlib
from binascii import crc32
from collections.abc import Iterable
from typing import Protocol

BUCKETS = 256


class SetDigest(Protocol):
    """The digest of one set; immutable."""

    @property
    def root(self) -> bytes: ...

    def changed(self, added: Iterable[str], removed: Iterable[str]) -> "SetDigest":
        """Return the digest after a change: names are removed first, then added."""


class NoDigest:
    """Where records are not signed, sets have no digest."""

    root = b""

    def changed(self, added: Iterable[str], removed: Iterable[str]) -> "NoDigest":
        return self


class BucketDigest:
    """The names of a set in buckets, with the hash of each bucket. Buckets are shared between the
    digests of one set before and after a change."""

    __slots__ = ("_buckets", "root")

    def __init__(self, buckets: dict[int, tuple[bytes, frozenset[str]]] | None = None) -> None:
        self._buckets = buckets or {}
        self.root = hashlib.sha256(
            b"".join(bytes((b,)) + self._buckets[b][0] for b in sorted(self._buckets))
        ).digest()

    def changed(self, added: Iterable[str], removed: Iterable[str]) -> "BucketDigest":
        touched: dict[int, set[str]] = {}
        for name in removed:
            self._names(touched, name).discard(name)
        for name in added:
            self._names(touched, name).add(name)
        buckets = dict(self._buckets)
        for bucket, names in touched.items():
            if names:
                buckets[bucket] = _hash_names(names), frozenset(names)
            else:
                buckets.pop(bucket, None)
        return BucketDigest(buckets)

    def _names(self, touched: dict[int, set[str]], name: str) -> set[str]:
        bucket = crc32(name.encode()) % BUCKETS
        if bucket not in touched:
            touched[bucket] = set(self._buckets[bucket][1]) if bucket in self._buckets else set()
        return touched[bucket]


def _hash_names(names: Iterable[str]) -> bytes:
    """The length before each name keeps the border between two names unambiguous."""
    encoded = [name.encode() for name in sorted(names)]
    return hashlib.sha256(
        b"".join(len(name).to_bytes(4, "big") + name for name in encoded)
    ).digest()
