"""Spark's exceptions in one sentence: what was wrong with the input, or where to look."""

import re

from hansa.errors import TableBroken, UsageError

OURS = re.compile(r"hansa\.errors\.(\w+): (.+)")
"""How an error of ours looks at the end of a worker's traceback."""

RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", re.MULTILINE)
"""How a Python traceback ends."""

CLASS = re.compile(r"^\[([A-Z0-9_.]+)\] (.+)")
"""How Spark begins to say what it objects to."""


def plain(error: Exception) -> UsageError | TableBroken:
    """Return what to tell the user, without the traceback of a worker."""
    text = str(error)
    ours = OURS.findall(text)
    if ours:
        kind, message = ours[-1]
        return TableBroken(message) if kind == TableBroken.__name__ else UsageError(message)
    raised = RAISED.findall(text)
    if raised:  # inside a function of ours that Spark calls: the first line only says that
        return UsageError(raised[0])
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    named = CLASS.match(first)
    return UsageError(named[2] if named else first)
