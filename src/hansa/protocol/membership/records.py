"""The records that nodes publish about themselves: the rows of the replicated database.

A record belongs to one node and has a kind. The record with the higher `(incarnation, version)`
replaces the other, everywhere and in any order of arrival. `database` stores and floods them.
"""

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache

import msgspec

from hansa.protocol.model import Identity, NodeId, Unsigned


class RecordKind(IntEnum):
    NODE = 0
    INTEREST = 1
    CLAIMS = 2


class NodeRecord(msgspec.Struct, frozen=True, array_like=True, tag=RecordKind.NODE.value):
    """Identity and links of a node. Together these records are the map of the federation."""

    node: NodeId
    incarnation: Unsigned
    version: Unsigned
    first_incarnation: Unsigned
    """The incarnation of its start: it distinguishes copies of a node (rule 2.7)."""
    key: bytes
    name: str
    addresses: tuple[str, ...]
    capacity: float
    links: tuple[tuple[NodeId, Unsigned], ...]
    """Its neighbours, ordered by id, each with the round-trip time in microseconds."""
    exchange_key: bytes = b""
    """Its public X25519 key, new at each start; empty in a federation without certificates."""
    certificates: tuple[bytes, ...] = ()
    """Its certificate, then those between it and a root, in DER; none without an authority."""
    signature: bytes = b""
    """Of the node, over all other fields (`authentication`)."""


class SetRecord(msgspec.Struct, frozen=True, array_like=True):
    """A change of a set of names, from version `base` to `version`; or the whole set.

    A whole set has `base` equal to `version`, nothing removed, and may come in several parts.
    """

    node: NodeId
    incarnation: Unsigned
    version: Unsigned
    base: Unsigned
    added: tuple[str, ...]
    removed: tuple[str, ...] = ()
    part: Unsigned = 0
    parts: Unsigned = 1
    signature: bytes = b""
    """Of the node, over the digest of the whole set at `version` (`authentication`): so the same
    one serves a change, a whole set and its parts, from any node that holds the set."""


class InterestRecord(SetRecord, frozen=True, array_like=True, tag=RecordKind.INTEREST.value):
    """The topic filters that a node is interested in, without covered ones."""


class ClaimsRecord(SetRecord, frozen=True, array_like=True, tag=RecordKind.CLAIMS.value):
    """The groups that a node claims to be the core of."""


Record = NodeRecord | InterestRecord | ClaimsRecord

KIND_OF: dict[type, RecordKind] = {
    NodeRecord: RecordKind.NODE,
    InterestRecord: RecordKind.INTEREST,
    ClaimsRecord: RecordKind.CLAIMS,
}

Stamp = tuple[int, int]
"""(incarnation, version): the greater stamp of a record wins."""

_MASK = (1 << 64) - 1


def is_new_incarnation(record: Record, known: NodeRecord | None) -> bool:
    """Whether this is the first known record of a node's present incarnation."""
    if not isinstance(record, NodeRecord):
        return False
    return known is None or known.incarnation < record.incarnation


def make_node_record(
    me: Identity,
    incarnation: int,
    version: int,
    links: Iterable[tuple[NodeId, int]],
    certificates: tuple[bytes, ...] = (),
) -> NodeRecord:
    """Return a node's record of itself, not signed yet."""
    return NodeRecord(
        node=me.node,
        incarnation=incarnation,
        version=version,
        first_incarnation=me.incarnation,
        key=me.key,
        name=me.name,
        addresses=me.addresses,
        capacity=me.capacity,
        links=tuple(links),
        exchange_key=me.exchange_key,
        certificates=certificates,
    )


@lru_cache(maxsize=1 << 12)  # a row's old fingerprint is needed again when it changes
def fingerprint(kind: RecordKind, node: NodeId, stamp: Stamp) -> int:
    """Return 64 well-mixed bits for one row; the sum over all rows is the digest of a database.

    Pure arithmetic, because it must not depend on the hash seed and runs for every changed row.
    """
    row = node ^ (kind + 1) * 0xD6E8FEB86659FD93
    bits = (row ^ stamp[0] * 0x9E3779B97F4A7C15 ^ stamp[1] * 0xC2B2AE3D27D4EB4F) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def split_names(names: Iterable[str], bytes_max: int) -> list[tuple[str, ...]]:
    """Split names into parts below so many bytes; at least one part, which may be empty."""
    parts: list[list[str]] = [[]]
    size = 0
    for name in names:
        cost = len(name.encode()) + 5  # MessagePack adds at most five bytes per text
        if size + cost > bytes_max and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += cost
    return [tuple(part) for part in parts]


def estimate_bytes(record: Record) -> int:
    """Return an upper estimate of a record's bytes in a frame: enough to keep frames in bounds."""
    if isinstance(record, NodeRecord):
        texts = (record.exchange_key, *record.addresses, *record.certificates, record.signature)
        return 120 + 16 * len(record.links) + sum(map(len, texts))
    names = (*record.added, *record.removed)
    return 62 + len(record.signature) + sum(4 * len(name) + 5 for name in names)


def encoded_bytes(record: Record) -> int:
    """Return approximately how many bytes a record takes in a frame."""
    if isinstance(record, NodeRecord):
        return estimate_bytes(record)
    names = (*record.added, *record.removed)
    return 62 + len(record.signature) + sum(len(name.encode()) + 5 for name in names)
