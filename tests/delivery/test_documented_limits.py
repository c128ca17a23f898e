"""Durations that documents state are those of the code."""

from pathlib import Path

import pytest

from hansa.delivery.core import CLONE_CHECK_ALONE_S, CLONE_CHECK_S
from hansa.delivery.dedup.selection import OVERLAP_WAIT_S
from hansa.delivery.group_commit import RETRY_S
from hansa.delivery.poison_quarantine import QUARANTINE_S
from hansa.delivery.quota_backoff import BACKOFF_MAX_S, BACKOFF_MIN_S

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            "delivery.md",
            f"after {BACKOFF_MIN_S:g} s, then after pauses that double up to {BACKOFF_MAX_S:g} s",
        ),
        ("delivery.md", "after an hour" if QUARANTINE_S == 3600 else "unknown"),
        ("delivery.md", f"is durable ({CLONE_CHECK_S:g} s, or {CLONE_CHECK_ALONE_S:g} s"),
        ("how-to/troubleshoot.md", f"killed within {OVERLAP_WAIT_S:g} s after it"),
        (
            "how-to/troubleshoot.md",
            "QoS 0 continues. It retries every " + ("second" if RETRY_S == 1 else "unknown"),
        ),
    ],
    ids=["quota back-off", "quarantine", "new epoch", "overlap copy", "full disk"],
)
def test_documented_duration_is_that_of_the_code(document, words):
    text = " ".join((DOCS / document).read_text(encoding="utf-8").split())
    assert words in text
