"""One live ring of three agents for all tests that do not break it; with --long, one per
strategy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.browser import Browser
from tests.agent.live import Live
from tests.agent.process import Scene
from tests.agent.strategies import EVERY, SETTING

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation


@pytest.fixture(scope="session", params=EVERY)
def running_ring(request: pytest.FixtureRequest, mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("ring:3", 1), {SETTING: request.param})) as live:
        yield live


@pytest.fixture
def ring(running_ring: Live) -> Iterator[Live]:
    """The shared ring; each test must restore what it breaks."""
    running_ring.wait_converged()
    yield running_ring
    running_ring.hang_up()


@pytest.fixture
def scene(mosquitto: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    made = Browser(chromium, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()
