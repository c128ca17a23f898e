"""Converts exceptions of Spark to one-line errors for the user."""

import re

from hansa.errors import TableBroken, UsageError

HANSA_ERROR = re.compile(r"hansa\.errors\.(\w+): (.+)")
"""An error of Hansa at the end of a worker's traceback."""

PYTHON_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of a Python traceback."""

SPARK_ERROR = re.compile(r"^\[([A-Z0-9_.]+)\] (.+)")
"""Spark's error class and message."""


def to_user_error(error: Exception) -> UsageError | TableBroken:
    """Return the error without the traceback of a worker."""
    text = str(error)
    hansa_errors = HANSA_ERROR.findall(text)
    if hansa_errors:
        kind, message = hansa_errors[-1]
        return TableBroken(message) if kind == TableBroken.__name__ else UsageError(message)
    raised = PYTHON_ERROR.findall(text)
    if raised:  # in a Python worker: the first line only says that it failed
        return UsageError(raised[0])
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    named = SPARK_ERROR.match(first)
    return UsageError(named[2] if named else first)
