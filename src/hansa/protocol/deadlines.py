"""The earliest of several deadlines, any of which may be missing."""


def earliest(*dues: float | None) -> float | None:
    """Return the earliest, None if there is none. Asked after every input, so it is kept plain."""
    first: float | None = None
    for due in dues:
        if due is not None and (first is None or due < first):
            first = due
    return first
