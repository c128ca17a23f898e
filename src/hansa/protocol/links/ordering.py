"""Keeps a neighbour's control frames whole and in order on a link that does not (datagrams).

Frames are numbered, acknowledged by the number expected next and those missing above it, and sent
again when they are missing or stay unacknowledged. Everything above may therefore assume what TCP
gives anyway; stream links have no channel and pay nothing. Publications are never numbered here:
their ends repair what is lost.
"""

from itertools import islice

from hansa.protocol.wire.frames import Acknowledge, Numbered, Ordered

RETRY_MIN = 0.05
RETRY_MAX = 2.0
"""Seconds before an unacknowledged frame is sent again: four round trips, within these bounds,
doubled while nothing gets through."""

AGAIN_MAX = 16
"""Frames that are sent again when nothing was heard at all: the tail of a burst may be lost."""

MISSING_SPAN = 64
"""How far above the number expected next an acknowledgement looks for missing ones."""


class Channel:
    """Both directions of one datagram link."""

    __slots__ = ("_due", "_early", "_expected", "_next", "_retry", "_waiting", "_waiting_max")

    def __init__(self, waiting_max: int) -> None:
        """Start a channel; at most so many frames may wait for an acknowledgement."""
        self._waiting_max = waiting_max
        self._next = 1
        self._waiting: dict[int, tuple[Numbered, float]] = {}  # not acknowledged, when last sent
        self._expected = 1
        self._early: dict[int, Numbered] = {}  # arrived before their turn
        self._retry = 4 * RETRY_MIN
        self._due: float | None = None

    @property
    def waiting(self) -> int:
        """How many frames wait, in either direction."""
        return len(self._waiting) + len(self._early)

    @property
    def overflowed(self) -> bool:
        """Whether the other side has left too much unacknowledged: the link must start anew."""
        return len(self._waiting) > self._waiting_max

    def number(self, frame: Ordered, now: float) -> Numbered:
        """Give a frame its number and remember it until it is acknowledged."""
        numbered = Numbered(self._next, frame)
        self._next += 1
        self._waiting[numbered.number] = (numbered, now)
        if self._due is None:
            self._due = now + self._retry
        return numbered

    def accept(self, frame: Numbered) -> tuple[list[Ordered], Acknowledge]:
        """Take a numbered frame; return the frames whose turn has come, and the acknowledgement."""
        # A window, not a count: the frame whose turn it is must find room whatever came early.
        if self._expected <= frame.number < self._expected + self._waiting_max:
            self._early[frame.number] = frame
        ready: list[Ordered] = []
        while (turn := self._early.pop(self._expected, None)) is not None:
            ready.append(turn.frame)
            self._expected += 1
        return ready, Acknowledge(self._expected, self._missing())

    def acknowledge(self, frame: Acknowledge, rtt: float | None, now: float) -> list[Numbered]:
        """Drop what has arrived; return what the other side misses and must be sent again."""
        progress = False
        while self._waiting and (oldest := next(iter(self._waiting))) < frame.expected:
            del self._waiting[oldest]
            progress = True
        # What was sent less than a round trip ago may still be on its way.
        patience = RETRY_MIN if rtt is None else rtt
        if progress:
            self._retry = min(max(RETRY_MIN, 4 * patience), RETRY_MAX)
            self._due = now + self._retry if self._waiting else None
        lost = [n for n in dict.fromkeys(frame.missing) if n in self._waiting]
        return self._again([n for n in lost if now >= self._waiting[n][1] + patience], now)

    def fire(self, now: float) -> list[Numbered]:
        """Return the oldest frames if they must be sent again by now: the answer tells the rest."""
        if self._due is None or now < self._due:
            return []
        self._retry = min(2 * self._retry, RETRY_MAX)
        self._due = now + self._retry
        return self._again(list(islice(self._waiting, AGAIN_MAX)), now)

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        return self._due

    def _missing(self) -> tuple[int, ...]:
        if not self._early:
            return ()
        last = min(max(self._early), self._expected + MISSING_SPAN)
        return tuple(n for n in range(self._expected, last) if n not in self._early)

    def _again(self, numbers: list[int], now: float) -> list[Numbered]:
        frames = [self._waiting[number][0] for number in numbers]
        self._waiting.update({frame.number: (frame, now) for frame in frames})
        return frames
