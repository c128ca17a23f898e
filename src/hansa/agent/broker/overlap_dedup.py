"""Which copy of a publication of QoS 1 or 2 counts, of those that overlapping filters bring.

A broker queues them, so copies from before a filter's end come after its confirmation: late ones,
from a subscription that is no more. The copies of one publication follow each other, so a late one
counts unless another one of its publication did. What a filter brings again, or one that is younger
than the first copy, belongs to the next publication.

Mosquitto that has been started again queues one copy only of what is published before we are back,
and that may be any. So a copy that does not decide waits for the one that does; if that does not
come, it counts itself.

A copy does not count if another one was captured on a former connection: then this one is a rest,
the first that comes on the new one. Copies that did not count are known by their packet ids when
they come again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hansa.agent.broker.subscriptions import UNFIT, Subscriptions
from hansa.mqtt.packets import Publish
from hansa.mqtt.properties import ageless

REMEMBERED = 8_192
"""Copies that did not count which are remembered: more than can be under way, far less than it
takes to use a packet id again."""

Decided = list[tuple[Publish, bool]]
"""Copies in the order in which they came, and of each whether it counts."""


def content_of(publish: Publish) -> int:
    """Return what tells publications apart in this life; one that waited at the broker is the
    same. It is cheap, and holds no payload."""
    properties = ageless(publish.properties) if publish.properties else b""
    return hash((publish.topic, publish.payload, publish.qos, publish.retain, properties))


@dataclass(slots=True)
class _Publication:
    """One publication, as its copies tell of it."""

    content: int
    newest: int
    """The last identifier of a filter that can have brought a copy of it."""
    brought: set[int] = field(default_factory=set)
    """The filters that have brought one."""
    is_taken: bool = False
    """Whether a copy has counted."""

    def may_have(self, copy: Publish, filters: tuple[int, ...]) -> bool:
        """Whether a copy can be one of this publication, by the filters that brought it."""
        return max(copy.subscriptions) <= self.newest and self.brought.isdisjoint(filters)


class Copies:
    """Tells which copies count, publication by publication."""

    def __init__(
        self, subscriptions: Subscriptions, rest_of: Callable[[Publish], int] = lambda _: 0
    ) -> None:
        """`rest_of` tells of what comes first on a connection which subscription brought another
        copy of it that was captured before; 0 if none did."""
        self._subscriptions = subscriptions
        self._rest_of = rest_of
        self._waiting: list[Publish] = []
        self._present: _Publication | None = None
        """The publication whose copies are coming, on this connection."""
        self._last: _Publication | None = None
        """The last one of which a copy has counted."""
        self._left_out: OrderedDict[int, tuple[_Publication, int]] = OrderedDict()
        """Those of copies that did not count, by packet id, and how many had come before."""
        self._count = 0

    @property
    def are_waiting(self) -> bool:
        """Whether the copy that decides about others has not come yet."""
        return bool(self._waiting)

    def connected(self, session_present: bool) -> None:
        """A connection begins; what waited will come again."""
        self._waiting = []
        self._present = None
        if not session_present:
            self._last = None
            self._left_out.clear()

    def sort(self, copy: Publish) -> Decided:
        """Take the copy that comes next; return those that are decided now."""
        subscriptions, identifiers = self._subscriptions, copy.subscriptions
        oldest = subscriptions.oldest(copy.topic)
        if not identifiers:
            return [*self.settle(), (copy, oldest > 0)]
        self._count += 1
        filters, said = subscriptions.brought_by(identifiers), content_of(copy)
        present, decided = self._present, Decided()
        if present is None or present.content != said or not present.may_have(copy, filters):
            decided = self.settle()
            is_first = present is None
            newest = subscriptions.newest_beside(identifiers)
            present = self._begin(copy, filters, _Publication(said, newest), is_first)
            self._present = present
        present.brought.update(filters)
        is_late = not any(map(subscriptions.is_held, identifiers))
        if present.is_taken or oldest == UNFIT or subscriptions.stays(copy.topic):
            decided.append((copy, False))
            self._leave_out(copy, present)
        elif is_late or oldest in identifiers:
            decided += [(other, False) for other in self._waiting]
            decided.append((copy, True))
            self._take(present, self._waiting)
            self._waiting = []
        else:
            self._waiting.append(copy)
        return decided

    def settle(self) -> Decided:
        """The copy that decides does not come: decide about those that wait for it."""
        waiting, self._waiting = self._waiting, []
        if not waiting or self._present is None:
            return []
        first, *others = waiting
        self._take(self._present, others)
        return [(first, True), *((other, False) for other in others)]

    def _take(self, publication: _Publication, others: Iterable[Publish]) -> None:
        """One copy counts, so the others do not."""
        publication.is_taken = True
        self._last = publication
        for other in others:
            self._leave_out(other, publication)

    def _leave_out(self, copy: Publish, publication: _Publication) -> None:
        self._left_out[copy.packet_id] = publication, self._count
        if len(self._left_out) > REMEMBERED:
            self._left_out.popitem(last=False)

    def _begin(
        self, copy: Publish, filters: tuple[int, ...], new: _Publication, is_first: bool
    ) -> _Publication:
        """Return the publication that a copy begins, or the former one that goes on with it."""
        if copy.dup and copy.packet_id in self._left_out:
            known, count = self._left_out[copy.packet_id]
            if known.content == new.content and count > self._count - REMEMBERED:
                return known
        if not is_first:
            return new
        last = self._last
        former = new if last is None or last.content != new.content else last
        other = self._rest_of(copy) if former.may_have(copy, filters) else 0
        if not other:
            return new
        former.is_taken = True
        former.brought.update(self._subscriptions.brought_by((other,)))
        return former
