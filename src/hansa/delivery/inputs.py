"""The inputs of the delivery core. QoS 0 and reads are calls (`core`)."""

from collections.abc import Sequence

import msgspec

from hansa.delivery.effects import LogName
from hansa.delivery.log import RecordLog
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import AnyHandshakePacket, OversizedPublish, PublishPacket, Subscription
from hansa.protocol.effects import Gap
from hansa.protocol.model import NodeId, Publication

# ---------------------------------------------------------------- the broker


class ConnectStarted(msgspec.Struct, frozen=True):
    """CONNECT is about to be sent, as soon as the marker of this attempt is durable if possible.
    Until the attempt ends, the core does not remove the marker."""


class ConnectRefused(msgspec.Struct, frozen=True):
    """The broker refused the connection, or CONNECT was not sent: there is no new session."""


class Connected(msgspec.Struct, frozen=True):
    """The broker accepted the connection."""

    session_present: bool
    limits: BrokerLimits


class Disconnected(msgspec.Struct, frozen=True):
    """The connection has ended."""


class PublicationsReceived(msgspec.Struct, frozen=True):
    """The broker sent publications of QoS 1 and 2, in this order."""

    batch: Sequence[PublishPacket]


class OversizedReceived(msgspec.Struct, frozen=True):
    """The broker sent a publication of QoS 1 or 2 that is too large to be read."""

    publication: OversizedPublish


class HandshakePacketsReceived(msgspec.Struct, frozen=True):
    """The broker sent handshake packets of one kind, in this order."""

    batch: Sequence[AnyHandshakePacket]


class PublicationsNotSent(msgspec.Struct, frozen=True):
    """The broker can never take these publications, for this reason."""

    batch: Sequence[PublishPacket]
    reason: str


class SubscribeAnswered(msgspec.Struct, frozen=True):
    """The broker answered SUBSCRIBE packets of one filter each, with one code per filter."""

    subscriptions: Sequence[Subscription]
    reasons: bytes


class UnsubscribeAnswered(msgspec.Struct, frozen=True):
    """The broker answered UNSUBSCRIBE."""

    filters: Sequence[str]


# ---------------------------------------------------------------- the disk


class Committed(msgspec.Struct, frozen=True):
    """A commit has ended; `RecordLog.durable` says how far it reaches."""

    log: LogName


class CommitFailed(msgspec.Struct, frozen=True):
    """A commit has failed; it is tried again."""

    log: LogName
    reason: str


class EpochBuilt(msgspec.Struct, frozen=True):
    """The log of a new epoch is in place."""

    log: RecordLog


class EpochNotBuilt(msgspec.Struct, frozen=True):
    """The log of a new epoch could not be built; it is tried again."""

    reason: str


class SubscriptionsSaved(msgspec.Struct, frozen=True):
    """The changes of the subscriptions are durable, or could not be written."""

    succeeded: bool


# ---------------------------------------------------------------- the node


class RequireFilters(msgspec.Struct, frozen=True):
    """The node needs publications to these filters."""

    filters: Sequence[str]


class ReleaseFilters(msgspec.Struct, frozen=True):
    """The node does not need publications to these filters any more."""

    filters: Sequence[str]


class Deliver(msgspec.Struct, frozen=True):
    """Publications of other nodes at QoS 1 and 2 and gaps between them, in this order."""

    batch: Sequence[Publication | Gap]


class ProgressReported(msgspec.Struct, frozen=True):
    """A receiver reported its progress in this incarnation; it must be durable."""

    node: NodeId


class ExpireNode(msgspec.Struct, frozen=True):
    """A node is not a receiver any more."""

    node: NodeId


class NodeContacted(msgspec.Struct, frozen=True):
    """Another node became reachable."""


class StartEpoch(msgspec.Struct, frozen=True):
    """The outbox log is an old copy: start a new epoch with at least this number."""

    epoch: int


class TimerFired(msgspec.Struct, frozen=True):
    """The deadline has passed, or may have."""


Input = (
    ConnectStarted
    | ConnectRefused
    | Connected
    | Disconnected
    | PublicationsReceived
    | OversizedReceived
    | HandshakePacketsReceived
    | PublicationsNotSent
    | SubscribeAnswered
    | UnsubscribeAnswered
    | Committed
    | CommitFailed
    | EpochBuilt
    | EpochNotBuilt
    | SubscriptionsSaved
    | RequireFilters
    | ReleaseFilters
    | Deliver
    | ProgressReported
    | ExpireNode
    | NodeContacted
    | StartEpoch
    | TimerFired
)
