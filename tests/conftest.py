"""What all tests share: how hypothesis searches, and what counts towards coverage."""

from pathlib import Path

import pytest
from hypothesis import settings

# Two busy cores make any deadline a lottery; pytest's timeout catches what hangs.
settings.register_profile("hansa", deadline=None, print_blob=True)
settings.load_profile("hansa")

PROTOCOL_TESTS = Path(__file__).parent / "protocol"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure coverage only in the protocol's own tests; it also keeps simulations fast."""
    for item in items:
        if not item.path.is_relative_to(PROTOCOL_TESTS):
            item.add_marker("no_cover")
