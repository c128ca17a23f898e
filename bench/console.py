"""Output of a benchmark: one line per result, as it is measured."""

import sys


def say(what: str, answer: str) -> None:
    """Print one result."""
    sys.stdout.write(f"  {what:<58} {answer}\n")
    sys.stdout.flush()
