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

RETRANSMIT_AGAIN_MIN = 0.005
"""Least pause in seconds before a frame is retransmitted once more, however short the round trip
seems. A neighbour that feigns a round trip of 0 would otherwise get up to MISSING_SPAN frames for
every acknowledgement that it sends."""

MISSING_SPAN = 64
"""How far above the next expected number an acknowledgement reports missing frames."""


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
    )

    def __init__(self, waiting_max: int) -> None:
        """At most `waiting_max` frames may be unacknowledged."""
        self._waiting_max = waiting_max
        self._next = 1
        self._unacknowledged: dict[
            int, tuple[SequencedFrame, float, float]
        ] = {}  # unacknowledged, with the time last sent and the least pause after it
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
            progress = True
        # A frame sent less than a round trip ago may still be in flight.
        retransmit_after = RETRY_MIN if rtt is None else rtt
        if progress:
            self._retry = min(max(RETRY_MIN, 4 * retransmit_after), RETRY_MAX)
            self._due = now + self._retry if self._unacknowledged else None
        lost = [n for n in dict.fromkeys(frame.missing) if n in self._unacknowledged]
        return self._retransmit([n for n in lost if self._is_due(n, retransmit_after, now)], now)

    def _is_due(self, number: int, retransmit_after: float, now: float) -> bool:
        _, sent, pause = self._unacknowledged[number]
        return now >= sent + max(retransmit_after, pause)

    def handle_timer(self, now: float) -> list[SequencedFrame]:
        """Return the oldest unacknowledged frames if they are due; the acknowledgement will report
        the rest."""
        if self._due is None or now < self._due:
            return []
        self._retry = min(2 * self._retry, RETRY_MAX)
        self._due = now + self._retry
        return self._retransmit(list(islice(self._unacknowledged, RETRANSMIT_MAX)), now)

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due."""
        return self._due

    def _missing(self) -> tuple[int, ...]:
        if not self._out_of_order:
            return ()
        last = min(max(self._out_of_order), self._expected + MISSING_SPAN)
        return tuple(n for n in range(self._expected, last) if n not in self._out_of_order)

    def _retransmit(self, numbers: list[int], now: float) -> list[SequencedFrame]:
        frames = [self._unacknowledged[number][0] for number in numbers]
        self._unacknowledged.update(
            {frame.sequence: (frame, now, RETRANSMIT_AGAIN_MIN) for frame in frames}
        )
        return frames
