"""Guaranteed delivery at one node: what it owes others, what others owe it, and their letters.

The two ends of every publication of QoS 1 and 2 make sure together that nothing is missing; nodes
in between pass it on and forget (decision 0009). `outbox` and `inbox` never meet: this module only
hands each its letters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from hansa.protocol.deadlines import earliest
from hansa.protocol.delivery.context import DeliveryContext
from hansa.protocol.delivery.inbox import Inbox
from hansa.protocol.delivery.outbox import Outbox
from hansa.protocol.effects import Effect, Ignored
from hansa.protocol.events import (
    Heard,
    Kept,
    Recalled,
    Reopened,
    Stored,
    StoredRead,
    StoreUncertain,
    Surveyed,
)
from hansa.protocol.model import HOPS_MAX, NodeId, Publication
from hansa.protocol.retained.digest import Value
from hansa.protocol.retained.values import Retained
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import Letter, Owed, Receipt, Resend


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a node's disk remembers of its former lives; of other nodes, see `events.Restored`."""

    epoch: int = 1
    next_seq: int = 1
    """Where its journal goes on."""
    owed: Mapping[NodeId, int] = field(default_factory=dict)
    """Per receiver, the newest position in the journal that it is owed."""
    taken: Mapping[NodeId, tuple[int, int]] = field(default_factory=dict)
    """Per origin, the epoch and the position up to which all that it owed is on disk here."""
    acknowledged: Mapping[NodeId, int] = field(default_factory=dict)
    """Per receiver, up to where it has said that it has all that it was owed; may be late."""
    unheard: Mapping[NodeId, int] = field(default_factory=dict)
    """Per receiver that has not said what it has since then, the first position that it cannot
    have: a life began with it, and sent it nothing."""
    retained: Mapping[str, Value] = field(default_factory=dict)
    """Per topic, which retained value the broker was to hold."""


class Custody:
    """Both ends, as one node has them."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        past: Remembered,
        context: DeliveryContext,
    ) -> None:
        """Go on where the disk ends."""
        self._node = node
        self.clock = context.clock
        self.retained = Retained(
            node, settings, context.wants, context.receivers, past.retained, context.clock
        )
        self.outbox = Outbox(node, settings, context.clock, past.epoch, past.next_seq)
        self.outbox.resume(past.owed, past.acknowledged, past.unheard)
        self.inbox = Inbox(node, settings, past.taken, self.retained.judge, context)

    def begin(self, now: float) -> None:
        """An input is handled at this time."""
        self.retained.begin(now)

    def settle(
        self,
        event: Kept | Recalled | Reopened | Heard | Stored | Surveyed | StoredRead | StoreUncertain,
        now: float,
    ) -> tuple[list[Publication], list[Effect | Letter]]:
        """The disk has done its work; return what may leave now, and what follows."""
        if isinstance(event, Kept):
            return self.outbox.keep(event.epoch, event.seq, now), []
        if isinstance(event, Recalled):
            return [], [*self.outbox.resend(event, now)]
        if isinstance(event, Reopened):
            self.outbox.reopen(event, now)
            return [], []
        if isinstance(event, Heard):
            return [], self.outbox.hear(event.node, now)
        if isinstance(event, Surveyed):
            return [], self.retained.surveyed(event)
        if isinstance(event, StoredRead):
            return [], [*self.retained.read(event)]
        if isinstance(event, StoreUncertain):
            self.retained.distrust(event.topics)
            if event.reconnected:
                self.retained.reconnected()
            return [], []
        return [], [*self.inbox.store(event.origin, event.epoch, event.seq, now)]

    def receive(self, letter: Letter, incarnation: int, now: float) -> list[Effect | Letter]:
        """A letter arrived; one for another node goes on."""
        if letter.to != self._node:
            if letter.hops >= HOPS_MAX:
                return [Ignored("letter past the hop limit")]
            return [replace(letter, hops=letter.hops + 1)]
        match letter:
            case Owed():
                return [*self.inbox.remind(letter, now)]
            case Receipt():
                return self.outbox.take(letter, incarnation, now)
            case Resend():
                return [*self.inbox.resend(letter, now)]
            case _:
                return self.retained.receive(letter)

    def joined(self, node: NodeId, now: float) -> None:
        """A node came into reach."""
        self.outbox.joined(node, now)
        self.inbox.joined(node, now)
        self.retained.offer(node)

    def forget(self, node: NodeId) -> list[Effect]:
        """A node's lease has ended."""
        return [*self.outbox.forget(node), *self.inbox.forget(node)]

    def fire(self, now: float) -> list[Effect | Letter]:
        """Return the letters that are due, and what retained values need."""
        return [*self.outbox.fire(now), *self.inbox.fire(now), *self.retained.fire()]

    def sizes(self) -> dict[str, int]:
        """Return how much there is of what has a bound."""
        streams = self.inbox.streams.values()
        held = undelivered = 0
        for stream in streams:  # plainly: checkers ask after every input
            held = max(held, len(stream.held))
            undelivered = max(undelivered, len(stream.undelivered))
        return {
            "debts": len(self.outbox.debts),
            "held": held,
            "held_bytes": self.inbox.held_bytes,
            "retained": len(self.retained.values),
            "streams": len(streams),
            "undelivered": undelivered,
            "undelivered_bytes": self.inbox.undelivered_bytes,
        }

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        return earliest(
            self.outbox.next_deadline(), self.inbox.next_deadline(), self.retained.next_deadline()
        )
