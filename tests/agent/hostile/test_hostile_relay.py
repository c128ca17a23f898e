"""A member that relays between two honest agents alters, forges, replays and drops frames.

In a ring of five, agent 1 is on the best path from 0 to 2; the other path is one hop longer.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.hostile.raw_peer import counted, guaranteed_client, wait_counted
from tests.agent.live import Live, eventually

from hansa.compiled_core import PURE
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

ATTACKER, ORIGIN, RECEIVER = 1, 0, 2
COUNT = 20
SITE = Path(__file__).parent / "hostile_site"


@pytest.fixture(scope="module")
def running_federation(mosquitto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(LocalFederation(parse_topology("ring:5", 1), {}))
    attacks = tmp_path_factory.mktemp("hostile") / "attacks"
    attacks.write_text("")
    replaced = {"PYTHONPATH": str(SITE), "HOSTILE_FILE": str(attacks), PURE: "1"}
    live.nodes[ATTACKER].environment.update(replaced)
    with live:
        yield live


@pytest.fixture
def attack(live: Live) -> Iterator[Path]:
    """The file that names the attacks; empty again after a test."""
    file = Path(live.nodes[ATTACKER].environment["HOSTILE_FILE"])
    yield file
    file.write_text("")


def clients(live: Live, topic: str) -> tuple[GuaranteedClient, GuaranteedClient]:
    """A publisher at the origin and a subscriber whose interest is installed."""
    subscriber = guaranteed_client(live, RECEIVER).subscribe_qos2(topic)
    live.wait_installed(RECEIVER, topic)
    return guaranteed_client(live, ORIGIN), subscriber


def publish_all(publisher: GuaranteedClient, topic: str) -> list[bytes]:
    sent = [b"%d-%d" % (qos, number) for qos in (1, 2) for number in range(COUNT)]
    for qos in (1, 2):
        payloads = [each for each in sent if each.startswith(b"%d" % qos)]
        publisher.publish_guaranteed(qos, topic, *payloads)
    return sent


def test_altered_publications_are_dropped_and_repaired(live, attack):
    publisher, subscriber = clients(live, "hostile/alter")
    attack.write_text("alter")
    sent = publish_all(publisher, "hostile/alter")
    assert sorted(subscriber.read_until(len(sent))) == sorted(sent)
    wait_counted(live.nodes[RECEIVER], "altered publication")


def test_forged_and_replayed_frames_change_nothing(live, attack):
    attack.write_text("forge replay")
    before = [counted(live.nodes[place], "forged interest ack") for place in (ORIGIN, RECEIVER)]
    publisher, subscriber = clients(live, "hostile/forge")
    sent = publish_all(publisher, "hostile/forge")
    assert sorted(subscriber.read_until(len(sent))) == sorted(sent)
    wait_counted(live.nodes[ORIGIN], "forged unicast")
    wait_counted(live.nodes[ORIGIN], "replayed unicast")
    assert counted(live.nodes[RECEIVER], "forged interest ack") > before[1]


def test_dropped_frames_take_the_other_path(live, attack):
    publisher, subscriber = clients(live, "hostile/drop")
    attack.write_text("drop")
    sent = publish_all(publisher, "hostile/drop")
    assert sorted(subscriber.read_until(len(sent))) == sorted(sent)


def test_receiver_raises_an_alarm_while_publications_are_dropped(live, attack):
    publisher, subscriber = clients(live, "hostile/withhold")
    attack.write_text("drop")

    def is_raised() -> bool:
        publisher.publish_guaranteed(1, "hostile/withhold", b"x")
        subscriber.read_until(1)
        return "publications withheld" in live.nodes[RECEIVER].status()["alarms"]

    eventually(is_raised, "the alarm", patience=120.0)
