"""One live line of three agents for all tests of a file: attacks meet real agents and brokers.

The agents have no certificates, so the raw peer stands for a member that misbehaves.
"""

from collections.abc import Iterator

import pytest
from tests.agent.live import Live

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation

PLAIN_LINKS = LinkProfile(is_secure=False)


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("line:3", 1), {}, link_profile=PLAIN_LINKS)) as live:
        yield live


@pytest.fixture
def live(running_federation: Live) -> Iterator[Live]:
    """The federation; its clients are closed after the test."""
    yield running_federation
    running_federation.hang_up()
