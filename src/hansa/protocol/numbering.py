"""The names of publications that start here: numbers at QoS 0, journal positions above.

A position is dense over all groups; `previous` shows a receiver its holes although it does not get
every position (design of guaranteed delivery: see docs/protocol.md, section 6).
"""

from hansa.protocol.events import Published
from hansa.protocol.vocabulary import NAMED_MAX, GroupId, NodeId, Publication


class Numbering:
    """Counts what one node sends."""

    def __init__(self, node: NodeId, epoch: int, next_seq: int) -> None:
        """Go on where the journal ends."""
        self._node = node
        self._epoch = epoch
        self._next_seq = next_seq
        self._next_number = 1
        self._previous: dict[GroupId, int] = {}

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and the number that the journal's next publication will have."""
        return self._epoch, self._next_seq

    def name(self, event: Published, incarnation: int, groups: tuple[GroupId, ...]) -> Publication:
        """Make the publication that carries an event to these groups."""
        if event.qos == 0:
            life, number = incarnation, self._next_number
            self._next_number += 1
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
