"""Durations in words, for the report and for the demo: both print the same text for one event."""

NOT_OVER = "until the next event"
"""An interruption that lasted longer than the clients looked."""


def duration(seconds: float) -> str:
    """Return milliseconds below one second, seconds above."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def interruption(seconds: float | None) -> str:
    """Return how long deliveries were interrupted."""
    if seconds is None:
        return NOT_OVER
    return duration(seconds) if seconds else "none"
