"""How a benchmark says what it found: one line per answer, as it comes."""

import sys


def say(what: str, answer: str) -> None:
    """Print one answer."""
    sys.stdout.write(f"  {what:<58} {answer}\n")
    sys.stdout.flush()
