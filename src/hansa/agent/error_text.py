"""Texts for log lines, alarms and status: socket errors, and text chosen by clients or peers."""

import os
import ssl

QUOTED_CHARS_MAX = 80
"""Characters shown of a text that a client or peer chose."""


def quote_text(text: str) -> str:
    """Return a text that a client or peer chose: quoted, on one line, bounded."""
    cut = text[:QUOTED_CHARS_MAX]
    return f"{cut!r}…" if len(text) > len(cut) else f"{cut!r}"


def describe_fault(fault: BaseException | None) -> str:
    """Return an exception as `Name: text`."""
    return f"{type(fault).__name__}: {fault}" if fault is not None else "no more is known"


def explain_socket_error(error: Exception) -> str:
    """Return why a socket failed; asyncio's own texts repeat the address and a number."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer in time"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        number = error.errno
        if number is not None and number > 0:  # those of the resolver are negative and have a text
            return os.strerror(number)
        if error.strerror:
            return error.strerror
    return str(error) or type(error).__name__


def listen_error_text(address: object, section: str, error: Exception) -> str:
    """Return why an agent cannot listen, and which setting chooses another port."""
    variable = f"HANSA_{section.upper()}_PORT"
    return (
        f"cannot listen on {address}: {explain_socket_error(error)}; another port is chosen with"
        f" [{section}] port in the settings, or {variable} (0 takes a free one)"
    )
