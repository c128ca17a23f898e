"""Converts exceptions of Spark to one-line errors for the user."""

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from hansa.errors import TableBroken, UsageError

SPARK_EXCEPTIONS = (PySparkException, Py4JJavaError)
"""PySpark does not convert exceptions of Delta."""

HANSA_ERROR = re.compile(r"hansa\.errors\.(\w+): (.+)")
"""An error of Hansa at the end of a worker's traceback."""

PYTHON_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of a Python traceback."""

SPARK_ERROR = re.compile(
    r"^(?:\[[A-Z0-9_.]+\] )?(?:Query \[id = .+?\] terminated with exception: )?"
    r"(.+?)(?: SQLSTATE: \w+.*)?$"
)
"""Spark's message, between its error class and the stream, and the code of the SQL standard. The
line in the statement, which may follow that, would be one too large."""

WORKER_IS_LATE = "Python worker failed to connect back"
"""Error of Spark if the machine is too busy to start Python within ten seconds."""


RULE_BROKEN = re.compile(
    r"CHECK constraint rule\d+ \(NOT \(\(?(?P<rule>.+?)\)? <=> false\)\) violated by row with"
    r" values:\s*(?P<values>(?:- .+\s*)+)"
)
KEY_MISSING = re.compile(r"NOT NULL constraint violated for column: (\S+?)\.?\s")
"""Errors of Delta when rows break the declaration of a table."""


def to_user_error(error: Exception) -> UsageError | TableBroken:
    """Return the error without the traceback of a worker."""
    text = str(error)
    if WORKER_IS_LATE in text:
        return UsageError(
            "the machine is too busy: Spark waited ten seconds for a Python process to start; run"
            " the command again later, it continues where it was"
        )
    broken = RULE_BROKEN.search(text)
    if broken:
        values = ", ".join(line.strip("- ") for line in broken["values"].strip().splitlines())
        return TableBroken(f"a row breaks the rule `{broken['rule']}`: {values}")
    missing = KEY_MISSING.search(text)
    if missing:
        return TableBroken(f"a row has no value in the key column `{missing[1]}`")
    hansa_errors = HANSA_ERROR.findall(text)
    if hansa_errors:
        kind, message = hansa_errors[-1]
        return TableBroken(message) if kind == TableBroken.__name__ else UsageError(message)
    raised = PYTHON_ERROR.findall(text)
    if raised:  # in a Python worker: the first line only says that it failed
        return UsageError(raised[0])
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    named = SPARK_ERROR.match(first)
    return UsageError(named[1] if named else first)
