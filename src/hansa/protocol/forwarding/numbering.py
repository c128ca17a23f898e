"""What a publication is before it has a name, and how those of QoS 0 get one.

Those of QoS 1 and 2 get theirs from the journal; see `outbox`.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Protocol

from hansa.protocol.model import NodeId, Publication


class LocalPublication(Protocol):
    """A publication as the broker's client read it; `Published` is one."""

    @property
    def topic(self) -> str:
        """Where it was published."""

    @property
    def payload(self) -> bytes:
        """What was published."""

    @property
    def qos(self) -> int:
        """How surely."""

    @property
    def retain(self) -> bool:
        """Whether it is kept for later subscribers."""

    @property
    def properties(self) -> bytes:
        """MQTT 5 properties, opaque."""


class LocalSequencer:
    """Counts what one node sends at QoS 0."""

    def __init__(self, node: NodeId) -> None:
        """Start at 1: the incarnation tells lives apart."""
        self._node = node
        self.next_sequence: Callable[[], int] = count(1).__next__
        """Takes the next number."""

    def make_publication(
        self,
        event: LocalPublication,
        incarnation: int,
        version: int = 0,
        receivers: Iterable[NodeId] = (),
    ) -> Publication:
        """Make the publication that carries an event; `version` if it is retained. It is for all
        who want it, or `only` for some."""
        return Publication(
            origin=self._node,
            epoch=incarnation,
            sequence=self.next_sequence(),
            qos=0,
            topic=event.topic,
            payload=event.payload,
            retain=event.retain,
            properties=event.properties,
            version=version,
            previous=tuple((node, 0) for node in receivers),
        )
