"""When to ask the broker for a sign of life, and when to give it up.

MQTT only wants the client not to be silent. But a client that publishes all the time would then
never ask, and never notice that nobody answers; so silence of either side counts.
"""

PATIENCE = 0.5
"""A sign of life is asked for after this part of the keep alive: well before the broker worries."""


class KeepAlive:
    """The clock of one connection."""

    __slots__ = ("_heard", "_interval", "_pinged", "_sent", "_timeout")

    def __init__(self, keep_alive: int, timeout: float, now: float) -> None:
        """Start; a keep alive of 0 seconds never asks."""
        self._interval = keep_alive * PATIENCE
        self._timeout = timeout
        self._sent = now
        self._heard = now
        self._pinged: float | None = None

    def sent(self, now: float) -> None:
        """Something was sent."""
        self._sent = now

    def heard(self, now: float) -> None:
        """Something arrived. While a PINGREQ is open, that is a sign of life like any other."""
        self._heard = now

    def pinged(self, now: float) -> None:
        """A PINGREQ was sent; the first that is open decides."""
        self._sent = now
        if self._pinged is None:
            self._pinged = now

    def ponged(self, now: float) -> float | None:
        """A PINGRESP came: return the seconds that it took, or None if nobody had asked."""
        pinged, self._pinged = self._pinged, None
        return None if pinged is None else now - pinged

    def is_due(self, now: float) -> bool:
        """Whether to ask now."""
        due = self._due()
        return due is not None and now >= due

    def is_over(self, now: float) -> bool:
        """Whether nobody answers."""
        limit = self._limit()
        return limit is not None and now >= limit

    def next_deadline(self) -> float | None:
        """When `is_due` or `is_over` may next be true."""
        return min((due for due in (self._due(), self._limit()) if due is not None), default=None)

    def _due(self) -> float | None:
        if not self._interval:
            return None
        # Who has asked need not ask again for an answer, but still must not be silent.
        since = self._sent if self._pinged is not None else min(self._sent, self._heard)
        return since + self._interval

    def _limit(self) -> float | None:
        return None if self._pinged is None else max(self._pinged, self._heard) + self._timeout
