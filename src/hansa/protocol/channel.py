"""Keeps a neighbour's control frames whole and in order on a link that does not (datagrams).

Frames are numbered, acknowledged by the number expected next, and sent again when they stay
unacknowledged. Everything above may therefore assume what TCP gives anyway; stream links have no
channel and pay nothing. Publications are never numbered here: their ends repair what is lost.
"""

from hansa.protocol.frames import Acknowledge, Numbered
from hansa.protocol.frames import Any as AnyFrame

RETRY_MIN = 0.05
RETRY_MAX = 2.0
"""Seconds before an unacknowledged frame is sent again: four round trips, within these bounds,
doubled while nothing gets through."""


class Channel:
    """Both directions of one datagram link."""

    __slots__ = ("_due", "_early", "_expected", "_next", "_retry", "_waiting", "_waiting_max")

    def __init__(self, waiting_max: int) -> None:
        """Start a channel; at most so many frames may wait for an acknowledgement."""
        self._waiting_max = waiting_max
        self._next = 1
        self._waiting: dict[int, Numbered] = {}  # sent, not acknowledged; in the order of numbers
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

    def number(self, frame: AnyFrame, now: float) -> Numbered:
        """Give a frame its number and remember it until it is acknowledged."""
        numbered = Numbered(self._next, frame)  # type: ignore[arg-type]  # callers number no heartbeat
        self._next += 1
        self._waiting[numbered.number] = numbered
        if self._due is None:
            self._due = now + self._retry
        return numbered

    def accept(self, frame: Numbered) -> tuple[list[AnyFrame], Acknowledge]:
        """Take a numbered frame; return the frames whose turn has come, and the acknowledgement."""
        if frame.number >= self._expected and len(self._early) < self._waiting_max:
            self._early[frame.number] = frame
        ready: list[AnyFrame] = []
        while (turn := self._early.pop(self._expected, None)) is not None:
            ready.append(turn.frame)
            self._expected += 1
        return ready, Acknowledge(self._expected)

    def acknowledge(self, expected: int, rtt: float | None, now: float) -> None:
        """The other side has everything below `expected`."""
        progress = False
        while self._waiting and (oldest := next(iter(self._waiting))) < expected:
            del self._waiting[oldest]
            progress = True
        if progress:
            self._retry = min(max(RETRY_MIN, 4 * (rtt or RETRY_MIN)), RETRY_MAX)
            self._due = now + self._retry if self._waiting else None

    def fire(self, now: float) -> list[Numbered]:
        """Return what must be sent again by now."""
        if self._due is None or now < self._due:
            return []
        self._retry = min(2 * self._retry, RETRY_MAX)
        self._due = now + self._retry
        return list(self._waiting.values())

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        return self._due
