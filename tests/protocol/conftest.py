"""Shared by the protocol tests: the option that rewrites golden transcripts."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that turns a comparison into a recording."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the golden transcripts anew, then read the diff",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    # Without a path on the command line this file is read too late to add an option.
    return bool(request.config.getoption("--rewrite", default=False))
