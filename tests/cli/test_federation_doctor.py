"""`hansa doctor federation` with real brokers."""

import json

import pytest
from tests.agent.live import Live

from hansa.cli.main import main
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation
from hansa.testbed.mosquitto import Mosquitto


@pytest.fixture(scope="module")
def strained(mosquitto):
    """The first broker has short queues; the second agent keeps publications for a minute only."""
    made = LocalFederation(parse_topology("line:2", 0), {})
    short, other = made.nodes
    assert isinstance(short.broker, Mosquitto)
    short.broker.extra_lines = ("max_queued_messages 500", "max_inflight_messages 10")
    other.environment.update(
        HANSA_DELIVERY_RETENTION_SECONDS="60", HANSA_DELIVERY_RETENTION_BYTES=str(1 << 60)
    )
    with Live(made) as live:
        yield live


def test_short_queues_and_contradicting_settings_are_found(strained, capsys):
    short, other = strained.nodes
    assert main(["doctor", "federation", "--agent", other.admin_url, "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    texts = [(each["node"], each["text"].partition(":")[0]) for each in findings]
    assert (short.name, "its broker queues 500 messages for a client") in texts
    assert (
        short.name,
        "its broker accepts 10 publications in flight, fewer than [delivery] in_flight_max = 1000",
    ) in texts
    assert (
        other.name,
        "[delivery] retention_seconds = 60 is shorter than [protocol] interest_lease = 86400",
    ) in texts
    assert ("federation", "[delivery] retention_seconds differs") in texts
    [growth] = [each for each in findings if "its journals may grow by" in each["text"]]
    assert growth["node"] == other.name
    assert not [
        each for each in findings if "its broker" in each["text"] and each["node"] != short.name
    ]
