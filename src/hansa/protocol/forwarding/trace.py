"""What a node would do with a copy, and why: a dry run for operators.

The decision is that of `Forwarder`, with an empty duplicate window, so a trace says what would
happen to a new QoS 0 publication. Shared subscriptions are not resolved: all their nodes count as
interested.
"""

from dataclasses import dataclass

from hansa.protocol.forwarding.engine import ForwardingEngine
from hansa.protocol.interest.remote import RemoteInterest
from hansa.protocol.links.neighbours import Neighbours
from hansa.protocol.model import Group, GroupId, NodeId, Publication
from hansa.protocol.routing.base import RoutingStrategy
from hansa.protocol.topics import FilterTrie


@dataclass(frozen=True, slots=True)
class TracedCopy:
    """A copy as it reaches a node."""

    topic: str
    origin: NodeId
    sender: NodeId | None = None
    """The neighbour that sent it; None at the origin."""
    hops: int = 0
    target_groups: tuple[GroupId, ...] = ()
    is_new: bool = True
    """Whether it is the first copy here; a further one is forwarded for its target groups only."""


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """A group that matches the topic."""

    group: Group
    id: GroupId
    core: NodeId | None
    is_member: bool


@dataclass(frozen=True, slots=True)
class FilterTrace:
    """A filter of other nodes that matches the topic."""

    filter: str
    nodes: tuple[NodeId, ...]
    is_granted: bool
    """Whether the broker of this node has granted the subscription to it."""


@dataclass(frozen=True, slots=True)
class CopyTrace:
    """The decision of one node."""

    groups: tuple[GroupTrace, ...]
    local_filters: tuple[str, ...]
    """Filters of clients here that match; if there are any, the copy is delivered here."""
    remote_filters: tuple[FilterTrace, ...]
    copies: tuple[tuple[NodeId, tuple[GroupId, ...]], ...]
    """The neighbours to which copies go, each with the groups that it still has to reach."""
    unroutable: tuple[GroupId, ...]
    """Groups without a route; past the hop limit, all that it would go to."""
    is_known_sender: bool = True
    """Whether the sender is a neighbour of this node; if not, nothing else is known."""


def trace_copy(
    copy: TracedCopy,
    forwarding: ForwardingEngine,
    strategy: RoutingStrategy,
    neighbours: Neighbours,
    local_filters: FilterTrie[int],
    remote: RemoteInterest,
) -> CopyTrace:
    """Return what a node with these parts would do."""
    sender = None if copy.sender is None else neighbours.by_node.get(copy.sender)
    if copy.sender is not None and sender is None:
        return CopyTrace((), (), (), (), (), is_known_sender=False)
    entries = forwarding.table.matching_entries(copy.topic)
    publication = Publication(
        copy.origin, 1, 1, 0, copy.topic, b"", hops=copy.hops, target_groups=copy.target_groups
    )
    link = None if sender is None else sender.id
    copies, unroutable = forwarding.dry_run(publication, link, copy.is_new)
    peers = {link.id: node for node, link in neighbours.by_node.items()}
    return CopyTrace(
        groups=tuple(
            GroupTrace(
                entry.group, entry.id, strategy.group_status(entry.group).core, entry.is_member
            )
            for entry in entries
        ),
        local_filters=tuple(local_filters.covering(copy.topic)),
        remote_filters=tuple(
            FilterTrace(name, tuple(sorted(remote.nodes_by_filter[name])), name in remote.granted)
            for name in remote.matching_filters(copy.topic)
        ),
        copies=tuple((peers[link], groups) for link, groups in copies if link in peers),
        unroutable=tuple(unroutable),
    )
