"""Contexts of parts of a node, for tests without a node."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from hansa.protocol.clock import WallClock
from hansa.protocol.delivery.context import DeliveryContext
from hansa.protocol.membership.authentication import PlainAuthenticator, RecordAuthentication
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import NodeId

_PERMISSIVE = DeliveryContext(
    has_plain_subscriber=lambda topic: True,
    receivers=lambda topic: (),
    nodes={},
    clock=WallClock(1),
    was_announced=lambda topic: True,
    may_acknowledge=lambda: True,
)


def plain() -> RecordAuthentication:
    """Authentication of a node in a federation without certificates."""
    return RecordAuthentication("", PlainAuthenticator())


def records(*nodes: int) -> dict[NodeId, NodeRecord]:
    """Node records, as in a database."""
    return {NodeId(node): NodeRecord(NodeId(node), 1, 1, 1, b"", "", (), 1.0, ()) for node in nodes}


def context(
    nodes: Mapping[NodeId, NodeRecord],
    has_plain_subscriber: Callable[[str], bool] = lambda topic: True,
) -> DeliveryContext:
    """Context of a node that knows these others and refuses nothing."""
    return replace(
        _PERMISSIVE, nodes=nodes, has_plain_subscriber=has_plain_subscriber, clock=WallClock(1)
    )
