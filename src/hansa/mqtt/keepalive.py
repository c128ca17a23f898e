"""When to ask the broker for a sign of life, and when to give it up.

MQTT only wants the client not to be silent. But a client that publishes all the time would then
never ask, and never notice that nobody answers; so silence of either side counts.
"""

PING_AFTER_FRACTION = 0.5
"""A sign of life is asked for after this part of the keep alive: well before the broker worries."""


class KeepAliveTimer:
    """The clock of one connection."""

    __slots__ = ("_last_received", "_interval", "_ping_sent_at", "_last_sent", "_timeout")

    def __init__(self, keep_alive: int, timeout: float, now: float) -> None:
        """Start; a keep alive of 0 seconds never asks."""
        self._interval = keep_alive * PING_AFTER_FRACTION
        self._timeout = timeout
        self._last_sent = now
        self._last_received = now
        self._ping_sent_at: float | None = None

    def on_sent(self, now: float) -> None:
        """Something was sent."""
        self._last_sent = now

    def on_received(self, now: float) -> None:
        """Something arrived. While a PINGREQ is open, that is a sign of life like any other."""
        self._last_received = now

    def on_ping_sent(self, now: float) -> None:
        """A PINGREQ was sent; the first that is open decides."""
        self._last_sent = now
        if self._ping_sent_at is None:
            self._ping_sent_at = now

    def on_ping_response(self, now: float) -> float | None:
        """A PINGRESP came: return the seconds that it took, or None if nobody had asked."""
        pinged, self._ping_sent_at = self._ping_sent_at, None
        return None if pinged is None else now - pinged

    def is_ping_due(self, now: float) -> bool:
        """Whether to ask now."""
        due = self._ping_deadline()
        return due is not None and now >= due

    def has_timed_out(self, now: float) -> bool:
        """Whether nobody answers."""
        limit = self._timeout_deadline()
        return limit is not None and now >= limit

    def next_deadline(self) -> float | None:
        """When `is_due` or `is_over` may next be true."""
        return min(
            (due for due in (self._ping_deadline(), self._timeout_deadline()) if due is not None),
            default=None,
        )

    def _ping_deadline(self) -> float | None:
        if not self._interval:
            return None
        # Who has asked need not ask again for an answer, but still must not be silent.
        since = (
            self._last_sent
            if self._ping_sent_at is not None
            else min(self._last_sent, self._last_received)
        )
        return since + self._interval

    def _timeout_deadline(self) -> float | None:
        return (
            None
            if self._ping_sent_at is None
            else max(self._ping_sent_at, self._last_received) + self._timeout
        )
