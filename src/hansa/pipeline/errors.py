"""Spark's exceptions in one sentence: what was wrong with the input, or where to look."""

import re

from hansa.errors import TableBroken, UsageError

HANSA_ERROR = re.compile(r"hansa\.errors\.(\w+): (.+)")
"""How an error of ours looks at the end of a worker's traceback."""

PYTHON_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", re.MULTILINE)
"""How a Python traceback ends."""

SPARK_ERROR = re.compile(r"^\[([A-Z0-9_.]+)\] (.+)")
"""How Spark begins to say what it objects to."""


def to_user_error(error: Exception) -> UsageError | TableBroken:
    """Return what to tell the user, without the traceback of a worker."""
    text = str(error)
    ours = HANSA_ERROR.findall(text)
    if ours:
        kind, message = ours[-1]
        return TableBroken(message) if kind == TableBroken.__name__ else UsageError(message)
    raised = PYTHON_ERROR.findall(text)
    if raised:  # inside a function of ours that Spark calls: the first line only says that
        return UsageError(raised[0])
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    named = SPARK_ERROR.match(first)
    return UsageError(named[2] if named else first)
