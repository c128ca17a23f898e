"""The names of publications that start here: numbers at QoS 0, journal positions above.

A position is dense over all groups; `previous` shows a receiver its holes although it does not get
every position (design of guaranteed delivery: see docs/protocol.md, section 6).
"""

from collections.abc import Callable
from itertools import count
from typing import Protocol

from hansa.protocol.vocabulary import NAMED_MAX, GroupId, NodeId, Publication


class Captured(Protocol):
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


class Numbering:
    """Counts what one node sends."""

    def __init__(self, node: NodeId, epoch: int, next_seq: int) -> None:
        """Go on where the journal ends."""
        self._node = node
        self._epoch = epoch
        self._next_seq = next_seq
        self.next_number: Callable[[], int] = count(1).__next__
        """Takes the next number of QoS 0."""
        self._previous: dict[GroupId, int] = {}

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and the number that the journal's next publication will have."""
        return self._epoch, self._next_seq

    def name(self, event: Captured, incarnation: int, groups: tuple[GroupId, ...]) -> Publication:
        """Make the publication that carries an event to these groups."""
        if event.qos == 0:
            life, number = incarnation, self.next_number()
            previous: tuple[tuple[GroupId, int], ...] = ()
        else:
            life, number = self._epoch, self._next_seq
            self._next_seq += 1
            # What does not fit the header has no `previous` there; its holes show at the tail.
            counted = groups[:NAMED_MAX]
            previous = tuple((group, self._previous.get(group, 0)) for group in counted)
            self._previous.update(dict.fromkeys(groups, number))
        return Publication(
            origin=self._node,
            life=life,
            number=number,
            qos=event.qos,
            topic=event.topic,
            payload=event.payload,
            retain=event.retain,
            previous=previous,
            properties=event.properties,
        )
