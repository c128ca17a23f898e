"""A token bucket: bounds a rate and allows bursts. Pure: time is an argument."""


class TokenBucket:
    """Tokens that flow in at a rate and are kept for `burst_s` seconds; full at the start."""

    __slots__ = ("_at", "_rate", "_size", "_tokens")

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self._rate = rate
        self._size = rate * burst_s
        self._tokens = self._size
        self._at = now

    def take(self, now: float) -> bool:
        """Take one token; return whether there was one."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def is_overdrawn(self, now: float) -> bool:
        self._refill(now)
        return self._tokens < 0

    def charge(self, amount: float, now: float) -> float:
        """Take tokens, even if there are too few; return the seconds until the bucket is no longer
        overdrawn."""
        self._refill(now)
        self._tokens -= amount
        return max(0.0, -self._tokens / self._rate)

    def _refill(self, now: float) -> None:
        elapsed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._tokens = min(self._tokens + elapsed * self._rate, self._size)
