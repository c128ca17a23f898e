"""Why a socket failed, in words for a log line: asyncio's own repeat the address and a number."""

import os
import ssl


def explain(error: Exception) -> str:
    """Return the reason alone; there always is one."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer in time"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        number = error.errno
        if number is not None and number > 0:  # the resolver's are negative and have a text
            return os.strerror(number)
        if error.strerror:
            return error.strerror
    return str(error) or type(error).__name__
