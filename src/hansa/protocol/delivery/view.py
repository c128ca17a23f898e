"""Read access to a node's QoS 1/2 and retained state for shells, which keep it on disk."""

from collections.abc import Callable, Iterable, Mapping

from hansa.protocol.delivery.outbox import Outbox
from hansa.protocol.model import NodeId
from hansa.protocol.retained.digest import RetainedEntry


class DeliveryView:
    """The current delivery state. Nothing may be changed through it."""

    def __init__(
        self,
        outbox: Outbox,
        retained: Mapping[str, RetainedEntry],
        next_deadline: Callable[[], float | None],
    ) -> None:
        self._outbox = outbox
        self.retained = retained
        """Per topic, the retained value that the broker should hold."""
        self.next_deadline = next_deadline
        """When delivery needs a timer next. Batches of publications change no other deadline."""

    @property
    def next_position(self) -> tuple[int, int]:
        """Epoch and sequence number of the next publication in the journal."""
        return self._outbox.next_position

    @property
    def receivers(self) -> Iterable[NodeId]:
        """The nodes that publications were assigned to, until their lease ends."""
        return self._outbox.receivers

    @property
    def acknowledged(self) -> dict[NodeId, int]:
        """Per receiver, the position up to which it has acknowledged everything."""
        return self._outbox.acknowledged

    @property
    def acknowledged_by_all(self) -> int:
        """The position up to which all receivers have acknowledged everything."""
        return self._outbox.acknowledged_by_all

    @property
    def pending(self) -> dict[NodeId, int]:
        """Per receiver, the number of positions after its acknowledged one, up to the newest
        committed one for it."""
        return self._outbox.pending

    def first_pending_before(self, position: int) -> dict[NodeId, int]:
        """Return the receivers that miss something before a position, and their first gap."""
        return self._outbox.first_pending_before(position)
