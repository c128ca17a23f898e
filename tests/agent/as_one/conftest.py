"""Four brokers in a line with one agent each, and a single broker as the reference."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live
from tests.agent.strategies import EVERY, SETTING

from hansa.protocol.settings import PACKET_BYTES_MAX
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation
from hansa.testbed.mosquitto import Mosquitto, free_port

ORACLE = "alone"
PLACES = {"same": 0, "one hop": 1, "three hops": 3}
"""Where a subscriber is, as seen by a publisher at broker 0."""


class SideBySide(Live):
    """A federation and a reference broker outside it."""

    def __init__(self, federation: LocalFederation, oracle: Mosquitto) -> None:
        super().__init__(federation)
        self.oracle = oracle

    def start(self) -> None:
        self.run(self.oracle.start())
        super().start()

    def at(self, place: str, **options: Any) -> GuaranteedClient:
        """Return a client at a place of the line or at the reference broker."""
        if place != ORACLE:
            return self.client_of(GuaranteedClient, PLACES[place], **options)
        made = GuaranteedClient(self.oracle.port, **options)
        self._clients.append(made)
        return made

    def close(self) -> None:
        self.run(self.oracle.stop())
        super().close()


@pytest.fixture(scope="session", params=EVERY)
def running_line(
    request: pytest.FixtureRequest, mosquitto: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    large = {"HANSA_PROTOCOL_PACKET_BYTES_MAX": str(PACKET_BYTES_MAX)}
    settings = {SETTING: request.param, **large}
    oracle = Mosquitto(tmp_path_factory.mktemp("oracle"), free_port())
    federation = LocalFederation(
        parse_topology("line:4", 1), settings, link_profile=LinkProfile(can_cut=True)
    )
    with SideBySide(federation, oracle) as live:
        yield live


@pytest.fixture
def line(running_line: SideBySide) -> Iterator[SideBySide]:
    """The line and the reference broker; each test must restore what it breaks."""
    running_line.wait_converged()
    yield running_line
    running_line.hang_up()
