"""Local publications before they are numbered, and numbering at QoS 0.

At QoS 1 and 2 the journal numbers them; see `delivery/outbox`.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Protocol

from hansa.protocol.model import NodeId, Publication


class LocalPublication(Protocol):
    """A publication as the broker client read it; `ClientPublished` is one."""

    @property
    def topic(self) -> str: ...

    @property
    def payload(self) -> bytes: ...

    @property
    def qos(self) -> int: ...

    @property
    def retain(self) -> bool: ...

    @property
    def properties(self) -> bytes: ...


class LocalSequencer:
    """Numbers the local publications of QoS 0."""

    def __init__(self, node: NodeId) -> None:
        """Starts at 1: the incarnation distinguishes runs."""
        self._node = node
        self.next_sequence: Callable[[], int] = count(1).__next__
        """Returns the next sequence number."""

    def make_publication(
        self,
        event: LocalPublication,
        incarnation: int,
        version: int = 0,
        receivers: Iterable[NodeId] = (),
    ) -> Publication:
        """Return the publication of an event. `version` is for retained values. It is for all
        interested nodes, or only for `receivers`."""
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
            receivers=tuple((node, 0) for node in receivers),
        )
