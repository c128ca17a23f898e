"""One live line of three agents for all tests of a file: attacks meet real agents and brokers."""

from collections.abc import Iterator

import pytest
from tests.agent.live import Live

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    live = Live(LocalFederation(parse_topology("line:3", 1), {}))
    try:
        live.start()
        yield live
    finally:
        live.close()


@pytest.fixture
def live(running_federation: Live) -> Iterator[Live]:
    """The federation; its clients are closed after the test."""
    yield running_federation
    running_federation.hang_up()
