"""Rows of the replicated database: their digest, and the size of their records.

Not in `records`, because modules with Structs are not compiled.
"""

from collections.abc import Iterable
from functools import lru_cache

from hansa.protocol.membership.records import NodeRecord, Record, RecordKind, Stamp
from hansa.protocol.model import NodeId

_MASK = (1 << 64) - 1


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
