"""The words that every other module uses: ids, groups and publications.

Nothing here decides anything. Values that arrive from outside are checked where they enter
(`topics`, `wire`), so that everything built from these types is known to be well formed.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, NewType

import msgspec

Unsigned = Annotated[int, msgspec.Meta(ge=0)]
"""An integer that never goes below zero; MessagePack itself bounds it to 64 bits."""

NodeId = NewType("NodeId", Unsigned)
"""A node: the first 64 bits of the SHA-256 of its public key. The smaller id wins elections."""

LinkId = NewType("LinkId", int)
"""One connection of one node, named by its shell. A new connection gets a new id, never an old."""

Group = str
"""A group is named by the topic filter that matches its publications; see `groups`."""

GroupId = NewType("GroupId", Unsigned)
"""What a group is called inside a publication's header: 64 bits made from its name."""

MANAGEMENT_GROUP: Group = ""
"""The group that spans all nodes. No topic filter is empty, so it cannot clash with another."""

HOPS_MAX = 64
"""A copy that has travelled this far is dropped: only a mesh in motion can send one in circles."""

TARGET_GROUPS_MAX = 1_024
"""Groups that one copy of a publication names."""

RECEIVERS_MAX = TARGET_GROUPS_MAX
"""Receivers that one copy of a publication names; any others get it from the journal (rule 7.1)."""

KEY_BYTES = 32
"""Length of a node's public key."""


def node_id(key: bytes) -> NodeId:
    """Return the id that belongs to a public key."""
    return NodeId(int.from_bytes(hashlib.sha256(key).digest()[:8], "big"))


@lru_cache(maxsize=1 << 13)  # of groups that are gone, too: 1.5 MB at most
def group_id(group: Group) -> GroupId:
    """Return the 64-bit name of a group, the same on every node."""
    return GroupId(int.from_bytes(hashlib.blake2b(group.encode(), digest_size=8).digest(), "big"))


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a node is in this life."""

    node: NodeId
    key: bytes
    incarnation: int
    name: str = ""
    addresses: tuple[str, ...] = ()
    capacity: float = 1.0


PlainMessage = tuple[str, bytes]
"""Topic and payload: what a broker needs of a publication of QoS 0 that is neither retained nor has
properties."""


class Publication(msgspec.Struct, frozen=True, gc=False):
    """One copy of a client's publication on its way through the federation.

    `(origin, life, number)` names the publication. At QoS 0 `life` is the origin's incarnation and
    `number` counts what it forwarded; at QoS 1 and 2 they are the epoch and the dense sequence
    number of the origin's journal. The two families never share a window.
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
    """The groups that this copy still has to reach: it is on its way towards their cores."""
    previous: tuple[tuple[NodeId, int], ...] = ()
    """QoS 1 and 2: the nodes that this is owed to, each with the number of what the origin owed it
    before this, 0 for nothing. So a node sees its holes although it does not get every number."""
    properties: bytes = b""
    """MQTT 5 properties as they arrived, opaque to the protocol."""
    version: int = 0
    """Of a retained value: the greater one is the newer; see `retained`."""

    def forwarded_copy(self, hops: int, target_groups: tuple[GroupId, ...]) -> "Publication":
        """Return the copy that goes over the next link."""
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
            self.previous,
            self.properties,
            self.version,
        )
