"""What all tests share: how hypothesis searches, what counts towards coverage, a real broker."""

import itertools
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from hansa.errors import UsageError
from hansa.local import mosquitto as local_mosquitto
from hansa.local.mosquitto import PORTS, find_mosquitto

# Two busy cores make any deadline a lottery; pytest's timeout catches what hangs.
settings.register_profile("hansa", deadline=None, print_blob=True)
settings.load_profile("hansa")

HERE = Path(__file__).parent
PROTOCOL_TESTS = HERE / "protocol"
LONGEST_FIRST = ("pipeline", "chaos", "agent", "manager", "cli", "simulator")
"""Folders whose tests take longest: what comes last should be short, or one process waits."""

SHARING = ("tests/agent/as_one/", "tests/pipeline/")


def pytest_configure() -> None:
    """Give each process of a run ports of its own: one that is free stays so until it is used."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = PORTS[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    chosen = itertools.cycle(random.sample(ports, len(ports)))
    local_mosquitto._next_ports = chosen  # noqa: SLF001  as in its own tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure coverage only in the protocol's own tests; it also keeps simulations fast."""
    for item in items:
        if not item.path.is_relative_to(PROTOCOL_TESTS):
            item.add_marker("no_cover")
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(HERE).parts[0]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


class ByFile(LoadScopeScheduling):
    """Keeps tests that share something in one process, so that it is made once: those of a file a
    federation, those of some folders a broker to compare with, or a JVM."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        return next((folder for folder in SHARING if path.startswith(folder)), path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Distribute tests like this."""
    return ByFile(config, log)


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
