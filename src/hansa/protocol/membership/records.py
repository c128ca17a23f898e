"""The records that nodes publish about themselves: the rows of the replicated database.

A record belongs to one node and has a kind. The record with the higher `(incarnation, version)`
replaces the other, everywhere and in any order of arrival. `database` stores and floods them.
"""

from collections.abc import Iterable
from enum import IntEnum

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

Row = tuple[RecordKind, NodeId]
"""The key of a row: its kind and its node."""


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
