"""Which copy that comes first on a connection is a rest: its publication is captured already.

Where filters overlap, the broker sends one *copy* of a publication for each, under packet ids of
their own, and one of them is captured. A *rest* is another copy of it that comes on a later
connection; captured, too, it would be there twice. On one connection copies follow each other, and
`brokers.copies` tells them; here is what that cannot know.

On a new connection the broker first *resumes* what was under way: handshakes of QoS 2 (PUBREL), and
copies that it had sent before (DUP), in order. So only the first copy that comes can be a rest, of
a publication whose captured copy the broker knows to be answered, or that is the last captured one.
If the broker has gone on with something that was captured later, it has no rest of what was before.

    PUBLISH 7 "x" of filter 1         is captured; PUBREC 7
    PUBLISH 8 "x" of filter 2         is on its way when the connection ends
    (another connection, or life)
    PUBREL 7                          resumed
    PUBLISH 8 "x" of filter 2, DUP    a rest of 7: PUBREC 8, and nothing else
    PUBLISH 9 "x" of filter 1         news that says the same
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hansa.agent.broker.overlap_dedup import content_of
from hansa.agent.delivery.redelivery import RECENT, Seen, digest
from hansa.journal.records import Settled, Unsettled
from hansa.mqtt.packets import Publish


class Former:
    """What the journal tells of the life before."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.captured: OrderedDict[bytes, Seen] = OrderedDict()
        """The last that it captured, by content, back to the last that is settled: the broker had
        got all answers before that one's."""

        self.last: Seen | None = None
        """The very last of them."""
        self.settled: Seen | None = None
        """The last that is settled."""

    def note(self, seen: Seen) -> None:
        """Take the next that it captured."""
        self.last = seen
        self.captured[seen.digest] = seen
        self.captured.move_to_end(seen.digest)
        if len(self.captured) > RECENT:
            self.captured.popitem(last=False)

    def settle(self, seen: Seen) -> None:
        """The broker has gone on with one of them."""
        seen.acknowledged = True
        self.settled = seen
        while self.captured and next(iter(self.captured.values())).number < seen.number:
            self.captured.popitem(last=False)


class Rests:
    """What was captured last, in this life or else in the former one, and what was resumed."""

    def __init__(self, former: Former) -> None:
        """Begin with what the journal tells."""
        self._former = former
        """Counts until this life captures something."""
        self._last: Seen | None = None
        """The last that this life has captured."""
        self._last_before: Seen | None = None
        """The one that was the last when this connection began."""
        self._settled = former.settled
        self._others: OrderedDict[int, int] = OrderedDict()
        """Copies that were not kept because others were: content by packet id."""
        self._resumed: set[int] = set()
        """Handshakes with which the broker went on before it sent anything; maybe on more than one
        connection, if it sent nothing on those between."""
        self._has_begun = False
        """Whether something has come on this connection, so that nothing more is resumed."""

    # ------------------------------------------------------------ what happens

    def connected(self, session_present: bool) -> None:
        """A connection begins; without the session of before there are no rests."""
        if self._has_begun or not session_present:
            self._resumed.clear()
        self._has_begun = False
        if not session_present:
            self._former, self._last, self._settled = Former(), None, None
            self._others.clear()
        self._last_before = self._last

    def begin(self) -> None:
        """A publication has come."""
        self._has_begun = True

    def resume(self, packet_ids: Iterable[int]) -> None:
        """The broker goes on with these handshakes, maybe from before this connection."""
        if not self._has_begun:
            self._resumed.update(packet_ids)

    def keep(self, seen: Seen) -> None:
        """It is captured."""
        self._last = seen
        if self._former.last is not None:
            self._former = Former()

    def settle(self, seen: Seen) -> None:
        """The broker has gone on with its handshake."""
        self._settled = seen

    def leave_out(self, publish: Publish) -> None:
        """It is not kept, because another copy of it was."""
        self._others[publish.packet_id] = content_of(publish)
        self._others.move_to_end(publish.packet_id)
        if len(self._others) > RECENT:
            self._others.popitem(last=False)

    # ------------------------------------------------------------ what follows

    def rest_of(self, publish: Publish) -> int:
        """Return which subscription brought a copy, which was captured before, of what comes first
        on this connection; 0 if none did. What a former life captured is captured again at QoS 1:
        rather twice than never."""
        content, captured = digest(publish), self._last_before
        if captured is None and publish.qos == 2:
            captured = self._former.captured.get(content)
        if captured is None or captured.digest != content:
            return 0
        brought = publish.subscriptions
        is_of_another_filter = captured.subscription not in brought
        was_there_then = max(brought, default=0) <= captured.newest
        is_rest = is_of_another_filter and was_there_then and self._is_next(publish, captured)
        return captured.subscription if is_rest else 0

    def _is_next(self, publish: Publish, captured: Seen) -> bool:
        """Whether what the broker sends first can come next after what was captured."""
        is_last = captured is (self._last_before or self._former.last)
        if captured.packet_id in self._resumed:
            return True  # it goes on right there
        if publish.dup:  # it had been sent before, and the broker got no answer to it
            return is_last or captured.acknowledged
        # It had not been sent yet, for want of room beside handshakes.
        return is_last and self._has_resumed_other(publish)

    def _has_resumed_other(self, publish: Publish) -> bool:
        """Whether the broker went on with another copy of it, which was not kept."""
        if self._last_before is None:  # then it is one that the journal does not know
            return not self._resumed <= {each.packet_id for each in self._former.captured.values()}
        others = (self._others[each] for each in self._resumed if each in self._others)
        return content_of(publish) in others

    # ------------------------------------------------------------ for the next life

    def carried(self, remembered: Sequence[Seen]) -> Iterator[Unsettled | Settled]:
        """Yield what a segment begins with, for the next life: what may come again, the last that
        was captured and the last that is settled. In the order of capture: the last that it reads
        is the last for it."""
        last, settled = self._last or self._former.last, self._settled
        if last is None:
            return
        if settled is not None and settled is not last and last.receipt - settled.receipt < RECENT:
            yield from (settled.unsettled(), Settled(settled.number))
        for seen in remembered:
            yield seen.unsettled()
        if not remembered or remembered[-1] is not last:
            yield from (last.unsettled(), Settled(last.number))

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Positions are about to change; what is not among them has lost its own."""
        for seen in (self._last or self._former.last, self._settled):
            if seen is not None and seen.number not in numbers:
                seen.number = -seen.packet_id
