"""The values that all modules use: ids, groups and publications.

Input is checked where it enters (`topics`, `wire`), so values of these types are well formed.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Final, NewType

import msgspec

Unsigned = Annotated[int, msgspec.Meta(ge=0)]
"""A non-negative integer; MessagePack limits it to 64 bits."""

NodeId = NewType("NodeId", Unsigned)
"""A node: the first 64 bits of the SHA-256 of its public key. The smaller id wins elections."""

LinkId = NewType("LinkId", int)
"""One connection of one node, numbered by the shell. Ids are never reused."""

Group = str
"""A group is named by the topic filter that matches its publications; see `interest/groups`."""

GroupId = NewType("GroupId", Unsigned)
"""The id of a group in the header of a publication: 64 bits of the hash of its name."""

MANAGEMENT_GROUP: Group = ""
"""The group of all nodes. No topic filter is empty, so the name is unique."""

HOPS_MAX: Final = 64
"""A copy with this many hops is dropped: only a mesh that is changing can form loops."""

TARGET_GROUPS_MAX = 1_024
"""Target groups of one copy of a publication."""

RECEIVERS_MAX = TARGET_GROUPS_MAX
"""Receivers in one copy of a publication; further ones get it from the journal (rule 7.1)."""

KEY_BYTES = 32
"""Length of a node's public key."""

MAC_BYTES = 12
"""Length of a message authentication code between two nodes; see `pair_authentication`."""


def node_id(key: bytes) -> NodeId:
    return NodeId(int.from_bytes(hashlib.sha256(key).digest()[:8], "big"))


@lru_cache(maxsize=1 << 13)  # includes groups that no longer exist; at most 1.5 MB
def group_id(group: Group) -> GroupId:
    """Return the 64-bit id of a group, the same on every node."""
    return GroupId(int.from_bytes(hashlib.blake2b(group.encode(), digest_size=8).digest(), "big"))


@dataclass(frozen=True, slots=True)
class Identity:
    node: NodeId
    key: bytes
    incarnation: int
    name: str = ""
    addresses: tuple[str, ...] = ()
    capacity: float = 1.0
    exchange_key: bytes = b""
    """See `NodeRecord.exchange_key`."""

    def with_exchange_key(self, key: bytes) -> "Identity":
        return replace(self, exchange_key=key)


PlainMessage = tuple[str, bytes]
"""Topic and payload of a QoS 0 publication that is not retained and has no properties."""


class Publication(msgspec.Struct, frozen=True, gc=False):
    """One copy of a client's publication on its path through the federation.

    `(origin, epoch, sequence)` identifies the publication. At QoS 0, `epoch` is the origin's
    incarnation and `sequence` counts forwarded publications. At QoS 1 and 2 they are the epoch and
    the position in the origin's journal. The two number ranges never share a duplicate window.
    """

    origin: NodeId
    epoch: int
    sequence: int
    qos: int
    topic: str
    payload: bytes
    retain: bool = False
    hops: int = 0
    target_groups: tuple[GroupId, ...] = ()
    """The groups that this copy still has to reach: it is forwarded towards their cores."""
    receivers: tuple[tuple[NodeId, int], ...] = ()
    """QoS 1 and 2, and QoS 0 for shared subscriptions: the receivers, each with `previous`, the
    sequence number of the previous publication for it, 0 for none. With it, a receiver detects gaps
    although it does not get every number."""
    properties: bytes = b""
    """MQTT 5 properties as they arrived, opaque to the protocol."""
    version: int = 0
    """Version of a retained value; the greater one is newer. See `retained`."""
    macs: bytes = b""
    """QoS 1 and 2 in a federation with certificates: `MAC_BYTES` for each of `receivers`."""

    def forwarded_copy(self, hops: int, target_groups: tuple[GroupId, ...]) -> "Publication":
        return Publication(
            self.origin,
            self.epoch,
            self.sequence,
            self.qos,
            self.topic,
            self.payload,
            self.retain,
            hops,
            target_groups,
            self.receivers,
            self.properties,
            self.version,
            self.macs,
        )
