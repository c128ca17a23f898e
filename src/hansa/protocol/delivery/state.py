"""Guaranteed delivery at one node: outbox, inbox and retained values.

Origin and receivers of a QoS 1 or 2 publication ensure together that nothing is missing; relays
keep no state (decision 0009). `outbox` and `inbox` are independent: this module passes each its
frames and events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hansa.protocol.deadlines import earliest
from hansa.protocol.delivery.context import DeliveryContext
from hansa.protocol.delivery.inbox import Inbox
from hansa.protocol.delivery.outbox import Outbox
from hansa.protocol.delivery.view import DeliveryView
from hansa.protocol.effects import Effect
from hansa.protocol.events import (
    EpochStarted,
    InboxCommitted,
    JournalCommitted,
    JournalRead,
    ProgressReportPersisted,
    RetainedListed,
    RetainedRead,
    StoreUncertain,
)
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.digest import RetainedEntry
from hansa.protocol.retained.values import RetainedState
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import (
    DeliveryFrame,
    PendingNotice,
    Receipt,
    RepairResponse,
    Unicast,
)


@dataclass(frozen=True, slots=True)
class RestoredState:
    """A node's state from disk; for the records of other nodes see `events.PeersRestored`."""

    epoch: int = 1
    next_sequence: int = 1
    """The next sequence number of its journal."""
    last_assigned: Mapping[NodeId, int] = field(default_factory=dict)
    """Per receiver, the newest position assigned to it."""
    accepted: Mapping[NodeId, tuple[int, int]] = field(default_factory=dict)
    """Per origin, the epoch and the position up to which everything is on disk here."""
    acknowledged: Mapping[NodeId, int] = field(default_factory=dict)
    """Per receiver, the position up to which it has acknowledged everything; may be outdated."""
    unreported_since: Mapping[NodeId, int] = field(default_factory=dict)
    """Per receiver that has not reported its position, the first one that it cannot have: an
    incarnation began there and sent it nothing."""
    retained: Mapping[str, RetainedEntry] = field(default_factory=dict)
    """Per topic, the retained value that the broker should hold."""


class DeliveryState:
    """Outbox, inbox and retained values of one node."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        restored: RestoredState,
        context: DeliveryContext,
    ) -> None:
        self.clock = context.clock
        self.retained = RetainedState(
            node,
            settings,
            context.has_plain_subscriber,
            context.receivers,
            restored.retained,
            context.clock,
        )
        self.retained.rights_of = self.rights_of = context.rights_of
        self.outbox = Outbox(node, settings, context.clock, restored.epoch, restored.next_sequence)
        self.outbox.restore(
            restored.last_assigned, restored.acknowledged, restored.unreported_since
        )
        self.inbox = Inbox(
            node, settings, restored.accepted, self.retained.resolve_retain_flag, context
        )

    def view(self) -> DeliveryView:
        """Return read access for shells."""
        return DeliveryView(self.outbox, self.retained.entries, self.next_deadline)

    def set_now(self, now: float) -> None:
        """Set the time of the input that is being handled."""
        self.retained.set_now(now)

    def handle_storage_event(
        self,
        event: JournalCommitted
        | JournalRead
        | EpochStarted
        | ProgressReportPersisted
        | InboxCommitted
        | RetainedListed
        | RetainedRead
        | StoreUncertain,
        now: float,
    ) -> tuple[list[Publication], list[Effect | Unicast]]:
        """Apply an event of the disk or broker; return publications that may leave now, and
        effects."""
        if isinstance(event, JournalCommitted):
            return self.outbox.mark_committed(event.epoch, event.sequence, now), []
        if isinstance(event, JournalRead):
            return [], [*self.outbox.make_repair_responses(event, now)]
        if isinstance(event, EpochStarted):
            self.outbox.start_epoch(event, now)
            return [], []
        if isinstance(event, ProgressReportPersisted):
            return [], self.outbox.mark_reported(event.node, now)
        if isinstance(event, RetainedListed):
            return [], self.retained.on_retained_listed(event)
        if isinstance(event, RetainedRead):
            return [], [*self.retained.on_retained_read(event)]
        if isinstance(event, StoreUncertain):
            self.retained.mark_uncertain(event.topics)
            if event.reconnected:
                self.retained.reconnected()
            return [], []
        return [], [*self.inbox.mark_committed(event.origin, event.epoch, event.sequence, now)]

    def receive_unicast(
        self, frame: DeliveryFrame, incarnation: int, now: float
    ) -> list[Effect | Unicast]:
        """Handle a frame for this node."""
        match frame:
            case PendingNotice():
                return [*self.inbox.receive_pending_notice(frame, now)]
            case Receipt():
                return self.outbox.receive_receipt(frame, incarnation, now)
            case RepairResponse():
                return [*self.inbox.receive_repair(frame, now)]
            case _:
                return self.retained.receive_unicast(frame)

    def on_node_reachable(self, node: NodeId, now: float) -> None:
        self.outbox.on_node_reachable(node, now)
        self.inbox.on_node_reachable(node, now)
        self.retained.schedule_digest(node)

    def expire_node(self, node: NodeId) -> list[Effect]:
        """A node's lease has ended."""
        return [*self.outbox.expire_node(node), *self.inbox.expire_node(node)]

    def handle_timer(self, now: float) -> list[Effect | Unicast]:
        """Return frames and effects that are due."""
        return [
            *self.outbox.handle_timer(now),
            *self.inbox.handle_timer(now),
            *self.retained.handle_timer(),
        ]

    def sizes(self) -> dict[str, int]:
        """Return the current size of everything that has a bound."""
        streams = self.inbox.streams.values()
        out_of_order = uncommitted = 0
        for stream in streams:  # plain loops: checkers call this after every input
            out_of_order = max(out_of_order, len(stream.out_of_order))
            uncommitted = max(uncommitted, len(stream.uncommitted))
        return {
            "receivers": len(self.outbox.receivers),
            "out_of_order": out_of_order,
            "out_of_order_bytes": self.inbox.out_of_order_bytes,
            "retained": len(self.retained.entries),
            "streams": len(streams),
            "uncommitted": uncommitted,
            "uncommitted_bytes": self.inbox.uncommitted_bytes,
        }

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due."""
        return earliest(
            self.outbox.next_deadline(), self.inbox.next_deadline(), self.retained.next_deadline()
        )
