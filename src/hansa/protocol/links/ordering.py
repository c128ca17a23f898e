"""Keeps a neighbour's control frames whole and in order on a link that does not (datagrams).

Frames are numbered, acknowledged by the number expected next and those missing above it, and sent
again when they are missing or stay unacknowledged. Everything above may therefore assume what TCP
gives anyway; stream links have no channel and pay nothing. Publications are never numbered here:
their ends repair what is lost.
"""

from itertools import islice

from hansa.protocol.wire.frames import FrameAck, OrderedFrame, SequencedFrame

RETRY_MIN = 0.05
RETRY_MAX = 2.0
"""Seconds before an unacknowledged frame is sent again: four round trips, within these bounds,
doubled while nothing gets through."""

RETRANSMIT_MAX = 16
"""Frames that are sent again when nothing was heard at all: the tail of a burst may be lost."""

MISSING_SPAN = 64
"""How far above the number expected next an acknowledgement looks for missing ones."""


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
        """Start a channel; at most so many frames may wait for an acknowledgement."""
        self._waiting_max = waiting_max
        self._next = 1
        self._unacknowledged: dict[
            int, tuple[SequencedFrame, float]
        ] = {}  # not acknowledged, when last sent
        self._expected = 1
        self._out_of_order: dict[int, SequencedFrame] = {}  # arrived before their turn
        self._retry = 4 * RETRY_MIN
        self._due: float | None = None

    @property
    def pending_count(self) -> int:
        """How many frames wait, in either direction."""
        return len(self._unacknowledged) + len(self._out_of_order)

    @property
    def has_overflowed(self) -> bool:
        """Whether the other side has left too much unacknowledged: the link must start anew."""
        return len(self._unacknowledged) > self._waiting_max

    def assign_sequence(self, frame: OrderedFrame, now: float) -> SequencedFrame:
        """Give a frame its number and remember it until it is acknowledged."""
        numbered = SequencedFrame(self._next, frame)
        self._next += 1
        self._unacknowledged[numbered.sequence] = (numbered, now)
        if self._due is None:
            self._due = now + self._retry
        return numbered

    def receive_frame(self, frame: SequencedFrame) -> tuple[list[OrderedFrame], FrameAck]:
        """Take a numbered frame; return the frames whose turn has come, and the acknowledgement."""
        # A window, not a count: the frame whose turn it is must find room whatever came early.
        if self._expected <= frame.sequence < self._expected + self._waiting_max:
            self._out_of_order[frame.sequence] = frame
        ready: list[OrderedFrame] = []
        while (turn := self._out_of_order.pop(self._expected, None)) is not None:
            ready.append(turn.frame)
            self._expected += 1
        return ready, FrameAck(self._expected, self._missing())

    def receive_ack(self, frame: FrameAck, rtt: float | None, now: float) -> list[SequencedFrame]:
        """Drop what has arrived; return what the other side misses and must be sent again."""
        progress = False
        while (
            self._unacknowledged and (oldest := next(iter(self._unacknowledged))) < frame.expected
        ):
            del self._unacknowledged[oldest]
            progress = True
        # What was sent less than a round trip ago may still be on its way.
        retransmit_after = RETRY_MIN if rtt is None else rtt
        if progress:
            self._retry = min(max(RETRY_MIN, 4 * retransmit_after), RETRY_MAX)
            self._due = now + self._retry if self._unacknowledged else None
        lost = [n for n in dict.fromkeys(frame.missing) if n in self._unacknowledged]
        return self._retransmit(
            [n for n in lost if now >= self._unacknowledged[n][1] + retransmit_after], now
        )

    def handle_timer(self, now: float) -> list[SequencedFrame]:
        """Return the oldest frames if they must be sent again by now: the answer tells the rest."""
        if self._due is None or now < self._due:
            return []
        self._retry = min(2 * self._retry, RETRY_MAX)
        self._due = now + self._retry
        return self._retransmit(list(islice(self._unacknowledged, RETRANSMIT_MAX)), now)

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        return self._due

    def _missing(self) -> tuple[int, ...]:
        if not self._out_of_order:
            return ()
        last = min(max(self._out_of_order), self._expected + MISSING_SPAN)
        return tuple(n for n in range(self._expected, last) if n not in self._out_of_order)

    def _retransmit(self, numbers: list[int], now: float) -> list[SequencedFrame]:
        frames = [self._unacknowledged[number][0] for number in numbers]
        self._unacknowledged.update({frame.sequence: (frame, now) for frame in frames})
        return frames
