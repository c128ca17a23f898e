"""What all tests share: how hypothesis searches, what counts towards coverage, a real broker."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hansa.errors import UsageError
from hansa.local.mosquitto import find_mosquitto

# Two busy cores make any deadline a lottery; pytest's timeout catches what hangs.
settings.register_profile("hansa", deadline=None, print_blob=True)
settings.load_profile("hansa")

PROTOCOL_TESTS = Path(__file__).parent / "protocol"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure coverage only in the protocol's own tests; it also keeps simulations fast."""
    for item in items:
        if not item.path.is_relative_to(PROTOCOL_TESTS):
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def mosquitto() -> str:
    """Where the broker is; tests that need one are skipped if there is none."""
    try:
        return find_mosquitto()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield path
    subprocess.run(["umount", str(path)], check=True)
