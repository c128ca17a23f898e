"""Reliable, ordered control frames on datagram links.

Frames are numbered, acknowledged by the next expected number and the missing ones above it, and
retransmitted when they are missing or stay unacknowledged. So the layers above see what TCP
provides; stream links have no channel and no cost. Publications are not numbered here: origin and
receivers repair losses themselves.
"""

from itertools import islice

from hansa.protocol.wire.frames import FrameAck, OrderedFrame, SequencedFrame

RETRY_MIN = 0.05
RETRY_MAX = 2.0
"""Range of the retransmission time-out in seconds: four round trips within these bounds, doubled
while nothing gets through."""

RETRANSMIT_MAX = 16
"""Frames retransmitted when nothing was heard: the tail of a burst may be lost."""

PAUSE_MIN = 0.001
"""Pause in seconds after the first retransmission of a frame, however short the round trip seems.
It doubles with every further one, up to RETRY_MAX. Otherwise a neighbour that feigns a round trip
of 0 would get up to MISSING_SPAN frames for every acknowledgement that it sends."""

MISSING_SPAN = 64
"""How far above the next expected number an acknowledgement reports missing frames. Numbers beyond
are ignored."""


class OrderedChannel:
    """Both directions of one datagram link."""

    __slots__ = (
        "_due",
        "_out_of_order",
        "_expected",
        "_next",
        "_retry",
        "_unacknowledged",
        "_waiting_max",
        "_withheld",
    )

    def __init__(self, waiting_max: int) -> None:
        """At most `waiting_max` frames may be unacknowledged."""
        self._waiting_max = waiting_max
        self._next = 1
        self._unacknowledged: dict[
            int, tuple[SequencedFrame, float, float]
        ] = {}  # unacknowledged, with the time last sent and the least pause after it
        self._withheld: dict[int, float] = {}  # missing frames, with the end of their pause
        self._expected = 1
        self._out_of_order: dict[int, SequencedFrame] = {}  # arrived out of order
        self._retry = 4 * RETRY_MIN
        self._due: float | None = None

    @property
    def pending_count(self) -> int:
        """Number of waiting frames in both directions."""
        return len(self._unacknowledged) + len(self._out_of_order)

    @property
    def has_overflowed(self) -> bool:
        """Whether too many frames are unacknowledged: the link must be reset."""
        return len(self._unacknowledged) > self._waiting_max

    def assign_sequence(self, frame: OrderedFrame, now: float) -> SequencedFrame:
        """Number a frame and keep it until it is acknowledged."""
        numbered = SequencedFrame(self._next, frame)
        self._next += 1
        self._unacknowledged[numbered.sequence] = (numbered, now, 0.0)
        if self._due is None:
            self._due = now + self._retry
        return numbered

    def receive_frame(self, frame: SequencedFrame) -> tuple[list[OrderedFrame], FrameAck]:
        """Receive a numbered frame; return the frames that are next in order, and an
        acknowledgement."""
        # A window, not a count: the next expected frame must always find room.
        if self._expected <= frame.sequence < self._expected + self._waiting_max:
            self._out_of_order[frame.sequence] = frame
        ready: list[OrderedFrame] = []
        while (turn := self._out_of_order.pop(self._expected, None)) is not None:
            ready.append(turn.frame)
            self._expected += 1
        return ready, FrameAck(self._expected, self._missing())

    def receive_ack(self, frame: FrameAck, rtt: float | None, now: float) -> list[SequencedFrame]:
        """Drop acknowledged frames; return the missing ones to retransmit."""
        progress = False
        while (
            self._unacknowledged and (oldest := next(iter(self._unacknowledged))) < frame.expected
        ):
            del self._unacknowledged[oldest]
            self._withheld.pop(oldest, None)
            progress = True
        # A frame sent less than a round trip ago may still be in flight.
        retransmit_after = RETRY_MIN if rtt is None else rtt
        if progress:
            self._retry = min(max(RETRY_MIN, 4 * retransmit_after), RETRY_MAX)
            self._due = now + self._retry if self._unacknowledged else None
        span = range(frame.expected, frame.expected + MISSING_SPAN)
        due: list[int] = []
        for number in dict.fromkeys(frame.missing):
            if number not in self._unacknowledged or number not in span:
                continue
            _, sent, pause = self._unacknowledged[number]
            if now >= sent + max(retransmit_after, pause):
                due.append(number)
            elif now >= sent + retransmit_after:
                self._withheld[number] = sent + pause
        return self._retransmit(due, now)

    def handle_timer(self, now: float) -> list[SequencedFrame]:
        """Return missing frames whose pause has ended and, if they are due, the oldest
        unacknowledged ones; the acknowledgement will report the rest."""
        due = [number for number, pause_end in self._withheld.items() if now >= pause_end]
        if self._due is not None and now >= self._due:
            self._retry = min(2 * self._retry, RETRY_MAX)
            self._due = now + self._retry
            due += islice(self._unacknowledged, RETRANSMIT_MAX)
        return self._retransmit(sorted(set(due)), now)

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due."""
        pause_end = min(self._withheld.values(), default=None)
        if pause_end is None or self._due is None:
            return self._due
        return min(pause_end, self._due)

    def _missing(self) -> tuple[int, ...]:
        if not self._out_of_order:
            return ()
        last = min(max(self._out_of_order), self._expected + MISSING_SPAN)
        return tuple(n for n in range(self._expected, last) if n not in self._out_of_order)

    def _retransmit(self, numbers: list[int], now: float) -> list[SequencedFrame]:
        frames: list[SequencedFrame] = []
        for number in numbers:
            frame, _, pause = self._unacknowledged[number]
            longer = min(2 * pause, RETRY_MAX) if pause else PAUSE_MIN
            self._unacknowledged[number] = frame, now, longer
            self._withheld.pop(number, None)
            frames.append(frame)
        return frames
