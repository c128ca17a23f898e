"""Which copy of a publication of QoS 1 or 2 counts, of those that overlapping filters bring.

A broker queues them, so copies from before a filter's end come after its confirmation: late ones,
from a subscription that is no more. The copies of one publication follow each other, so a late one
counts unless another one of its publication did. What a filter brings again, or one that is younger
than the first copy, belongs to the next publication.

Mosquitto that has been started again queues one copy only of what is published before we are back,
and that may be any. So a copy that does not decide waits for the one that does; if that does not
come, it counts itself.

A copy does not count if another one was captured on a former connection: then this one is a rest,
the first that comes on the new one.
"""

from collections.abc import Callable

from hansa.agent.brokers.subscriptions import UNFIT, Subscriptions
from hansa.mqtt.packets import Publish
from hansa.mqtt.properties import ageless

Decided = list[tuple[Publish, bool]]
"""Copies in the order in which they came, and of each whether it counts."""


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
        self._first: Publish | None = None
        self._seen: set[int] = set()
        self._newest = 0
        self._taken = False
        self._last: tuple[set[int], int] | None = None
        """Which filters brought the last one that counted, and which could have, at most."""

    @property
    def are_waiting(self) -> bool:
        """Whether the copy that decides about others has not come yet."""
        return bool(self._waiting)

    def connected(self, session_present: bool) -> None:
        """A connection begins; what waited will come again."""
        self._waiting = []
        self._first = None
        if not session_present:
            self._last = None

    def sort(self, copy: Publish) -> Decided:
        """Take the copy that comes next; return those that are decided now."""
        subscriptions, identifiers = self._subscriptions, copy.subscriptions
        oldest = subscriptions.oldest(copy.topic)
        if not identifiers:
            return [*self.settle(), (copy, oldest > 0)]
        decided = [] if self._continues(copy) else self._begin(copy)
        self._seen.update(identifiers)
        is_late = not any(map(subscriptions.is_held, identifiers))
        if self._taken or oldest == UNFIT or subscriptions.stays(copy.topic):
            decided.append((copy, False))
        elif is_late or oldest in identifiers:
            decided += [(other, False) for other in self._waiting]
            decided.append((copy, True))
            self._waiting = []
            self._take()
        else:
            self._waiting.append(copy)
        return decided

    def settle(self) -> Decided:
        """The copy that decides does not come: decide about those that wait for it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return []
        self._take()
        first, *others = waiting
        return [(first, True), *((other, False) for other in others)]

    def _take(self) -> None:
        """A copy of the present publication counts, so the others do not."""
        self._taken = True
        self._last = self._seen, self._newest

    def _begin(self, copy: Publish) -> Decided:
        """Another publication begins, or on a new connection the last before it goes on."""
        decided = self.settle()
        is_first = self._first is None
        self._first, self._seen = copy, set()
        self._newest = self._subscriptions.newest_beside(copy.subscriptions)
        other = self._rest_of(copy) if is_first and self._may_be_rest(copy) else 0
        self._taken = other > 0
        if self._taken:
            self._seen, self._newest = self._last or (self._seen, self._newest)
            self._seen.add(other)
        return decided

    def _may_be_rest(self, copy: Publish) -> bool:
        """Whether it has not come with the last before this connection, and can have."""
        if self._last is None:
            return True
        brought, newest = self._last
        return brought.isdisjoint(copy.subscriptions) and max(copy.subscriptions) <= newest

    def _continues(self, copy: Publish) -> bool:
        """Whether this is another copy of the publication before it."""
        first = self._first
        return (
            first is not None
            and max(copy.subscriptions) <= self._newest
            and self._seen.isdisjoint(copy.subscriptions)
            and (first.topic, first.payload, first.qos, first.retain)
            == (copy.topic, copy.payload, copy.qos, copy.retain)
            and ageless(first.properties) == ageless(copy.properties)
        )
