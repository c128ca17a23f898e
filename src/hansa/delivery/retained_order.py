"""Order in which retained publications to one topic enter the broker.

A broker stores a publication of QoS 2 when its handshake ends (PUBREL), and one of QoS 0 or 1 when
it arrives. QoS 0 does not pass through the inbox journal, so it could arrive before an earlier one
that waits for the disk. Two rules keep the order in which the node delivered them:

1. A retained publication of QoS 1 is not sent while an earlier one of QoS 2 to the same topic is in
   flight; whatever follows on that topic waits behind it. Equal QoS, and QoS 2 after QoS 1, need no
   pause: MQTT keeps that order ([MQTT-4.6.0]).
2. A retained publication of QoS 0 is held in memory while earlier ones of QoS 1 or 2 to the same
   topic are not completed. Only the newest of a topic is held: those before it are published
   without the retain flag, and so is one that a newer publication of QoS 1 or 2 replaces.

Publications without the retain flag, and those to other topics, never wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec.structs import replace

from hansa.protocol.model import PlainMessage, Publication

T = TypeVar("T")
"""A publication of QoS 1 or 2 in the inbox of a shell."""

HELD_BYTES_MAX = 16 << 20
"""Payload bytes of QoS 0 that may be held. Beyond that a publication is not held: the broker may
then store an older value, which the check of rule 9.9 repairs."""


@dataclass(slots=True)
class _PendingRetained:
    """Retained publications of QoS 1 and 2 to one topic whose handshake is not complete."""

    count: int = 0
    version: int = 0
    """The newest version among them; 0 for those of an earlier incarnation, which are older than
    all new ones."""
    held_qos0: Publication | None = None
    """The newest one of QoS 0, which has to follow them."""


class RetainedOrder(Generic[T]):
    """Decides which retained publications have to wait for others."""

    def __init__(self, publish: Callable[[Sequence[Publication]], None]) -> None:
        """`publish` sends publications of QoS 0 to the broker."""
        self._publish = publish
        self._pending: dict[str, _PendingRetained] = {}
        self._held_bytes = 0
        self._in_flight: dict[str, set[int]] = {}
        """Per topic, the indexes of those of QoS 2 that are in flight."""
        self._waiting: dict[str, list[T]] = {}
        """Per topic, publications that wait for these to complete, in order."""

    @property
    def is_empty(self) -> bool:
        """Whether no retained publication of QoS 1 or 2 is pending, so that none of QoS 0 waits."""
        return not self._pending

    # ------------------------------------------------------------ rule 1: QoS 1 after QoS 2

    def wait_or_send(self, item: T, topic: str, index: int, qos: int) -> bool:
        """Return whether a retained publication with this index in the inbox has to wait; if not,
        it counts as sent."""
        if topic in self._waiting:
            self._waiting[topic].append(item)
            return True
        if qos < 2 and topic in self._in_flight:
            self._waiting[topic] = [item]
            return True
        if qos == 2:
            self.on_sent(topic, index)
        return False

    def on_sent(self, topic: str, index: int) -> None:
        """A retained publication of QoS 2 was sent, on this connection or on an earlier one."""
        self._in_flight.setdefault(topic, set()).add(index)

    def on_completed(self, topic: str, index: int) -> Sequence[T]:
        """A retained publication is no longer in flight; return those that may be sent now."""
        in_flight = self._in_flight.get(topic)
        if in_flight is None:
            return ()
        in_flight.discard(index)
        if in_flight:
            return ()
        del self._in_flight[topic]
        return self._waiting.pop(topic, ())

    def on_disconnected(self) -> None:
        """Nothing is in flight; the inbox knows all that has to be sent again."""
        self._in_flight.clear()
        self._waiting.clear()

    # ------------------------------------------------------------ rule 2: QoS 0 after QoS 1 and 2

    def add(self, topic: str, version: int) -> None:
        """A retained publication of QoS 1 or 2 was delivered by the node."""
        pending = self._pending.get(topic)
        if pending is None:
            pending = self._pending[topic] = _PendingRetained()
        pending.count += 1
        pending.version = max(pending.version, version)
        self._replace_held(pending, None)

    def remove(self, topic: str) -> None:
        """One of them is completed, dropped, or not retained any more."""
        pending = self._pending[topic]
        pending.count -= 1
        if pending.count == 0:
            del self._pending[topic]
            if pending.held_qos0 is not None:
                self._held_bytes -= len(pending.held_qos0.payload)
                self._publish((pending.held_qos0,))

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> list[PlainMessage | Publication]:
        """Hold those of QoS 0 that have to wait; return the others, as they may be published."""
        free: list[PlainMessage | Publication] = []
        for each in publications:
            if isinstance(each, tuple) or not each.retain or each.topic not in self._pending:
                free.append(each)
                continue
            pending = self._pending[each.topic]
            if each.version < pending.version:
                free.append(replace(each, retain=False))
            elif self._held_bytes + len(each.payload) > HELD_BYTES_MAX:
                free.append(each)
            else:
                self._replace_held(pending, each)
        return free

    def _replace_held(self, pending: _PendingRetained, newer: Publication | None) -> None:
        """Hold this one instead of the one before, which the broker must not store any more."""
        older, pending.held_qos0 = pending.held_qos0, newer
        self._held_bytes += len(newer.payload) if newer else 0
        if older is not None:
            self._held_bytes -= len(older.payload)
            self._publish((replace(older, retain=False),))
