"""The effects that the delivery core returns, in the order to perform.

A crash may happen before or after any of them, and the promise still holds (docs/delivery.md).
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from hansa.delivery.rollover_plan import RolloverPlan
from hansa.journal.records import InboxRecord
from hansa.mqtt.packets import AnyHandshakePacket, PublishPacket, Subscription
from hansa.protocol.events import Event
from hansa.protocol.model import Publication


class LogName(Enum):
    """The two logs of a node."""

    OUTBOX = "outbox"
    """Publications of local clients."""
    INBOX = "inbox"
    """Publications of other nodes, until the broker has them."""

    @property
    def alarm(self) -> str:
        """Name of the alarm that says that the log cannot be written."""
        return "journal not writable" if self is LogName.OUTBOX else "inbox not writable"


class Commit(msgspec.Struct, frozen=True):
    """Make everything in this log durable; answer with `Committed` or `CommitFailed`."""

    log: LogName


class Publish(msgspec.Struct, frozen=True):
    """Send these to the broker. Those of QoS 1 and 2 have packet ids."""

    batch: Sequence[PublishPacket]


class PublishQos0(msgspec.Struct, frozen=True):
    """Publish these at QoS 0: retained values that were held back, or had to be replaced."""

    publications: Sequence[Publication]


class SendHandshakePackets(msgspec.Struct, frozen=True):
    """Send these acknowledgements to the broker."""

    batch: Sequence[AnyHandshakePacket]


class Subscribe(msgspec.Struct, frozen=True):
    """Subscribe at the broker; answer with `SubscribeAnswered`."""

    subscription: Subscription
    identifier: int | None


class Unsubscribe(msgspec.Struct, frozen=True):
    """Unsubscribe at the broker; answer with `UnsubscribeAnswered`."""

    topic_filter: str


class SaveSubscriptions(msgspec.Struct, frozen=True):
    """Make the recorded changes of `SavedSubscriptions` durable; answer with
    `SubscriptionsSaved`."""


class BuildEpoch(msgspec.Struct, frozen=True):
    """Commit the outbox log, copy what the plan selects into a log of a new epoch, and make that
    the current one; answer with `EpochBuilt` or `EpochNotBuilt`. Meanwhile no captured publication
    is appended; records of a lost session and recorded QoS 0 publications may be, and are not
    copied."""

    plan: RolloverPlan


class RemoveEndedEpochs(msgspec.Struct, frozen=True):
    """Delete the logs of ended epochs."""


class RemoveConnectMarker(msgspec.Struct, frozen=True):
    """Delete the marker of an unfinished connection attempt."""


class FeedNode(msgspec.Struct, frozen=True):
    """Hand this event to the node."""

    event: Event


class SetAlarm(msgspec.Struct, frozen=True):
    """Raise an alarm or change its text; an empty text clears it."""

    name: str
    text: str


class PublicationDropped(msgspec.Struct, frozen=True):
    """A publication of QoS 1 or 2 will not be delivered, for this reason."""

    reason: str
    topic: str
    qos: int


class Injected(msgspec.Struct, frozen=True):
    """The broker has these publications."""

    records: list[InboxRecord]


Effect = (
    Commit
    | Publish
    | PublishQos0
    | SendHandshakePackets
    | Subscribe
    | Unsubscribe
    | SaveSubscriptions
    | BuildEpoch
    | RemoveEndedEpochs
    | RemoveConnectMarker
    | FeedNode
    | SetAlarm
    | PublicationDropped
    | Injected
)
