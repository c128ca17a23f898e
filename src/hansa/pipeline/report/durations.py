"""Durations as text, for the report and the demo."""

NOT_OVER = "until the next event"
"""An interruption that lasted longer than the clients measured."""


def duration(seconds: float) -> str:
    """Return milliseconds below one second, else seconds."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def interruption(seconds: float | None) -> str:
    if seconds is None:
        return NOT_OVER
    return duration(seconds) if seconds else "none"
