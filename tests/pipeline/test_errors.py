"""Exceptions of Spark as one sentence."""

import pytest

from hansa.pipeline.errors import to_user_error

IN_A_BATCH = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function.
Return Message: Traceback (most recent call last):
  File "job.py", line 1, in _keep
py4j.protocol.Py4JJavaError: An error occurred while calling o88.collectToPython.
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[UNRESOLVED_COLUMN] A column `x` is not there.\n'Project", "A column `x` is not there."),
        (IN_A_BATCH, "Py4JJavaError: An error occurred while calling o88.collectToPython."),
        ("x\nhansa.errors.UsageError: say what to change\nmore", "say what to change"),
        ("", "RuntimeError"),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] There is no table `x`. SQLSTATE: 42P01; line 2 pos 4",
            "There is no table `x`.",
        ),
        (
            "[STREAM_FAILED] Query [id = 1-2, runId = 3] terminated with exception: No space left."
            " SQLSTATE: XXKST",
            "No space left.",
        ),
        (
            "Query [id = 1-2, runId = 3] terminated with exception: Python worker failed to connect"
            " back. SQLSTATE: XXKST",
            "the machine is too busy: Spark waited ten seconds for a Python process to start; run"
            " the command again later, it continues where it was",
        ),
    ],
)
def test_error_is_reduced_to_the_relevant_line(text, message):
    assert str(to_user_error(RuntimeError(text))) == message
